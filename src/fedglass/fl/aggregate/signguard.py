"""Updates of usual length whose signs agree with those of most others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.core.rng import stream
from fedglass.fl.aggregate.clusters import by_shift, in_two, largest
from fedglass.fl.aggregate.rule import Aggregated, AggregationContext, State

CLUSTERINGS = ("mean_shift", "kmeans")


@register(
    "rules",
    "signguard",
    summary="the clipped mean of updates of usual length whose signs agree",
    paper="Xu, Huang, Song, Lan: Byzantine-robust Federated Learning through Collaborative Malicious Gradient "
    "Filtering, ICDCS 2022, https://arxiv.org/abs/2109.05872",
)
@dataclass(frozen=True)
class SignGuard:
    """Two filters, of length and of signs, and the mean of those that pass both [Xu et al., 2022, Algorithm 2].

    Length: `shortest` < |u| / median < `longest`. Signs: the shares of positive, zero and negative coordinates in a
    random window of `window` of them, each divided by its largest over clients, then the largest cluster. What is left
    is clipped to the median length. `clustering = "kmeans"` makes two clusters on all coordinates, not MeanShift's.
    """

    shortest: float = 0.1
    longest: float = 3.0
    window: float = 0.1
    clustering: str = "mean_shift"

    def __post_init__(self) -> None:
        if self.clustering not in CLUSTERINGS:
            raise UsageError(
                f"federation.rule 'signguard': clustering must be one of {', '.join(CLUSTERINGS)}, got "
                f"{self.clustering!r}."
            )
        if not 0 <= self.shortest < self.longest or not 0 < self.window <= 1:
            raise UsageError(
                "federation.rule 'signguard': expected 0 <= shortest < longest and 0 < window <= 1, got "
                f"{self.shortest}, {self.longest} and {self.window}."
            )

    def init(self, weights: Tensor) -> State:
        return None

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        draws = context.generator or stream(0, "signguard", context.round)
        lengths = torch.stack([row.norm() for row in updates])
        typical = lengths.quantile(0.5)
        ratio = lengths / typical.clamp(min=torch.finfo(lengths.dtype).tiny)
        usual = (ratio > self.shortest) & (ratio < self.longest)
        kept = usual & self._agree(updates, draws).to(updates.device)
        # Clipping is one factor for each client: the mean of the kept is a product with a row of weights.
        shares = kept.to(updates) * (1 / ratio).clamp(max=1)
        return Aggregated((shares / kept.sum().clamp(min=1)) @ updates, kept)

    def _agree(self, updates: Tensor, draws: torch.Generator) -> Tensor:
        d = updates.shape[1]
        whole = self.clustering == "kmeans"
        width = d if whole else max(1, int(self.window * d))
        start = int(torch.randint(d - width + 1, (1,), generator=draws))
        features = sign_shares(updates[:, start : start + width])
        return largest(in_two(features, draws) if whole else by_shift(features), torch.cdist(features, features))


def sign_shares(rows: Tensor) -> Tensor:
    """Shares of positive, zero and negative values, each divided by its largest over the rows.  # (n, d) -> (n, 3)

    >>> sign_shares(torch.tensor([[1.0, -1.0, 0.0, 2.0], [1.0, 1.0, 1.0, 1.0]])).tolist()
    [[0.5, 1.0, 1.0], [1.0, 0.0, 0.0]]
    """
    shares = torch.stack([(rows > 0).sum(1), (rows == 0).sum(1), (rows < 0).sum(1)], dim=1) / rows.shape[1]
    return shares / shares.max(dim=0).values.clamp(min=torch.finfo(shares.dtype).tiny)
