"""What operators that play the clients' training have in common."""

from __future__ import annotations

from fedglass.core.facts import Fact
from fedglass.core.types import Observation, Training

WALKS = 4.0
"""Cost of simulating a training and walking back, in plain trainings; measured on networks of Dimitrov et al., 2022."""


class Simulation:
    """The clients' local steps are played, each on all of their examples unless an operator says otherwise."""

    def reads(self, observation: Observation) -> frozenset[Fact]:
        """A simulated message has the size of the true one, whatever the optimiser."""
        return frozenset({Fact.SIZE})

    def cost(self, training: Training, examples: int) -> tuple[float, int]:
        """What a prediction and its gradient take: how many plain gradients, of how many examples each."""
        return WALKS * training.local_steps(examples), examples
