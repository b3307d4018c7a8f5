"""Operators for what happens to an update on its way: aggregation rules and filters.

With a rule, every client is simulated on its own examples. The rules are those that an adversary supposes: they are
differentiable in the updates. `ThroughFilter` predicts what is left by the filter that the client is declared to have
applied. `GlobalModel` is the operator of model inversion: what the global model says of a candidate, not what a client
would have sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.forward.target import Simulation, gradient_sum, known_training, limits_before_filter, network_of
from fedglass.attack.forward.unroll import SUPER_CLIENT_BUDGET_MIB, client_sizes, simulated_clients
from fedglass.attack.parts import BoundForward, Forward, reads_of
from fedglass.core.errors import UsageError, check_at_least
from fedglass.core.facts import Fact
from fedglass.core.losses import TargetKind, target_kind
from fedglass.core.tensors import Update
from fedglass.core.types import BatchNorm, Candidate, Observation, Training
from fedglass.fl.aggregate.coordinates import median_of, trimmed_mean_of
from fedglass.fl.trajectory import per_epoch
from fedglass.models.network import Network


@dataclass(frozen=True)
class SupposedMean:
    """sum_m s_m g_m, the mean of federated averaging [Yue et al., 2025, Phi_0]."""

    def combine(self, rows: Tensor, shares: Tensor) -> Tensor:
        """Combine the rows that the clients sent, with the weight of each.  # (n, ...), (n,) -> (...)"""
        mean: Tensor = torch.tensordot(shares, rows, dims=1)
        return mean


@dataclass(frozen=True)
class SoftMedian:
    """sum_m b_m g_m with b_m ~ exp(-|g_m - mean| / T), in each coordinate [ibid., Eq. 18].

    The paper gives no temperature. `temperature` is a share of the coordinate's standard deviation over the clients:
    a single one for all coordinates would be a mean in some of them and a choice in others.
    """

    temperature: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise UsageError(f"soft_median.temperature must be positive and finite, got {self.temperature}.")

    def combine(self, rows: Tensor, shares: Tensor) -> Tensor:
        middle = rows.mean(dim=0)
        deviations = rows - middle
        spread = deviations.square().mean(dim=0).sqrt().detach() + torch.finfo(rows.dtype).tiny
        weights = torch.softmax(-deviations.abs() / (self.temperature * spread), dim=0)
        return (weights * rows).sum(dim=0)


@dataclass(frozen=True)
class OneClient:
    """g_i of one client i, any of them: the paper draws it at random [ibid., Eq. 21, pseudo-Krum]."""

    client: int = 0

    def __post_init__(self) -> None:
        check_at_least("one_client.client", self.client, 0)

    def combine(self, rows: Tensor, shares: Tensor) -> Tensor:
        return rows[self.client % len(rows)]


@dataclass(frozen=True)
class SupposedMedian:
    """The coordinate-wise median itself: its gradient goes to the one or two middle values of each coordinate.

    >>> SupposedMedian().combine(torch.tensor([[1.0], [9.0], [2.0]]), torch.ones(3) / 3)
    tensor([2.])
    """

    def combine(self, rows: Tensor, shares: Tensor) -> Tensor:
        return median_of(rows.flatten(1)).view(rows.shape[1:])


@dataclass(frozen=True)
class SupposedTrimmedMean:
    """The coordinate-wise mean without the `byzantine` smallest and largest values."""

    byzantine: int = 1

    def __post_init__(self) -> None:
        check_at_least("trimmed_mean.byzantine", self.byzantine, 0)

    def combine(self, rows: Tensor, shares: Tensor) -> Tensor:
        n = len(rows)
        if n <= 2 * self.byzantine:
            raise UsageError(
                f"A trimmed mean that drops {self.byzantine} at each end needs at least {2 * self.byzantine + 1} "
                f"clients behind the message, got {n}: suppose that fewer are dropped."
            )
        return trimmed_mean_of(rows.flatten(1), self.byzantine).view(rows.shape[1:])


Combination = SupposedMean | SoftMedian | OneClient | SupposedMedian | SupposedTrimmedMean
"""Combines one tensor of all clients into that of the server's step, coordinate by coordinate."""


@dataclass(frozen=True)
class Through(Simulation):
    """Phi({g_m}) of the clients' simulated updates g_m [Yue et al., 2025, Eq. 22].

    The candidate's first examples are the first client's, and so on: which label belongs to which client is a
    guess, or given by an oracle. With `own` the adversary's own update goes into the rule as it was sent, after those
    of the others, and none of the candidate's examples are its own, see `KeepOwnUpdate`.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING, Fact.EXAMPLES})
    uses: ClassVar[frozenset[Fact]] = frozenset({Fact.OWN})

    combination: Combination = field(default_factory=SupposedMean)
    own: bool = False
    budget_mib: float = SUPER_CLIENT_BUDGET_MIB

    def bind(self, observation: Observation) -> BoundForward:
        training, network = known_training(observation), network_of(observation)
        simulated = client_sizes(observation)
        clients = simulated_clients(observation, training, simulated, self.budget_mib)
        # The adversary's own update in the units of the message, and its examples; none where the rule has dropped it.
        contribution = observation.own if self.own and Fact.OWN in observation.facts else None
        mine = [] if contribution is None else [[contribution.update[n] / -training.lr for n in network.names]]
        sizes = [*simulated, *([] if contribution is None else [len(contribution.labels)])]
        like = observation.update[network.names[0]]
        shares = torch.tensor(sizes, dtype=like.dtype, device=like.device) / sum(sizes)

        # Refuses a number of clients that the rule cannot combine.
        self.combination.combine(torch.zeros(len(sizes), 1, dtype=like.dtype, device=like.device), shares)

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            updates = [*clients(candidate), *mine]
            return [self.combination.combine(torch.stack(rows), shares) for rows in zip(*updates, strict=True)]

        return BoundForward(gradient_sum(observation, network, training.lr), predict, network.names)


@dataclass(frozen=True)
class ThroughFilter:
    """The prediction of `forward` after the declared filter of the update, such as pruning or clipping its entries.

    Message and filter give limits for each entry before the filter: an entry that was cut off at gamma was gamma or
    more, and one that was set to zero was no larger than the smallest that was kept. A predicted entry within its
    limits becomes that of the message, and one outside keeps its distance from the nearer limit: with `SquaredError`
    this is regression with censored observations [Tobin, 1958]. Entries that the filter left alone are compared as
    they are. Without a declared filter, or without the size of the gradients, this is `forward` alone.
    """

    forward: Forward

    def reads(self, observation: Observation) -> frozenset[Fact]:
        return reads_of(self.forward, observation)

    def bind(self, observation: Observation) -> BoundForward:
        inner, limits = self.forward.bind(observation), limits_before_filter(observation)
        scale = _scale(inner, observation.update)
        if limits is None or scale is None:
            return inner
        ends = [[side[name] * scale for side in limits] for name in inner.names]
        rows = [(y, torch.minimum(*pair), torch.maximum(*pair)) for y, pair in zip(inner.target, ends, strict=True)]

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            pairs = zip(inner.predict(candidate, unknowns), rows, strict=True)
            return [torch.where(low == high, g, sent + (g - g.clamp(low, high))) for g, (sent, low, high) in pairs]

        return replace(inner, predict=predict)


def _scale(forward: BoundForward, update: Update) -> float | None:
    """Return what the operator multiplies the update by; None where its target is not a multiple of a message."""
    if not all(name in update for name in forward.names):
        return None
    moved = torch.cat([update[name].flatten() for name in forward.names])
    largest = int(moved.abs().argmax())
    sent = torch.cat([tensor.flatten() for tensor in forward.target])
    return float(sent[largest] / moved[largest]) if bool(moved.any()) else None


@dataclass(frozen=True)
class GlobalModel:
    """The cross entropy of each candidate with its label, under the model after the message [Wu et al., 2024].

    A peer has the global model of every round. The message is read through that model only: it tells which images the
    model takes for the class, not which images a client has. The target is a loss of zero, which true images do not
    reach in general. Running statistics stay as they are.
    """

    def cost(self, training: Training, examples: int) -> tuple[float, int]:
        """Return the cost of a prediction and its gradient: one plain gradient of all examples."""
        return 1.0, examples

    def bind(self, observation: Observation) -> BoundForward:
        if target_kind(observation.knows.objective) is not TargetKind.CLASSES:
            raise UsageError(
                "GlobalModel needs a loss with one class for each example, since it shows what the model takes for a "
                "class: choose another attack."
            )
        network = Network(observation.model, observation.buffers, BatchNorm.FROZEN)
        weights = [(observation.before[name] + observation.update[name]).detach() for name in network.names]

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            labels = candidate.labels[0] if per_epoch(candidate.labels) else candidate.labels
            return (F.cross_entropy(network(weights, candidate.images[0]), labels, reduction="none"),)

        return BoundForward((weights[0].new_zeros(observation.knows.examples),), predict, ("loss",))
