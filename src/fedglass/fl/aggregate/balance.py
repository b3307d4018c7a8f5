"""Updates that agree with one that the server makes itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.fl.aggregate.rule import Aggregated, AggregationContext, State, mean_of

NEEDS = (
    "federation.rule 'balance' compares with an update of the server's own: say on how many examples it is trained, "
    "federation.server_examples."
)


@register(
    "rules",
    "balance",
    summary="the mean of those that lie near an update of the server's own",
    paper="Fang, Zhang, Hairi, Khanduri, Liu, Lu, Liu, Gong: Byzantine-Robust Decentralized Federated Learning, "
    "CCS 2024, https://arxiv.org/abs/2406.10416",
)
@dataclass(frozen=True)
class Balance:
    """The mean of those with |u_ref - u_k| <= phi exp(-decay * round) |u_ref| [after Fang et al., 2024].

    The reference is what the server's own examples give, trained as the clients do. Rounds count from 0;
    `decay` is their kappa over the number of rounds. There is no good default of `phi`: sweep it, and look at whose
    updates get through.
    """

    phi: float
    decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.phi < math.inf or not 0 <= self.decay < math.inf:
            raise UsageError(
                "federation.rule 'balance': phi must be positive and decay at least 0, both finite, got "
                f"{self.phi} and {self.decay}."
            )

    def check(self, clients: int, reference: bool = False) -> None:
        if not reference:
            raise UsageError(NEEDS)

    def init(self, weights: Tensor) -> State:
        return None

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        if context.reference is None:
            raise UsageError(NEEDS)
        own = context.reference.to(updates)
        far = self.phi * math.exp(-self.decay * context.round) * own.norm()
        # Row by row: no second copy of all updates.
        return mean_of(updates, torch.stack([(own - row).norm() <= far for row in updates]))
