"""What the truth says about a reconstruction: scores, label errors, and the energies to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from fedglass.attack.best_of import AnyAttack
from fedglass.core.types import Observation, Reconstruction
from fedglass.federation.truth import Truth
from fedglass.metrics.catalogue import Scores, score
from fedglass.metrics.matching import Matching, label_errors, match

OTHER = 0.5
"""The share of the images' contrast by which a decoy's pixels must differ for it to show something else."""


@dataclass(frozen=True, eq=False)
class Judgement:
    """A reconstruction beside the truth, in the order of the true images."""

    scores: Scores
    shown: Tensor  # (n, c, h, w): what was scored
    labels: tuple[int, ...]
    """Recovered labels, those of the matched images first."""
    label_errors: int
    energy_truth: float | None
    scores_raw: Scores | None = None
    """Of the images before they were refined, where they were; matched on their own."""
    shown_raw: Tensor | None = None  # (n, c, h, w)


def judge(
    attack: AnyAttack | None,
    seen: Observation,
    found: Reconstruction,
    truth: Truth,
    metrics: Sequence[str],
) -> Judgement:
    """Score a reconstruction; `attack` is None where none was played, so that there are no energies."""
    shown = clipped(found.images, seen)
    scores = _scored(shown, truth, metrics)
    partners = [p for p in scores.matching.partner if p is not None]
    order = [*partners, *(i for i in range(len(found.labels)) if i not in set(partners))]
    raw = None if found.raw is None else clipped(found.raw, seen)
    # Matched anew: a refinement that destroyed its images says nothing of which original each belonged to.
    scores_raw = None if raw is None else _scored(raw, truth, metrics)
    return Judgement(
        scores=scores,
        shown=scores.matching.apply(shown),
        labels=tuple(found.labels[order].tolist()),
        label_errors=label_errors(found.labels, truth.labels, seen.knows.classes),
        energy_truth=None if attack is None else energy_at(attack, seen, truth.images, truth.labels, found),
        scores_raw=scores_raw,
        shown_raw=None if raw is None or scores_raw is None else scores_raw.matching.apply(raw),
    )


def _scored(images: Tensor, truth: Truth, metrics: Sequence[str]) -> Scores:
    """The scores of the private images.

    The adversary's own take part in the matching, so that what shows them is not held against the others.
    """
    return score(images, truth.private.images, metrics, paired(images, truth))


def paired(images: Tensor, truth: Truth) -> Matching:
    """Which of the images shows which private one, where they may show the adversary's own as well."""
    return Matching(match(images, truth.images).partner[: len(truth.private.images)])


def energy_blind(attack: AnyAttack, seen: Observation, found: Reconstruction) -> float:
    """The energy of a plain grey image under the labels that the attack found."""
    return energy_at(attack, seen, grey(seen, len(found.labels)), found.labels, found)


def clipped(images: Tensor, seen: Observation) -> Tensor:
    """Reconstructed pixels inside the range that the adversary knows them to lie in; NaN stays NaN.

    Scored are the images as an adversary would show them. Figures in papers are often taken without this.
    """
    return images.detach().cpu().clamp(seen.knows.low, seen.knows.high)


def grey(seen: Observation, count: int) -> Tensor:
    """The mean colour of the data, everywhere: the best guess without a message.  # (count, c, h, w)"""
    knows = seen.knows
    device = next(iter(seen.update.values())).device
    pixels = knows.whitening.unwhiten(torch.zeros(count, *knows.shape, device=device))
    return pixels.clamp(knows.low, knows.high)


def decoys(images: Tensor) -> list[Tensor]:
    """Images that are as smooth as the given ones but show something else.

    Inverted in brightness, and mirrored or shifted by half: total variation, and so a prior's share of the
    energy, stays (nearly) what it was, and what differs is the fit to the message. Those that happen to show the same
    are left out: a picture whose left half is dark, inverted and mirrored, is itself.
    """
    high, low = images.max(), images.min()
    inverted = high + low - images
    half = (images.shape[-2] // 2, images.shape[-1] // 2)
    made = [inverted, inverted.flip(-1), inverted.roll(half, dims=(-2, -1))]
    contrast = float((images - images.mean(dim=(-2, -1), keepdim=True)).square().mean())
    return [other for other in made if float((other - images).square().mean()) > OTHER * contrast]


def energy_at(attack: AnyAttack, seen: Observation, images: Tensor, labels: Tensor, like: Reconstruction) -> float:
    """The energy of given images under an attack; the operator's unknowns end where they do in `like`."""
    device = next(iter(seen.update.values())).device
    return attack.energy_of(seen, images.to(device), labels.to(device), like)


def blends_of(shown: Tensor, private: Tensor) -> list[list[int]]:
    """Return, for each reconstruction, the private images whose mean it shows; empty where it shows one of them.

    A blend is nearer to the mean of its nearest private images than to any single one. `shown[i]` belongs to image i
    and may be NaN where nothing was read.  # (n, c, h, w) both

    >>> images = torch.eye(2).view(2, 1, 1, 2)
    >>> blends_of(images.mean(0, keepdim=True).expand(2, 1, 1, 2), images), blends_of(images, images)
    ([[0, 1], [0, 1]], [[], []])
    """
    if len(private) < 2:
        return [[] for _ in shown]
    flat, true = shown.detach().cpu().double().flatten(1), private.double().flatten(1)
    distances = torch.cdist(flat, true)  # (n, n)
    order = distances.argsort(dim=1)
    means = true[order].cumsum(dim=1) / torch.arange(1, len(true) + 1).view(1, -1, 1)  # (n, n, pixels)
    to_means = (means - flat.unsqueeze(1)).norm(dim=2)  # (n, n): to the mean of the nearest 1, 2, ...
    best = torch.where(to_means.isnan(), torch.inf, to_means).argmin(dim=1)
    return [sorted(order[i, : int(k) + 1].tolist()) if k else [] for i, k in enumerate(best)]


# Does a picture show the same in another contrast, as its negative, mirrored or moved? A person would see it.
#
# Some networks can not tell: normalisation takes the contrast of a picture out of its gradient, and convolutions before
# a mean over all places take out where it stands. An attack then finds such a picture as good as the true one, and
# every
# metric that compares pixel by pixel calls it another.


ALIKE = 0.9
"""The correlation from which on pictures show the same. Other smooth pictures were seen to reach 0.7 somewhere."""
LONGEST = 64
"""Pixels of a side beyond which pictures are made smaller first: nobody needs more to see what they show."""
FLAT = 1e-6
"""The share of a picture's length that its contrast must have to be more than rounding."""
MIRRORS: tuple[tuple[int, ...], ...] = ((), (-1,), (-2,), (-2, -1))


def shown_otherwise(images: Tensor, originals: Tensor) -> list[bool]:
    """Of each original, whether any of the images shows the same.  # (m, c, h, w), (n, c, h, w) -> n entries"""
    return [value >= ALIKE for value in likeness(images, originals)]


def likeness(images: Tensor, originals: Tensor) -> list[float]:
    """Of each original, the largest absolute correlation with any of the images, mirrored and moved around the edges.

    Channels are centred apart and scaled together. A flat picture is like nothing, and so is one that is not finite.

    >>> picture = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> [round(value, 3) for value in likeness(0.7 - 0.1 * picture.flip(-1).roll(3, -2), picture)]
    [1.0]
    """
    if not len(images):
        return [0.0] * len(originals)
    found = torch.cat([_spectra(images.flip(mirror)) for mirror in MIRRORS])
    # The correlation at every offset at once [the correlation theorem].
    moved = (torch.fft.ifft2((found.conj() * true).sum(dim=1)).real for true in _spectra(originals))
    return [float(each.abs().max()) for each in moved]


def _spectra(images: Tensor) -> Tensor:
    """Fourier transforms of the pictures, centred and of length 1.  # (n, c, h, w) -> (n, c, h', w')"""
    height, width = images.shape[-2:]
    pixels = images.detach().cpu().double()
    small = adaptive_avg_pool2d(pixels, (min(height, LONGEST), min(width, LONGEST)))
    centred = small - small.mean(dim=(-2, -1), keepdim=True)
    size = centred.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    sound = torch.isfinite(size) & (size > FLAT * small.flatten(1).norm(dim=1).view(-1, 1, 1, 1))
    spectra: Tensor = torch.fft.fft2(torch.where(sound, centred / size, 0.0))
    return spectra
