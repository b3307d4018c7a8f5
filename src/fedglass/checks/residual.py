"""Tests of a residual: is it the declared noise? Tests refute a mechanism, they never prove it.

`residual` is the message minus a replay of the declared training without noise. Declared noise is independent in every
entry and follows one known law: nothing else may show in it. A residual that passes is consistent with the
declaration. Noise from an unknown seed, or missing in a few directions that are not tested, passes too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedglass.checks import residual_tests as tests
from fedglass.checks.residual_tests import TestOutcome
from fedglass.checks.rounding_cells import Array, Law, as_array, cell, draw_in_cell, grid_of, normal_scores
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.tensors import Params
from fedglass.core.text import some
from fedglass.core.thresholds import NOISE_LEVEL, POOLED_ENTRIES

FAR = 1e6
"""Deviations at which entries are cut off, so that squares stay finite: no noise is as large."""
SEEDS = (
    *range(10_000),
    12_345,
    31_337,
    54_321,
    123_456,
    1_234_567,
    12_345_678,
    123_456_789,
    987_654_321,
    3_735_928_559,
)
"""Seeds that people type; 42, 1234 and years are among the first."""
START = 128
"""Entries of a generator's stream that are compared: 16 that agree are no chance in all of these seeds."""
BLOCK = 16
"""Normals that torch draws at once: for other numbers of entries, the last 16 are drawn again."""


@dataclass(frozen=True, eq=False)
class NoiseResidual:
    """The message minus its replay, and what was declared about it."""

    residual: Params
    """The message minus the replay without noise, in double precision."""
    std: float
    """The declared standard deviation of every entry."""
    law: Law = "gaussian"
    message: Params | None = None
    """The arrays that were sent: the update or, with `weights_sent`, the weights. None: they were not rounded."""
    before: Params | None = None
    """The model that the training began with."""
    sent_dtype: torch.dtype | None = None
    """The type that the message was rounded to; found from its values where it is not given."""
    weights_sent: bool = False
    """`message` holds weights (before + update), not the update: its rounding is that of the weights."""
    public: Tensor | None = None
    """Gradients of public examples in the order of `residual`.  # (m, d)"""
    signal: Tensor | None = None
    """The difference that each audited record makes to the message.  # (k, d)"""
    others: Mapping[str, Params] = field(default_factory=dict)
    """Residuals of other messages, or these messages, by name."""

    def __post_init__(self) -> None:
        if not 0 < self.std < math.inf:
            raise UsageError(f"The standard deviation of noise must be positive and finite, got {self.std}.")
        entries = sum(tensor.numel() for tensor in self.residual.values())
        if not entries:
            raise UsageError("The residual has no entries: pass the message minus its replay.")
        for name, rows in (("public", self.public), ("signal", self.signal)):
            if rows is not None and (rows.dim() != 2 or rows.shape[1] != entries):
                raise UsageError(f"{name} must have the shape (n, {entries}), got {tuple(rows.shape)}.")
        if (self.sent_dtype is not None or self.weights_sent) and self.message is None:
            raise UsageError("Rounding depends on what was sent: pass the message, or the weights with weights_sent.")
        sent = self.residual if self.message is None else self.message
        unlike = [n for n, r in self.residual.items() if n not in sent or sent[n].shape != r.shape]
        if unlike:
            raise UsageError(f"The message does not fit its residual at {some(unlike)}: pass what was sent, by name.")


@dataclass(frozen=True)
class Refutation:
    """One way in which the residual is not the declared noise."""

    test: str
    tensor: str
    """The tensor, or several joined by +; empty for all."""
    p: float
    """The chance of it under the declared noise, corrected for all tests of the message."""
    details: Mapping[str, float | int | str]


def refutations(residual: NoiseResidual) -> tuple[Refutation, ...]:
    """Return what refutes the declared noise; empty where the residual is consistent with it."""
    broken = [name for name, tensor in residual.residual.items() if not torch.isfinite(tensor).all()]
    if broken:
        return tuple(Refutation("finite", name, 0.0, {}) for name in broken)
    ran = list(_outcomes(_with_dtype(residual)))
    corrected = [(test, tensor, outcome.p * len(ran), outcome.details) for test, tensor, outcome in ran]
    return tuple(Refutation(*fields) for fields in corrected if not fields[2] >= NOISE_LEVEL)


def spread_of(replays: Sequence[Params], std: float) -> float:
    """Return the largest difference of replays in one entry, relative to std.

    Beyond `REPLAY_SPREAD` the noise cannot be tested.

    >>> spread_of([{"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([1.0, 2.5])}], std=5.0)
    0.1
    """
    stacked = [torch.stack([update[name].double() for update in replays]) for name in replays[0]]
    return max((float((t.amax(0) - t.amin(0)).max()) for t in stacked if t.numel()), default=0.0) / std


def rounding_of(residual: NoiseResidual) -> float:
    """Return the median width of the message's rounding cells, relative to std; beyond 1 rounding hides the noise."""
    cells = _cells(_with_dtype(residual))
    widths = [below + above for below, above in cells.values()]
    return float(np.median(tests.flat(widths))) / residual.std if widths else 0.0


def _outcomes(residual: NoiseResidual) -> Iterator[tuple[str, str, TestOutcome]]:
    """Run every test that applies; one outcome for each test and tensor."""
    drawn = _drawn(residual)
    scores = {name: normal_scores(x, residual.law) for name, x in drawn.items()}
    pool = [name for name, z in scores.items() if z.size < POOLED_ENTRIES]
    ran = {name: _of_tensor(scores[name], drawn[name], residual) for name in scores if name not in pool}
    if pool:
        z, x = (tests.flat(entries[name] for name in pool) for entries in (scores, drawn))
        squares = [(np.square(scores[name]).sum().reshape(1), scores[name].size) for name in pool]
        ran[" + ".join(pool)] = _of_entries(z, x, residual) | {"rows": tests.rows(squares)}
    ran[""] = _of_entries(tests.flat(scores.values()), tests.flat(drawn.values()), residual) if len(ran) > 1 else {}
    ran[""] |= _of_message(scores, residual)
    for tensor, outcomes in ran.items():
        yield from ((test, tensor, outcome) for test, outcome in outcomes.items() if outcome)


def _of_entries(z: Array, x: Array, residual: NoiseResidual) -> dict[str, TestOutcome | None]:
    bits = round(-math.log2(torch.finfo(residual.sent_dtype or torch.float64).eps))
    return {
        "std": tests.std(z),
        "distribution": tests.distribution(z),
        "largest_entry": tests.largest_entry(z),
        "small_entries": tests.small_entries(z),
        "grid": tests.grid(x, residual.std, residual.law, bits),
        "row_sums": tests.row_sums(z),
        "neighbours": tests.neighbours(z),
        "windows": tests.windows(z),
    }


def _of_tensor(z: Array, x: Array, residual: NoiseResidual) -> dict[str, TestOutcome | None]:
    outcomes = _of_entries(z, x, residual) | {"rows": tests.rows(tests.slices(z))}
    matrix = z.reshape(len(z), -1) if z.ndim > 1 else z.reshape(1, -1)
    if min(matrix.shape) >= tests.SIDE:
        outcomes["singular_values"] = tests.singular_values(matrix)
        outcomes["correlated_rows"] = tests.correlated_rows(matrix)
    return outcomes


def _of_message(scores: Mapping[str, Array], residual: NoiseResidual) -> dict[str, TestOutcome | None]:
    z = tests.flat(scores.values())
    outcomes: dict[str, TestOutcome | None] = {"correlated_tensors": tests.correlated_tensors(scores)}
    outcomes["seed"] = tests.smallest(_seeds(scores, residual.law))
    outcomes["reused_noise"] = tests.smallest(_reused(scores, residual.others))
    if residual.before is not None:
        outcomes["correlated_model"] = tests.smallest(_reused(scores, {"model": residual.before}))
    if residual.public is not None:
        outcomes["principal_directions"] = tests.principal_directions(z, residual.public)
    if residual.signal is not None:
        outcomes["signal_directions"] = tests.signal_directions(z, residual.signal)
    return outcomes


def _drawn(residual: NoiseResidual) -> dict[str, Array]:
    """Return the residual in declared deviations, drawn inside of the message's rounding cells."""
    cells, drawn = _cells(residual), {}
    for name, tensor in residual.residual.items():
        if tensor.numel():
            x = np.clip(as_array(tensor.detach().cpu().double().numpy()) / residual.std, -FAR, FAR)
            below, above = (
                (side / residual.std for side in cells[name]) if cells else (np.zeros_like(x), np.zeros_like(x))
            )
            drawn[name] = draw_in_cell(x, below, above, residual.law, stream(0, "rounding cell", name))
    return drawn


def _cells(residual: NoiseResidual) -> dict[str, tuple[Array, Array]]:
    if residual.message is None or residual.sent_dtype is None:
        return {}
    return {name: cell(residual.message[name], residual.sent_dtype) for name in residual.residual}


def _with_dtype(residual: NoiseResidual) -> NoiseResidual:
    """Return it with the type that the message was rounded to, as its values show it."""
    if residual.message is None or residual.sent_dtype is not None:
        return residual
    return replace(residual, sent_dtype=grid_of(residual.message[name] for name in residual.residual))


def _reused(scores: Mapping[str, Array], messages: Mapping[str, Params]) -> Iterator[TestOutcome]:
    """Test the correlation with what else is known, tensor by tensor and in flat order."""
    flat = tests.flat(scores.values())
    for title, other in messages.items():
        arrays = {name: as_array(t.detach().cpu().double().numpy()) for name, t in other.items() if t.numel()}
        for name in [name for name in scores if name in arrays]:
            yield from tests.correlated(scores[name], arrays[name], message=title, tensor=name)
        if arrays:
            yield from tests.correlated(flat, tests.flat(arrays.values()), message=title, tensor="")


def _seeds(scores: Mapping[str, Array], law: Law) -> Iterator[TestOutcome]:
    """Test the beginnings of the message and of each tensor against the streams of common seeds."""
    flat = tests.flat(scores.values())
    starts = {name: z.reshape(-1)[: _agreeing(z.size)] for name, z in scores.items()}
    starts |= {"": flat[: _agreeing(flat.size)]}
    for generator in STREAMS[law]:
        yield from _nearest(starts, generator, (START + BLOCK,))
    sizes = tuple(min(z.size, START + BLOCK) for z in scores.values())
    if sizes[0] < START + BLOCK:
        head = tuple(size for size, start in zip(sizes, np.cumsum((0, *sizes[:-1])), strict=True) if start < START)
        yield from _nearest({"": flat[:START]}, STREAMS[law][0], head)


def _agreeing(size: int) -> int:
    """Return how many of the first entries torch draws alike for this and for a larger number of entries."""
    return min(START, size if size % BLOCK == 0 else max(0, size - BLOCK))


def _nearest(starts: Mapping[str, Array], generator: str, sizes: tuple[int, ...]) -> Iterator[TestOutcome]:
    """Test the largest correlation of beginnings with the streams of a generator."""
    for length in {start.size for start in starts.values() if start.size >= BLOCK}:
        names = [name for name, start in starts.items() if start.size == length]
        streams = _streams(generator, sizes)[:, :length]
        rows = np.stack([starts[name] for name in names]).astype(np.float32)
        lengths = np.linalg.norm(rows, axis=1)[:, None] * _stream_norms(generator, sizes, length)
        cosines = rows @ streams.T / np.maximum(lengths, np.finfo(np.float32).tiny)
        row, seed = divmod(int(np.abs(cosines).argmax()), len(SEEDS))
        p = min(1.0, float(tests.correlation_p(float(cosines[row, seed]), length)) * cosines.size)
        yield TestOutcome(p, {"generator": generator, "seed": SEEDS[seed], "tensor": names[row]})


@lru_cache(maxsize=16)
def _streams(generator: str, sizes: tuple[int, ...]) -> NDArray[np.float32]:
    """Return how the streams of all seeds begin, drawn as tensors of these sizes.  # (seeds, entries)"""
    return np.stack([stream[:START].astype(np.float32) for stream in (NORMALS | LAPLACIANS)[generator](sizes)])


@lru_cache(maxsize=256)
def _stream_norms(generator: str, sizes: tuple[int, ...], length: int) -> NDArray[np.float32]:
    return np.asarray(np.linalg.norm(_streams(generator, sizes)[:, :length], axis=1))


def _torch_normals(sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Iterator[NDArray[Any]]:
    generator = torch.Generator()
    for seed in SEEDS:
        generator.manual_seed(seed)
        drawn = [torch.randn(size, generator=generator, dtype=dtype) for size in sizes]
        yield np.asarray(torch.cat(drawn).numpy())


def _torch_laplacians(sizes: tuple[int, ...]) -> Iterator[NDArray[Any]]:
    """Return what torch.distributions.Laplace draws, which takes no generator."""
    generator, lowest = torch.Generator(), torch.finfo(torch.float32).eps - 1
    for seed in SEEDS:
        uniform = torch.empty(sum(sizes)).uniform_(lowest, 1, generator=generator.manual_seed(seed))
        yield np.asarray((-uniform.sign() * torch.log1p(-uniform.abs())).numpy())


def _legacy(draw: str, sizes: tuple[int, ...]) -> Iterator[NDArray[Any]]:
    state = np.random.RandomState(0)
    for seed in SEEDS:
        state.seed(seed)
        yield getattr(state, draw)(size=sum(sizes))


def _default_rng(draw: str, sizes: tuple[int, ...]) -> Iterator[NDArray[Any]]:
    return (getattr(np.random.default_rng(seed), draw)(size=sum(sizes)) for seed in SEEDS)


Streams = dict[str, Callable[[tuple[int, ...]], Iterator[NDArray[Any]]]]
NORMALS: Streams = {
    "torch.randn": _torch_normals,
    "torch.randn in float64": partial(_torch_normals, dtype=torch.float64),
    "numpy.random.RandomState": partial(_legacy, "standard_normal"),
    "numpy.random.default_rng": partial(_default_rng, "standard_normal"),
}
LAPLACIANS: Streams = {
    "torch.distributions.Laplace": _torch_laplacians,
    "numpy.random.RandomState.laplace": partial(_legacy, "laplace"),
    "numpy.random.default_rng.laplace": partial(_default_rng, "laplace"),
}
STREAMS: dict[Law, tuple[str, ...]] = {"gaussian": tuple(NORMALS), "laplacian": tuple(LAPLACIANS)}
"""What noise is drawn with, by its law."""
