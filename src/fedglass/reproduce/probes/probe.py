"""The protocol of probes, and the one way in which they match and score reconstructed images."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from fedglass.attack.attack import Attack
from fedglass.audit.assessment import scored_guesses
from fedglass.audit.cost import Workload, attack_seconds, iterations_of_stages
from fedglass.audit.probes import run_fields
from fedglass.audit.scoring import energy_at
from fedglass.audit.target import Probe, ProbeResult, Target
from fedglass.core.metric_scale import scale_of
from fedglass.core.types import Reconstruction
from fedglass.federation.truth import Truth
from fedglass.metrics.catalogue import Matching, Scores, label_errors, match, score
from fedglass.verdict.directory import Strips


class PublishedProbe(Probe, Protocol):
    """A probe with `measures` in the extra of its findings: figures by the names of the published table."""

    accelerated: ClassVar[bool] = False
    """Whether it runs faster on an accelerator; small networks do not."""

    def stages(self) -> tuple[int, ...]:
        """Return the iterations of each stage of what it runs; none if it runs no attack."""
        return ()

    def seconds(self, load: Workload) -> float:
        """Estimate how long it takes on one core."""
        return 1.0


class AttackProbe(PublishedProbe, Protocol):
    """A probe that runs its `attack` once."""

    accelerated: ClassVar[bool] = True
    attack: Attack

    def stages(self) -> tuple[int, ...]:
        return iterations_of_stages(self.attack)

    def seconds(self, load: Workload) -> float:
        return attack_seconds(self.attack, load)


def with_measures(result: ProbeResult, **measures: float) -> ProbeResult:
    """Return a result with further measures."""
    extra = result.record["extra"]
    further = {**extra, "measures": {**extra["measures"], **measures}}
    return replace(result, record={**result.record, "extra": further})


@dataclass(frozen=True, eq=False)
class MatchedImages:
    """Reconstructed images, matched to all images of a message and scored on the private ones.

    A reconstruction that shows the adversary's own image is thus not held against the images of others.
    """

    images: Tensor  # (m, c, h, w), on the CPU
    truth: Truth
    matching: Matching
    """Of all images of the message, the private ones first."""

    @property
    def private_matching(self) -> Matching:
        return Matching(self.matching.partner[: len(self.truth.private.labels)])

    @property
    def ordered(self) -> Tensor:
        """Return the reconstructions of the private images, in their order."""
        return self.private_matching.apply(self.images)

    def score(self, metrics: Sequence[str], images: Tensor | None = None) -> Scores:
        """Score the private images, or another version of them with the same matching."""
        scored = self.images if images is None else images
        return score(scored, self.truth.private.images, metrics, self.private_matching)

    def share_back(self) -> float:
        """Return the share of private images that came back.

        Such an image is nearer to its match than to any other image of the message, and nearer than plain grey is.
        """
        private = self.truth.private.images
        squares = (self.ordered[:, None] - self.truth.images[None]).square().flatten(2).mean(2)  # (private, all)
        nearest = squares.argmin(1) == torch.arange(len(private))
        grey = (private - 0.5).square().flatten(1).mean(1)
        return float((nearest & (squares.diagonal()[: len(private)] < grey)).double().mean())

    def strips(self, most: int | None = None, by_epoch: Tensor | None = None) -> Strips:
        """Return originals and reconstructions as pictures, at most so many of them."""
        epochs = None if by_epoch is None else by_epoch.detach().numpy()
        return Strips(self.truth.private.images[:most].numpy(), self.ordered[:most].numpy(), epochs)


def match_images(
    images: Tensor, truth: Truth, pairing: Callable[[Tensor, Tensor], Matching] = match, clip: bool = True
) -> MatchedImages:
    """Match reconstructed images, clipped to [0, 1] unless `clip` is false, to those behind a message."""
    on_cpu = images.detach().cpu()
    clipped = on_cpu.clamp(0, 1) if clip else on_cpu
    return MatchedImages(clipped, truth, pairing(clipped, truth.images))


def means(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean of each metric over images."""
    return {name: statistics.fmean(by_image) for name, by_image in values.items()}


def blind_guesses(target: Target, metrics: Sequence[str], attack: object) -> dict[str, float]:
    """Return what the best blind guess reaches in the mean over images, as `guess_` and the metric."""
    observation, truth = target.observation, target.known_truth
    guesses = scored_guesses(observation, truth, truth.labels, metrics, target.public, attack)
    reached = [means(scores) for scores in guesses.values()]
    return {f"guess_{m}": scale_of(m).best(s[m] for s in reached if m in s) for m in metrics if m in reached[0]}


def attack_fields(attack: Attack, target: Target, reconstruction: Reconstruction) -> dict[str, Any]:
    """Return the fields of a record that describe an attack's run, with the truth next to it."""
    observation, truth = target.observation, target.known_truth
    return {
        **run_fields(attack, reconstruction),
        "labels_true": truth.labels.tolist(),
        "label_errors": int(label_errors(reconstruction.labels.cpu(), truth.labels, observation.knows.classes)),
        "energy_truth": energy_at(attack, observation, truth.images, truth.labels, reconstruction),
    }
