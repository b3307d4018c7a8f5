"""Noise that is not independent: parts of the first dense layer's update that are free of it give the image.

One example moves the layer by the rank-one matrix [U | v] = d [x | 1]. Independent noise covers all of it. Noise that
some rows lack, that cancels in sums of rows, that lies on a grid, that spares entries or that a common seed draws again
leaves a matrix of rank one at rounding level, which independent noise cannot: three rows that agree in every pixel
prove it. A replay of the image must give the same part.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from fedglass.attack.exact.cut import cut_at, head_gradients
from fedglass.attack.exact.dense import DenseUpdate, first_dense
from fedglass.attack.exact.division import as_images, within_bounds
from fedglass.attack.exact.linear import smoothest
from fedglass.attack.exact.method import Search, Solved
from fedglass.attack.exact.rows import AGREE, ROUGH, OneInput, Sent, one_input, row_ratios, stacked
from fedglass.attack.exact.verify import replayed
from fedglass.attack.forward.target import network_of
from fedglass.core.registry import register
from fedglass.core.types import Observation

Combine = Callable[[Tensor], Tensor]
"""What was done to the rows of the layer.  # (h, n) -> (m, n)"""

VOTES = 3
"""Rows that must agree at rounding level to be believed in a layer whose other rows do not."""
SEEDS = (*range(100), 123, 1234, 12345, 1337, 2023, 2024, 2025)
"""Seeds that everybody tries first."""
BEGINNING = 1024
"""Numbers of a seed's stream that are compared: in multiples of 16 they do not depend on how many are drawn."""
SOME = 128
"""Rows and columns that are looked at before a whole layer is."""
ALIKE = 0.9
"""Cosine beyond which the noise of two rows, or of a seed and the message, is the same: independent noise of 100
entries never reaches 0.6."""
QUIET = 0.25
"""The sum of all rows must be this much shorter than independent rows make it; 64 pixels never make it so."""
SMALL, CROWDED = 0.05, 0.15
"""Entries below the first share of the root mean square are at least the second share where some lack noise: normal
ones are 0.04."""
WAVES, PEAK = 100, 0.5
"""Grids are looked for down to 1 / 100 of the noise, by a mean of 256 cosines at least so large: chance gives 0.2."""
NEAR = 0.2
"""Mean distance to the nearest number of bfloat16, in gaps between them: without such noise it is 0.25."""
CANDIDATES = 16
"""Entries of a column that are tried as its pixel: where half of them lack noise, one column in 65,000 has none."""
SEEN = 0.25
"""The share of pixels that must be known for the others to be filled in."""
LOUD = 0.2
"""The rounding that a part may have, relative to its size: three rows of nothing else leave 0.8 of rank one."""
FITS = 6
"""Alternations between the image and what is taken off: they are nearly orthogonal, so that a few are enough."""
SAME_PART = 0.05
"""What a replay may leave of the part: an image at 40 dB switches units near zero."""


@dataclass(frozen=True, eq=False)
class _Part:
    """What may be free of noise."""

    how: str
    sent: Sent
    combine: Combine
    rows: int = VOTES
    """How many rows must agree."""


@register(
    "exact",
    "weak_noise",
    summary="one image from what structured noise leaves free: rows, sums of rows, grids, entries, common seeds",
)
@dataclass(frozen=True)
class WeakNoise:
    """Look for the parts of the first dense layer's update that noise does not cover, and divide there."""

    name: ClassVar[str] = "weak_noise"
    paper: ClassVar[str] = ""
    cost: ClassVar[float] = 0.3

    def applies(self, observation: Observation) -> str:
        layer = first_dense(observation)
        if isinstance(layer, str):
            return layer
        if observation.knows.examples != 1:
            return "rows agree for a single example alone"
        return "" if layer.bias is not None else "the first dense layer trains no bias"

    def solve(self, observation: Observation, search: Search) -> Solved | None:
        layer = first_dense(observation)
        if isinstance(layer, str) or layer.bias is None or layer.bias_error is None:
            return None
        sent = stacked(layer.weight, layer.bias, layer.weight_error, layer.bias_error)
        for part in _parts(observation, layer, sent):
            solved = _solved(observation, layer, part) if _rank_one(_some(part.sent), part.rows) else None
            if solved is not None:
                return solved
        return None


def _parts(observation: Observation, layer: DenseUpdate, sent: Sent) -> Iterator[_Part]:
    """All that may be free of noise, the cheapest first."""
    matrix, error = sent.matrix, sent.error

    def rows_of(how: str, combine: Combine, errors: Combine, rows: int = VOTES) -> _Part:
        made = combine(matrix)
        part = Sent(made, errors(error.square()).sqrt(), torch.ones_like(made, dtype=torch.bool))
        return _Part(how, part, combine, rows)

    yield rows_of("sizes of all entries", torch.abs, lambda t: t)
    quiet = _quiet_rows(layer, sent)
    if len(quiet):
        yield rows_of("rows without noise", lambda t: t[quiet], lambda t: t[quiet])
    one, other, signs = _pairs(matrix)
    if len(one):
        yield rows_of("pairs of rows", lambda t: t[one] - signs * t[other], lambda t: t[one] + t[other])
    if float(matrix.sum(0).norm()) < QUIET * float(matrix.norm()):
        yield rows_of("sum of all rows", lambda t: t.sum(0, keepdim=True), lambda t: t.sum(0, keepdim=True), rows=1)
    for how, cleaned in itertools.chain(_off_grids(sent), _off_seeds(observation, layer, sent)):
        yield _Part(how, cleaned, lambda t: t)
    for rows, known in _quiet_entries(sent):
        yield _Part("entries without noise", known, lambda t, chosen=rows: t[chosen])  # type: ignore[misc]


def _solved(observation: Observation, layer: DenseUpdate, part: _Part) -> Solved | None:
    """The image that a part gives, where the part has rank one and a replay gives the same part."""
    found = _rank_one(part.sent, part.rows)
    if found is None or not bool(within_bounds(observation.knows, found.inputs[None])[0]):
        return None
    known = part.sent.kept.any(0)[:-1]
    if not bool(known.all()):
        return _filled_in(observation, part, found, known)
    images = as_images(observation.knows, found.inputs[None])
    gradients = head_gradients(observation, layer, cut_at(observation, layer.name), found.inputs[None])[0]  # (k, h)
    along = cosine_similarity(part.combine(-gradients.T), found.factors[:, None], dim=0)  # (k,)
    names = network_of(observation).names
    name = f"{layer.name}.weight" if layer.name else "weight"
    tried: list[tuple[float, Tensor]] = []
    for label in along.argsort(descending=True)[: 1 if len(found.factors) >= VOTES else None, None]:
        again = replayed(observation, images, label)
        if again is None or name not in names:
            return None
        moved = again[names.index(name)].double().cpu() + layer.shrunk * layer.weight_before
        tried.append((_left(part.combine(moved), found, observation.knows.training is None), label))
    residual, label = min(tried, key=lambda pair: pair[0])
    if residual > SAME_PART:
        return None
    details: dict[str, float | int | str] = {"how": part.how, "rows": found.votes, "layer_residual": found.residual}
    return Solved(images, label, residual, True, details)


def _filled_in(observation: Observation, part: _Part, found: OneInput, known: Tensor) -> Solved | None:
    """The smoothest image with the pixels that are known: no claim, since others are a guess."""
    share = float(known.double().mean())
    if share < SEEN:
        return None
    images, _ = smoothest(observation.knows, lambda t: t.flatten(1)[:, known], found.inputs[None, known])
    return Solved(images, torch.tensor([-1]), found.residual, False, {"how": part.how, "share_seen": share})


def _left(predicted: Tensor, found: OneInput, scaled: bool) -> float:
    """What a prediction of the weights' part leaves of the part that was found.  # (m, d)"""
    seen = found.factors[:, None] * found.inputs
    factor = float((seen * predicted).sum() / predicted.square().sum()) if scaled else 1.0
    return float((seen - factor * predicted).norm() / seen.norm())


def _rank_one(sent: Sent, rows: int) -> OneInput | None:
    """The input that all rows of a part share at rounding level; None where they do not."""
    if not len(sent.matrix) or not bool(sent.kept.any()):
        return None
    found = one_input(sent)
    good = found.scaled and found.clean and found.residual <= LOUD and found.votes >= rows
    return found if good and (rows > 1 or _exact_row(sent)) else None


def _exact_row(sent: Sent) -> bool:
    """Whether the bias of a single row, by which all is divided, is known well enough."""
    return float(sent.error[0, -1]) <= ROUGH * float(sent.matrix[0, -1].abs())


def _some(sent: Sent) -> Sent:
    """Some rows and columns, the bias among them."""
    rows, columns = _spaced(sent.matrix.shape[0]), _spaced(sent.matrix.shape[1])
    matrix, error, kept = (t[rows][:, columns] for t in (sent.matrix, sent.error, sent.kept))
    return replace(sent, matrix=matrix, error=error, kept=kept)


def _spaced(count: int, most: int = SOME) -> Tensor:
    """At most so many whole numbers below a count, the last among them."""
    return torch.linspace(count - 1, 0, min(count, most)).round().long().flip(0)


def _quiet_rows(layer: DenseUpdate, sent: Sent) -> Tensor:
    """The rows that agree on the input of the largest group.  # (m,)"""
    columns = _spaced(sent.matrix.shape[1] - 1, 4 * SOME)
    errors = sent.error[:, columns], sent.error[:, -1]
    found = row_ratios(layer.weight[:, columns], sent.matrix[:, -1], errors)
    if not len(found.votes) or int(found.votes[0]) < VOTES:
        return found.rows[:0]
    apart = (found.ratios - found.inputs[0]).square().mean(1).sqrt()
    return found.rows[apart <= AGREE * found.errors]


def _pairs(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows whose noise is the same or the opposite: each with its partner and their sign.  # (m,), (m,), (m, 1)"""
    unit = normalize(matrix[:, _spaced(matrix.shape[1], 4 * SOME)], dim=1)
    cosines = (unit @ unit.T).fill_diagonal_(0.0)
    best = cosines.abs().argmax(1)
    first = torch.arange(len(matrix))
    along = cosines[first, best]
    chosen = (along.abs() > ALIKE) & ((first < best) | (best[best] != first))
    return first[chosen], best[chosen], along[chosen].sign()[:, None]


def _off_grids(sent: Sent) -> Iterator[tuple[str, Sent]]:
    """What lies beside the points of a grid that noise is on: those of bfloat16, or multiples of a step."""
    matrix = sent.matrix
    size = float(matrix.square().mean().sqrt())
    large = matrix.abs() > size  # smaller numbers of bfloat16 are too close to each other
    beside = matrix - matrix.bfloat16().double()
    gaps = torch.ldexp(torch.ones_like(matrix), torch.frexp(matrix).exponent - 8)  # between numbers of bfloat16
    if float((beside / gaps)[large].abs().mean()) < NEAR:
        yield "beside numbers of bfloat16", replace(sent, matrix=beside, kept=large)
    step = _step(matrix, size) if size else 0.0
    if step:
        yield "beside multiples of a step", _taken_off(sent, lambda s: (matrix / s).round(), step)


def _step(matrix: Tensor, size: float) -> float:
    """The step of the grid that entries crowd around; 0 where they do not."""
    some = matrix.flatten()[_spaced(matrix.numel(), 2 * SOME)].float()
    waves = torch.arange(0.5, WAVES, 1 / 24) / size  # as fine as noise within 6 sizes asks for
    power = torch.cos(2 * torch.pi * waves[:, None] * some).mean(1)
    if float(power.max()) < PEAK:
        return 0.0
    first = int((power > 0.8 * power.max()).nonzero()[0])  # multiples of the wave are as high
    near = first + int(power[first : first + 12].argmax())
    return 1 / float(waves[near])


def _off_seeds(observation: Observation, layer: DenseUpdate, sent: Sent) -> Iterator[tuple[str, Sent]]:
    """The layer without the normal numbers of a common seed, drawn in one of three orders."""
    update = observation.update
    name = f"{layer.name}.weight" if layer.name else "weight"
    bias = f"{layer.name}.bias" if layer.name else "bias"
    if name not in update or bias not in update:
        return
    begun = [update[first].flatten()[:BEGINNING].float().cpu() for first in {next(iter(update)), name}]
    alike = [cosine_similarity(_beginnings()[:, : len(t)], t).abs() > ALIKE for t in begun]
    for seed in (seed for seed, *found in zip(SEEDS, *alike, strict=True) if any(found)):
        for how, noise in _drawn({n: t.shape for n, t in update.items()}, (name, bias), seed):
            pattern = torch.cat([noise[0], noise[1][:, None]], 1).double()
            yield f"without the noise of seed {seed}, {how}", _taken_off(sent, lambda s, p=pattern: p)  # type: ignore[misc]


@functools.cache
def _beginnings() -> Tensor:
    """How the streams of all seeds begin.  # (seeds, entries)"""
    return torch.stack([torch.randn(BEGINNING, generator=torch.Generator().manual_seed(seed)) for seed in SEEDS])


def _drawn(
    shapes: dict[str, torch.Size], names: tuple[str, str], seed: int
) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
    """The noise of two tensors: anew for each, one tensor after another, and all as one vector."""

    def fresh() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    one, other = (torch.randn(shapes[name], generator=fresh()) for name in names)
    yield "anew for each tensor", (one, other)
    generator = fresh()
    each = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    yield "tensor by tensor", (each[names[0]], each[names[1]])
    ends = dict(zip(shapes, itertools.accumulate(shape.numel() for shape in shapes.values()), strict=True))
    flat = torch.randn(max(ends.values()), generator=fresh())
    one, other = (flat[ends[name] - shapes[name].numel() : ends[name]].view(shapes[name]) for name in names)
    yield "all at once", (one, other)


def _taken_off(sent: Sent, pattern: Callable[[float], Tensor], size: float = 1.0) -> Sent:
    """What is left beside a multiple of a pattern, fitted together with the image."""
    image: Tensor | float = 0.0
    left = sent
    for _ in range(FITS):
        shape = pattern(size)
        size = float((shape * (sent.matrix - image)).sum() / shape.square().sum())
        left = replace(sent, matrix=sent.matrix - size * pattern(size))
        found = one_input(left)
        if not found.scaled:
            break
        image = found.factors[:, None] * torch.cat([found.inputs, found.inputs.new_ones(1)])
    return left


def _quiet_entries(sent: Sent) -> Iterator[tuple[Tensor, Sent]]:
    """The entries without noise, where there are many: those that one image explains at rounding level.

    Which rows are given, and of them which entries are known.
    """
    sizes = sent.matrix.abs()
    share = float((sizes < SMALL * sizes.square().mean().sqrt()).double().mean())
    if not CROWDED < share < 1:
        return
    most = sizes.kthvalue(max(1, int(0.9 * share * sizes.shape[1])), dim=1).values
    rows = (most > AGREE * sent.noise).nonzero()[:, 0]  # those of dead units tell nothing
    if len(rows) < VOTES:
        return
    some = Sent(sent.matrix[rows], sent.error[rows], sent.kept[rows])
    left = sizes[rows]
    zeros = int((left <= AGREE * some.error).sum())  # of black pixels
    for part in (0.5, 0.9, 0.9, 0.0, 0.0):
        limit = left.flatten().kthvalue(zeros + 1 + int(part * max(0.0, share * left.numel() - zeros))).values
        some = replace(some, kept=left <= (limit if part else AGREE * some.error))
        found = one_input(some)
        if not found.scaled or not bool(found.inputs.isfinite().all()):
            return
        beside = torch.cat([found.inputs, found.inputs.new_ones(1)])
        beside = beside if part else _voted(some, found.factors, beside)
        left = (some.matrix - found.factors[:, None] * beside).abs()
    close = left <= AGREE * some.error
    some = replace(some, kept=close & (close.sum(0) >= VOTES))
    # More entries than the image and the factors can be bent to fit.
    if int(some.kept.sum()) > VOTES * sum(sizes.shape):
        yield rows, some


def _voted(sent: Sent, factors: Tensor, beside: Tensor) -> Tensor:
    """An input in which columns that hardly any entry agrees with are what most entries say.  # (d + 1,)"""
    few = (((sent.matrix - factors[:, None] * beside).abs() <= AGREE * sent.error).sum(0) < VOTES).nonzero()[:, 0]
    strong = factors.abs().topk(min(CANDIDATES, len(factors))).indices
    guesses = sent.matrix[strong][:, few] / factors[strong, None]  # (s, c)
    misfits = (sent.matrix[:, few] - factors[:, None] * guesses[:, None]).abs()  # (s, h, c)
    best = (misfits <= AGREE * sent.error[:, few]).sum(1).argmax(0)  # (c,)
    return beside.index_copy(0, few, guesses[best, torch.arange(len(few))])
