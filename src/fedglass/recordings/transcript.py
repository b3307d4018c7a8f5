"""From a bundle to a transcript: the recorded messages under the names and in the types of the model.

Facts that a recorder read off the running client (`fedglass.recorders.training_facts`), or a user declares, become a
`Training`, which is what fedglass can replay; the guard uses the same conversion. Facts that describe no such training
give None.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedglass.core.errors import DataError, FedglassError, UpdateError
from fedglass.core.losses import TargetKind, target_kind
from fedglass.core.optimisers import OPTIMISERS, Optimiser
from fedglass.core.tensors import COUNTER, MEAN, Params, add, buffers_of, subtract, weights_of
from fedglass.core.types import MOST_LOCAL_STEPS, BatchNorm, Training
from fedglass.federation.transcript import MEAN_RULE, UNKNOWN_RULE, Message, Participant, Round, SentModel
from fedglass.fl.loss.targets import loss_fields, named_loss
from fedglass.models.names import exceeds_precision
from fedglass.recordings.facts import OBJECTIVE, FactSheet, preferred
from fedglass.recordings.format import FileRef, MessageFacts, RoundFacts
from fedglass.recordings.observed import MEANS, facts_with_observed, update_of
from fedglass.recordings.privacy import draws_poisson
from fedglass.recordings.reader import Bundle, aggregated_clients

UNKNOWN_CLIENTS = "all clients"
"""Placeholder client of an aggregate with unknown contributors."""
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
        participants = tuple(
            participant_of(self.bundle, message.client, index, self.counts, self.model) for message in present
        )
        return Round(
            start.before,
            start.buffers,
            participants or (Participant(UNKNOWN_CLIENTS, 1, counted=False),),
            tuple(messages),
            step,
            buffers_after,
            accepted if participants else (UNKNOWN_CLIENTS,),
        )

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
        missing = [name for name in needed_buffers(self.model) if name not in buffers]
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
        # A weight that was sent in double precision and came back in the model's precision is not refused.
        before = self._arrays(message.sent or sent) if message.received.form == "state" else None
        lost = moved_below_precision(update, self._arrays(message.received), before)
        if lost is not None:
            raise UpdateError(
                f"{self.bundle.folder / message.received.file}: {lost!r} moved by less than {update[lost].dtype} can "
                "hold, the type of the model: record the message in the model's own type, or as an update."
            )
        return Message(message.client, update, buffers, personal_start)

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


def needed_buffers(model: nn.Module) -> list[str]:
    """Return the buffers of a model without which it cannot be run, such as running statistics."""
    stored = model.state_dict()
    return [name for name, buffer in buffers_of(model).items() if buffer.is_floating_point() and name in stored]


def moved_below_precision(update: Params, stored: Params, before: Params | None) -> str | None:
    """Return a weight that moved in the precision of its file only: in the model's it would count as untrained.

    Args:
        stored: The file's tensors: the weights after the training, or the update itself if `before` is None.
        before: The weights before it, as a file has them.
    """
    for name, tensor in update.items():
        if name in stored and not bool(tensor.any()):
            moved = stored[name]
            if moved.any() if before is None else exceeds_precision(moved, tensor.dtype, before.get(name)):
                return name
    return None


def rule_of(bundle: Bundle, index: int) -> str:
    """Return the identifier of a round's aggregation rule, as `Terms.rule` has it."""
    rule = bundle.rule_of(index)
    if rule is None:
        return UNKNOWN_RULE
    options = rule.get("options") or {}
    if rule["name"].lower() in MEANS and not options:
        return MEAN_RULE
    return f"{rule['name']}({', '.join(f'{name}={value!r}' for name, value in options.items())})"


# Facts of a training.


def participant_of(
    bundle: Bundle, client: str, index: int, counts: Mapping[str, int], model: nn.Module | None = None
) -> Participant:
    """Return a client of a round with all that is known of its training.

    Args:
        counts: How many examples clients have, as the owners of the data declare.
        model: Parameters of it that the client did not send back count as untrained.
    """
    update, message = update_of(bundle, client, index), bundle.message(client, index)
    received = None if message is None else message.received
    names = None if received is None or model is None else bundle.names(received, model)
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
    # Only what has not changed either.
    untrained = [n for n in untrained if update is not None and n in update and not bool(update[n].any())]
    if model is not None:
        parameters = dict(model.named_parameters())  # buffers of a model are never trained
        missing = () if names is None else names.lacking(model)
        untrained = list(dict.fromkeys((*(n for n in untrained if n in parameters), *missing)))
    return Participant(
        client,
        examples,
        training,
        preferred(facts, "lr") if training is None and optimiser_of(facts) == OPTIMISERS["sgd"]() else None,
        (preferred(facts, "steps") or None) if training is None else None,
        int(weight) if is_whole and int(weight) != examples else None,
        counted=counted,
        untrained=tuple(untrained),
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
    if draws_poisson(preferred(facts, "defences")):  # the defence draws its samples from all examples
        return None if steps is None else _training(facts, None, 1, None if steps == 1 else steps, has_batch_norm)
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
    training = _training(facts, batch_size, epochs, steps, has_batch_norm, preferred(facts, "shuffle", True))
    return None if training is None or training.local_steps(examples or 1) > MOST_LOCAL_STEPS else training


def training_problems(facts: FactSheet) -> Iterator[str]:
    """Yield why facts describe no training that can be run again, for facts of which `training_of` gives None."""
    optimiser, name = preferred(facts, "optimiser"), preferred(facts, "loss")
    if preferred(facts, "lr") is None:
        yield "one learning rate of all steps was not recorded"
    if optimiser is None:
        yield "its optimiser was not recorded"
    elif optimiser_of(facts) is None:
        yield f"fedglass does not simulate the optimiser {str(optimiser)[:100]!r} with these options"
    loss = loss_fact(facts)
    if loss is None or target_kind(loss.get("loss")) is TargetKind.UNKNOWN:
        yield f"fedglass does not simulate the loss {str(name)[:100]!r}" if name else "its loss is not known"
    sizes, steps = preferred(facts, "batch_sizes", preferred(facts, "batch_size")), preferred(facts, "steps")
    if sizes is None:
        yield "the sizes of its batches were not recorded"
    elif preferred(facts, "epochs") is None:
        yield "its batches do not make whole epochs" if steps else "its number of local steps was not recorded"


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
