"""The message of several clients as if one client had all their examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from fedglass.attack.forward.simulation import Simulation
from fedglass.attack.forward.target import gradient_sum, learning_rate, leaves, local_steps, network_of
from fedglass.attack.parts import BoundForward
from fedglass.core.facts import Fact, refusal
from fedglass.core.types import Candidate, Observation, Training
from fedglass.fl.local import schedule
from fedglass.fl.memory import fit
from fedglass.fl.trajectory import Trajectory, per_epoch

BUDGET_MIB = 4096.0
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

    budget_mib: float = BUDGET_MIB

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
