"""The image of one example from the parts of the first dense layer's update that structured noise does not cover.

One example moves the layer by the rank-one matrix [U | v] = d [x | 1]. Independent noise covers all of it. Structured
noise leaves some part as a matrix of rank one at rounding level: noise that some rows lack, that cancels in sums of
rows, that lies on a grid, that spares entries, or that a common seed reproduces. Independent noise cannot leave one:
three rows that agree in every pixel prove it. A replay of the image must give the same part.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from fedglass.attack.exact.dense import DenseUpdate, first_dense
from fedglass.attack.exact.exact import FOUND_NOTHING, Details, ExactSolution, SearchBudget, costs
from fedglass.attack.exact.split_network import cut_at, head_gradients, smoothest_images
from fedglass.attack.exact.update_matrix import (
    AGREE_WITHIN,
    MAX_RATIO_ERROR,
    RankOneFit,
    UpdateMatrix,
    fit_rank_one,
    row_ratios,
    with_ones,
)
from fedglass.attack.exact.verify import as_images, has_classes, needs_classes, replay_update, within_bounds
from fedglass.attack.forward.target import network_of
from fedglass.core.registry import register
from fedglass.core.types import Observation

Combine = Callable[[Tensor], Tensor]
"""A combination of the rows of the layer.  # (h, n) -> (m, n)"""
Part = tuple[str, UpdateMatrix, Combine, int]
"""A part of the update that may be free of noise: its name, the part, its rows, and how many of them must agree."""

VOTES = 3
"""Rows that must agree at rounding level to count, if the other rows of the layer do not."""
SEEDS = (*range(100), 123, 1234, 12345, 1337, 2023, 2024, 2025)
"""Common seeds, which are tried first."""
COMPARED = 1024
"""Numbers of a seed's stream that are compared: in multiples of 16 they do not depend on how many are drawn."""
SAMPLE = 128
"""Rows and columns of the sample that is checked before a whole layer."""
SAME_NOISE = 0.9
"""Cosine beyond which the noise of two rows, or of a seed and the message, is the same: independent noise of 100
entries never reaches 0.6."""
CANCELLED = 0.25
"""The sum of all rows must be this much shorter than independent rows make it; 64 pixels never make it so."""
SMALL_ENTRY, CROWDED = 0.05, 0.15
"""If some entries lack noise, at least the second share of all entries lies below the first share of the root mean
square; for normal numbers it is 0.04."""
FREQUENCIES, PEAK = 100, 0.5
"""Grids are searched down to 1 / 100 of the noise, by a mean of 256 cosines of at least this size: chance gives 0.2."""
NEAR_GRID = 0.2
"""Mean distance to the nearest number of bfloat16, in gaps between them: without such noise it is 0.25."""
CANDIDATES = 16
"""Entries of a column that are tried as its pixel: if half of them lack noise, one column in 65,000 has none."""
LEAST_KNOWN = 0.25
"""The share of pixels that must be known for the others to be filled in."""
MOST_ROUNDING = 0.2
"""The largest rounding of a part, relative to its size: three rows of pure rounding leave 0.8 of rank one."""
FIT_ITERATIONS = 6
"""Alternations between the image and the subtracted pattern: they are nearly orthogonal, so a few are enough."""
SAME_PART = 0.05
"""The largest residual of the part after a replay: an image at 40 dB switches units near zero."""


@register(
    "exact",
    "weak_noise",
    summary="one image from what structured noise leaves free: rows, sums of rows, grids, entries, common seeds",
)
@costs(0.3)
def weak_noise(observation: Observation, search: SearchBudget) -> ExactSolution | str:
    """Find the parts of the first dense layer's update that noise does not cover, and divide there."""
    layer = first_dense(observation)
    if isinstance(layer, str):
        return layer
    if observation.knows.examples != 1:
        return "rows agree only for a single example"
    if not has_classes(observation):
        return needs_classes(observation)
    if not layer.sent.biased:
        return "the first dense layer trains no bias"
    parts = _noise_free_parts(observation, layer)
    solutions = (_solution(observation, layer, part) for part in parts if _proved_rank_one(_sample(part[1]), part[3]))
    return next((solution for solution in solutions if solution is not None), FOUND_NOTHING)


def _noise_free_parts(observation: Observation, layer: DenseUpdate) -> Iterator[Part]:
    """Yield the parts that may be free of noise, the cheapest first."""
    sent, matrix, error = layer.sent, layer.sent.matrix, layer.sent.error

    def rows_of(how: str, combine: Combine, errors: Combine, rows: int = VOTES) -> Part:
        combined = combine(matrix)
        part = UpdateMatrix(combined, errors(error.square()).sqrt(), torch.ones_like(combined, dtype=torch.bool))
        return how, part, combine, rows

    yield rows_of("sizes of all entries", torch.abs, lambda t: t)
    quiet = _rows_without_noise(sent)
    if len(quiet):
        yield rows_of("rows without noise", lambda t: t[quiet], lambda t: t[quiet])
    one, other, signs = _pairs_of_rows(matrix)
    if len(one):
        yield rows_of("pairs of rows", lambda t: t[one] - signs * t[other], lambda t: t[one] + t[other])
    if float(matrix.sum(0).norm()) < CANCELLED * float(matrix.norm()):
        yield rows_of("sum of all rows", lambda t: t.sum(0, keepdim=True), lambda t: t.sum(0, keepdim=True), rows=1)
    for how, cleaned in itertools.chain(_without_grid_noise(sent), _without_seeded_noise(observation, layer)):
        yield how, cleaned, lambda t: t, VOTES
    for rows, entries in _entries_without_noise(sent):
        yield "entries without noise", entries, lambda t, chosen=rows: t[chosen], VOTES  # type: ignore[misc]


def _solution(observation: Observation, layer: DenseUpdate, part: Part) -> ExactSolution | None:
    """Return the image of a part that has rank one, if a replay gives the same part."""
    how, sent, combine, rows = part
    fit = _proved_rank_one(sent, rows)
    if fit is None or not bool(within_bounds(observation.knows, fit.inputs[None])[0]):
        return None
    known_pixels = sent.observed.any(0)[:-1]
    if not bool(known_pixels.all()):
        return _filled_in(observation, how, fit, known_pixels)
    images = as_images(observation.knows, fit.inputs[None])
    gradients = head_gradients(observation, layer, cut_at(observation, layer.name), fit.inputs[None])[0]  # (k, h)
    along = cosine_similarity(combine(-gradients.T), fit.factors[:, None], dim=0)  # (k,)
    names = network_of(observation).names
    name = f"{layer.name}.weight" if layer.name else "weight"
    tried: list[tuple[float, Tensor]] = []
    for label in along.argsort(descending=True)[: 1 if len(fit.factors) >= VOTES else None, None]:
        update = replay_update(observation, images, label)
        if update is None or name not in names:
            return None
        moved = update[names.index(name)].cpu().double() + layer.shrunk * layer.weight_before
        tried.append((_replay_residual(combine(moved), fit, observation.knows.training is None), label))
    residual, label = min(tried, key=lambda pair: pair[0])
    if residual > SAME_PART:
        return None
    details: Details = {"how": how, "rows": fit.votes, "layer_residual": fit.residual}
    return ExactSolution(images, label, residual, True, details)


def _filled_in(observation: Observation, how: str, fit: RankOneFit, known_pixels: Tensor) -> ExactSolution | None:
    """Return the smoothest image with the known pixels; it is not verified, since the other pixels are a guess."""
    share = float(known_pixels.double().mean())
    if share < LEAST_KNOWN:
        return None
    known = fit.inputs[None, known_pixels]
    images, _ = smoothest_images(observation.knows, lambda t: t.flatten(1)[:, known_pixels], known)
    return ExactSolution(images, torch.tensor([-1]), fit.residual, False, {"how": how, "share_seen": share})


def _replay_residual(predicted: Tensor, fit: RankOneFit, scaled: bool) -> float:
    """Return the relative residual of the rank-one part after a prediction is subtracted.  # (m, d)"""
    target = fit.factors[:, None] * fit.inputs
    factor = float((target * predicted).sum() / predicted.square().sum()) if scaled else 1.0
    return float((target - factor * predicted).norm() / target.norm())


def _proved_rank_one(sent: UpdateMatrix, rows: int) -> RankOneFit | None:
    """Return the rank-one fit of a part if all its rows agree at rounding level, or None."""
    if not len(sent.matrix) or not bool(sent.observed.any()):
        return None
    fit = fit_rank_one(sent)
    good = fit.scaled and fit.clean and fit.residual <= MOST_ROUNDING and fit.votes >= rows
    # The bias of a single row is the divisor, which must be precise enough.
    divides = rows > 1 or float(sent.error[0, -1]) <= MAX_RATIO_ERROR * float(sent.matrix[0, -1].abs())
    return fit if good and divides else None


def _sample(sent: UpdateMatrix) -> UpdateMatrix:
    """Return a sample of rows and columns, with the bias among them."""
    return sent.part(_evenly_spaced(sent.matrix.shape[0]), _evenly_spaced(sent.matrix.shape[1]))


def _evenly_spaced(count: int, most: int = SAMPLE) -> Tensor:
    """Return at most `most` whole numbers below `count`, the last among them."""
    return torch.linspace(count - 1, 0, min(count, most)).round().long().flip(0)


def _rows_without_noise(sent: UpdateMatrix) -> Tensor:
    """Return the rows that agree on the input of the largest group.  # (m,)"""
    pixels = sent.matrix.shape[1] - 1
    columns = torch.cat([_evenly_spaced(pixels, 4 * SAMPLE), torch.tensor([pixels])])
    ratios = row_ratios(sent.part(torch.arange(len(sent.matrix)), columns))
    if not len(ratios.votes) or int(ratios.votes[0]) < VOTES:
        return ratios.rows[:0]
    apart = (ratios.ratios - ratios.inputs[0]).square().mean(1).sqrt()
    return ratios.rows[apart <= AGREE_WITHIN * ratios.errors]


def _pairs_of_rows(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows with the same or the opposite noise: each with its partner and their sign.  # (m,), (m,), (m, 1)"""
    unit = normalize(matrix[:, _evenly_spaced(matrix.shape[1], 4 * SAMPLE)], dim=1)
    cosines = (unit @ unit.T).fill_diagonal_(0.0)
    best = cosines.abs().argmax(1)
    first = torch.arange(len(matrix))
    along = cosines[first, best]
    chosen = (along.abs() > SAME_NOISE) & ((first < best) | (best[best] != first))
    return first[chosen], best[chosen], along[chosen].sign()[:, None]


def _without_grid_noise(sent: UpdateMatrix) -> Iterator[tuple[str, UpdateMatrix]]:
    """Yield the offsets from the grid that noise lies on: numbers of bfloat16, or multiples of a step."""
    matrix = sent.matrix
    size = float(matrix.square().mean().sqrt())
    large = matrix.abs() > size  # smaller numbers of bfloat16 are too close to each other
    offsets = matrix - matrix.bfloat16().double()
    gaps = torch.ldexp(torch.ones_like(matrix), torch.frexp(matrix).exponent - 8)  # between numbers of bfloat16
    if float((offsets / gaps)[large].abs().mean()) < NEAR_GRID:
        yield "offsets from numbers of bfloat16", replace(sent, matrix=offsets, observed=large)
    step = _grid_step(matrix, size) if size else 0.0
    if step:
        yield "offsets from multiples of a step", _without_pattern(sent, lambda s: (matrix / s).round(), step)


def _grid_step(matrix: Tensor, size: float) -> float:
    """Return the step of the grid that entries crowd around; 0 if there is none."""
    some = matrix.flatten()[_evenly_spaced(matrix.numel(), 2 * SAMPLE)].float()
    waves = torch.arange(0.5, FREQUENCIES, 1 / 24) / size  # as fine as noise within 6 sizes requires
    power = torch.cos(2 * torch.pi * waves[:, None] * some).mean(1)
    if float(power.max()) < PEAK:
        return 0.0
    first = int((power > 0.8 * power.max()).nonzero()[0])  # multiples of the wave are as high
    near = first + int(power[first : first + 12].argmax())
    return 1 / float(waves[near])


def _without_seeded_noise(observation: Observation, layer: DenseUpdate) -> Iterator[tuple[str, UpdateMatrix]]:
    """Yield the layer without the normal numbers of a common seed, drawn in one of three orders."""
    update = observation.update
    name = f"{layer.name}.weight" if layer.name else "weight"
    bias = f"{layer.name}.bias" if layer.name else "bias"
    if name not in update or bias not in update:
        return
    begun = [update[first].flatten()[:COMPARED].float().cpu() for first in {next(iter(update)), name}]
    alike = [cosine_similarity(_first_draws()[:, : len(t)], t).abs() > SAME_NOISE for t in begun]
    for seed in (seed for seed, *matches in zip(SEEDS, *alike, strict=True) if any(matches)):
        for how, noise in _seeded_noise({n: t.shape for n, t in update.items()}, (name, bias), seed):
            pattern = torch.cat([noise[0], noise[1][:, None]], 1).double()
            yield f"without the noise of seed {seed}, {how}", _without_pattern(layer.sent, lambda s, p=pattern: p)  # type: ignore[misc]


@functools.cache
def _first_draws() -> Tensor:
    """Return the first numbers of the streams of all seeds.  # (seeds, entries)"""
    return torch.stack([torch.randn(COMPARED, generator=torch.Generator().manual_seed(seed)) for seed in SEEDS])


def _seeded_noise(
    shapes: dict[str, torch.Size], names: tuple[str, str], seed: int
) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
    """Yield the noise of two tensors: restarted for each, one tensor after another, and all as one vector."""

    generator = torch.Generator()
    one, other = (torch.randn(shapes[name], generator=generator.manual_seed(seed)) for name in names)
    yield "restarted for each tensor", (one, other)
    generator.manual_seed(seed)
    noise_by_name = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    yield "tensor by tensor", (noise_by_name[names[0]], noise_by_name[names[1]])
    sizes = [shape.numel() for shape in shapes.values()]
    flat = torch.split(torch.randn(sum(sizes), generator=generator.manual_seed(seed)), sizes)
    one, other = (dict(zip(shapes, flat, strict=True))[name].view(shapes[name]) for name in names)
    yield "all at once", (one, other)


def _without_pattern(sent: UpdateMatrix, pattern: Callable[[float], Tensor], size: float = 1.0) -> UpdateMatrix:
    """Subtract the multiple of a pattern that fits best together with the image."""
    image: Tensor | float = 0.0
    cleaned = sent
    for _ in range(FIT_ITERATIONS):
        shape = pattern(size)
        size = float((shape * (sent.matrix - image)).sum() / shape.square().sum())
        cleaned = replace(sent, matrix=sent.matrix - size * pattern(size))
        fit = fit_rank_one(cleaned)
        if not fit.scaled:
            break
        image = fit.factors[:, None] * with_ones(fit.inputs[None])
    return cleaned


def _entries_without_noise(sent: UpdateMatrix) -> Iterator[tuple[Tensor, UpdateMatrix]]:
    """Yield rows, and their entries without noise, if there are many: one image explains them at rounding level."""
    sizes = sent.matrix.abs()
    share = float((sizes < SMALL_ENTRY * sizes.square().mean().sqrt()).double().mean())
    if not CROWDED < share < 1:
        return
    most = sizes.kthvalue(max(1, int(0.9 * share * sizes.shape[1])), dim=1).values
    rows = (most > AGREE_WITHIN * sent.noise).nonzero()[:, 0]  # rows of dead units carry no information
    if len(rows) < VOTES:
        return
    some = sent.part(rows, slice(None))
    residuals = sizes[rows]
    zeros = int((residuals <= AGREE_WITHIN * some.error).sum())  # of black pixels
    for part in (0.5, 0.9, 0.9, 0.0, 0.0):
        limit = residuals.flatten().kthvalue(zeros + 1 + int(part * max(0.0, share * residuals.numel() - zeros))).values
        some = replace(some, observed=residuals <= (limit if part else AGREE_WITHIN * some.error))
        fit = fit_rank_one(some)
        if not fit.scaled or not bool(fit.inputs.isfinite().all()):
            return
        augmented = with_ones(fit.inputs[None])[0]
        augmented = augmented if part else _majority_input(some, fit.factors, augmented)
        residuals = (some.matrix - fit.factors[:, None] * augmented).abs()
    close = residuals <= AGREE_WITHIN * some.error
    some = replace(some, observed=close & (close.sum(0) >= VOTES))
    # More entries than the image and the factors can be bent to fit.
    if int(some.observed.sum()) > VOTES * sum(sizes.shape):
        yield rows, some


def _majority_input(sent: UpdateMatrix, factors: Tensor, augmented: Tensor) -> Tensor:
    """Replace the columns that few entries agree with by the value that most entries give.  # (d + 1,)"""
    agree = (sent.matrix - factors[:, None] * augmented).abs() <= AGREE_WITHIN * sent.error
    few = (agree.sum(0) < VOTES).nonzero()[:, 0]
    strong = factors.abs().topk(min(CANDIDATES, len(factors))).indices
    guesses = sent.matrix[strong][:, few] / factors[strong, None]  # (s, c)
    misfits = (sent.matrix[:, few] - factors[:, None] * guesses[:, None]).abs()  # (s, h, c)
    best = (misfits <= AGREE_WITHIN * sent.error[:, few]).sum(1).argmax(0)  # (c,)
    return augmented.index_copy(0, few, guesses[best, torch.arange(len(few))])
