"""Facts that an adversary may know in addition to the message: parts say which they need, views which are known."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from fedglass.core.errors import UsageError


class Fact(enum.Enum):
    """Something that a part of an attack cannot do without.

    >>> Fact.LABELS.oracle, Fact.STEPS.oracle
    (True, False)
    """

    TRAINING = "training"
    """How the clients train: optimiser, learning rate, epochs and batch size."""
    STEPS = "steps"
    """The number of local steps."""
    LR = "lr"
    """The clients' learning rate."""
    SIZE = "size"
    """How far an update travels along a constant gradient, and so the size of the gradient behind the message."""
    EQUAL_CLIENTS = "equal_clients"
    """That all clients behind the message have equally many examples."""
    CLIENT_SIZES = "client_sizes"
    """How many examples each client behind the message has."""
    LABELS = "labels"
    """ORACLE: the true labels."""
    BATCH_LABELS = "batch_labels"
    """ORACLE: the true labels of each local batch."""
    OWN = "own"
    """The adversary's own examples and update, which are a part of the message."""
    OWN_SHARE = "own_share"
    """What the adversary's own update weighs in the message."""
    OWN_EXAMPLES = "own_examples"
    """Examples of the adversary's own, whether its update is in the message or not."""
    STATISTICS = "statistics"
    """Running statistics of BatchNorm layers that the training has moved."""
    EXAMPLES = "examples"
    """How many examples stand behind the message."""
    LOSS = "loss"
    """The loss that the clients train on."""
    GROUPS = "groups"
    """ORACLE: which of the true labels belong to which client."""
    EYE = "eye"
    """ORACLE: an eye that has seen the private images, and chooses by them."""

    @property
    def oracle(self) -> bool:
        """Return whether no real adversary has the fact."""
        return self in (Fact.LABELS, Fact.BATCH_LABELS, Fact.GROUPS, Fact.EYE)

    @property
    def words(self) -> str:
        return _WORDS[self][0]

    @property
    def remedy(self) -> str:
        """Return what to do where the fact is not known."""
        return _WORDS[self][1]

    def __repr__(self) -> str:
        return f"Fact.{self.name}"


_DIRECTION = "attack by direction alone, with inverting_gradients or coarse_stage"
_STEPS = (
    "set adversary.knows_training or adversary.knows_steps = true (for a recording, give recording.training, or "
    "recording.lr and recording.steps)"
)
_WORDS = {
    Fact.TRAINING: (
        "the clients' learning rate, epochs and batch size",
        "set adversary.knows_training = true (for a recording, give recording.training), or attack with "
        "inverting_gradients, or with sme or dlfa_unknown_epochs where adversary.knows_steps = true; clients that "
        "train differently have no training in common, look at one of them",
    ),
    Fact.STEPS: (
        "the number of local steps",
        f'{_STEPS}, attack with inverting_gradients, or choose labels = "minimum_rule"',
    ),
    Fact.LR: (
        "the clients' learning rate",
        f'{_STEPS}, attack with inverting_gradients, or choose labels = "minimum_rule"',
    ),
    Fact.SIZE: (
        "the size of the gradients behind the message",
        f"{_STEPS}; where the clients' training hides it, as Adam or clipping does, simulate it with dlfa; or "
        f'{_DIRECTION}, and labels = "minimum_rule"',
    ),
    Fact.EQUAL_CLIENTS: (
        "an aggregate of clients with equally many examples",
        "correct federation.examples or recording.clients, or attack with sme or inverting_gradients",
    ),
    Fact.CLIENT_SIZES: (
        "the number of examples of each client of an aggregate",
        "set adversary.knows_examples = true (for a recording, let the recorder tell examples), or attack with sme or "
        "inverting_gradients",
    ),
    Fact.LABELS: (
        "the true labels",
        "set adversary.knows_labels = true, or choose labels that are recovered from the message",
    ),
    Fact.BATCH_LABELS: (
        "the true labels of each local batch",
        "set adversary.knows_batch_labels and adversary.knows_training = true (of an aggregate they cannot be told), "
        'or adversary.knows_labels = true and labels = "oracle"',
    ),
    Fact.OWN: (
        "the adversary's own examples and update",
        'set adversary.view = "peer"',
    ),
    Fact.OWN_SHARE: (
        "what the adversary's own update weighs in the message",
        'set adversary.view = "peer" and adversary.knows_examples = true, with the rule "mean"',
    ),
    Fact.OWN_EXAMPLES: (
        "examples of the adversary's own",
        'set adversary.view = "peer", or name a decoder that was trained on public images',
    ),
    Fact.STATISTICS: (
        "running statistics of BatchNorm layers that the clients' training has moved",
        'give recording.buffers_after, where the clients train with batch_norm = "batch"',
    ),
    Fact.EXAMPLES: (
        "the number of examples behind the message",
        "set adversary.knows_examples = true (for a bundle that does not tell it, give recording.examples), or search "
        "for it with curious_client_search",
    ),
    Fact.LOSS: (
        "the loss that the clients train on",
        "name it as training.loss, one of `fedglass list losses`, or attack with exact, which needs none",
    ),
    Fact.GROUPS: (
        "the true labels of each client",
        "set adversary.knows_labels and adversary.knows_examples = true, or attack with curious_client",
    ),
    Fact.EYE: (
        "an eye that has seen the private images",
        'refine with "mde", which stops by a rule',
    ),
}


def refusal(who: str, missing: Iterable[Fact]) -> UsageError:
    """The one wording in which an attack is refused for want of a fact.

    >>> print(refusal("OracleLabels", [Fact.LABELS]))
    OracleLabels needs the true labels, which the adversary does not have: set adversary.knows_labels = true, or ...
    """
    first = min(missing, key=list(Fact).index)
    return UsageError(f"{who} needs {first.words}, which the adversary does not have: {first.remedy}.")
