"""Rules that accept the largest cluster of clients: SignGuard and FreqFed.

Clients are clustered by the signs or by the low frequencies of their updates. HDBSCAN and MeanShift are those of
scikit-learn, an optional package (the extra `robust`) that is imported on first use.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.core.rng import stream
from fedglass.fl.aggregate.rule import (
    Aggregated,
    AggregationContext,
    Aggregator,
    State,
    cosine_distances,
    demand,
    mean_of,
)

CLUSTERINGS = ("mean_shift", "kmeans")


def largest(labels: NDArray[np.int_], distances: Tensor) -> Tensor:
    """Mark the members of the largest cluster, of equally large ones the tightest.  # (n,), (n, n) -> (n,), bool

    The label -1 is noise.

    >>> largest(np.array([-1, 1, 1, 0, -1, -1]), torch.ones(6, 6)).tolist()
    [False, True, True, False, False, False]
    >>> largest(np.array([-1, -1]), torch.ones(2, 2)).tolist()
    [False, False]
    """
    members = [torch.from_numpy(labels == name) for name in np.unique(labels[labels >= 0])]
    if not members:
        return torch.zeros(len(labels), dtype=torch.bool)
    distances = distances.cpu()
    return min(members, key=lambda cluster: (-int(cluster.sum()), float(distances[cluster][:, cluster].sum())))


def by_density(distances: Tensor, least: int, neighbours: int) -> NDArray[np.int_]:
    """Cluster by HDBSCAN on a matrix of distances [Campello et al., 2013], at least `least` each.  # (n, n) -> (n,)"""
    model = _sklearn().HDBSCAN(min_cluster_size=least, min_samples=neighbours, metric="precomputed", copy=True)
    labels: NDArray[np.int_] = model.fit(distances.cpu().numpy()).labels_
    return labels


def by_shift(features: Tensor) -> NDArray[np.int_]:
    """Cluster by MeanShift with the bandwidth that half of the neighbours give.  # (n, features) -> (n,)"""
    points = features.cpu().double().numpy()
    width = _sklearn().estimate_bandwidth(points, quantile=0.5)
    if not width > 0:
        return np.unique(points, axis=0, return_inverse=True)[1].ravel()
    labels: NDArray[np.int_] = _sklearn().MeanShift(bandwidth=width, bin_seeding=False).fit(points).labels_
    return labels


def in_two(features: Tensor, generator: torch.Generator) -> NDArray[np.int_]:
    """Make two clusters by k-means.  # (n, features) -> (n,)"""
    points = features.cpu().double().numpy()
    if len(np.unique(points, axis=0)) < 2:
        return np.zeros(len(points), dtype=np.int64)
    seed = int(torch.randint(2**31, (1,), generator=generator))
    labels: NDArray[np.int_] = scipy.cluster.vq.kmeans2(points, 2, minit="++", rng=seed)[1]
    return labels


def _sklearn() -> ModuleType:
    try:
        return importlib.import_module("sklearn.cluster")
    except ImportError as error:
        raise UsageError(
            "This aggregation rule needs scikit-learn 1.3 or newer: pip install 'fedglass[robust]'."
        ) from error


@register(
    "rules",
    "signguard",
    summary="the clipped mean of updates of usual length whose signs agree",
    paper="Xu, Huang, Song, Lan: Byzantine-robust Federated Learning through Collaborative Malicious Gradient "
    "Filtering, ICDCS 2022, https://arxiv.org/abs/2109.05872",
)
@dataclass(frozen=True)
class SignGuard(Aggregator):
    """Two filters, of length and of signs, and the mean of updates that pass both [Xu et al., 2022, Algorithm 2].

    Length: `shortest` < |u| / median < `longest`. Signs: the shares of positive, zero and negative coordinates in a
    random window of `window` of them, each divided by its largest over clients, then the largest cluster. The accepted
    updates are clipped to the median length. `clustering = "kmeans"` makes two clusters on all coordinates instead of
    MeanShift's on the window.
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

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        draws = context.generator or stream(0, "signguard", context.round)
        lengths = torch.stack([row.norm() for row in updates])
        typical = lengths.quantile(0.5)
        ratio = lengths / typical.clamp(min=torch.finfo(lengths.dtype).tiny)
        usual = (ratio > self.shortest) & (ratio < self.longest)
        accepted = usual & self._agree(updates, draws).to(updates.device)
        # Clipping is one factor for each client: the mean of the accepted is a product with a row of weights.
        shares = accepted.to(updates) * (1 / ratio).clamp(max=1)
        return Aggregated((shares / accepted.sum().clamp(min=1)) @ updates, accepted)

    def _agree(self, updates: Tensor, draws: torch.Generator) -> Tensor:
        d = updates.shape[1]
        all_coordinates = self.clustering == "kmeans"
        width = d if all_coordinates else max(1, int(self.window * d))
        start = int(torch.randint(d - width + 1, (1,), generator=draws))
        features = sign_shares(updates[:, start : start + width])
        return largest(
            in_two(features, draws) if all_coordinates else by_shift(features), torch.cdist(features, features)
        )


def sign_shares(rows: Tensor) -> Tensor:
    """Return the shares of positive, zero and negative values, divided by their largest over rows.  # (n, d) -> (n, 3)

    >>> sign_shares(torch.tensor([[1.0, -1.0, 0.0, 2.0], [1.0, 1.0, 1.0, 1.0]])).tolist()
    [[0.5, 1.0, 1.0], [1.0, 0.0, 0.0]]
    """
    shares = torch.stack([(rows > 0).sum(1), (rows == 0).sum(1), (rows < 0).sum(1)], dim=1) / rows.shape[1]
    return shares / shares.max(dim=0).values.clamp(min=torch.finfo(shares.dtype).tiny)


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
class FreqFed(Aggregator):
    """The largest cluster by HDBSCAN on 1 - cosine of the low half of the cosine transforms [Fereidooni et al., 2024].

    `least` is the smallest size of a cluster, `neighbours` how many clients, itself included, make one dense. HDBSCAN
    counts some updates as noise, which is in no cluster. If all are noise, no update is accepted.
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

    def aggregate(self, updates: Tensor, context: AggregationContext, state: State) -> Aggregated:
        self.check(len(updates))
        low = torch.stack([low_frequencies(row) for row in updates])
        distances = cosine_distances(low)
        accepted = largest(by_density(distances, self.least, self.neighbours), distances)
        return mean_of(updates, accepted.to(updates.device))


def low_frequencies(update: Tensor) -> Tensor:
    """Return the first half of the cosine transform (type II, orthonormal).  # (d,) -> (ceil(d / 2),)"""
    frequencies = torch.from_numpy(scipy.fft.dct(update.cpu().double().numpy(), norm="ortho"))
    return frequencies[: (len(update) + 1) // 2].to(update.dtype)
