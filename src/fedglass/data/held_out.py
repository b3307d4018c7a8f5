"""Examples that are held out from all clients: a random draw with the classes in the proportions of the data."""

from __future__ import annotations

import torch
from torch import Tensor


def stratified_rows(labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw `count` rows with each class in its proportion, in ascending order.  # (n,) -> (count,)

    What rounding leaves over goes to the classes with the largest remainders, the smaller label first. Fewer examples
    than classes cannot have every class.

    >>> labels = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    >>> labels[stratified_rows(labels, 4, torch.Generator().manual_seed(0))]
    tensor([0, 0, 1, 2])
    """
    shuffled = torch.randperm(len(labels), generator=generator)
    by_class = shuffled[torch.argsort(labels[shuffled], stable=True)]
    sizes = torch.unique(labels, return_counts=True)[1]
    exact = sizes.double() * count / len(labels)
    quotas = exact.floor().long()
    largest = torch.argsort(exact - quotas, descending=True, stable=True)
    quotas[largest[: count - int(quotas.sum())]] += 1
    members = torch.split(by_class, sizes.tolist())
    return torch.cat([rows[:quota] for rows, quota in zip(members, quotas.tolist(), strict=True)]).sort().values
