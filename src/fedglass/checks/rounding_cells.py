"""Rounding cells: a residual is known up to the cell of the sent value, and is drawn inside that cell.

The randomised quantile residual of Dunn and Smyth, 1996: where the noise follows its law and the message was rounded
after it, a draw inside the cell follows the law exactly, however coarse the cell is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import scipy  # its parts are imported when they are first used
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
Law = Literal["gaussian", "laplacian"]

NARROW = 1e-3
"""Cells below this share of std are drawn from uniformly: the distribution moves by less than its square over 30."""
COARSE = (torch.bfloat16, torch.float16, torch.float32)
"""Types whose grid is looked for in a message that came in a wider type, coarsest first."""


def cdf(x: Array, law: Law) -> Array:
    """Return the distribution function of the law with standard deviation 1."""
    return as_array(scipy.special.ndtr(x)) if law == "gaussian" else np.exp(_log_cdf(x, law))


def normal_scores(x: Array, law: Law) -> Array:
    """Return values that are standard normal where `x` follows the law with standard deviation 1."""
    if law == "gaussian":
        return x
    return np.copysign(as_array(scipy.special.ndtri_exp(_log_cdf(-np.abs(x), law))), x)


def grid_of(sent: Iterable[Tensor]) -> torch.dtype:
    """Return the coarsest type that holds every entry of a message exactly.

    >>> grid_of([torch.tensor([1.0, 1.5])]), grid_of([torch.tensor([1.0 + 2**-9])]), grid_of([torch.tensor([0.1])])
    (torch.bfloat16, torch.float16, torch.float32)
    """
    tensors = list(sent)
    widest = torch.promote_types(torch.float32, tensors[0].dtype)
    return next((t for t in COARSE if all(torch.equal(x.to(widest), x.to(t).to(widest)) for x in tensors)), widest)


def cell(sent: Tensor, dtype: torch.dtype) -> tuple[Array, Array]:
    """Return how far below and above its value the cell of each sent entry reaches.

    >>> [side.tolist() for side in cell(torch.tensor([1.0, 1.5]), torch.float16)]
    [[0.000244140625, 0.00048828125], [0.00048828125, 0.00048828125]]
    """
    values, info = as_array(sent.detach().cpu().double().numpy()), torch.finfo(dtype)
    fraction, exponent = np.frexp(np.abs(values))
    lowest = np.abs(values) <= info.smallest_normal
    away = np.where(lowest, info.smallest_normal * info.eps, np.ldexp(0.5 * info.eps, exponent))
    # Below a power of two the grid is twice as fine.
    toward_zero = np.where((fraction == 0.5) & ~lowest, away / 2, away)
    return np.where(values < 0, away, toward_zero) / 2, np.where(values < 0, toward_zero, away) / 2


def draw_in_cell(x: Array, below: Array, above: Array, law: Law, generator: torch.Generator) -> Array:
    """Draw from the law inside of [x - below, x + above]; all in standard deviations."""
    share = as_array(torch.rand(x.shape, generator=generator, dtype=torch.float64).numpy())
    if float(np.max(below + above, initial=0.0)) < NARROW:
        return x - below + share * (below + above)
    # Values above zero are mirrored, so that every logarithm is that of the lower tail.
    mirrored = x > 0
    lower, upper = np.where(mirrored, -x - above, x - below), np.where(mirrored, -x + below, x + above)
    low, high = _log_cdf(lower, law), _log_cdf(upper, law)
    drawn = _quantile(high + np.log1p((1 - share) * np.expm1(low - high)), law)
    return np.where(mirrored, -drawn, drawn)


def as_array(values: Any) -> Array:
    return np.asarray(values, dtype=np.float64)


def _log_cdf(x: Array, law: Law) -> Array:
    if law == "gaussian":
        return as_array(scipy.special.log_ndtr(x))
    scaled = math.sqrt(2) * x
    return np.where(x <= 0, np.minimum(scaled, 0) - math.log(2), np.log1p(-0.5 * np.exp(-np.maximum(scaled, 0))))


def _quantile(log_u: Array, law: Law) -> Array:
    if law == "gaussian":
        return as_array(scipy.special.ndtri_exp(log_u))
    low = log_u <= -math.log(2)
    upper = -np.log1p(-np.exp(np.where(low, -math.log(2), log_u))) - math.log(2)
    return np.where(low, log_u + math.log(2), upper) / math.sqrt(2)
