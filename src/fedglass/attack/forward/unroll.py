"""The message as the result of simulating the client's whole local training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.forward.target import (
    WALKS,
    Simulation,
    gradient_sum,
    known_training,
    learning_rate,
    leaves,
    local_steps,
    network_of,
)
from fedglass.attack.parts import BoundForward
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact, refusal
from fedglass.core.types import Candidate, Observation, Training
from fedglass.fl.local import schedule
from fedglass.fl.trajectory import Trajectory, fit, per_epoch

BUDGET_MIB = 512.0
"""Of the simulation; with unknowns and prior, 250 steps of the CIFAR CNN then peak below 1.5 GiB of process memory."""


@dataclass(frozen=True)
class Unroll(Simulation):
    """Sum of the gradients over E epochs of ceil(N/m) local batches [Dimitrov et al., 2022, Algorithm 2].

    The candidate's batches are consecutive slices, the same in each epoch; its images may differ between
    epochs. An aggregate of several clients is the mean of their simulations, weighted as the server weighs them, by
    their numbers of examples (the paper has clients of equal size), each with its share
    of the candidate's examples [ibid., App. C.5]. The message is measured in gradients: (before - after) / lr. With
    another optimiser than plain SGD, which the paper has, each step's gradient gives way to what that one moves along.
    `budget_mib` bounds what the simulation keeps in memory, see `fl.memory`.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING, Fact.CLIENT_SIZES})
    uses: ClassVar[frozenset[Fact]] = frozenset({Fact.BATCH_LABELS})

    budget_mib: float = BUDGET_MIB

    def cost(self, training: Training, examples: int) -> tuple[float, int]:
        """What a prediction and its gradient take: how many plain gradients, of how many examples each."""
        return WALKS * training.local_steps(examples), min(training.batch_size or examples, examples)

    def bind(self, observation: Observation) -> BoundForward:
        training = known_training(observation)
        return simulate(observation, training, self.budget_mib)


@dataclass(frozen=True)
class UnrollEpochs(Simulation):
    """As `Unroll`, but with all examples in one batch per epoch: the paper's "FedSGD-Epoch" baseline.

    The one step of an epoch is as long as all steps that it stands for, so that the simulated weights travel as
    far as the client's. With momentum they do so along a constant gradient; an epoch of Adam or of weight decay is
    as long as its number of steps. Momentum and moments fade with each simulated step, thus more slowly.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING, Fact.EQUAL_CLIENTS})

    budget_mib: float = BUDGET_MIB

    def cost(self, training: Training, examples: int) -> tuple[float, int]:
        """What a prediction and its gradient take: how many plain gradients, of how many examples each."""
        return WALKS * training.passes(examples), examples

    def bind(self, observation: Observation) -> BoundForward:
        training = known_training(observation)
        each = examples_per_client(observation)
        length = epoch_length(training, each)
        whole = replace(training, lr=training.lr * length, batch_size=None, epochs=training.passes(each), steps=None)
        simulated = simulate(observation, whole, self.budget_mib)

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            return [length * g for g in simulated.predict(candidate, unknowns)]

        target = gradient_sum(observation, network_of(observation), training.lr)
        return BoundForward(target, predict, simulated.names, batches=steps_of_an_epoch(training, each))


def epoch_length(training: Training, examples: int) -> float:
    """How many local steps one step of a whole epoch has to go as far as, ceil(N / B) for plain SGD.

    >>> epoch_length(Training(lr=0.1, epochs=3, batch_size=2), examples=5)
    3.0
    """
    steps, epochs = training.local_steps(examples), training.passes(examples)
    far, short = (training.optimiser.travel(1.0, count) for count in (steps, epochs))
    return steps / epochs if far is None or short is None else far / short


def steps_of_an_epoch(training: Training, examples: int) -> int:
    """ceil(N / B), or fewer where the training ends within its first epoch."""
    return min(len(training.batches(examples)), training.local_steps(examples))


def examples_per_client(observation: Observation) -> int:
    """N, the same for all clients of an aggregate."""
    if Fact.EQUAL_CLIENTS not in observation.facts:
        raise refusal("Simulating an aggregate", [Fact.EQUAL_CLIENTS])
    return observation.knows.examples // observation.knows.clients


def simulate(observation: Observation, training: Training, budget_mib: float) -> BoundForward:
    """The operator of `Unroll` for a given training."""
    network, sizes = network_of(observation), _sizes(observation, training)
    weights = leaves(observation, network)
    budget, shape = budget_mib / len(sizes), observation.knows.shape

    def trained_on(examples: int) -> Trajectory:
        trajectory = Trajectory(network, weights, list(schedule(training, examples, None)), training)
        # Of any images of that size: a budget that is too small is refused before the search starts.
        blank, classes = weights[0].new_zeros(1, examples, *shape), weights[0].new_zeros(examples).long()
        return replace(trajectory, memory=fit(trajectory, blank, classes, budget))

    runs, whole = {examples: trained_on(examples) for examples in set(sizes)}, sum(sizes)

    def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
        _check_count(candidate.images.shape[1], whole)
        images = torch.split(candidate.images, sizes, dim=1)
        labels = torch.split(candidate.labels, sizes, dim=int(per_epoch(candidate.labels)))
        parts = zip(sizes, images, labels, strict=True)
        sums = [runs[n].gradient_sum(in_each_order(x, y), y) for n, x, y in parts]
        if len(sizes) == 1:
            return sums[0]
        if len(runs) == 1:
            return [torch.stack(each).mean(0) for each in zip(*sums, strict=True)]
        shares = weights[0].new_tensor(sizes) / sum(sizes)
        return [torch.tensordot(shares, torch.stack(each), dims=1) for each in zip(*sums, strict=True)]

    target = gradient_sum(observation, network, training.lr)
    return BoundForward(target, predict, network.names, batches=steps_of_an_epoch(training, max(sizes)))


def _check_count(images: int, told: int) -> None:
    """Refuse other images than the training is simulated with, such as a truth that holds more than was trained on."""
    if images != told:
        raise UsageError(
            f"The training is simulated with {told} example(s), and {images} are there to compare it with: correct the "
            "number of examples, or give as the truth those alone that were trained on."
        )


def _sizes(observation: Observation, training: Training) -> list[int]:
    """How many examples each client has; they must begin equally many epochs, whose images are the unknowns."""
    knows = observation.knows
    if Fact.EQUAL_CLIENTS in observation.facts:
        return [knows.examples // knows.clients] * knows.clients
    if knows.sizes is None or len({training.passes(examples) for examples in knows.sizes}) > 1:
        raise refusal("Simulating an aggregate", [Fact.EQUAL_CLIENTS])
    return list(knows.sizes)


def in_each_order(images: Tensor, labels: Tensor) -> Tensor:
    """Images that the epochs share, in each epoch's own order where the labels have one.

    An image keeps its label: the k-th image of a class in the first epoch is the k-th of it in every other.
    # images (1 or epochs, n, c, h, w), labels (n,), (n, classes) or (epochs, n)

    >>> images, labels = torch.tensor([[10.0, 20.0, 30.0]]), torch.tensor([[1, 2, 3], [3, 1, 2]])
    >>> in_each_order(images.view(1, 3, 1, 1, 1), labels).flatten(1)
    tensor([[10., 20., 30.],
            [30., 10., 20.]])
    """
    if len(images) > 1 or not per_epoch(labels) or len(labels) == 1:
        return images
    sorting = labels.argsort(dim=1, stable=True)  # (epochs, n): where each epoch has its labels in ascending order
    order = torch.empty_like(sorting).scatter_(1, sorting, sorting[:1].expand_as(sorting).contiguous())
    return images[0][order]


# The message of several clients as if one client had all their examples.


SUPER_CLIENT_BUDGET_MIB = 4096.0
"""Of the simulation: one step of 64 images at 128x128 on the paper's LeNet, and its weights, in a fraction of it."""


@dataclass(frozen=True)
class SuperClient(Simulation):
    """tau steps of one client on all N examples at once, whoever they belong to [Wilson et al., 2024, Eq. 3].

    Neither the number of clients nor their sizes need be known: the mean weighs every example alike. Exact for
    tau = 1; else the clients' ways part after their first step, by eta^2 tau (tau - 1) (K - 1) / N in the mean
    [ibid., Lemma 1]. Where the clients take batches of a part of their examples, tau is the number of those steps.
    The message is measured in gradients: (before - after) / lr.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.STEPS, Fact.LR})
    uses: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING})

    budget_mib: float = SUPER_CLIENT_BUDGET_MIB

    def bind(self, observation: Observation) -> BoundForward:
        training, network = whole_batches(observation), network_of(observation)
        examples, weights = observation.knows.examples, leaves(observation, network)
        trajectory = Trajectory(network, weights, list(schedule(training, examples, None)), training)
        # Of any images of that size: a budget that is too small is refused before the search starts.
        blank, classes = weights[0].new_zeros(1, examples, *observation.knows.shape), weights[0].new_zeros(examples)
        run = replace(trajectory, memory=fit(trajectory, blank, classes.long(), self.budget_mib))

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            labels = candidate.labels[0] if per_epoch(candidate.labels) else candidate.labels
            return run.gradient_sum(candidate.images[:1], labels)

        return BoundForward(gradient_sum(observation, network, training.lr), predict, network.names)


def whole_batches(observation: Observation) -> Training:
    """The clients' training with as many steps, each on all examples."""
    lr, steps, training = learning_rate(observation), local_steps(observation), observation.knows.training
    if lr is None or steps is None:
        raise refusal("Simulating a super-client", SuperClient.needs - observation.facts)
    base = Training(lr) if training is None else training
    return replace(base, epochs=steps, batch_size=None, steps=None, shuffle=False)


# The message as the mean of its clients, each with the examples that are its own.


@dataclass(frozen=True)
class EachClient(Simulation):
    """sum_k (N_k / N) of what client k's own training gives, of any sizes [Wilson et al., 2024, Appendix F].

    The upper bound on `SuperClient`: no real adversary knows which images belong to which client, which the order of
    the true labels tells here. ORACLE. The paper has equal clients; the weights are those of the server's mean.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING, Fact.GROUPS})

    budget_mib: float = SUPER_CLIENT_BUDGET_MIB

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
