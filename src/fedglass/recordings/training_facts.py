"""From recorded facts to a `Training`: the one conversion, used by audits of bundles and by the guard.

A recorder reads facts off the running client (`fedglass.recorders.read`), or a user declares them. A `Training` is
what fedglass can replay. Facts that describe no such training give None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedglass.core.errors import FedglassError
from fedglass.core.optimisers import OPTIMISERS, Optimiser
from fedglass.core.tensors import MEAN
from fedglass.core.types import BatchNorm, Training
from fedglass.federation.transcript import Participant
from fedglass.fl.loss.targets import loss_fields, named_loss
from fedglass.models.names import Names
from fedglass.recordings.format import OBJECTIVE, FactSheet, preferred
from fedglass.recordings.observed import facts_with_observed, update_of
from fedglass.recordings.reader import Bundle

HARMLESS_OPTIONS = {
    "amsgrad": (False,),
    "maximize": (False,),
    "foreach": (None, False, True),
    "fused": (None, False, True),
    "capturable": (False, True),
    "differentiable": (False, True),
}
"""Options of torch's optimisers that do not change the rule at these values."""
ANNOTATIONS = ("lr", "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "param_names", "name")
"""Entries of a parameter group that no step reads: schedulers and named parameters leave them there."""
DECOUPLED = "decoupled_weight_decay"
"""The option of torch that makes AdamW of Adam."""
CROSS_ENTROPY = "cross_entropy"
"""The loss of fedglass's own training: its mean over a batch."""


def participant_of(
    bundle: Bundle, client: str, index: int, counts: Mapping[str, int], names: Names | None = None
) -> Participant:
    """Return a client of a round with all that is known of its training.

    Args:
        counts: How many examples clients have, as the owners of the data declare.
        names: From the names of the message to those of the model.
    """
    update = update_of(bundle, client, index)
    if update is not None and names is not None:
        update = names.applied(update)
    facts = facts_with_observed(bundle, client, index, update)
    examples, counted = _examples(facts, counts.get(client))
    has_batch_norm = any(name.endswith(MEAN) for name in update or {}) or preferred(facts, "batch_norm") is not None
    training = training_of(facts, examples if counted else None, has_batch_norm)
    weight = preferred(facts, "weight")
    is_whole = weight is not None and float(weight).is_integer()
    declared = preferred(facts, "untrained", [])
    untrained = declared if names is None else [names.model.get(name, name) for name in declared]
    return Participant(
        client,
        examples,
        training,
        preferred(facts, "lr") if training is None and optimiser_of(facts) == OPTIMISERS["sgd"]() else None,
        (preferred(facts, "steps") or None) if training is None else None,
        int(weight) if is_whole and int(weight) != examples else None,
        counted=counted,
        # Only what has not changed either.
        untrained=tuple(n for n in untrained if update is not None and n in update and not bool(update[n].any())),
        loss=(loss_fact(facts) or {}).get("loss") if training is None else None,
    )


def _examples(facts: FactSheet, declared_by_owner: int | None) -> tuple[int, bool]:
    """Return the number of examples and True, or the least there can be and False.

    The federation's count comes first, then the owner's, then the sum of the batches of an epoch.
    """
    count = preferred(facts, "examples")
    if isinstance(count, int):
        return count, True
    if declared_by_owner is not None:
        return declared_by_owner, True
    sizes, epochs = preferred(facts, "batch_sizes"), preferred(facts, "epochs")
    if sizes is not None and (len(sizes) == 1 or (epochs is not None and sum(sizes) % epochs == 0)):
        return sum(sizes) // (epochs or 1) or 1, True
    return (count[0] if isinstance(count, list) else 1), False


def training_of(facts: FactSheet, examples: int | None, has_batch_norm: bool) -> Training | None:
    """Return the training that the facts describe; None if they do not, or if fedglass has no such training."""
    batch_size = _batch_size(facts, examples)
    epochs, steps = preferred(facts, "epochs"), preferred(facts, "steps") or None
    if batch_size is not None and examples is not None and batch_size >= examples:
        batch_size = None
    elif batch_size is None:
        return None  # not recorded, or the sizes are not those of an epoch
    if steps is not None and examples is not None:
        per_epoch = 1 if batch_size is None else -(-examples // batch_size)
        epochs, steps = (steps // per_epoch, None) if steps % per_epoch == 0 else (1, steps)
    elif steps is not None:
        epochs = 1
    if epochs is None:
        return None
    return _training(facts, batch_size, epochs, steps, has_batch_norm, preferred(facts, "shuffle", True))


def training_of_batches(facts: FactSheet, batch_sizes: Sequence[int], examples: int) -> Training | None:
    """Return the training of batches that are known one by one, as a guard has them; None as of `training_of`.

    Its local steps are counted instead of epochs: a replay takes the batches themselves, in their order.
    """
    size, steps = batch_sizes[0], len(batch_sizes)
    full_batch = size >= examples and set(batch_sizes) == {size}
    return _training(facts, None if full_batch else size, 1, None if full_batch and steps == 1 else steps)


def _training(
    facts: FactSheet,
    batch_size: int | None,
    epochs: int,
    steps: int | None,
    has_batch_norm: bool = True,
    shuffle: bool = True,
) -> Training | None:
    lr, optimiser = preferred(facts, "lr"), optimiser_of(facts)
    objective = loss_fact(facts)
    if lr is None or optimiser is None or objective is None:
        return None
    # Layers normalise by the batch, unless there are none or a fact says otherwise.
    frozen = not has_batch_norm or preferred(facts, "batch_norm") in ("frozen", "none")
    mode = BatchNorm.FROZEN if frozen else BatchNorm.BATCH
    clip = preferred(facts, "clip")
    try:
        return Training(lr, epochs, batch_size, mode, optimiser, shuffle, steps, clip, **objective)
    except FedglassError:
        return None


def loss_fact(facts: FactSheet) -> dict[str, Any] | None:
    """Return the fields of a `Training` for the recorded loss; None if fedglass has no such loss.

    Only built-in losses are made: a bundle runs no code.

    >>> loss_fact({"objective": {"read": {"name": "mse_loss", "options": {"reduction": "sum"}}}})
    {'loss': SquaredLoss(reduction='sum')}
    >>> loss_fact({"loss": {"read": "100 x cross_entropy"}}) is None
    True
    """
    smoothing, name = preferred(facts, "label_smoothing", 0.0), preferred(facts, "loss", CROSS_ENTROPY)
    part = preferred(facts, OBJECTIVE)
    if part is None and name == CROSS_ENTROPY:
        return {"label_smoothing": smoothing}
    named = {"name": name} if part is None else dict(part)
    options = {key: tuple(v) if isinstance(v, list) else v for key, v in dict(named.get("options") or {}).items()}
    try:
        return loss_fields(named_loss(str(named["name"]), options, own=False))
    except (FedglassError, TypeError, ValueError):
        return None


def _batch_size(facts: FactSheet, examples: int | None) -> int | None:
    """Return the one size of all batches; the last batch of an epoch may have fewer examples."""
    sizes: Sequence[int] | None = preferred(facts, "batch_sizes")
    if sizes is None:
        size: int | None = preferred(facts, "batch_size")
        return size
    largest = max(sizes)
    if examples is None:
        return largest
    per_epoch = -(-examples // largest)
    expected = (min(largest, examples - i % per_epoch * largest) for i in range(len(sizes)))
    return largest if list(sizes) == list(expected) else None


def optimiser_of(facts: FactSheet) -> Optimiser | None:
    """Return the optimiser with its options; None if it is another, or has options that change its rule.

    >>> decoupled = {"weight_decay": 0.1, "decoupled_weight_decay": True}
    >>> optimiser_of({"optimiser": {"read": "Adam"}, "options": {"read": decoupled}})
    AdamW(betas=(0.9, 0.999), eps=1e-08, weight_decay=0.1)
    """
    name, options = str(preferred(facts, "optimiser", "")).lower(), dict(preferred(facts, "options", {}))
    if name in ("adam", "adamw") and DECOUPLED in options:
        named = "adamw" if options.pop(DECOUPLED) else "adam"
        if named != name:  # the class keeps its own default of the decay
            options.setdefault("weight_decay", {"adam": 0.0, "adamw": 0.01}[name])
        name = named
    if name not in OPTIMISERS:
        return None
    for option in ANNOTATIONS:
        options.pop(option, None)
    for option, harmless in HARMLESS_OPTIONS.items():
        if option in options and options.pop(option) not in harmless:
            return None
    try:
        return OPTIMISERS[name](**{key: tuple(v) if isinstance(v, list) else v for key, v in options.items()})
    except (FedglassError, TypeError):
        return None
