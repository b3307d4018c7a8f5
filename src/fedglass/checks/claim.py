"""A claim: what is said to have produced a message.

The audit makes claims from a transcript and from what its owners declare of it. The guard makes them from what a
client did. Both have them checked by the same functions: `checks.replay` runs the claimed training again,
`checks.consistency` looks for traces that contradict it, and `checks.distances` measures how far a record moves the
message.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from fedglass.core.errors import UsageError
from fedglass.core.losses import TargetKind, target_kind
from fedglass.core.rng import stream
from fedglass.core.tensors import Params
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.federation.transcript import MEAN_RULE, UNKNOWN_RULE, Participant, Transcript
from fedglass.federation.truth import Examples, Truths, picture_hashes
from fedglass.federation.views import ViewResult
from fedglass.fl.local import LocalBatch, schedule
from fedglass.fl.release import Protection
from fedglass.models.network import Network

CPU = torch.device("cpu")
UNPROTECTED = Protection()
MEANS = (UNKNOWN_RULE, MEAN_RULE)
"""Aggregation rules for which a replay computes the weighted mean."""


@dataclass(frozen=True, eq=False)
class ClientClaim:
    """One client behind a message: its training, its protection and, where they are known, its examples."""

    training: Training
    truth: Examples | None = None
    """The examples that the client trained on; None where they were not recorded."""
    protection: Protection = UNPROTECTED
    weight: int | None = None
    """The client's weight in the mean with others; None: the number of its examples."""
    order: tuple[tuple[int, ...], ...] | None = None
    """The rows of each local step, where they were recorded."""
    stated_examples: int | None = None
    """How many examples the client is said to have; None: as many as `truth` holds."""

    @property
    def examples(self) -> Examples:
        """The true examples; an error where they were not recorded."""
        if self.truth is None:
            raise UsageError("This check needs the true examples behind the message, and they were not recorded.")
        return self.truth

    @property
    def images(self) -> Tensor:  # (n, c, h, w), pixels in [0, 1]
        return self.examples.images

    @property
    def labels(self) -> Tensor:  # (n,)
        return self.examples.labels

    @property
    def stated_count(self) -> int:
        return len(self.labels) if self.stated_examples is None else self.stated_examples

    @property
    def mean_weight(self) -> int:
        """The client's weight in the mean with others."""
        return len(self.labels) if self.weight is None else self.weight

    @property
    def steps(self) -> int:
        """The number of local steps on the true examples."""
        return self.training.local_steps(len(self.labels)) if self.order is None else len(self.order)

    @property
    def has_fixed_order(self) -> bool:
        """True where the order of the batches was recorded, or there is only one order."""
        fixed = self.order is not None or not self.training.shuffle
        return fixed or len(self.training.batches(len(self.labels))) == 1

    @cached_property
    def pictures(self) -> Sequence[bytes]:
        """A hash of each record's picture: copies of a picture are one record, whatever their labels."""
        return picture_hashes(self.images)

    def copies(self, row: int) -> Tensor:
        """Return which records show the same picture as one of them, itself included.  # (n,)"""
        return torch.tensor([picture == self.pictures[row] for picture in self.pictures])

    @property
    def repetitions(self) -> list[float]:
        """How many times farther each record moves clipped local steps than one that is once in each epoch.

        Copies in the same step add up. Where the order is not known, all may be in the same one.
        """
        if self.order is None:
            counts = Counter(self.pictures)
            return [float(counts[picture]) for picture in self.pictures]
        steps = [Counter(self.pictures[row] for row in batch) for batch in self.order]
        usual = math.sqrt(self.training.passes(len(self.labels)))
        moved = {picture: math.hypot(*(step[picture] for step in steps)) / usual for picture in set(self.pictures)}
        return [max(1.0, moved[picture]) for picture in self.pictures]

    def with_examples(self, images: Tensor, labels: Tensor) -> ClientClaim:
        return replace(self, truth=Examples(images, labels))

    def batches(self, order: int = 0, place: int = 0) -> Iterable[LocalBatch]:
        """Return the recorded batches, or draw those of the client at `place` in one of their orders."""
        if self.order is None:
            return schedule(self.training, len(self.labels), stream(order, "replay", place))
        per_epoch = len(self.training.batches(len(self.labels)))
        return [LocalBatch(i // per_epoch, torch.tensor(rows), i % per_epoch) for i, rows in enumerate(self.order)]


@dataclass(frozen=True, eq=False)
class Claim:
    """A message, and everything that is said to have produced it."""

    model: nn.Module
    before: Params
    """The weights that the clients started from."""
    buffers: Params
    update: Params
    whitening: Whitening
    clients: tuple[ClientClaim, ...]
    """The clients behind the message, combined by their weights; the adversary's own come last."""
    buffers_after: Params = field(default_factory=dict)
    """Running statistics after the training; empty where they were not recorded."""
    round: int = 0
    own_clients: int = 0
    """How many clients at the end are the adversary's own: it knows their noise."""
    combined_by_mean: bool = True
    """False: another rule combined the updates, and a replay cannot give the message."""
    honest: bool = True
    """False: a client, such as a poisoner, may not have done what is claimed."""
    unnamed_defence: bool = False
    """Whether a defence protects a client, and it is not known which."""
    image_shape: tuple[int, int, int] | None = None
    """The shape of one image; needed only where the true examples are not known."""
    device: torch.device = CPU
    """Where checks run the network; all tensors of a claim are on the CPU."""

    def network(self, batch_norm: BatchNorm = BatchNorm.FROZEN) -> Network:
        """Return the network, for weights and inputs on the claim's device."""
        return Network(self.model, self.buffers, batch_norm, self.device)

    @property
    def weights(self) -> list[Tensor]:
        """The weights before the message, on the claim's device, in the order in which the network takes them."""
        return [self.before[name].to(self.device) for name, _ in self.model.named_parameters()]

    def inputs(self, images: Tensor) -> Tensor:
        """Return pixels as inputs of the network, on the claim's device."""
        return self.whitening.whiten(images).to(self.device)

    @property
    def private(self) -> tuple[ClientClaim, ...]:
        """The clients that are not the adversary's own."""
        return self.clients[: len(self.clients) - self.own_clients]

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one image."""
        if self.image_shape is not None:
            return self.image_shape
        channels, height, width = self.clients[0].images.shape[1:]
        return channels, height, width

    @property
    def training(self) -> Training | None:
        """The one training of all clients; None where they differ."""
        trainings = {client.training for client in self.clients}
        return trainings.pop() if len(trainings) == 1 else None

    @property
    def steps(self) -> int:
        """The most local steps of any client, by the stated numbers of examples."""
        return max(client.training.local_steps(client.stated_count) for client in self.clients)

    @property
    def defended(self) -> bool:
        """True where a named defence may have changed the sizes of the update."""
        return not self.unnamed_defence and any(client.protection != UNPROTECTED for client in self.clients)

    @property
    def shares(self) -> list[float]:
        """The weight of each client in the message; they sum to 1."""
        weights = [client.mean_weight for client in self.clients]
        return [weight / sum(weights) for weight in weights]

    def protected_by(self, protection: Protection) -> Claim:
        """Return the same claim with this protection for every client."""
        return replace(self, clients=tuple(replace(client, protection=protection) for client in self.clients))


def participants_of(transcript: Transcript, index: int, view_result: ViewResult) -> list[Participant]:
    """Return the clients whose examples are in the message of a recorded round, the adversary's own last."""
    names = (*view_result.clients, *(() if view_result.own_client is None else (view_result.own_client,)))
    by_name = {p.name: p for p in transcript.rounds[index].participants}
    return [by_name[name] for name in names]


def has_unnamed_defence(
    transcript: Transcript, participants: Iterable[Participant], protections: Mapping[str, Protection]
) -> bool:
    """Return whether a defence protects one of the participants, and it is not known which."""
    defences = transcript.terms.defences
    return any(p.name not in protections and (defences is None or bool(defences.get(p.name))) for p in participants)


def claim_of(
    transcript: Transcript,
    index: int,
    view_result: ViewResult,
    truths: Truths | None,
    protections: Mapping[str, Protection],
) -> Claim | None:
    """Return the claim about the message that a view saw in a recorded round.

    None where it is not known how a client trained. `protections` are the named defences, by client.
    """
    participants = participants_of(transcript, index, view_result)
    clients = []
    for p in participants:
        if p.training is None or target_kind(p.training.loss) is TargetKind.UNKNOWN:
            return None
        clients.append(
            ClientClaim(
                p.training,
                None if truths is None else truths.of(p.name, index),
                protections.get(p.name, UNPROTECTED),
                p.weight,
                None if truths is None else truths.batches(p.name, index),
                p.examples,
            )
        )
    observation, terms = view_result.observation, transcript.terms
    return Claim(
        observation.model,
        observation.before,
        observation.buffers,
        observation.update,
        terms.whitening,
        tuple(clients),
        observation.buffers_after,
        round=index,
        own_clients=int(view_result.own_client is not None),
        combined_by_mean=len(clients) == 1 or terms.rule in MEANS,
        unnamed_defence=has_unnamed_defence(transcript, participants, protections),
        image_shape=terms.shape,
    )
