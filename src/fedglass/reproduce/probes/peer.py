"""A participant's attack on its peers, scored as the curious client is, beside guesses that need no message."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from fedglass.attack.attack import Attack
from fedglass.attack.best_of import AnyAttack
from fedglass.attack.images.pixels import bicubic_matrix
from fedglass.attack.parts import Progress
from fedglass.audit.assessment import IMAGINED, scored_guesses
from fedglass.audit.cases import ProbeResult
from fedglass.audit.scoring import energy_at
from fedglass.audit.target import Target
from fedglass.core.errors import UsageError
from fedglass.core.types import Observation, Reconstruction
from fedglass.federation.truth import Truth
from fedglass.metrics.catalogue import score
from fedglass.metrics.matching import Matching, label_errors, match
from fedglass.reproduce.cost import SECOND_ORDER, Workload, attack_seconds
from fedglass.reproduce.messages import ACCURACY
from fedglass.reproduce.probes.probe import of_attack
from fedglass.verdict.directory import Strips

METRICS = ("lpips", "psnr", "ssim")
TRACED = (1, 10, 20, 30, 76, 99)
"""Iterations at which the one run that the release logs tells its objective."""


@dataclass(frozen=True)
class PeerImages:
    """Mean LPIPS, PSNR and SSIM of the peers' images, the adversary's own left out; pixels clipped to [0, 1].

    All images behind the step are matched, so that what shows the adversary's own is not held against the others.
    """

    accelerated: ClassVar[bool] = True

    attack: Attack
    factor: int = 4
    """By which the raw images are smaller: the release repeats their pixels before it scores them."""

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        found = self.attack.run(target.observation, seed, progress)
        truth, final = target.known_truth, found.images.detach().cpu().clamp(0, 1)
        raw = final if found.raw is None else found.raw.detach().cpu().clamp(0, 1)
        matching = match(final, truth.images)
        values, skipped = _scores(final, truth, matching)
        coarse, _ = _scores(repeated(raw, self.factor), truth, match(raw, truth.images))
        unrefined, _ = _scores(raw, truth, match(raw, truth.images))
        fields = of_attack(self.attack, target, found)
        measures = _means(values) | {f"{name}_repeated": value for name, value in _means(coarse).items()}
        measures |= {f"{name}_raw": value for name, value in _means(unrefined).items()}
        measures |= _of_first_peer(values, target.observation)
        measures |= _of_refinement(measures, final, truth, matching) if self.attack.refine else {}
        measures |= _of_search(found, target.observation, len(truth.labels), int(fields["label_errors"]))
        measures |= {"back": 100 * share_back(final, truth, matching), "own_psnr": own_psnr(final, target.observation)}
        extra = {**fields["extra"], "measures": measures, "skipped": skipped}
        shown = matching.apply(final)[: len(truth.private.labels)]
        told = {**fields, "metrics": values, "extra": extra}
        return ProbeResult(told, Strips(truth.private.images.numpy(), shown.numpy()))

    def seconds(self, load: Workload) -> float:
        return attack_seconds(self.attack, load)


@dataclass(frozen=True)
class WrongRate:
    """The adversary takes the global learning rate for `guess` times what it is [Wilson et al., 2024, Appendix B].

    It divides the step of the global model by its guess, and simulates the clients as they are: the rate is applied by
    the server, as in the release.
    """

    accelerated: ClassVar[bool] = True

    probe: PeerImages
    guess: float

    @property
    def attack(self) -> Attack:
        return self.probe.attack

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        seen = target.observation
        scaled = {name: step / self.guess for name, step in seen.update.items()}
        return self.probe.measure(replace(target, observation=replace(seen, update=scaled)), seed, progress)

    def seconds(self, load: Workload) -> float:
        return self.probe.seconds(load)


class Guess(Protocol):
    """Images in place of the private ones, without an attack."""

    def images(self, seen: Observation, truth: Truth) -> Tensor: ...


@dataclass(frozen=True)
class Grey:
    """Middle grey everywhere."""

    def images(self, seen: Observation, truth: Truth) -> Tensor:
        return torch.full_like(truth.private.images, 0.5)


@dataclass(frozen=True)
class OwnImages:
    """The adversary's own images, in turn."""

    def images(self, seen: Observation, truth: Truth) -> Tensor:
        own = own_images(seen)
        return own[torch.arange(len(truth.private.labels)) % len(own)]


@dataclass(frozen=True)
class Reduced:
    """ORACLE: the private images themselves, as well as an enlargement of so few pixels can show them.

    What no search at that resolution can be above in PSNR.
    """

    factor: int = 4

    def images(self, seen: Observation, truth: Truth) -> Tensor:
        private = truth.private.images
        return enlarged(reduced(private, self.factor), self.factor)


@dataclass(frozen=True)
class GuessedImages:
    """The same figures of images that no attack has found."""

    accelerated: ClassVar[bool] = False
    attack: ClassVar[None] = None

    guess: Guess

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        truth = target.known_truth
        private, shown = truth.private, self.guess.images(target.observation, truth).clamp(0, 1)
        values, skipped = _scores(shown, private, Matching(tuple(range(len(private.labels)))))
        extra = {"measures": _means(values), "skipped": skipped}
        return ProbeResult({"metrics": values, "extra": extra}, Strips(private.images.numpy(), shown.numpy()))

    def seconds(self, load: Workload) -> float:
        return 1.0


def reduced(images: Tensor, factor: int) -> Tensor:
    """The small images whose bicubic enlargement comes nearest.  # (n, c, h, w) -> (n, c, h / factor, w / factor)"""
    down, across = (torch.linalg.pinv(bicubic_matrix(side // factor, factor)) for side in images.shape[-2:])
    small: Tensor = down @ images.double() @ across.mT
    return small.to(images.dtype)


def enlarged(images: Tensor, factor: int) -> Tensor:
    return interpolate(images, scale_factor=factor, mode="bicubic", align_corners=False)


def repeated(images: Tensor, factor: int) -> Tensor:
    """Images that were enlarged by bicubic weights, as if each small pixel had been repeated; clipped to [0, 1]."""
    small = reduced(images, factor)
    return small.repeat_interleave(factor, -1).repeat_interleave(factor, -2).clamp(0, 1)


def share_back(found: Tensor, truth: Truth, matching: Matching) -> float:
    """The share of private images that came back: what was matched is nearer to them than to any other image of
    the message, and nearer than plain grey is."""
    shown, private = matching.apply(found), truth.private.images
    squares = (shown[: len(private), None] - truth.images[None]).square().flatten(2).mean(2)  # (private, all)
    nearest = squares.argmin(1) == torch.arange(len(private))
    grey = (private - 0.5).square().flatten(1).mean(1)
    return float((nearest & (squares.diagonal()[: len(private)] < grey)).double().mean())


def own_psnr(found: Tensor, seen: Observation) -> float:
    """How well the adversary sees its own images among those found: what it can judge a guess by."""
    return statistics.fmean(score(found, own_images(seen), ("psnr",)).values["psnr"])


def own_images(seen: Observation) -> Tensor:
    if seen.own is None:
        raise UsageError("Only a participant has images of its own: look at the round as one of its clients.")
    return seen.own.images.cpu()


def _scores(images: Tensor, truth: Truth, matching: Matching) -> tuple[dict[str, tuple[float, ...]], dict[str, str]]:
    """Of the private images, and which metrics are left out."""
    private = truth.private.images
    scores = score(images, private, METRICS, Matching(matching.partner[: len(private)]))
    return dict(scores.values), dict(scores.skipped)


def _means(values: dict[str, tuple[float, ...]]) -> dict[str, float]:
    return {name: statistics.fmean(each) for name, each in values.items()}


def _of_first_peer(values: dict[str, tuple[float, ...]], seen: Observation) -> dict[str, float]:
    """LPIPS of the first peer's images alone: in rounds of more clients they are the same, and can be compared."""
    count = None if seen.knows.sizes is None else seen.knows.sizes[0]
    return {"lpips_first": statistics.fmean(values["lpips"][:count])} if count and "lpips" in values else {}


def _of_refinement(measures: Mapping[str, float], final: Tensor, truth: Truth, matching: Matching) -> dict[str, float]:
    """By how much LPIPS falls below each raw form, in %, and what it is beside another of the private images: a
    sharp picture of anything is nearer than a blurred one of the right thing."""
    if "lpips" not in measures:
        return {}
    gains = {
        name: 100 * (1 - measures["lpips"] / measures[f"lpips_{form}"])
        for name, form in (("gain", "repeated"), ("gain_bicubic", "raw"))
    }
    count = len(truth.private.labels)
    turned = Matching(tuple(matching.partner[(i + 1) % count] for i in range(count)))
    return gains | {"lpips_other": _means(_scores(final, truth, turned)[0])["lpips"]}


def _of_search(found: Reconstruction, seen: Observation, examples: int, wrong: int) -> dict[str, float]:
    told = {"objective": found.energy, "labels": 100 * (1 - wrong / examples)}
    return told | {f"objective_{i}": found.trace[i] for i in TRACED if i < len(found.trace)}


# How good the model of a federation is, at its end and on the way: no attack.


@dataclass(frozen=True)
class Accuracy:
    """Test accuracy in % after the last round, and every tenth on the way."""

    accelerated: ClassVar[bool] = False
    attack: ClassVar[None] = None

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        points = accuracies(target.utility)
        last = max(points)
        measures = {"accuracy": points[last], **{f"accuracy_{at}": value for at, value in points.items()}}
        return ProbeResult({"extra": {"measures": measures}})

    def seconds(self, load: Workload) -> float:
        return 1.0


def accuracies(utility: Mapping[str, float]) -> dict[int, float]:
    """In %, by the number of rounds.

    >>> accuracies({"test accuracy after 10": 0.5})
    {10: 50.0}
    """
    start = f"{ACCURACY} after "
    return {int(name.removeprefix(start)): 100 * v for name, v in utility.items() if name.startswith(start)}


# What a participant reads of its peers in a late round, scored as the maliciously curious client is.


SHOWN = 16
"""Pictures that are kept of a run."""
GUESSED = {
    "grey": "grey",
    "black": "black",
    "the best flat colour": "flat",
    "the nearest of its own images": "own",
    "the mean of public images": "mean",
    "the means of the classes found": "class_mean",
    IMAGINED: "imagined",
}
"""An audit's names for its guesses -> those of the measures."""


@dataclass(frozen=True)
class PeerRmse:
    """RMSE over all private images and pixels after optimal assignment [Yue et al., 2025, Eq. 14], in [0, 1].

    Beside it what guesses reach without the message; an attack is to be below the lowest of them. The class means are
    those of the true labels, which the attack is told too.
    """

    accelerated: ClassVar[bool] = True
    attack: ClassVar[None] = None

    reader: AnyAttack
    iterations: int
    """Of all that the reader tries together."""

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        seen, truth = target.observation, target.known_truth
        found = self.reader.run(seen, seed, progress)
        final = found.images.detach().cpu().clamp(0, 1)
        matching = match(final, truth.images)
        private = Matching(matching.partner[: len(truth.private.labels)])
        scores = score(final, truth.private.images, ("rmse", "psnr", "ssim"), private)
        blind = _blind(seen, truth, target, self.reader)
        tested = accuracies(target.utility)
        measures = {
            "rmse": joint_rmse(scores.values["rmse"]),
            "psnr": statistics.fmean(scores.values["psnr"]),
            "back": 100 * share_back(final, truth, matching),
            "guess": min(blind.values()),
            **blind,
            "accuracy": tested[max(tested)],
            "at": float(max(tested)),
            "objective": found.energy,
        }
        wrong = int(label_errors(found.labels.cpu(), truth.labels, seen.knows.classes))
        told = {
            "metrics": dict(scores.values),
            "energy": found.energy,
            "energy_truth": energy_at(self.reader, seen, truth.images, truth.labels, found),
            "label_errors": wrong,
            "labels_true": truth.labels.tolist(),
            "extra": {"measures": measures, "skipped": dict(scores.skipped), "rule": found.rule},
        }
        shown = private.apply(final)
        return ProbeResult(told, Strips(truth.private.images[:SHOWN].numpy(), shown[:SHOWN].numpy()))

    def seconds(self, load: Workload) -> float:
        size = min(load.training.batch_size or load.examples, load.examples)
        return self.iterations * load.clients * load.steps * SECOND_ORDER * load.gradient(size)


def joint_rmse(values: Sequence[float]) -> float:
    """The RMSE over several images of equal size from that of each.

    >>> joint_rmse([3.0, 4.0]) == math.sqrt(12.5)
    True
    """
    return math.sqrt(statistics.fmean(value**2 for value in values))


def _blind(seen: Observation, truth: Truth, target: Target, reader: AnyAttack) -> Mapping[str, float]:
    """The RMSE of guesses that need no message."""
    found = scored_guesses(seen, truth, truth.labels, ("rmse",), target.public, reader)
    return {GUESSED[name]: joint_rmse(reached["rmse"]) for name, reached in found.items()}
