"""Partitions of the examples over the clients, and examples that are held out from all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedglass.core.errors import DataError, UsageError
from fedglass.core.losses import is_class_labels
from fedglass.data.dataset import Dataset


@dataclass(frozen=True)
class Iid:
    """Shuffled and dealt out evenly: sizes differ by at most one, and nothing is left over.

    >>> from fedglass.core.types import Whitening
    >>> labels = torch.zeros(5, dtype=torch.int64)
    >>> data = Dataset("d", torch.zeros(5, 1, 2, 2), labels, 1, Whitening((0.0,), (1.0,)))
    >>> [len(part) for part in Iid().split(data, 2, torch.Generator().manual_seed(0))]
    [3, 2]
    """

    def split(self, dataset: Dataset, clients: int, generator: torch.Generator) -> list[Tensor]:
        _check_clients(dataset, clients)
        return list(torch.randperm(len(dataset), generator=generator).tensor_split(clients))


@dataclass(frozen=True)
class Dirichlet:
    """Each class is spread over the clients in Dirichlet(alpha) shares [Hsu et al., 2019].

    Small alpha: few clients hold most of a class. A client that would stay empty takes one example from the
    largest client, since an empty client cannot train.
    """

    alpha: float

    def __post_init__(self) -> None:
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise UsageError(f"Dirichlet(alpha) needs a positive finite alpha, got {self.alpha}.")

    def split(self, dataset: Dataset, clients: int, generator: torch.Generator) -> list[Tensor]:
        _check_clients(dataset, clients)
        shuffled = torch.randperm(len(dataset), generator=generator)
        # torch draws no Dirichlet shares from a generator of one's own; numpy's are also safe for tiny alpha.
        shares = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        parts: list[list[int]] = [[] for _ in range(clients)]
        if not is_class_labels(dataset.labels):
            raise UsageError(
                f'federation.partition = "dirichlet" deals out classes, but {dataset.name} has other targets: leave it '
                "out."
            )
        for label in sorted(set(dataset.labels.tolist())):
            members = shuffled[dataset.labels[shuffled] == label]
            edges = np.cumsum(shares.dirichlet(np.full(clients, self.alpha)))[:-1] * len(members)
            pieces = members.tensor_split(np.rint(edges).astype(int).tolist())
            for part, piece in zip(parts, pieces, strict=True):
                part.extend(piece.tolist())
        for part in parts:
            if not part:
                part.append(max(parts, key=len).pop())
        return [torch.tensor(part) for part in parts]


@dataclass(frozen=True)
class ByWriter:
    """One writer per client with all its examples in order; of more writers than clients some are drawn."""

    def split(self, dataset: Dataset, clients: int, generator: torch.Generator) -> list[Tensor]:
        _check_clients(dataset, clients)
        if dataset.writers is None:
            raise DataError(
                f"{dataset.name} does not say who wrote its examples: ByWriter() needs writers, choose Iid() "
                "or Dirichlet(alpha)."
            )
        writers = torch.tensor(sorted(set(dataset.writers.tolist())))
        if clients > len(writers):
            raise DataError(f"{dataset.name} has {len(writers)} writers, too few for {clients} clients: ask for fewer.")
        drawn = writers[torch.randperm(len(writers), generator=generator)[:clients].sort().values]
        return [(dataset.writers == writer).nonzero()[:, 0] for writer in drawn]


@dataclass(frozen=True)
class Sizes:
    """Exactly this many examples for each client, drawn without repetition; the rest stays out."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise UsageError(f"Sizes(sizes) needs one positive number per client, got {self.sizes}.")

    def split(self, dataset: Dataset, clients: int, generator: torch.Generator) -> list[Tensor]:
        _check_clients(dataset, clients)
        if clients != len(self.sizes):
            raise UsageError(f"Sizes(sizes) names {len(self.sizes)} clients, got clients={clients}.")
        total = sum(self.sizes)
        if total > len(dataset):
            raise DataError(
                f"{dataset.name} has {len(dataset)} examples, Sizes{self.sizes} needs {total}: ask for fewer."
            )
        shuffled = torch.randperm(len(dataset), generator=generator)
        return list(torch.split(shuffled[:total], list(self.sizes)))


Partition = Iid | Dirichlet | ByWriter | Sizes
"""A rule that gives every client the positions of its examples; no example goes to two clients."""


def _check_clients(dataset: Dataset, clients: int) -> None:
    if not 1 <= clients <= len(dataset):
        raise DataError(
            f"{dataset.name} has {len(dataset)} examples, so clients must lie between 1 and {len(dataset)}, "
            f"got {clients}."
        )


def stratified_rows(labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw `count` rows with each class in its proportion, in ascending order.  # (n,) -> (count,)

    What rounding leaves over goes to the classes with the largest remainders, the smaller label first. Fewer examples
    than classes cannot have every class. Targets without classes, such as masks, are drawn as if they were one class.

    >>> labels = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    >>> labels[stratified_rows(labels, 4, torch.Generator().manual_seed(0))]
    tensor([0, 0, 1, 2])
    """
    labels = labels if is_class_labels(labels) else labels.new_zeros(len(labels))
    shuffled = torch.randperm(len(labels), generator=generator)
    by_class = shuffled[torch.argsort(labels[shuffled], stable=True)]
    sizes = torch.unique(labels, return_counts=True)[1]
    exact = sizes.double() * count / len(labels)
    quotas = exact.floor().long()
    largest = torch.argsort(exact - quotas, descending=True, stable=True)
    quotas[largest[: count - int(quotas.sum())]] += 1
    members = torch.split(by_class, sizes.tolist())
    return torch.cat([rows[:quota] for rows, quota in zip(members, quotas.tolist(), strict=True)]).sort().values
