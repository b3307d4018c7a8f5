"""How a recorded client trained, from the facts that a bundle tells and those that its messages tell by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fedglass.bundle.defended import State
from fedglass.bundle.facts import FactSheet, best
from fedglass.bundle.measured import change, facts_with_measured
from fedglass.bundle.names import Names
from fedglass.bundle.reader import Bundle
from fedglass.core.errors import FedglassError
from fedglass.core.optimisers import OPTIMISERS, Optimiser
from fedglass.core.statistics import MEAN
from fedglass.core.types import BatchNorm, Training
from fedglass.rounds.transcript import Participant

PLAIN_OPTIONS = {
    "amsgrad": (False,),
    "maximize": (False,),
    "foreach": (None, False, True),
    "fused": (None, False, True),
    "capturable": (False, True),
    "differentiable": (False, True),
    "decoupled_weight_decay": (False, True),
}
"""Of torch's optimisers: options that do not change the rule at these values."""

CROSS_ENTROPY = "cross_entropy"
"""The mean of it over a batch is what fedglass's own training minimises."""


def participant_of(
    bundle: Bundle, client: str, index: int, counts: Mapping[str, int], names: Names | None = None
) -> Participant:
    """A client with all that is known of its training; `counts` are those that the owners of the data tell."""
    moved = change(bundle, client, index)
    if moved is not None and names is not None:
        moved = names.applied(moved)
    told = facts_with_measured(bundle, client, index, moved)
    examples, counted = _examples(told, counts.get(client))
    normalises = any(name.endswith(MEAN) for name in moved or {}) or best(told, "batch_norm") is not None
    training = training_of(told, examples if counted else None, normalises)
    weight = best(told, "weight")
    whole = weight is not None and float(weight).is_integer()
    return Participant(
        client,
        examples,
        training,
        best(told, "lr") if training is None and _optimiser(told) == OPTIMISERS["sgd"]() else None,
        (best(told, "steps") or None) if training is None else None,
        int(weight) if whole and int(weight) != examples else None,
        counted=counted,
        untrained=tuple(_untrained(told, moved or {}, names)),
    )


def _untrained(told: FactSheet, moved: State, names: Names | None) -> Iterator[str]:
    """What is told not to be trained, and has not moved either."""
    for said in best(told, "untrained", []):
        name = said if names is None else names.model.get(said, said)
        if name in moved and not bool(moved[name].any()):
            yield name


def _examples(told: FactSheet, owned: int | None) -> tuple[int, bool]:
    """How many there are, as the federation or their owner says or the batches tell; or the least there can be."""
    said = best(told, "examples")
    if isinstance(said, int):
        return said, True
    if owned is not None:
        return owned, True
    sizes, epochs = best(told, "batch_sizes"), best(told, "epochs")
    if sizes is not None and (len(sizes) == 1 or (epochs is not None and sum(sizes) % epochs == 0)):
        return sum(sizes) // (epochs or 1) or 1, True
    return (said[0] if isinstance(said, list) else 1), False


def training_of(told: FactSheet, examples: int | None, normalises: bool) -> Training | None:
    """The training that the facts describe; None where they do not, or where fedglass has no such training."""
    lr, optimiser = best(told, "lr"), _optimiser(told)
    if lr is None or optimiser is None or best(told, "loss", CROSS_ENTROPY) != CROSS_ENTROPY:
        return None
    batch = _batch_size(told, examples)
    epochs, steps = best(told, "epochs"), best(told, "steps") or None
    if batch is not None and examples is not None and batch >= examples:
        batch = None
    elif batch is None:
        return None  # nobody tells, or the sizes are none that an epoch has
    if steps is not None and examples is not None:
        each = 1 if batch is None else -(-examples // batch)
        epochs, steps = (steps // each, None) if steps % each == 0 else (1, steps)
    elif steps is not None:
        epochs = 1
    if epochs is None:
        return None
    try:
        return Training(
            lr,
            epochs if steps is None else 1,
            batch,
            _batch_norm(told, normalises),
            optimiser,
            best(told, "shuffle", True),
            steps,
            best(told, "clip"),
            best(told, "label_smoothing", 0.0),
        )
    except FedglassError:
        return None


def _batch_size(told: FactSheet, examples: int | None) -> int | None:
    """The one size of all batches, but for the last of an epoch."""
    sizes: Sequence[int] | None = best(told, "batch_sizes")
    if sizes is None:
        size: int | None = best(told, "batch_size")
        return size
    largest = max(sizes)
    each = 1 if examples is None else -(-examples // largest)
    odd = [size for i, size in enumerate(sizes) if size != largest and (i + 1) % each != 0]
    return None if odd else largest


def _batch_norm(told: FactSheet, normalises: bool) -> BatchNorm:
    """A network that has such layers trains them by the batch, unless somebody says otherwise."""
    said = best(told, "batch_norm")
    return BatchNorm.FROZEN if not normalises or said in ("frozen", "none") else BatchNorm.BATCH


def _optimiser(told: FactSheet) -> Optimiser | None:
    """The optimiser with its options; None where it is another, or has options that change the rule."""
    name = str(best(told, "optimiser", "")).lower()
    if name not in OPTIMISERS:
        return None
    made, options = OPTIMISERS[name], dict(best(told, "options", {}))
    options.pop("lr", None)
    for option, plain in PLAIN_OPTIONS.items():
        if option in options and options.pop(option) not in plain:
            return None
    try:
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
        found: Optimiser = made(**values)
    except (FedglassError, TypeError):
        return None
    return found
