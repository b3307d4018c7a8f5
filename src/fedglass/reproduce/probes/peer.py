"""Probes of a participant's attack on its peers: images, test accuracy and RMSE, next to guesses without a message."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from fedglass.attack.attack import Attack
from fedglass.attack.best_of import AnyAttack
from fedglass.attack.parts import Progress
from fedglass.attack.stages import progress_part
from fedglass.audit.assessment import IMAGINED, scored_guesses
from fedglass.audit.cost import SECOND_ORDER, Workload
from fedglass.audit.scoring import energy_at
from fedglass.audit.target import ProbeResult, Target
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Observation, Reconstruction
from fedglass.diffusion.ddrm import bicubic_matrix
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation, observe
from fedglass.federation.peer import PeerView
from fedglass.federation.truth import Truth
from fedglass.federation.views import Knows
from fedglass.fl.aggregate.rule import Aggregator
from fedglass.metrics.catalogue import Matching, label_errors, score
from fedglass.reproduce.messages import ACCURACY, PATIENCE, readable
from fedglass.reproduce.probes.probe import (
    MatchedImages,
    RunsAttack,
    RunsNoAttack,
    attack_fields,
    blind_guesses,
    match_images,
    means,
    with_measures,
)

METRICS = ("lpips", "psnr", "ssim")
TRACED = (1, 10, 20, 30, 76, 99)
"""Iterations at which the one run that the release logs prints its objective."""


@dataclass(frozen=True)
class PeerImages(RunsAttack):
    """Mean LPIPS, PSNR and SSIM of the peers' images, without the adversary's own; pixels clipped to [0, 1]."""

    attack: Attack
    factor: int = 4
    """How much smaller the raw images are: the release repeats their pixels before it scores them."""

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        truth, observation = target.known_truth, target.observation
        reconstruction = self.attack.run(observation, seed, progress)
        final = match_images(reconstruction.images, truth)
        raw = final if reconstruction.raw is None else match_images(reconstruction.raw, truth)
        scores = final.score(METRICS)
        coarse, unrefined = raw.score(METRICS, repeated(raw.images, self.factor)), raw.score(METRICS)
        fields = attack_fields(self.attack, target, reconstruction)
        measures = means(scores.values) | {f"{name}_repeated": value for name, value in means(coarse.values).items()}
        measures |= {f"{name}_raw": value for name, value in means(unrefined.values).items()}
        measures |= _first_peer(scores.values, observation)
        measures |= _refinement(measures, final) if self.attack.refine else {}
        measures |= _search(reconstruction, len(truth.labels), int(fields["label_errors"]))
        measures |= {"back": 100 * final.share_back(), "own_psnr": own_psnr(final.images, observation)}
        extra = {**fields["extra"], "measures": measures, "skipped": dict(scores.skipped)}
        return ProbeResult({**fields, "metrics": dict(scores.values), "extra": extra}, final.strips())


@dataclass(frozen=True)
class ComparedPeerImages(PeerImages):
    """`PeerImages` next to the best blind guess of each metric, and to the test accuracy of the model in %."""

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        result = super().measure(target, seed, progress)
        tested = accuracies(target.utility)
        return with_measures(result, **blind_guesses(target, METRICS, self.attack), accuracy=tested[max(tested)])


@dataclass(frozen=True)
class WrongRate:
    """The adversary assumes `guess` times the true global learning rate [Wilson et al., 2024, Appendix B].

    It divides the step of the global model by its guess, and simulates the clients as they are: the server applies the
    rate, as in the release.
    """

    accelerated: ClassVar[bool] = True

    probe: PeerImages
    guess: float

    @property
    def attack(self) -> Attack:
        return self.probe.attack

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        observation = target.observation
        scaled = {name: step / self.guess for name, step in observation.update.items()}
        return self.probe.measure(replace(target, observation=replace(observation, update=scaled)), seed, progress)

    def seconds(self, load: Workload) -> float:
        return self.probe.seconds(load)


@dataclass(frozen=True)
class Grey:
    """Middle grey everywhere."""

    def images(self, observation: Observation, truth: Truth) -> Tensor:
        return torch.full_like(truth.private.images, 0.5)


@dataclass(frozen=True)
class OwnImages:
    """The adversary's own images, in turn."""

    def images(self, observation: Observation, truth: Truth) -> Tensor:
        images = own_images(observation)
        return images[torch.arange(len(truth.private.labels)) % len(images)]


@dataclass(frozen=True)
class Reduced:
    """ORACLE: the private images themselves, as well as an enlargement of so few pixels can show them.

    No search at that resolution can exceed its PSNR.
    """

    factor: int = 4

    def images(self, observation: Observation, truth: Truth) -> Tensor:
        private = truth.private.images
        return enlarged(reduced(private, self.factor), self.factor)


ImageGuess = Grey | OwnImages | Reduced
"""A guess of the private images without an attack."""


@dataclass(frozen=True)
class GuessedImages(RunsNoAttack):
    """The same figures for guessed images, without an attack."""

    guess: ImageGuess

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        truth = target.known_truth
        images = self.guess.images(target.observation, truth).clamp(0, 1)
        guessed = MatchedImages(images, truth.private, Matching(tuple(range(len(images)))))
        scores = guessed.score(METRICS)
        extra = {"measures": means(scores.values), "skipped": dict(scores.skipped)}
        return ProbeResult({"metrics": dict(scores.values), "extra": extra}, guessed.strips())

    def seconds(self, load: Workload) -> float:
        return 1.0


def reduced(images: Tensor, factor: int) -> Tensor:
    """Return small images with the nearest bicubic enlargement.  # (n, c, h, w) -> (n, c, h / factor, w / factor)"""
    down, across = (torch.linalg.pinv(bicubic_matrix(side // factor, factor)) for side in images.shape[-2:])
    small: Tensor = down @ images.double() @ across.mT
    return small.to(images.dtype)


def enlarged(images: Tensor, factor: int) -> Tensor:
    return interpolate(images, scale_factor=factor, mode="bicubic", align_corners=False)


def repeated(images: Tensor, factor: int) -> Tensor:
    """Return images enlarged by bicubic weights as if each small pixel had been repeated; clipped to [0, 1]."""
    small = reduced(images, factor)
    return small.repeat_interleave(factor, -1).repeat_interleave(factor, -2).clamp(0, 1)


def own_psnr(images: Tensor, observation: Observation) -> float:
    """Return how well the adversary sees its own images among the reconstructed: it can judge a guess by that."""
    return statistics.fmean(score(images, own_images(observation), ("psnr",)).values["psnr"])


def own_images(observation: Observation) -> Tensor:
    """Return the adversary's own images, on the CPU."""
    if observation.own is None:
        raise UsageError("Only a participant has images of its own: attack the round as one of its clients.")
    return observation.own.images.cpu()


def _first_peer(values: Mapping[str, Sequence[float]], observation: Observation) -> dict[str, float]:
    """Return LPIPS of the first peer alone: in rounds of more clients its images are the same."""
    count = None if observation.knows.sizes is None else observation.knows.sizes[0]
    return {"lpips_first": statistics.fmean(values["lpips"][:count])} if count and "lpips" in values else {}


def _refinement(measures: Mapping[str, float], final: MatchedImages) -> dict[str, float]:
    """Return by how much LPIPS falls below each raw form, in %, and LPIPS with another of the private images.

    A sharp picture of anything is nearer than a blurred one of the right thing.
    """
    if "lpips" not in measures:
        return {}
    gains = {
        name: 100 * (1 - measures["lpips"] / measures[f"lpips_{form}"])
        for name, form in (("gain", "repeated"), ("gain_bicubic", "raw"))
    }
    count = len(final.truth.private.labels)
    turned = Matching(tuple(final.matching.partner[(i + 1) % count] for i in range(count)))
    return gains | {"lpips_other": means(replace(final, matching=turned).score(METRICS).values)["lpips"]}


def _search(reconstruction: Reconstruction, examples: int, wrong: int) -> dict[str, float]:
    """Return the objective at the end and on the way, and the share of right labels in %."""
    measures = {"objective": reconstruction.energy, "labels": 100 * (1 - wrong / examples)}
    trace = reconstruction.trace
    return measures | {f"objective_{i}": trace[i] for i in TRACED if i < len(trace)}


@dataclass(frozen=True)
class Accuracy(RunsNoAttack):
    """Test accuracy of a federation's model in %, after the last round and every tenth on the way; no attack."""

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        points = accuracies(target.utility)
        last = max(points)
        measures = {"accuracy": points[last], **{f"accuracy_{at}": value for at, value in points.items()}}
        return ProbeResult({"extra": {"measures": measures}})

    def seconds(self, load: Workload) -> float:
        return 1.0


def accuracies(utility: Mapping[str, float]) -> dict[int, float]:
    """Return test accuracies in %, by the number of rounds.

    >>> accuracies({"test accuracy after 10": 0.5})
    {10: 50.0}
    """
    start = f"{ACCURACY} after "
    return {int(name.removeprefix(start)): 100 * v for name, v in utility.items() if name.startswith(start)}


SHOWN = 16
"""Pictures of a run that are stored."""
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
class PeerRmse(RunsNoAttack):
    """RMSE over all private images and pixels after optimal assignment [Yue et al., 2025, Eq. 14], in [0, 1].

    Next to it stands what guesses reach without the message; an attack should be below the lowest of them. The class
    means are those of the true labels, which the attack knows too.
    """

    accelerated: ClassVar[bool] = True

    reader: AnyAttack
    iterations: int
    """Iterations of all attacks that the reader tries, together."""

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        observation, truth = target.observation, target.known_truth
        reconstruction = self.reader.run(observation, seed, progress)
        final = match_images(reconstruction.images, truth)
        scores = final.score(("rmse", "psnr", "ssim"))
        guesses = scored_guesses(observation, truth, truth.labels, ("rmse",), target.public, self.reader)
        blind = {GUESSED[name]: joint_rmse(reached["rmse"]) for name, reached in guesses.items()}
        tested = accuracies(target.utility)
        measures = {
            "rmse": joint_rmse(scores.values["rmse"]),
            "psnr": statistics.fmean(scores.values["psnr"]),
            "back": 100 * final.share_back(),
            "guess": min(blind.values()),
            **blind,
            "accuracy": tested[max(tested)],
            "at": float(max(tested)),
            "objective": reconstruction.energy,
        }
        wrong = int(label_errors(reconstruction.labels.cpu(), truth.labels, observation.knows.classes))
        fields = {
            "metrics": dict(scores.values),
            "energy": reconstruction.energy,
            "energy_truth": energy_at(self.reader, observation, truth.images, truth.labels, reconstruction),
            "label_errors": wrong,
            "labels_true": truth.labels.tolist(),
            "extra": {"measures": measures, "skipped": dict(scores.skipped), "rule": reconstruction.rule},
        }
        return ProbeResult(fields, final.strips(SHOWN))

    def seconds(self, load: Workload) -> float:
        size = min(load.training.batch_size or load.examples, load.examples)
        return self.iterations * load.clients * load.steps * SECOND_ORDER * load.gradient(size)


@dataclass(frozen=True)
class ValidatedRmse(RunsNoAttack):
    """`PeerRmse` of the reader that is best in a round which the adversary plays by itself.

    That round starts from the same model. The adversary's own images and public ones take the place of the clients',
    so that it knows the truth of it; all clients are honest.
    """

    accelerated: ClassVar[bool] = True

    readers: tuple[tuple[float, AnyAttack], ...]
    """Readers by the rate of their solver."""
    iterations: int
    rule: Aggregator

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        errors, parts = dict[float, float](), len(self.readers) + 1
        observation, truth = self._rehearsed(target, seed)
        for i, (rate, reader) in enumerate(self.readers):
            images = reader.run(observation, seed, progress_part(progress, i, parts)).images
            errors[rate] = joint_rmse(match_images(images, truth).score(("rmse",)).values["rmse"])
        best = min(errors, key=lambda rate: errors[rate])
        probe = PeerRmse(dict(self.readers)[best], self.iterations)
        result = probe.measure(target, seed, progress_part(progress, parts - 1, parts))
        return with_measures(result, rate=best, rmse_rehearsed=errors[best])

    def _rehearsed(self, target: Target, seed: int) -> tuple[Observation, Truth]:
        """Return a round of as many clients as the attacked one had, with images that the adversary knows."""
        observation, knows, public = target.observation, target.observation.knows, target.public
        if observation.own is None or knows.training is None or public is None or public.examples is None:
            raise UsageError("A rate is validated by a participant that knows the training and has public images.")
        own, pool = observation.own, public.examples
        size, count = len(own.labels), len(target.participants)
        rows = torch.randperm(len(pool.labels), generator=stream(seed, "validation"))[: size * (count - 1)]
        clients = [
            Client("the adversary", own.images.cpu(), own.labels.cpu()),
            *(Client(f"client {i}", pool.images[r], pool.labels[r]) for i, r in enumerate(torch.split(rows, size))),
        ]
        model = copy.deepcopy(observation.model).cpu()
        model.load_state_dict({n: t.cpu() for n, t in {**observation.before, **observation.buffers}.items()}, False)
        federation = Federation(
            model, clients, knows.training, knows.classes, knows.whitening, aggregator=self.rule, seed=seed
        )
        index = next((i for i, r in enumerate(federation.play(PATIENCE)) if readable(federation, r)), 0)
        return observe(federation, PeerView(0, index), Knows(labels=True))

    def seconds(self, load: Workload) -> float:
        return (len(self.readers) + 1) * PeerRmse(self.readers[0][1], self.iterations).seconds(load)


def joint_rmse(values: Sequence[float]) -> float:
    """Return the RMSE over several images of equal size, given that of each.

    >>> joint_rmse([3.0, 4.0]) == math.sqrt(12.5)
    True
    """
    return math.sqrt(statistics.fmean(value**2 for value in values))
