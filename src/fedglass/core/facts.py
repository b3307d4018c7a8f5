"""Facts that an adversary may know in addition to the message: parts say which they need, views which are known."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from fedglass.core.errors import UsageError

_DIRECTION = "attack by direction alone, with inverting_gradients or coarse_stage"
_STEPS = (
    "set adversary.knows_training or adversary.knows_steps = true (for a recording, give recording.training, or "
    "recording.lr and recording.steps)"
)


class Fact(enum.Enum):
    """Something that a part of an attack cannot do without: its name, what it is, and what to do where it is not known.

    >>> Fact.LABELS.oracle, Fact.STEPS.oracle, Fact("steps").words
    (True, False, 'the number of local steps')
    """

    _value_: str
    words: str
    remedy: str

    def __new__(cls, name: str, words: str = "", remedy: str = "") -> Fact:
        fact = object.__new__(cls)
        fact._value_, fact.words, fact.remedy = name, words, remedy
        return fact

    TRAINING = (
        "training",
        "the clients' learning rate, epochs and batch size",
        "set adversary.knows_training = true (for a recording, give recording.training), or attack with "
        "inverting_gradients, or with sme or dlfa_unknown_epochs where adversary.knows_steps = true; clients that "
        "train differently have no training in common, look at one of them",
    )
    STEPS = (
        "steps",
        "the number of local steps",
        f'{_STEPS}, attack with inverting_gradients, or choose labels = "minimum_rule"',
    )
    LR = (
        "lr",
        "the clients' learning rate",
        f'{_STEPS}, attack with inverting_gradients, or choose labels = "minimum_rule"',
    )
    SIZE = (
        "size",
        "the size of the gradients behind the message",
        f"{_STEPS}; where the clients' training hides it, as Adam or clipping does, simulate it with dlfa; or "
        f'{_DIRECTION}, and labels = "minimum_rule"',
    )
    """How far an update travels along a constant gradient, and so the size of the gradient behind the message."""
    EQUAL_CLIENTS = (
        "equal_clients",
        "an aggregate of clients with equally many examples",
        "correct federation.examples or recording.clients, or attack with sme or inverting_gradients",
    )
    CLIENT_SIZES = (
        "client_sizes",
        "the number of examples of each client of an aggregate",
        "set adversary.knows_examples = true (for a recording, let the recorder tell examples), or attack with sme or "
        "inverting_gradients",
    )
    LABELS = (
        "labels",
        "the true labels",
        "set adversary.knows_labels = true, or choose labels that are recovered from the message",
    )
    BATCH_LABELS = (
        "batch_labels",
        "the true labels of each local batch",
        "set adversary.knows_batch_labels and adversary.knows_training = true (of an aggregate they cannot be told), "
        'or adversary.knows_labels = true and labels = "oracle"',
    )
    OWN = (
        "own",
        "the adversary's own examples and update",
        'set adversary.view = "peer"',
    )
    """The adversary's own examples and update, which are a part of the message."""
    OWN_SHARE = (
        "own_share",
        "what the adversary's own update weighs in the message",
        'set adversary.view = "peer" and adversary.knows_examples = true, with the rule "mean"',
    )
    OWN_EXAMPLES = (
        "own_examples",
        "examples of the adversary's own",
        'set adversary.view = "peer", or name a decoder that was trained on public images',
    )
    STATISTICS = (
        "statistics",
        "running statistics of BatchNorm layers that the clients' training has moved",
        'give recording.buffers_after, where the clients train with batch_norm = "batch"',
    )
    """Running statistics of BatchNorm layers that the training has moved."""
    EXAMPLES = (
        "examples",
        "the number of examples behind the message",
        "set adversary.knows_examples = true (for a bundle that does not tell it, give recording.examples), or search "
        "for it with curious_client_search",
    )
    LOSS = (
        "loss",
        "the loss that the clients train on",
        "name it as training.loss, one of `fedglass list losses`, or attack with exact, which needs none",
    )
    GROUPS = (
        "groups",
        "the true labels of each client",
        "set adversary.knows_labels and adversary.knows_examples = true, or attack with curious_client",
    )
    EYE = (
        "eye",
        "an eye that has seen the private images",
        'refine with "mde", which stops by a rule',
    )

    @property
    def oracle(self) -> bool:
        """Return whether no real adversary has the fact."""
        return self in (Fact.LABELS, Fact.BATCH_LABELS, Fact.GROUPS, Fact.EYE)

    def __repr__(self) -> str:
        return f"Fact.{self.name}"


def refusal(who: str, missing: Iterable[Fact]) -> UsageError:
    """The one wording in which an attack is refused for want of a fact.

    >>> print(refusal("OracleLabels", [Fact.LABELS]))
    OracleLabels needs the true labels, which the adversary does not have: set adversary.knows_labels = true, or ...
    """
    first = min(missing, key=list(Fact).index)
    return UsageError(f"{who} needs {first.words}, which the adversary does not have: {first.remedy}.")
