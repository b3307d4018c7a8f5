"""The message as what an aggregation rule makes of its clients, each simulated with the examples that are its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.forward.combine import Combination, SupposedMean
from fedglass.attack.forward.each_client import simulated_clients
from fedglass.attack.forward.simulation import Simulation
from fedglass.attack.forward.super_client import BUDGET_MIB
from fedglass.attack.forward.target import gradient_sum, known_training, network_of
from fedglass.attack.parts import BoundForward
from fedglass.core.facts import Fact
from fedglass.core.types import Candidate, Observation


@dataclass(frozen=True)
class Through(Simulation):
    """Phi({g_m}) of the clients' simulated updates g_m [Yue et al., 2025, Eq. 22].

    The candidate's first examples are the first client's, and so on: which labels are whose is a hypothesis, or an
    oracle's. With `own` the adversary's own update goes into the rule as it was sent, after the others', and none of
    the candidate's examples are its own, see `OwnAsSent`.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING, Fact.EXAMPLES})
    uses: ClassVar[frozenset[Fact]] = frozenset({Fact.OWN})

    combination: Combination = field(default_factory=SupposedMean)
    own: bool = False
    budget_mib: float = BUDGET_MIB

    def bind(self, observation: Observation) -> BoundForward:
        training, network = known_training(observation), network_of(observation)
        clients = simulated_clients(observation, self.budget_mib)
        sent = _as_sent(observation, network.names, training.lr) if self.own else None
        sizes = [*clients.sizes, *([] if sent is None or observation.own is None else [len(observation.own.labels)])]
        like = observation.update[network.names[0]]
        shares = torch.tensor(sizes, dtype=like.dtype, device=like.device) / sum(sizes)

        self.combination.combine(torch.zeros(len(sizes), 1, dtype=like.dtype, device=like.device), shares)  # or refuse

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            rows = [*clients(candidate), *([] if sent is None else [sent])]
            return [self.combination.combine(torch.stack(each), shares) for each in zip(*rows, strict=True)]

        return BoundForward(gradient_sum(observation, network, training.lr), predict, network.names)


def _as_sent(observation: Observation, names: Sequence[str], lr: float) -> tuple[Tensor, ...] | None:
    """The adversary's own update in the units of the message; None where none of it got through."""
    own = observation.own
    return None if own is None or Fact.OWN not in observation.facts else tuple(own.update[name] / -lr for name in names)
