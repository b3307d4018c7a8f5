"""From a bundle to a transcript: the recorded messages under the names and in the types of the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from fedglass.core.errors import DataError, UpdateError, UsageError
from fedglass.core.losses import is_class_labels
from fedglass.core.registry import BUILT_IN, origin_of
from fedglass.core.tensors import COUNTER, Params, add, buffers_of, subtract, weights_of
from fedglass.core.types import Whitening
from fedglass.federation.transcript import MEAN_RULE, UNKNOWN_RULE, Message, Participant, Round, SentModel
from fedglass.federation.truth import Examples, Truths
from fedglass.models.catalogue import build
from fedglass.models.fixed import exceeds_precision
from fedglass.recordings.format import INPUTS, FileRef, MessageFacts, RoundFacts, preferred, sheet
from fedglass.recordings.observed import MEANS
from fedglass.recordings.reader import Bundle, aggregated_clients
from fedglass.recordings.training_facts import participant_of

UNKNOWN_CLIENTS = "all clients"
"""Placeholder client of an aggregate with unknown contributors."""


@dataclass(frozen=True, eq=False)
class ModelSpec:
    """Facts that are needed to build the model of a bundle and to feed it images."""

    model: str
    shape: tuple[int, int, int]
    classes: int
    whitening: Whitening

    def build(self) -> nn.Module:
        return build(self.model, shape=self.shape, classes=self.classes, single_output=True)


def model_spec(
    bundle: Bundle,
    truths: Truths | None,
    *,
    model: str | None = None,
    shape: Sequence[int] | None = None,
    classes: int | None = None,
    whitening: Whitening | None = None,
) -> ModelSpec:
    """Return what the user gives or else the bundle; what neither has is asked for by its key in a plan."""
    facts = bundle.facts
    owner = next(iter(truths.examples.values()), None) if truths is not None else None
    shape = shape or preferred(facts, "shape") or (None if owner is None else list(owner.images.shape[1:]))
    recorded = preferred(facts, "whitening")
    if whitening is None and recorded is not None:
        whitening = Whitening(tuple(recorded["mean"]), tuple(recorded["std"]))
    classes = classes or preferred(facts, "classes")
    if shape is None or classes is None or whitening is None:
        values = {"shape": shape, "classes": classes, "whitening": whitening}
        missing = [key for key, value in values.items() if value is None]
        raise UsageError(("shape" in missing and input_problem(bundle)) or _ask_for(bundle, missing))
    channels, height, width = shape
    if len(whitening.mean) not in (1, channels):
        raise UsageError(f"{bundle.folder}: the whitening must have one mean for each of the {channels} channels.")
    for client, examples in ({} if truths is None else truths.examples).items():
        _check_truth(bundle, client, examples, (channels, height, width), classes)
    return ModelSpec(_model_name(bundle, model), (channels, height, width), classes, whitening)


def _check_truth(bundle: Bundle, client: str, examples: Examples, shape: tuple[int, int, int], classes: int) -> None:
    if tuple(examples.images.shape[1:]) != shape:
        raise DataError(
            f"recording.truth has images of shape {tuple(examples.images.shape[1:])} of {client!r}, expected {shape} "
            f"as {bundle.folder} says: correct one of them."
        )
    labels = examples.labels
    if not is_class_labels(labels):
        if labels.is_floating_point() and labels.shape[1] != classes:
            raise DataError(
                f"recording.truth has {labels.shape[1]} numbers as a target of {client!r}, expected {classes} as "
                f"{bundle.folder} says: correct one of them."
            )
        return
    if not (len(labels) and int(labels.min()) >= 0 and int(labels.max()) < classes):
        raise DataError(
            f"recording.truth has labels of {client!r} outside the {classes} classes of {bundle.folder} (0 is the "
            "first): correct one of them."
        )


def input_problem(bundle: Bundle) -> str:
    """Return what to tell a user if the network's inputs were not images; empty if nothing says so."""
    shape = preferred(bundle.facts, INPUTS)
    if not isinstance(shape, list) or preferred(bundle.facts, "shape") is not None:
        return ""
    return (
        f"{bundle.folder} was recorded from a network with inputs of shape {str(tuple(shape))[:300]}, and fedglass "
        "attacks images (channels, height, width) only: it cannot tell what these messages reveal."
    )


def _ask_for(bundle: Bundle, missing: Sequence[str]) -> str:
    """Return where missing facts can come from: a server does not know how its clients normalise their images."""
    from_clients = bundle.manifest.writer == "server" and "shape" in missing
    return (
        f"{bundle.folder} does not have its {', '.join(missing)}, expected in the bundle or the plan: "
        + ("add the clients' own recordings with `fedglass join`, or " if from_clients else "")
        + f"add {', '.join(f'recording.{key}' for key in missing)} to a plan, which `fedglass init --from "
        f"{bundle.folder}` writes."
    )


def _model_name(bundle: Bundle, model: str | None) -> str:
    """Return the model that the user names, or a built-in one that the bundle names: no data file may run code."""
    if model is not None:
        return model
    recorded = preferred(bundle.facts, "model")
    if recorded is None:
        raise UsageError(f"{bundle.folder} does not name its model: say which with --model or recording.model.")
    if origin_of("models", recorded) != BUILT_IN:
        raise UsageError(
            f"{bundle.folder} names the model {recorded!r}, which is code that is not part of fedglass: if you trust "
            f"it, say so with --model {recorded}, and --code DIR for its folder, or recording.model."
        )
    return str(recorded)


@dataclass(frozen=True, eq=False)
class TranscriptReader:
    """Reader of a bundle's rounds for the model that the federation trained."""

    bundle: Bundle
    model: nn.Module
    counts: Mapping[str, int]
    """How many examples each client has, if the owners of the data say so."""
    unsent: Params = field(default_factory=dict)
    """Weights that clients never send, such as the frozen part of a pretrained network."""

    def round(self, index: int, clients: Collection[str] | None = None) -> Round:
        """Return one round, with the messages of these clients."""
        facts = self.bundle.rounds[index]
        present = [message for message in facts.messages if message.absent is None]
        sent = facts.sent or next((message.sent for message in present if message.sent is not None), None)
        if sent is None:
            raise DataError(
                f"{self.bundle.folder}: round {index} was recorded without the model that was sent: choose another."
            )
        # If every client was sent its own model, the first one stands for the round's, and no aggregate adds to it.
        start = self._start(sent)
        messages = [
            self._message(message, start, sent)
            for message in present
            if message.received is not None and (clients is None or message.client in clients)
        ]
        step, buffers_after, accepted = self._aggregate(facts, start)
        participants = tuple(self._participant(message, index) for message in present)
        return Round(
            start.before,
            start.buffers,
            participants or (Participant(UNKNOWN_CLIENTS, 1, counted=False),),
            tuple(messages),
            step,
            buffers_after,
            accepted if participants else (UNKNOWN_CLIENTS,),
        )

    def _participant(self, message: MessageFacts, index: int) -> Participant:
        """Return a client; parameters that it did not send back count as not trained."""
        names = None if message.received is None else self.bundle.names(message.received, self.model)
        participant = participant_of(self.bundle, message.client, index, self.counts, names)
        parameters = dict(self.model.named_parameters())  # buffers of a model are never trained
        untrained = [name for name in participant.untrained if name in parameters]
        missing = () if names is None else names.lacking(self.model)
        return replace(participant, untrained=tuple(dict.fromkeys((*untrained, *missing))))

    def _arrays(self, ref: FileRef) -> dict[str, Tensor]:
        """Return the tensors of a file under the names of the model."""
        return self.bundle.names(ref, self.model).applied(self.bundle.arrays(ref))

    def _state(self, ref: FileRef, defaults: Params) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return parameters and buffers in the model's own types; `defaults` are those that need not be in the file."""
        state = {**defaults, **self._arrays(ref)}
        path, weights, buffers = self.bundle.folder / ref.file, weights_of(self.model), buffers_of(self.model)
        missing = [name for name in weights if name not in state]
        if missing:
            raise UpdateError(
                f"{path} lacks the model's parameter {missing[0]!r} ({len(missing)} in all): name the model that was "
                "trained, record its whole state or, if clients never send a part of it, name a file that has it with "
                "--weights or recording.weights."
            )
        for name, tensor in state.items():
            if name.endswith(COUNTER):
                continue
            if name in weights and not tensor.is_floating_point():
                raise UpdateError(f"{path}: {name!r} must hold floats, got {tensor.dtype}: record the weights.")
            if not bool(torch.isfinite(tensor.double()).all()):
                raise UpdateError(
                    f"{path}: {name!r} holds NaN or infinity: the training diverged; choose another round or client."
                )
        return (
            {name: state[name].to(like.dtype) for name, like in weights.items()},
            {name: state[name].to(like.dtype) for name, like in buffers.items() if name in state},
        )

    def _start(self, ref: FileRef) -> SentModel:
        before, buffers = self._state(ref, self.unsent)
        stored = self.model.state_dict()
        needed = [name for name, b in buffers_of(self.model).items() if b.is_floating_point() and name in stored]
        missing = [name for name in needed if name not in buffers]
        if missing:
            raise UpdateError(
                f"{self.bundle.folder / ref.file} lacks running statistics of the model such as {missing[0]!r}: record "
                "the model's whole state_dict."
            )
        return SentModel(before, buffers)

    def _message(self, message: MessageFacts, common: SentModel, sent: FileRef) -> Message:
        assert message.received is not None, "messages that were not seen are left out"
        personal_start = None if message.sent is None else self._start(message.sent)
        update, buffers = self._added(message.received, common if personal_start is None else personal_start)
        self._check_precision(message.received, message.sent or sent, update)
        return Message(message.client, update, buffers, personal_start)

    def _check_precision(self, ref: FileRef, sent: FileRef, update: Params) -> None:
        """Refuse weights that moved in the message's own precision only: in the model's they would count as untrained.

        A weight that was sent in double precision and came back in the model's precision is not refused.
        """
        unmoved = [name for name, difference in update.items() if not bool(difference.any())]
        if not unmoved:
            return
        received, before = self._arrays(ref), self._arrays(sent)
        for name in (name for name in unmoved if name in received):
            dtype = update[name].dtype
            is_lost = (
                exceeds_precision(received[name], dtype, before.get(name))
                if ref.form == "state"
                else received[name].any()
            )
            if bool(is_lost):
                raise UpdateError(
                    f"{self.bundle.folder / ref.file}: {name!r} moved by less than {dtype} can hold, the type of the "
                    "model: record the message in the model's own type, or as an update."
                )

    def _added(self, ref: FileRef, start: SentModel) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return what a message or an aggregate adds to the weights, and the buffers after it."""
        if ref.form == "state":
            after, buffers = self._state(ref, start.before)
            return subtract(after, start.before), buffers
        update, moved = self._state(ref, {name: torch.zeros_like(weight) for name, weight in start.before.items()})
        names = [name for name in moved if name in start.buffers]
        return update, add({name: start.buffers[name] for name in names}, {name: moved[name] for name in names})

    def _aggregate(
        self, facts: RoundFacts, start: SentModel
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], tuple[str, ...]]:
        """Return what the rule made, or else the next round's start; without contributors if neither was recorded."""
        following = self.bundle.rounds.get(facts.index + 1)
        ref = facts.aggregated or (None if following is None else following.sent)
        if ref is None or facts.sent is None:
            return {name: torch.zeros_like(tensor) for name, tensor in start.before.items()}, {}, ()
        return *self._added(ref, start), aggregated_clients(facts)


def rule_of(bundle: Bundle, index: int) -> str:
    """Return the identifier of a round's aggregation rule, as `Terms.rule` has it."""
    rule = preferred(sheet(bundle.rounds[index].facts), "rule", preferred(bundle.facts, "rule"))
    if rule is None:
        return UNKNOWN_RULE
    options = rule.get("options") or {}
    if rule["name"].lower() in MEANS and not options:
        return MEAN_RULE
    return f"{rule['name']}({', '.join(f'{name}={value!r}' for name, value in options.items())})"
