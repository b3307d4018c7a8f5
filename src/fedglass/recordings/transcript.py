"""How a recorded client trained, from the facts that a bundle tells and those that its messages tell by themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from fedglass.core.errors import DataError, FedglassError, UpdateError
from fedglass.core.optimisers import OPTIMISERS, Optimiser
from fedglass.core.tensors import COUNTER, MEAN, Params, add, buffers_of, subtract, weights_of
from fedglass.core.types import BatchNorm, Training
from fedglass.federation.transcript import MEAN_RULE, UNKNOWN_RULE, Message, Participant, Round, SentModel
from fedglass.models.fixed import exceeds_precision
from fedglass.models.names import Names, names_of
from fedglass.recordings.format import FactSheet, Held, MessageFacts, RoundFacts, best, sheet
from fedglass.recordings.observed import MEANS, State, change, facts_with_measured
from fedglass.recordings.reader import Bundle

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
    """The one size of all batches, but for the last of an epoch, which has what is left of the examples."""
    sizes: Sequence[int] | None = best(told, "batch_sizes")
    if sizes is None:
        size: int | None = best(told, "batch_size")
        return size
    largest = max(sizes)
    if examples is None:
        return largest
    each = -(-examples // largest)
    return largest if all(size == min(largest, examples - i % each * largest) for i, size in enumerate(sizes)) else None


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


# From a bundle to a transcript: what was recorded, under the names and in the types of the model.


SOMEBODY = "all clients"
"""Who is behind an aggregate of which nobody has said whose it is."""


@dataclass(frozen=True, eq=False)
class Reading:
    """A bundle beside the model that it was recorded from."""

    bundle: Bundle
    model: nn.Module
    counts: Mapping[str, int]
    """How many examples each client has, where their owners tell."""
    rest: Params = field(default_factory=dict)
    """Weights that never travel, such as those of a pretrained network of which a part is trained."""

    def round(self, index: int, clients: Collection[str] | None = None) -> Round:
        """One round; of the messages, those of these clients."""
        past = self.bundle.rounds[index]
        present = [message for message in past.messages if message.absent is None]
        begun = past.sent or next((message.sent for message in present if message.sent is not None), None)
        if begun is None:
            raise DataError(
                f"{self.bundle.folder}: round {index} was recorded without the model that was sent: choose another."
            )
        # Where every client was sent its own, the first stands for the round's, to which nothing adds then.
        common = self._start(begun)
        messages = [
            self._message(message, common, begun)
            for message in present
            if message.received is not None and (clients is None or message.client in clients)
        ]
        step, buffers_after, kept = self._aggregate(past, common)
        people = tuple(self._participant(message, index) for message in present)
        return Round(
            common.before,
            common.buffers,
            people or (Participant(SOMEBODY, 1, counted=False),),
            tuple(messages),
            step,
            buffers_after,
            kept if people else (SOMEBODY,),
        )

    def _participant(self, message: MessageFacts, index: int) -> Participant:
        """What did not come back is not trained as far as anybody can see."""
        names = None if message.received is None else self._names(message.received)
        found = participant_of(self.bundle, message.client, index, self.counts, names)
        lacking = () if names is None else names.lacking(self.model)
        known = dict(self.model.named_parameters())  # a model's own buffers are trained by nobody
        untrained = dict.fromkeys((*(name for name in found.untrained if name in known), *lacking))
        return replace(found, untrained=tuple(untrained))

    def _names(self, held: Held) -> Names:
        sent = [(array.name, tuple(array.shape)) for array in held.arrays]
        return names_of(sent, self.model, str(self.bundle.folder / held.file))

    def _state(self, held: Held, rest: Params) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Parameters and buffers in the model's own types; `rest` are those that need not have travelled."""
        found = {**rest, **self._names(held).applied(self.bundle.arrays(held))}
        where, weights, buffers = self.bundle.folder / held.file, weights_of(self.model), buffers_of(self.model)
        missing = [name for name in weights if name not in found]
        if missing:
            raise UpdateError(
                f"{where} lacks the model's parameter {missing[0]!r} ({len(missing)} in all): name the model that "
                "was trained, record its whole state or, where a part of it is never sent, name a file that has it "
                "with --weights or recording.weights."
            )
        for name, tensor in found.items():
            if name.endswith(COUNTER):
                continue
            if name in weights and not tensor.is_floating_point():
                raise UpdateError(f"{where}: {name!r} must hold floats, got {tensor.dtype}: record the weights.")
            if not bool(torch.isfinite(tensor.double()).all()):
                raise UpdateError(
                    f"{where}: {name!r} holds NaN or infinity: the training diverged; choose another round or client."
                )
        return (
            {name: found[name].to(like.dtype) for name, like in weights.items()},
            {name: found[name].to(like.dtype) for name, like in buffers.items() if name in found},
        )

    def _start(self, held: Held) -> SentModel:
        before, buffers = self._state(held, self.rest)
        self._check_buffers(buffers, held)
        return SentModel(before, buffers)

    def _check_buffers(self, buffers: Params, held: Held) -> None:
        needed = [
            n for n, b in buffers_of(self.model).items() if b.is_floating_point() and n in self.model.state_dict()
        ]
        lacking = [name for name in needed if name not in buffers]
        if lacking:
            raise UpdateError(
                f"{self.bundle.folder / held.file} lacks running statistics of the model such as {lacking[0]!r}: "
                "record the model's whole state_dict."
            )

    def _message(self, message: MessageFacts, common: SentModel, begun: Held) -> Message:
        assert message.received is not None, "messages that were not seen are left out"
        own = None if message.sent is None else self._start(message.sent)
        start = common if own is None else own
        update, statistics = self._added(message.received, start)
        self._check_lost(message.received, message.sent or begun, update)
        return Message(message.client, update, statistics, own)

    def _check_lost(self, held: Held, sent: Held, update: Params) -> None:
        """Refuse what moved in the message's own precision alone: read in the model's it would count as not trained.

        Not so a weight that was sent in double precision, and came back in the model's.
        """
        still = [name for name, added in update.items() if not bool(added.any())]
        if not still:
            return
        got, came = (self._names(each).applied(self.bundle.arrays(each)) for each in (held, sent))
        for name in (name for name in still if name in got):
            whole = held.form == "state"
            if exceeds_precision(got[name], update[name].dtype, came.get(name)) if whole else bool(got[name].any()):
                raise UpdateError(
                    f"{self.bundle.folder / held.file}: {name!r} moved by less than {update[name].dtype} can hold, in "
                    "which the model is: record the message in the model's own type, or as an update."
                )

    def _added(self, held: Held, start: SentModel) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What a message or an aggregate adds to the weights, and the buffers after it."""
        if held.form == "update":
            added, statistics = self._state(held, {name: torch.zeros_like(w) for name, w in start.before.items()})
            return added, _moved(start.buffers, statistics)
        after, statistics = self._state(held, start.before)
        return subtract(after, start.before), statistics

    def _aggregate(
        self, past: RoundFacts, start: SentModel
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], tuple[str, ...]]:
        """What the rule made, or the next round's start; nobody is behind it where neither was recorded."""
        following = self.bundle.rounds.get(past.index + 1)
        held = past.aggregated or (None if following is None else following.sent)
        present = tuple(message.client for message in past.messages if message.absent is None)
        if held is None or past.sent is None:
            return {name: torch.zeros_like(tensor) for name, tensor in start.before.items()}, {}, ()
        kept = best(sheet(past.facts), "kept")
        who = present if kept is None else tuple(name for name in present if name in kept)
        return *self._added(held, start), who


def _moved(buffers: Params, by: Params) -> dict[str, Tensor]:
    """Buffers inside a difference are a difference too."""
    known = [name for name in by if name in buffers]
    return add({name: buffers[name] for name in known}, {name: by[name] for name in known})


def rule_in_words(bundle: Bundle, index: int) -> str:
    """The aggregation rule as a transcript prints it."""
    rule = best(sheet(bundle.rounds[index].facts), "rule", best(bundle.facts, "rule"))
    if rule is None:
        return UNKNOWN_RULE
    options = rule.get("options") or {}
    if rule["name"].lower() in MEANS and not options:
        return MEAN_RULE
    return f"{rule['name']}({', '.join(f'{name}={value!r}' for name, value in options.items())})"
