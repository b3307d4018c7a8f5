"""How a recorded client trained, from the facts that a bundle tells and those that its messages tell by themselves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from fedglass.core.errors import DataError, UpdateError
from fedglass.core.tensors import COUNTER, Params, add, buffers_of, subtract, weights_of
from fedglass.federation.transcript import Message, Participant, Round, Start
from fedglass.fl.aggregate.rule import WeightedMean
from fedglass.models.fixed import lost
from fedglass.models.names import Names, names_of
from fedglass.recordings.format import FileRef, MessageFacts, RoundFacts, preferred, sheet
from fedglass.recordings.observed import MEANS
from fedglass.recordings.reader import Bundle
from fedglass.recordings.training_facts import participant_of

# From a bundle to a transcript: what was recorded, under the names and in the types of the model.


UNKNOWN_CLIENTS = "all clients"
"""Who is behind an aggregate of which nobody has said whose it is."""


@dataclass(frozen=True, eq=False)
class TranscriptReader:
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
            people or (Participant(UNKNOWN_CLIENTS, 1, counted=False),),
            tuple(messages),
            step,
            buffers_after,
            kept if people else (UNKNOWN_CLIENTS,),
        )

    def _participant(self, message: MessageFacts, index: int) -> Participant:
        """What did not come back is not trained as far as anybody can see."""
        names = None if message.received is None else self._names(message.received)
        found = participant_of(self.bundle, message.client, index, self.counts, names)
        lacking = () if names is None else names.lacking(self.model)
        known = dict(self.model.named_parameters())  # a model's own buffers are trained by nobody
        untrained = dict.fromkeys((*(name for name in found.untrained if name in known), *lacking))
        return replace(found, untrained=tuple(untrained))

    def _names(self, held: FileRef) -> Names:
        sent = [(array.name, tuple(array.shape)) for array in held.arrays]
        return names_of(sent, self.model, str(self.bundle.folder / held.file))

    def _state(self, held: FileRef, rest: Params) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
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

    def _start(self, held: FileRef) -> Start:
        before, buffers = self._state(held, self.rest)
        self._check_buffers(buffers, held)
        return Start(before, buffers)

    def _check_buffers(self, buffers: Params, held: FileRef) -> None:
        needed = [
            n for n, b in buffers_of(self.model).items() if b.is_floating_point() and n in self.model.state_dict()
        ]
        lacking = [name for name in needed if name not in buffers]
        if lacking:
            raise UpdateError(
                f"{self.bundle.folder / held.file} lacks running statistics of the model such as {lacking[0]!r}: "
                "record the model's whole state_dict."
            )

    def _message(self, message: MessageFacts, common: Start, begun: FileRef) -> Message:
        assert message.received is not None, "messages that were not seen are left out"
        own = None if message.sent is None else self._start(message.sent)
        start = common if own is None else own
        update, statistics = self._added(message.received, start)
        self._check_lost(message.received, message.sent or begun, update)
        return Message(message.client, update, statistics, own)

    def _check_lost(self, held: FileRef, sent: FileRef, update: Params) -> None:
        """Refuse what moved in the message's own precision alone: read in the model's it would count as not trained.

        Not so a weight that was sent in double precision, and came back in the model's.
        """
        still = [name for name, added in update.items() if not bool(added.any())]
        if not still:
            return
        got, came = (self._names(each).applied(self.bundle.arrays(each)) for each in (held, sent))
        for name in (name for name in still if name in got):
            whole = held.form == "state"
            if lost(got[name], update[name].dtype, came.get(name)) if whole else bool(got[name].any()):
                raise UpdateError(
                    f"{self.bundle.folder / held.file}: {name!r} moved by less than {update[name].dtype} can hold, in "
                    "which the model is: record the message in the model's own type, or as an update."
                )

    def _added(self, held: FileRef, start: Start) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What a message or an aggregate adds to the weights, and the buffers after it."""
        if held.form == "update":
            added, statistics = self._state(held, {name: torch.zeros_like(w) for name, w in start.before.items()})
            return added, _moved(start.buffers, statistics)
        after, statistics = self._state(held, start.before)
        return subtract(after, start.before), statistics

    def _aggregate(
        self, past: RoundFacts, start: Start
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], tuple[str, ...]]:
        """What the rule made, or the next round's start; nobody is behind it where neither was recorded."""
        following = self.bundle.rounds.get(past.index + 1)
        held = past.aggregated or (None if following is None else following.sent)
        present = tuple(message.client for message in past.messages if message.absent is None)
        if held is None or past.sent is None:
            return {name: torch.zeros_like(tensor) for name, tensor in start.before.items()}, {}, ()
        kept = preferred(sheet(past.facts), "kept")
        who = present if kept is None else tuple(name for name in present if name in kept)
        return *self._added(held, start), who


def _moved(buffers: Params, by: Params) -> dict[str, Tensor]:
    """Buffers inside a difference are a difference too."""
    known = [name for name in by if name in buffers]
    return add({name: buffers[name] for name in known}, {name: by[name] for name in known})


def rule_of(bundle: Bundle, index: int) -> tuple[str, bool | None]:
    """Return the aggregation rule of a round as text, and whether it is the weighted mean; None if not recorded."""
    rule = preferred(sheet(bundle.rounds[index].facts), "rule", preferred(bundle.facts, "rule"))
    if rule is None:
        return "not recorded", None
    options = rule.get("options") or {}
    if rule["name"].lower() in MEANS and not options:
        return repr(WeightedMean()), True
    return f"{rule['name']}({', '.join(f'{name}={value!r}' for name, value in options.items())})", False
