"""The message as the mean of its clients, each with the examples that are its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.forward.simulation import Simulation
from fedglass.attack.forward.super_client import BUDGET_MIB
from fedglass.attack.forward.target import gradient_sum, known_training, leaves, network_of
from fedglass.attack.forward.unroll import in_each_order
from fedglass.attack.parts import BoundForward
from fedglass.core.facts import Fact, refusal
from fedglass.core.types import Candidate, Observation
from fedglass.fl.local import schedule
from fedglass.fl.memory import fit
from fedglass.fl.trajectory import Trajectory, per_epoch


@dataclass(frozen=True)
class EachClient(Simulation):
    """sum_k (N_k / N) of what client k's own training gives, of any sizes [Wilson et al., 2024, Appendix F].

    The upper bound on `SuperClient`: no real adversary knows which images belong to which client, which the order of
    the true labels tells here. ORACLE. The paper has equal clients; the weights are those of the server's mean.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING, Fact.GROUPS})

    budget_mib: float = BUDGET_MIB

    def bind(self, observation: Observation) -> BoundForward:
        training, network = known_training(observation), network_of(observation)
        clients = simulated_clients(observation, self.budget_mib)

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            weighed = zip(clients.shares, clients(candidate), strict=True)
            first, *rest = ([share * g for g in each] for share, each in weighed)
            return [sum(parts[1:], parts[0]) for parts in zip(first, *rest, strict=True)]

        return BoundForward(gradient_sum(observation, network, training.lr), predict, network.names)


@dataclass(frozen=True, eq=False)
class SimulatedClients:
    """What each client's own training gives of its part of a candidate: the first ones are the first client's."""

    sizes: tuple[int, ...]
    runs: Mapping[int, Trajectory]
    """By the number of examples."""

    @property
    def shares(self) -> list[float]:
        """What each weighs in the server's mean."""
        return [size / sum(self.sizes) for size in self.sizes]

    def __call__(self, candidate: Candidate) -> list[tuple[Tensor, ...]]:
        sizes = list(self.sizes)
        images = torch.split(candidate.images, sizes, dim=1)
        labels = torch.split(candidate.labels, sizes, dim=int(per_epoch(candidate.labels)))
        rows = zip(sizes, images, labels, strict=True)
        return [self.runs[n].gradient_sum(in_each_order(x, y), y) for n, x, y in rows]


def simulated_clients(observation: Observation, budget_mib: float) -> SimulatedClients:
    """The clients behind a message, each within its part of the budget."""
    training, network, knows = known_training(observation), network_of(observation), observation.knows
    if knows.sizes is None:
        raise refusal("Simulating each client", [Fact.GROUPS])
    weights = leaves(observation, network)

    def run(size: int) -> Trajectory:
        trajectory = Trajectory(network, weights, list(schedule(training, size, None)), training)
        blank, classes = weights[0].new_zeros(1, size, *knows.shape), weights[0].new_zeros(size).long()
        return replace(trajectory, memory=fit(trajectory, blank, classes, budget_mib / len(knows.sizes or ())))

    return SimulatedClients(knows.sizes, {size: run(size) for size in set(knows.sizes)})
