"""Updates whose low frequencies agree with those of most others."""

from __future__ import annotations

from dataclasses import dataclass

import scipy  # its parts are imported when they are first used
import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.fl.aggregate.clusters import by_density, largest
from fedglass.fl.aggregate.geometry import cosine_distances
from fedglass.fl.aggregate.rule import Aggregated, AggregationContext, State, demand, mean_of


@register(
    "rules",
    "freqfed",
    summary="the mean of the largest cluster of updates by their low frequencies",
    paper=(
        "Fereidooni, Pegoraro, Rieger, Dmitrienko, Sadeghi: FreqFed: A Frequency Analysis-Based Approach for "
        "Mitigating Poisoning Attacks in Federated Learning, NDSS 2024, https://arxiv.org/abs/2312.04432"
    ),
)
@dataclass(frozen=True)
class FreqFed:
    """The largest cluster by HDBSCAN on 1 - cosine of the low half of the cosine transforms [Fereidooni et al., 2024].

    `least` is the size from which some clients make a cluster, `neighbours` how many of them, itself included, make one
    dense. What is noise to HDBSCAN is in no cluster; where all are, nobody gets through.
    """

    least: int = 2
    neighbours: int = 1

    def __post_init__(self) -> None:
        if self.least < 2 or self.neighbours < 1:
            raise UsageError(
                "federation.rule 'freqfed': least must be at least 2 and neighbours at least 1, got "
                f"{self.least} and {self.neighbours}."
            )

    def check(self, clients: int, reference: bool = False) -> None:
        least = max(self.least, self.neighbours)
        demand("freqfed", "least", self.least, clients, least, "as many as make a cluster")

    def init(self, weights: Tensor) -> State:
        return None

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        self.check(len(updates))
        low = torch.stack([low_frequencies(row) for row in updates])
        distances = cosine_distances(low)
        kept = largest(by_density(distances, self.least, self.neighbours), distances)
        return mean_of(updates, kept.to(updates.device))


def low_frequencies(update: Tensor) -> Tensor:
    """The first half of the cosine transform (type II, orthonormal).  # (d,) -> (ceil(d / 2),)"""
    found = torch.from_numpy(scipy.fft.dct(update.cpu().double().numpy(), norm="ortho"))
    return found[: (len(update) + 1) // 2].to(update.dtype)
