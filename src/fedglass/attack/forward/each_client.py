"""The message as the mean of its clients, each with the examples that are its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.forward.super_client import BUDGET_MIB
from fedglass.attack.forward.target import gradient_sum, known_training, leaves, network_of
from fedglass.attack.forward.unroll import WALKS, in_each_order
from fedglass.attack.parts import BoundForward
from fedglass.core.facts import Fact, refusal
from fedglass.core.types import Candidate, Observation, Training
from fedglass.fl.local import schedule
from fedglass.fl.memory import fit
from fedglass.fl.trajectory import Trajectory, per_epoch


@dataclass(frozen=True)
class EachClient:
    """sum_k (N_k / N) of what client k's own training gives, of any sizes [Curious client, 2025, Appendix F].

    The upper bound on `SuperClient`: no real adversary knows which images belong to which client, which the order of
    the true labels tells here. ORACLE. The paper has equal clients; the weights are those of the server's mean.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING, Fact.GROUPS})

    budget_mib: float = BUDGET_MIB

    def reads(self, observation: Observation) -> frozenset[Fact]:
        """A simulated message has the size of the true one, whatever the optimiser."""
        return frozenset({Fact.SIZE})

    def cost(self, training: Training, examples: int) -> tuple[float, int]:
        """What a prediction and its gradient take: how many plain gradients, of how many examples each."""
        return WALKS * training.local_steps(examples), examples

    def bind(self, observation: Observation) -> BoundForward:
        training, network, knows = known_training(observation), network_of(observation), observation.knows
        if knows.sizes is None:
            raise refusal("Simulating each client", [Fact.GROUPS])
        sizes, weights = list(knows.sizes), leaves(observation, network)
        runs = {size: self._run(observation, size, weights) for size in set(sizes)}

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            images = torch.split(candidate.images, sizes, dim=1)
            labels = torch.split(candidate.labels, sizes, dim=int(per_epoch(candidate.labels)))
            rows = zip(sizes, images, labels, strict=True)
            sums = [runs[n].gradient_sum(in_each_order(x, y), y) for n, x, y in rows]
            shares = [n / sum(sizes) for n in sizes]
            first, *rest = ([share * g for g in each] for share, each in zip(shares, sums, strict=True))
            return [sum(parts[1:], parts[0]) for parts in zip(first, *rest, strict=True)]

        return BoundForward(gradient_sum(observation, network, training.lr), predict, network.names)

    def _run(self, observation: Observation, size: int, weights: list[Tensor]) -> Trajectory:
        """The training of a client of that size, within its part of the budget."""
        training, knows = known_training(observation), observation.knows
        batches = list(schedule(training, size, None))
        trajectory = Trajectory(network_of(observation), weights, batches, training)
        blank, classes = weights[0].new_zeros(1, size, *knows.shape), weights[0].new_zeros(size).long()
        return replace(trajectory, memory=fit(trajectory, blank, classes, self.budget_mib / knows.clients))
