"""Operators that simulate the complete local training of one client, of a super-client or of each client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    network_of,
)
from fedglass.attack.parts import BoundForward
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact, refusal
from fedglass.core.types import Candidate, Observation, Training
from fedglass.fl.local import schedule
from fedglass.fl.loss.targets import blank_targets
from fedglass.fl.trajectory import Trajectory, fit, per_epoch

BUDGET_MIB = 512.0
"""Memory of the simulation; with unknowns and prior, 250 steps of the CIFAR CNN then peak below 1.5 GiB of the
process."""


@dataclass(frozen=True)
class Unroll(Simulation):
    """Sum of the gradients over E epochs of ceil(N/m) local batches [Dimitrov et al., 2022, Algorithm 2].

    The candidate's batches are consecutive slices, the same in each epoch; its images may differ between
    epochs. An aggregate of several clients is the mean of their simulations, weighted by their numbers of examples as
    the server weighs them (the paper has clients of equal size). Each client has its share of the candidate's examples
    [ibid., App. C.5]. The message is measured in gradients: (before - after) / lr. The paper has plain SGD; with
    another optimiser, each step's gradient is replaced by the direction in which that optimiser moves.
    `budget_mib` bounds the memory of the simulation, see `fl.trajectory.fit`.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING, Fact.CLIENT_SIZES})
    uses: ClassVar[frozenset[Fact]] = frozenset({Fact.BATCH_LABELS})

    budget_mib: float = BUDGET_MIB

    def cost(self, training: Training, examples: int) -> tuple[float, int]:
        return WALKS * training.local_steps(examples), min(training.batch_size or examples, examples)

    def bind(self, observation: Observation) -> BoundForward:
        return simulate(observation, known_training(observation), self.budget_mib)


@dataclass(frozen=True)
class UnrollEpochs(Simulation):
    """`Unroll` with all examples in one batch per epoch: the paper's "FedSGD-Epoch" baseline.

    The one step of an epoch is as long as all steps that it stands for, so that the simulated weights travel as
    far as the client's. With momentum they do so along a constant gradient; an epoch of Adam or of weight decay is
    as long as its number of steps. Momentum and moments fade with each simulated step, thus more slowly.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING, Fact.EQUAL_CLIENTS})

    budget_mib: float = BUDGET_MIB

    def cost(self, training: Training, examples: int) -> tuple[float, int]:
        return WALKS * training.passes(examples), examples

    def bind(self, observation: Observation) -> BoundForward:
        training, knows = known_training(observation), observation.knows
        if Fact.EQUAL_CLIENTS not in observation.facts:
            raise refusal("Simulating an aggregate", [Fact.EQUAL_CLIENTS])
        examples = knows.examples // knows.clients
        length, epochs = epoch_length(training, examples), training.passes(examples)
        one_batch = replace(training, lr=training.lr * length, batch_size=None, epochs=epochs, steps=None)
        simulated = simulate(observation, one_batch, self.budget_mib)

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            return [length * g for g in simulated.predict(candidate, unknowns)]

        target = gradient_sum(observation, network_of(observation), training.lr)
        return BoundForward(target, predict, simulated.names, batches=steps_of_an_epoch(training, examples))


def epoch_length(training: Training, examples: int) -> float:
    """Return the number of local steps that one step of an epoch replaces: ceil(N / B) for plain SGD.

    >>> epoch_length(Training(lr=0.1, epochs=3, batch_size=2), examples=5)
    3.0
    """
    steps, epochs = training.local_steps(examples), training.passes(examples)
    far, short = (training.optimiser.travel(1.0, count) for count in (steps, epochs))
    return steps / epochs if far is None or short is None else far / short


def steps_of_an_epoch(training: Training, examples: int) -> int:
    """Return ceil(N / B), or fewer where the training ends within its first epoch."""
    return min(len(training.batches(examples)), training.local_steps(examples))


def simulate(observation: Observation, training: Training, budget_mib: float) -> BoundForward:
    """Return the operator of `Unroll` for a given training."""
    sizes = _sizes(observation, training)
    clients = simulated_clients(observation, training, sizes, budget_mib)

    def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
        images, examples = candidate.images.shape[1], sum(sizes)
        if images != examples:  # such as a truth that holds more than was trained on
            raise UsageError(
                f"The training is simulated with {examples} example(s), but {images} image(s) are compared with it: "
                "correct the number of examples, or give as the truth only those that were trained on."
            )
        sums = clients(candidate)
        if len(sizes) == 1:
            return sums[0]
        if len(set(sizes)) == 1:
            return [torch.stack(tensors).mean(0) for tensors in zip(*sums, strict=True)]
        shares = sums[0][0].new_tensor(sizes) / sum(sizes)
        return [torch.tensordot(shares, torch.stack(tensors), dims=1) for tensors in zip(*sums, strict=True)]

    network = network_of(observation)
    target = gradient_sum(observation, network, training.lr)
    return BoundForward(target, predict, network.names, batches=steps_of_an_epoch(training, max(sizes)))


def _sizes(observation: Observation, training: Training) -> tuple[int, ...]:
    """Return the number of examples of each client; all must begin equally many epochs of unknown images."""
    knows = observation.knows
    if Fact.EQUAL_CLIENTS in observation.facts:
        return (knows.examples // knows.clients,) * knows.clients
    if knows.sizes is None or len({training.passes(examples) for examples in knows.sizes}) > 1:
        raise refusal("Simulating an aggregate", [Fact.EQUAL_CLIENTS])
    return knows.sizes


def in_each_order(images: Tensor, labels: Tensor) -> Tensor:
    """Put images that the epochs share into each epoch's own order where the labels have one.

    An image keeps its label: the k-th image of a class in the first epoch is the k-th of it in every other.
    # images (1 or epochs, n, c, h, w), labels (n,), (n, classes) or (epochs, n)

    >>> images, labels = torch.tensor([[10.0, 20.0, 30.0]]), torch.tensor([[1, 2, 3], [3, 1, 2]])
    >>> in_each_order(images.view(1, 3, 1, 1, 1), labels).flatten(1)
    tensor([[10., 20., 30.],
            [30., 10., 20.]])
    """
    if len(images) > 1 or not per_epoch(labels) or len(labels) == 1:
        return images
    sorting = labels.argsort(dim=1, stable=True)  # (epochs, n), the places of each epoch's labels in ascending order
    order = torch.empty_like(sorting).scatter_(1, sorting, sorting[:1].expand_as(sorting).contiguous())
    return images[0][order]


SUPER_CLIENT_BUDGET_MIB = 4096.0
"""Memory of the simulation: one step of 64 images at 128x128 on the paper's LeNet, and its weights, need a fraction."""


@dataclass(frozen=True)
class SuperClient(Simulation):
    """tau steps of one client on all N examples of all clients at once [Wilson et al., 2024, Eq. 3].

    Neither the number of clients nor their sizes need be known: the mean weighs every example alike. Exact for
    tau = 1; else the clients' ways part after their first step, by eta^2 tau (tau - 1) (K - 1) / N in the mean
    [ibid., Lemma 1]. Where the clients take batches of a part of their examples, tau is the number of those steps.
    The message is measured in gradients: (before - after) / lr.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.STEPS, Fact.LR})
    uses: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING})

    budget_mib: float = SUPER_CLIENT_BUDGET_MIB

    def bind(self, observation: Observation) -> BoundForward:
        training, network = full_batch_training(observation), network_of(observation)
        run = _trajectory(observation, training, observation.knows.examples, self.budget_mib)

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            labels = candidate.labels[0] if per_epoch(candidate.labels) else candidate.labels
            return run.gradient_sum(candidate.images[:1], labels)

        return BoundForward(gradient_sum(observation, network, training.lr), predict, network.names)


def full_batch_training(observation: Observation) -> Training:
    """Return the clients' training with the same number of steps, each on all examples."""
    lr, steps, training = learning_rate(observation), observation.knows.local_steps, observation.knows.training
    if lr is None or steps is None:
        raise refusal("Simulating a super-client", SuperClient.needs - observation.facts)
    base = Training(lr, loss=observation.knows.objective) if training is None else training
    return replace(base, epochs=steps, batch_size=None, steps=None, shuffle=False)


@dataclass(frozen=True)
class EachClient(Simulation):
    """sum_k (N_k / N) g_k, g_k the result of client k's own training, of any sizes [Wilson et al., 2024, Appendix F].

    The upper bound on `SuperClient`: no real adversary knows which images belong to which client. Here the order of
    the true labels gives it. ORACLE. The paper has equal clients; the weights are those of the server's mean.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING, Fact.GROUPS})

    budget_mib: float = SUPER_CLIENT_BUDGET_MIB

    def bind(self, observation: Observation) -> BoundForward:
        training, network = known_training(observation), network_of(observation)
        sizes = client_sizes(observation)
        clients = simulated_clients(observation, training, sizes, self.budget_mib)

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            sums = zip(sizes, clients(candidate), strict=True)
            weighted = [[size / sum(sizes) * g for g in gradients] for size, gradients in sums]
            return [sum(parts[1:], parts[0]) for parts in zip(*weighted, strict=True)]

        return BoundForward(gradient_sum(observation, network, training.lr), predict, network.names)


def client_sizes(observation: Observation) -> list[int]:
    """Return the number of examples of each client behind a message."""
    if observation.knows.sizes is None:
        raise refusal("Simulating each client", [Fact.GROUPS])
    return list(observation.knows.sizes)


def simulated_clients(
    observation: Observation, training: Training, sizes: Sequence[int], budget_mib: float
) -> Callable[[Candidate], list[tuple[Tensor, ...]]]:
    """Return the result of the training of clients of these sizes, each within its part of the budget.

    A candidate's first examples are the first client's.
    """
    budget = budget_mib / len(sizes)
    runs = {size: _trajectory(observation, training, size, budget) for size in set(sizes)}

    def gradient_sums(candidate: Candidate) -> list[tuple[Tensor, ...]]:
        images = torch.split(candidate.images, list(sizes), dim=1)
        labels = torch.split(candidate.labels, list(sizes), dim=int(per_epoch(candidate.labels)))
        clients = zip(sizes, images, labels, strict=True)
        return [runs[n].gradient_sum(in_each_order(x, y), y) for n, x, y in clients]

    return gradient_sums


def _trajectory(observation: Observation, training: Training, examples: int, budget_mib: float) -> Trajectory:
    """Return the training on this number of examples; a budget that is too small is refused before the search."""
    network = network_of(observation)
    weights = leaves(observation, network)
    trajectory = Trajectory(network, weights, list(schedule(training, examples, None)), training)
    images = weights[0].new_zeros(1, examples, *observation.knows.shape)  # any images of that size
    with torch.no_grad():
        outputs = network(weights, images[0, :1].expand(2, *images.shape[2:])) if training.loss is not None else None
    targets = blank_targets(training.loss, examples, weights[0], () if outputs is None else tuple(outputs.shape[1:]))
    return replace(trajectory, memory=fit(trajectory, images, targets, budget_mib))
