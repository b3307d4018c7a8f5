"""What the truth says about a reconstruction: scores, label errors, and the energies to compare with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.hypotheses import AnyAttack
from fedglass.core.types import Observation, Reconstruction
from fedglass.metrics.catalogue import Scores, score
from fedglass.metrics.labels import label_errors
from fedglass.metrics.matching import Matching, match
from fedglass.rounds.truth import Truth

OTHER = 0.5
"""The share of the images' contrast by which a decoy's pixels must differ for it to show something else."""
SAME = 0.05
"""The share of other images' misfit up to which a tensor of the message does not tell images from the true ones."""
ROUNDING = 1e-5
"""The misfit that rounding alone may make."""


@dataclass(frozen=True, eq=False)
class Judgement:
    """A reconstruction beside the truth, in the order of the true images."""

    scores: Scores
    shown: Tensor  # (n, c, h, w): what was scored
    labels: tuple[int, ...]
    """Recovered labels, those of the matched images first."""
    label_errors: int
    energy_truth: float | None
    energy_decoys: tuple[float, ...]
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
        energy_decoys=()
        if attack is None
        else tuple(energy_at(attack, seen, other, truth.labels, found) for other in _decoys_beside_own(truth)),
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


def energy_others(attack: AnyAttack, seen: Observation, found: Reconstruction, truth: Truth) -> float:
    """The lowest energy of images that are not the true ones: decoys, and a plain grey one."""
    decoyed = [energy_at(attack, seen, other, truth.labels, found) for other in _decoys_beside_own(truth)]
    known = [e for e in (*decoyed, energy_blind(attack, seen, found)) if math.isfinite(e)]
    return min(known, default=math.inf)


def told_apart(attack: AnyAttack, seen: Observation, found: Reconstruction, truth: Truth) -> tuple[str, ...]:
    """The tensors of the message that tell what was found from the truth, whatever the attack's objective looks at.

    There the images that were found leave more of it unexplained than the truth does, beside what others leave. An
    attack of another make that can not say is taken to leave all of it unexplained.
    """
    if not hasattr(attack, "misfits"):
        return tuple(seen.update)

    def at(images: Tensor, labels: Tensor) -> dict[str, float]:
        device = next(iter(seen.update.values())).device
        return attack.misfits(seen, images.to(device), labels.to(device), found)

    here = at(found.images if found.raw is None else found.raw, found.labels)
    true = at(truth.images, truth.labels)
    others = [at(other, truth.labels) for other in _decoys_beside_own(truth)]
    others.append(at(grey(seen, len(found.labels)), found.labels))
    bounds = {name: true[name] + SAME * min(other[name] for other in others) + ROUNDING for name in here}
    return tuple(name for name, value in here.items() if not value <= bounds[name])


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


def _decoys_beside_own(truth: Truth) -> list[Tensor]:
    """Decoys of the private images; the adversary's own stay what they are, since they are no secret to it."""
    private = truth.private.images
    return [torch.cat([other, truth.images[len(private) :]]) for other in decoys(private)]


def energy_at(attack: AnyAttack, seen: Observation, images: Tensor, labels: Tensor, like: Reconstruction) -> float:
    """The energy of given images under an attack; the operator's unknowns end where they do in `like`."""
    device = next(iter(seen.update.values())).device
    return attack.energy_of(seen, images.to(device), labels.to(device), like)
