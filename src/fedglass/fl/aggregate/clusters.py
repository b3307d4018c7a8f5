"""Clustering of clients, by scikit-learn where it takes more than a few lines: the extra `robust`."""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np
import scipy  # its parts are imported when they are first used
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedglass.core.errors import UsageError


def largest(labels: NDArray[np.int_], distances: Tensor) -> Tensor:
    """Who is in the largest cluster, of equally large ones the tightest; -1 is noise.  # (n,), (n, n) -> (n,), bool

    >>> largest(np.array([-1, 1, 1, 0, -1, -1]), torch.ones(6, 6)).tolist()
    [False, True, True, False, False, False]
    >>> largest(np.array([-1, -1]), torch.ones(2, 2)).tolist()
    [False, False]
    """
    members = [torch.from_numpy(labels == name) for name in np.unique(labels[labels >= 0])]
    if not members:
        return torch.zeros(len(labels), dtype=torch.bool)
    apart = distances.cpu()
    return min(members, key=lambda own: (-int(own.sum()), float(apart[own][:, own].sum())))


def by_density(distances: Tensor, least: int, neighbours: int) -> NDArray[np.int_]:
    """HDBSCAN on a matrix of distances [Campello et al., 2013]; clusters of at least so many.  # (n, n) -> (n,)"""
    model = _cluster("HDBSCAN")(min_cluster_size=least, min_samples=neighbours, metric="precomputed", copy=True)
    labels: NDArray[np.int_] = model.fit(distances.cpu().numpy()).labels_
    return labels


def by_shift(features: Tensor) -> NDArray[np.int_]:
    """MeanShift with the bandwidth that half of the neighbours give.  # (n, features) -> (n,)"""
    points = features.cpu().double().numpy()
    width = _sklearn().estimate_bandwidth(points, quantile=0.5)
    if not width > 0:
        return np.unique(points, axis=0, return_inverse=True)[1].ravel()
    labels: NDArray[np.int_] = _cluster("MeanShift")(bandwidth=width, bin_seeding=False).fit(points).labels_
    return labels


def in_two(features: Tensor, generator: torch.Generator) -> NDArray[np.int_]:
    """Two clusters by k-means.  # (n, features) -> (n,)"""
    points = features.cpu().double().numpy()
    if len(np.unique(points, axis=0)) < 2:
        return np.zeros(len(points), dtype=np.int64)
    seed = int(torch.randint(2**31, (1,), generator=generator))
    labels: NDArray[np.int_] = scipy.cluster.vq.kmeans2(points, 2, minit="++", rng=seed)[1]
    return labels


def _cluster(name: str) -> type:
    found: type = getattr(_sklearn(), name)
    return found


def _sklearn() -> ModuleType:
    try:
        return importlib.import_module("sklearn.cluster")
    except ImportError as error:
        raise UsageError(
            "This aggregation rule needs scikit-learn 1.3 or newer: pip install 'fedglass[robust]'."
        ) from error
