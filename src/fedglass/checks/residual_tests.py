"""Standard tests of independent standard normal entries. Each returns one p, from an exact law or from a bound.

A test that looks at several things returns the smallest p times their number (Bonferroni). Asymptotic laws are
avoided: the tensors of networks are small and of odd shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported when they are first used
from torch import Tensor

from fedglass.checks.rounding_cells import Array, Law, as_array, cdf

SMALL = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""Shares of std below which entries are counted. Normals of torch in single precision are spaced by 4e-7 at zero."""
MANTISSAS = (3, 7, 10)
"""Bits after the point of float8 (and of what has fewer), bfloat16 and float16."""
BINS, FEW_BINS, SPAN = 2**18, 2**16, 12
"""Bins and width, in std, of the histogram whose spectrum shows a common step: of 1e-4 (4e-4) std and more."""
MANY = 4096
"""Entries from which on there are as many bins as that."""
OF_LAW = 1e-2
"""What the law itself may add to that spectrum, where chance adds 1: at lower frequencies no step is looked for."""
SIDE = 16
"""Of a matrix, from which on its spectrum and its pairs are tested."""
WINDOWS = (16, 64, 256)
"""Lengths of the parts of a tensor that are tested alone, in flat order: each begins half a length after the last."""
MOST_ROWS, MOST_COLUMNS, MOST_ENTRIES = 512, 4096, 2**18
"""What is looked at of a large tensor, to bound time: any part of independent noise is independent noise."""
TRACY_WIDOM = (46.446, 9.84801, 0.186054)
"""Shape, shift and scale of the gamma law that stands for that of Tracy and Widom of order 1 [Chiani, 2014]."""
TAIL = 3.0
"""By which its tail is raised: of 400,000 draws of 16 x 16, 2.25 times as many as expected were beyond 1e-5."""
DIRECTIONS = (1, 2, 5, 10, 20, 50, 100, 200)
"""Numbers of principal directions that are tested together."""
RANK = 1e-10
"""Share of the largest eigenvalue from which on a direction counts as one."""
CHUNK = 2**16
"""Columns of gradients that are held in double precision at once."""
CLOSE, FAR = 1e-9, 30.0
"""Deviations between which small cells have a probability in double precision; other tests find what is beyond."""


class TestOutcome(NamedTuple):
    """The chance of anything as unlikely under the declared law, and the measured details."""

    p: float
    details: Mapping[str, float | int | str]


def smallest(outcomes: Iterable[TestOutcome]) -> TestOutcome | None:
    """Return the least likely of several outcomes, its p times their number."""
    listed = list(outcomes)
    if not listed:
        return None
    least = min(listed, key=lambda each: each.p)
    return TestOutcome(min(1.0, least.p * len(listed)), least.details)


def std(z: Array) -> TestOutcome:
    """Test the mean square of all entries."""
    p = chi_square(np.square(z).sum().reshape(1), z.size)
    return TestOutcome(float(p[0]), {"measured_over_declared": math.sqrt(float(np.square(z).mean()))})


def distribution(z: Array) -> TestOutcome:
    """Test the law of the entries by Kolmogorov and Smirnov."""
    return _uniform(as_array(scipy.special.ndtr(z)))


def largest_entry(z: Array) -> TestOutcome:
    """Test the largest entry, which may be too large or too small."""
    largest = float(np.abs(z).max())
    below, beyond = float(scipy.special.erf(largest / math.sqrt(2))), 2 * float(scipy.special.ndtr(-largest))
    log_below = z.size * (math.log1p(-beyond) if beyond < 0.5 else math.log(below) if below > 0 else -math.inf)
    p = min(1.0, 2 * min(math.exp(log_below), -math.expm1(log_below)))
    return TestOutcome(p, {"largest_over_std": largest})


def small_entries(z: Array) -> TestOutcome | None:
    """Test how many entries are next to zero, as they are without noise."""
    counts = {share: int((np.abs(z) < share).sum()) for share in SMALL}
    return smallest(
        TestOutcome(
            float(scipy.stats.binom.sf(count - 1, z.size, scipy.special.erf(share / math.sqrt(2)))),
            {"below": share, "entries": count},
        )
        for share, count in counts.items()
    )


def grid(x: Array, std: float, law: Law, sent_bits: int) -> TestOutcome | None:
    """Test whether entries keep to numbers of few bits or to multiples of a step; `x` is in declared deviations.

    Noise may be drawn in the type of the message, which has `sent_bits` after the point: it is spread over the cells
    of that type, and only coarser grids count.
    """
    flat = x.reshape(-1)[:MOST_ENTRIES]
    _, exponent = np.frexp(np.abs(flat) * std)
    share = np.random.default_rng(0).uniform(-0.5, 0.5, flat.size)
    spread = flat + share * np.ldexp(1.0, exponent - 1 - sent_bits) / std
    near = spread[(np.abs(spread) > CLOSE) & (np.abs(spread) < FAR)]
    places = [(bits, unit) for bits in MANTISSAS if bits < sent_bits for unit in (std, 1.0)]
    beyond = cdf(-np.abs(near), law)
    few = [
        TestOutcome(_uniform(_place_in_cell(near, beyond, unit, bits, law)).p, {"mantissa_bits": bits})
        for bits, unit in places
    ]
    return smallest([*few, _common_step(spread, law)])


def _uniform(u: Array) -> TestOutcome:
    """Bound the chance of a largest distance from the uniform law [Massart, 1990]."""
    if not u.size:
        return TestOutcome(1.0, {})
    ordered, ranks = np.sort(u, axis=None), np.arange(u.size + 1) / u.size
    distance = float(max((ranks[1:] - ordered).max(), (ordered - ranks[:-1]).max()))
    return TestOutcome(min(1.0, 2 * math.exp(-2 * u.size * distance**2)), {"distance": distance})


def _place_in_cell(x: Array, beyond: Array, unit: float, bits: int, law: Law) -> Array:
    """Return how far through the cell of the nearest number of few bits each entry lies, in probability.

    Independent and uniform in [0, 1] whatever the grid is; next to 0.5 where the noise was drawn on it. `beyond` is
    the probability of the tail from each entry on.
    """
    size = np.abs(x) * unit
    _, exponent = np.frexp(size)
    step = np.ldexp(1.0, exponent - 1 - bits)
    steps = np.rint(size / step)
    # Below a power of two the grid is twice as fine.
    below = np.where(steps == 2**bits, step / 4, step / 2)
    above = np.where(steps == 2 ** (bits + 1), step, step / 2)
    low, high = ((steps * step + side) / unit for side in (-below, above))
    start, end = cdf(-low, law), cdf(-high, law)
    return np.clip((start - beyond) / (start - end), 0, 1)


def _common_step(x: Array, law: Law) -> TestOutcome:
    """Test all steps at once.

    Multiples of a step are in phase at the frequency 1 / step, where the phases of the law are uniform: by Rayleigh
    the power of n uniform phases over n exceeds t with chance exp(-t).
    """
    bins = BINS if x.size >= MANY else FEW_BINS
    counts = np.bincount((x / SPAN % 1 * bins).astype(np.int64) % bins, minlength=bins)
    spectrum = scipy.fft.rfft(counts.astype(np.float64))
    first = math.ceil(_end_of_law(x.size, law) * SPAN / (2 * math.pi))
    power = (np.square(spectrum.real) + np.square(spectrum.imag))[first:] / x.size
    best = int(power.argmax())
    p = min(1.0, math.exp(-float(power[best])) * len(power))
    return TestOutcome(p, {"step_over_std": SPAN / (first + best)})


def _end_of_law(count: int, law: Law) -> float:
    """Return the angular frequency, per std, beyond which the law itself adds less than `OF_LAW` to the power."""
    if law == "gaussian":  # exp(-w^2) of each entry
        return math.sqrt(math.log(count / OF_LAW))
    return math.sqrt(2 * math.sqrt(count / OF_LAW))  # (1 + w^2 / 2)^-2


def rows(slices: Iterable[tuple[Array, int]]) -> TestOutcome | None:
    """Test sums of squares, each of so many entries."""
    return smallest(
        TestOutcome(min(1.0, float(p.min()) * p.size), {"mean_square": float(squares[p.argmin()]) / count, "of": count})
        for squares, count in slices
        for p in [chi_square(squares, count)]
    )


def slices(z: Array) -> Iterator[tuple[Array, int]]:
    """Return the sums of squares of all rows, columns, filters, channels and kernels, and how many entries each has."""
    every = range(z.ndim)
    for axes in {*((axis,) for axis in every), tuple(every[:2]), tuple(every[1:])}:
        summed = tuple(axis for axis in every if axis not in axes)
        count = math.prod(z.shape[axis] for axis in summed)
        if 1 < count < z.size:
            yield np.square(z).sum(axis=summed).reshape(-1), count


def windows(z: Array) -> TestOutcome | None:
    """Test short parts of a tensor alone: the size of their entries, their sum, and how alike neighbours are.

    What stands in the place of the noise, such as a small picture, need not show in the tensor as a whole.
    """
    flat = z.reshape(-1)
    return smallest(outcome for length in WINDOWS if length < flat.size for outcome in _windows(flat, length))


def _windows(flat: Array, length: int) -> Iterator[TestOutcome]:
    parts = np.lib.stride_tricks.sliding_window_view(flat, length)[:: length // 2]
    even, odd = parts[:, ::2], parts[:, 1::2]
    squares = [np.einsum("ij,ij->i", half, half) for half in (even, odd)]
    cosines = np.einsum("ij,ij->i", even, odd) / np.maximum(np.sqrt(squares[0] * squares[1]), np.finfo(np.float64).tiny)
    chances = {
        "mean_square": chi_square(squares[0] + squares[1], length),
        "mean": as_array(2 * scipy.special.ndtr(-np.abs(parts.sum(axis=1)) / math.sqrt(length))),
        "correlation": correlation_p(cosines, length // 2),
    }
    for what, p in chances.items():
        first = int(p.argmin())
        yield TestOutcome(
            min(1.0, float(p[first]) * p.size), {"what": what, "first_entry": first * (length // 2), "of": length}
        )


def row_sums(z: Array) -> TestOutcome | None:
    """Test the sums along every axis: their mean square and the largest of them."""
    every = range(z.ndim)
    summed = {*((axis,) for axis in every), tuple(every), tuple(every[1:]), tuple(every[2:])}
    counts = {axes: math.prod(z.shape[axis] for axis in axes) for axes in summed}
    scaled = [z.sum(axis=axes) / math.sqrt(count) for axes, count in counts.items() if count > 1]
    return smallest(test(sums) for sums in scaled for test in (std, largest_entry))


def chi_square(squares: Array, count: int) -> Array:
    """Return the two-sided p of sums of so many squares."""
    low, high = scipy.special.gammainc(count / 2, squares / 2), scipy.special.gammaincc(count / 2, squares / 2)
    return as_array(np.minimum(1.0, 2 * np.minimum(low, high)))


def neighbours(z: Array) -> TestOutcome | None:
    """Test the products of entries one step apart along each axis, and at all distances in flat order."""
    outcomes = []
    for axis in range(z.ndim):
        ahead = np.moveaxis(z, axis, 0)
        if len(ahead) > 1:
            outcomes.append(_products(np.sum(ahead[1:] * ahead[:-1]).reshape(1), as_array([ahead[1:].size])))
    flat = z.reshape(-1)[:MOST_ENTRIES]
    if flat.size > 1:
        spectrum = scipy.fft.rfft(flat, scipy.fft.next_fast_len(2 * flat.size, real=True))
        products = as_array(
            scipy.fft.irfft(np.square(np.abs(spectrum)), scipy.fft.next_fast_len(2 * flat.size, real=True))
        )
        outcomes.append(_products(products[1 : flat.size], flat.size - np.arange(1.0, flat.size)))
    return smallest(outcomes)


def _products(totals: Array, counts: Array) -> TestOutcome:
    """Bound the chance of sums of so many products of neighbours [Laurent and Massart, 2000, Lemma 1].

    The sum is a form z'Az with the squared norm counts / 2 and no eigenvalue beyond 1: it exceeds 2 |A| sqrt(x) + 2 x
    with chance exp(-x) at most.
    """
    norm = np.sqrt(counts / 2)
    log_p = -np.square((np.sqrt(np.square(norm) + 2 * np.abs(totals)) - norm) / 2)
    best = int(log_p.argmin())
    p = min(1.0, 2 * len(totals) * math.exp(float(log_p[best])))
    return TestOutcome(p, {"distance": best + 1, "correlation": float(totals[best] / counts[best])})


def singular_values(matrix: Array) -> TestOutcome | None:
    """Test the largest singular value, and how far each row of the smaller side is from the span of its others.

    The square of that distance is chi-square; it is small where a singular value is.
    """
    part = (matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T)[:MOST_ROWS, :MOST_COLUMNS]
    count, length = part.shape
    values, vectors = np.linalg.eigh(part @ part.T)
    distances = 1 / (np.square(vectors) @ (1 / np.maximum(values, np.finfo(np.float64).tiny)))
    p_smallest = min(1.0, count * float(scipy.special.gammainc((length - count + 1) / 2, distances.min() / 2)))
    largest = float(values[-1])
    return smallest(
        [
            TestOutcome(_tracy_widom(largest, count, length), {"largest": math.sqrt(max(0.0, largest))}),
            TestOutcome(p_smallest, {"smallest": math.sqrt(max(0.0, float(values[0])))}),
        ]
    )


def _tracy_widom(largest: float, count: int, length: int) -> float:
    """Return the chance of a larger first eigenvalue, with the centre and scale of Johnstone, 2001, less one half."""
    one, other = math.sqrt(count - 0.5), math.sqrt(length - 0.5)
    scaled = (largest - (one + other) ** 2) / ((one + other) * (1 / one + 1 / other) ** (1 / 3))
    shape, shift, scale = TRACY_WIDOM
    return min(1.0, TAIL * float(scipy.stats.gamma.sf(scaled + shift, shape, scale=scale)))


def correlated_rows(matrix: Array) -> TestOutcome | None:
    """Test the largest correlation of two rows and of two columns."""
    outcomes = []
    for side_name, side in (("rows", matrix), ("columns", matrix.T)):
        part = side[: 4 * MOST_ROWS, :MOST_COLUMNS]
        unit = part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        pairs = np.triu(unit @ unit.T, 1)
        one, other = divmod(int(np.abs(pairs).argmax()), len(pairs))
        p = float(correlation_p(float(pairs[one, other]), part.shape[1])) * len(pairs) * (len(pairs) - 1) / 2
        outcomes.append(
            TestOutcome(
                min(1.0, p), {"of": side_name, "first": one, "second": other, "correlation": float(pairs[one, other])}
            )
        )
    return smallest(outcomes)


def correlation_p(correlation: Array | float, length: int) -> Array:
    """Return the chance that independent normals are at so small an angle to any vector of that length."""
    return as_array(scipy.special.betainc((length - 1) / 2, 0.5, np.maximum(0.0, 1 - np.square(correlation))))


def correlated(one: Array, other: Array, **seen: str) -> Iterator[TestOutcome]:
    """Test one correlation, from the first entry on."""
    count = min(one.size, other.size)
    one, other = one.reshape(-1)[:count], other.reshape(-1)[:count]
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    if count >= SIDE and 0 < size < math.inf:
        value = float(one @ other) / size
        yield TestOutcome(float(correlation_p(value, count)), {**seen, "correlation": value})


def correlated_tensors(tensors: Mapping[str, Array]) -> TestOutcome | None:
    """Test the largest correlation of two tensors, as of noise that starts with the same seed in each."""
    starts = {name: z.reshape(-1)[:MOST_COLUMNS] for name, z in tensors.items()}
    pairs = combinations(starts, 2)
    return smallest(outcome for a, b in pairs for outcome in correlated(starts[a], starts[b], first=a, second=b))


def principal_directions(z: Array, gradients: Tensor) -> TestOutcome | None:
    """Test the noise inside of the first principal directions of gradients.  # z: (d,), gradients: (m, d)"""
    gram, along = _gram(z, gradients)
    values, vectors = np.linalg.eigh(gram)
    used = values > max(RANK * float(values[-1]), 0.0)
    parts = np.square(along @ vectors[:, used])[::-1] / values[used][::-1]
    counts = sorted({count for count in (*DIRECTIONS, len(parts)) if 0 < count <= len(parts)})
    squares = {count: float(parts[:count].sum()) for count in counts}
    return smallest(
        TestOutcome(
            float(chi_square(as_array([square]), count)[0]), {"directions": count, "mean_square": square / count}
        )
        for count, square in squares.items()
    )


def signal_directions(z: Array, directions: Tensor) -> TestOutcome | None:
    """Test the noise along the direction in which each record moves the message, and in all of them together."""
    gram, along = _gram(z, directions)
    lengths = np.diag(gram)
    used = np.flatnonzero(lengths > 0)
    p = chi_square(np.square(along[used]) / lengths[used], 1)
    alone = [TestOutcome(float(p.min()) * p.size, {"record": int(used[p.argmin()])})] if p.size else []
    joint = principal_directions(z, directions)
    return smallest([*alone, *([joint] if joint else [])])


def _gram(z: Array, gradients: Tensor) -> tuple[Array, Array]:
    """Return the products of gradients with each other and with the noise.  # (m, m), (m,)"""
    gram, along = np.zeros((len(gradients), len(gradients))), np.zeros(len(gradients))
    for start in range(0, z.size, CHUNK):
        part = as_array(gradients[:, start : start + CHUNK].detach().cpu().double().numpy())
        gram += part @ part.T
        along += part @ z[start : start + CHUNK]
    return gram, along


def flat(tensors: Iterable[Array]) -> Array:
    return np.concatenate([tensor.reshape(-1) for tensor in tensors])
