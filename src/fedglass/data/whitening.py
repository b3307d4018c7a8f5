"""Channel means and deviations: the published ones, and those of data that nobody has published."""

from __future__ import annotations

import torch
from torch import Tensor

from fedglass.core.types import Whitening

FEMNIST = Whitening((0.96424,), (0.15768,))
MNIST = Whitening((0.1307,), (0.3081,))
FASHION_MNIST = Whitening((0.2860,), (0.3530,))
CIFAR10 = Whitening((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100 = Whitening((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))


def measured(images: Tensor) -> Whitening:
    """The mean and deviation of each channel, to four digits.  # (n, c, h, w)

    Rounded so that a report can print them; a deviation below 0.01 becomes 0.01, since flat images would
    otherwise be blown up to noise.

    >>> measured(torch.tensor([0.0, 1.0]).view(1, 1, 1, 2))
    Whitening(mean=(0.5,), std=(0.5,))
    """
    deviation, mean = torch.std_mean(images, dim=(0, 2, 3), correction=0)
    return Whitening(
        tuple(round(float(m), 4) for m in mean),
        tuple(round(max(float(s), 0.01), 4) for s in deviation),
    )
