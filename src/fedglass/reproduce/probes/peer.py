"""Probes of a participant's attack on its peers: images, test accuracy and RMSE, next to guesses without a message."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from fedglass.core.identity import LATER
from fedglass.core.rng import stream
from fedglass.core.types import Observation
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
    AttackProbe,
    MatchedImages,
    PublishedProbe,
    attack_fields,
    blind_guesses,
    match_images,
    means,
    with_measures,
)

METRICS = ("lpips", "psnr", "ssim")
FACTOR = 4
"""How much smaller the images are that the curious client searches."""
TRACED = (1, 10, 20, 30, 76, 99)
"""Iterations at which the one run that the release logs prints its objective."""


@dataclass(frozen=True)
class PeerImages(AttackProbe):
    """Mean LPIPS, PSNR and SSIM of the peers' images, without the adversary's own; pixels clipped to [0, 1].

    Of a federation that was tested they stand next to the best blind guess of each metric, and to the model's test
    accuracy in %.
    """

    attack: Attack
    factor: int = FACTOR
    """How much smaller the raw images are: the release repeats their pixels before it scores them."""
    guess: float = field(default=1.0, metadata=LATER)
    """Times the true global learning rate that the adversary assumes [Wilson et al., 2024, Appendix B]. It divides the
    step of the global model by its guess, and simulates the clients as they are: the server applies the rate, as in the
    release."""

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        truth, observation = target.known_truth, target.observation
        if self.guess != 1.0:
            scaled = {name: step / self.guess for name, step in observation.update.items()}
            observation = replace(observation, update=scaled)
            target = replace(target, observation=observation)
        reconstruction = self.attack.run(observation, seed, progress)
        final = match_images(reconstruction.images, truth)
        raw = final if reconstruction.raw is None else match_images(reconstruction.raw, truth)
        scores = final.score(METRICS)
        coarse, unrefined = raw.score(METRICS, repeated(raw.images, self.factor)), raw.score(METRICS)
        fields = attack_fields(self.attack, target, reconstruction)
        measures = means(scores.values) | {f"{name}_repeated": value for name, value in means(coarse.values).items()}
        measures |= {f"{name}_raw": value for name, value in means(unrefined.values).items()}
        first_peer = None if observation.knows.sizes is None else observation.knows.sizes[0]
        if first_peer and "lpips" in scores.values:  # in rounds of more clients its images are the same
            measures["lpips_first"] = statistics.fmean(scores.values["lpips"][:first_peer])
        measures |= _refinement(measures, final) if self.attack.refine else {}
        measures |= {
            "objective": reconstruction.energy,
            "labels": 100 * (1 - fields["label_errors"] / len(truth.labels)),
        }
        measures |= {f"objective_{i}": reconstruction.trace[i] for i in TRACED if i < len(reconstruction.trace)}
        measures |= {"back": 100 * final.share_back(), "own_psnr": own_psnr(final.images, observation)}
        if tested := accuracies(target.utility):
            measures |= {**blind_guesses(target, METRICS, self.attack), "accuracy": tested[max(tested)]}
        extra = {**fields["extra"], "measures": measures, "skipped": dict(scores.skipped)}
        return ProbeResult({**fields, "metrics": dict(scores.values), "extra": extra}, final.strips())


def grey(observation: Observation, private: Tensor) -> Tensor:
    """Return middle grey everywhere."""
    return torch.full_like(private, 0.5)


def own_in_turn(observation: Observation, private: Tensor) -> Tensor:
    """Return the adversary's own images, in turn."""
    images = own_images(observation)
    return images[torch.arange(len(private)) % len(images)]


def best_enlargement(observation: Observation, private: Tensor) -> Tensor:
    """ORACLE: return the private images themselves, as well as an enlargement of so few pixels can show them.

    No search at that resolution can exceed its PSNR.
    """
    return enlarged(reduced(private, FACTOR), FACTOR)


GUESSES: Mapping[str, Callable[[Observation, Tensor], Tensor]] = {
    "grey": grey,
    "own": own_in_turn,
    "reduced": best_enlargement,
}
"""Guesses of the private images without an attack, by the names of the methods."""


@dataclass(frozen=True)
class GuessedImages(PublishedProbe):
    """The same figures for guessed images, without an attack."""

    guess: str
    """One of `GUESSES`."""

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        truth = target.known_truth
        images = GUESSES[self.guess](target.observation, truth.private.images).clamp(0, 1)
        guessed = MatchedImages(images, truth.private, Matching(tuple(range(len(images)))))
        scores = guessed.score(METRICS)
        extra = {"measures": means(scores.values), "skipped": dict(scores.skipped)}
        return ProbeResult({"metrics": dict(scores.values), "extra": extra}, guessed.strips())


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


@dataclass(frozen=True)
class Accuracy(PublishedProbe):
    """Test accuracy of a federation's model in %, after the last round and every tenth on the way; no attack."""

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        points = accuracies(target.utility)
        last = max(points)
        measures = {"accuracy": points[last], **{f"accuracy_{at}": value for at, value in points.items()}}
        return ProbeResult({"extra": {"measures": measures}})


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
class PeerRmse(PublishedProbe):
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

    def stages(self) -> tuple[int, ...]:
        return (self.iterations,)

    def seconds(self, load: Workload) -> float:
        size = min(load.training.batch_size or load.examples, load.examples)
        return self.iterations * load.clients * load.steps * SECOND_ORDER * load.gradient(size)


@dataclass(frozen=True)
class ValidatedRmse(PublishedProbe):
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

    def stages(self) -> tuple[int, ...]:
        return (self.iterations,)

    def seconds(self, load: Workload) -> float:
        return (len(self.readers) + 1) * PeerRmse(self.readers[0][1], self.iterations).seconds(load)


def joint_rmse(values: Sequence[float]) -> float:
    """Return the RMSE over several images of equal size, given that of each.

    >>> joint_rmse([3.0, 4.0]) == math.sqrt(12.5)
    True
    """
    return math.sqrt(statistics.fmean(value**2 for value in values))
