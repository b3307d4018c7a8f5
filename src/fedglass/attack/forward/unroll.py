"""The message as the result of simulating the client's whole local training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.forward.target import leaves, network_of
from fedglass.attack.parts import BoundForward
from fedglass.core.errors import UsageError
from fedglass.core.types import Candidate, Observation, Training
from fedglass.fl.local import schedule
from fedglass.fl.memory import fit
from fedglass.fl.trajectory import Trajectory, per_epoch


@dataclass(frozen=True)
class Unroll:
    """Sum of the gradients over E epochs of ceil(N/m) local batches [Dimitrov et al., 2022, Algorithm 2].

    The candidate's batches are consecutive slices, the same in each epoch; its images may differ between
    epochs. An aggregate of several clients of equal size is the mean of their simulations, each with its share
    of the candidate's examples [ibid., App. C.5]. The message is measured in gradients: (before - after) / lr.
    `budget_mib` bounds what the simulation keeps in memory, see `fl.memory`.
    """

    budget_mib: float = 1024.0

    def bind(self, observation: Observation) -> BoundForward:
        training = known_training(observation)
        return simulate(observation, training, self.budget_mib)


@dataclass(frozen=True)
class UnrollEpochs:
    """As `Unroll`, but with all examples in one batch per epoch: the paper's "FedSGD-Epoch" baseline.

    The learning rate is multiplied by the number of batches that one step stands for, so that the simulated
    weights travel as far as the client's.
    """

    budget_mib: float = 1024.0

    def bind(self, observation: Observation) -> BoundForward:
        training = known_training(observation)
        per_epoch = len(training.batches(examples_per_client(observation)))
        whole = Training(training.lr * per_epoch, training.epochs, None, training.batch_norm)
        return simulate(observation, whole, self.budget_mib)


def known_training(observation: Observation) -> Training:
    """The client's training, which a simulation can not do without."""
    training = observation.knows.training
    if training is None:
        raise UsageError(
            "Simulating the client needs its learning rate, epochs and batch size, which the adversary does not "
            "know: set adversary.knows_training = true, or attack with sme or inverting_gradients."
        )
    return training


def examples_per_client(observation: Observation) -> int:
    """N, the same for all clients of an aggregate."""
    knows = observation.knows
    if knows.examples % knows.clients:
        raise UsageError(
            f"The aggregate of {knows.clients} clients holds {knows.examples} examples, expected a multiple: "
            "simulating an aggregate needs clients of equal size."
        )
    return knows.examples // knows.clients


def simulate(observation: Observation, training: Training, budget_mib: float) -> BoundForward:
    """The operator of `Unroll` for a given training."""
    network = network_of(observation)
    each, clients = examples_per_client(observation), observation.knows.clients
    batches = list(schedule(training, each, None))
    trajectory = Trajectory(network, leaves(observation, network), batches, training.lr)
    memo: list[Trajectory] = []

    def fitted(candidate: Candidate) -> Trajectory:
        if not memo:
            memory = fit(trajectory, candidate.images, candidate.labels, budget_mib / clients)
            memo.append(Trajectory(network, trajectory.start, batches, training.lr, memory))
        return memo[0]

    def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
        run = fitted(candidate)
        images = torch.split(candidate.images, each, dim=1)
        labels = torch.split(candidate.labels, each, dim=int(per_epoch(candidate.labels)))
        sums = [run.gradient_sum(x, y) for x, y in zip(images, labels, strict=True)]
        if clients == 1:
            return sums[0]
        return [torch.stack(parts).mean(0) for parts in zip(*sums, strict=True)]

    target = tuple(observation.update[name] / -training.lr for name in network.names)
    return BoundForward(target, predict, network.names, steps=len(batches))
