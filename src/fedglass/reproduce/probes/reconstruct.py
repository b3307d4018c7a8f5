"""An attack on the images, scored as the papers score it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedglass.analysis.segment import cosine
from fedglass.attack.attack import Attack
from fedglass.attack.merge import MatchAndAverage
from fedglass.attack.needs import needs_of
from fedglass.attack.parts import Progress
from fedglass.audit.probe import Finding
from fedglass.audit.target import Target
from fedglass.core.assignment import assign, squared_distances
from fedglass.core.facts import Fact
from fedglass.core.types import Candidate, Observation, Reconstruction
from fedglass.ledger.evidence import Strips
from fedglass.metrics.matching import Matching, match, match_by_psnr
from fedglass.metrics.psnr import psnr
from fedglass.metrics.recovered import share_above
from fedglass.reproduce.cost import Load, attack_seconds
from fedglass.reproduce.probes.probe import of_attack


class Pairing(Protocol):
    """Which reconstruction is compared with which original."""

    def pair(self, reconstructed: Tensor, original: Tensor) -> Matching: ...


@dataclass(frozen=True)
class ByError:
    """Least total squared error, as SME reports."""

    def pair(self, reconstructed: Tensor, original: Tensor) -> Matching:
        return match(reconstructed, original)


@dataclass(frozen=True)
class ByPsnr:
    """Greatest total PSNR, as DLFA reports."""

    def pair(self, reconstructed: Tensor, original: Tensor) -> Matching:
        return match_by_psnr(reconstructed, original)


@dataclass(frozen=True)
class Reconstruct:
    """Mean PSNR (range 1, not clipped), share of recovered images, and 1 - cosine of the predicted update."""

    accelerated: ClassVar[bool] = False

    attack: Attack
    threshold: float
    """PSNR above which an image counts as recovered."""
    pairing: Pairing

    def measure(self, target: Target, seed: int, progress: Progress) -> Finding:
        seen, truth, watch = target.observation, target.known_truth, _Watch()
        found = replace(self.attack, merge=watch).run(seen, seed, progress)
        matching = self.pairing.pair(found.images, truth.images)
        shown, by_epoch = matching.apply(found.images), _by_epoch(watch.images, matching)
        scores = psnr(shown, truth.images).tolist()
        fields = of_attack(self.attack, target, found)
        measures = {
            "psnr": sum(scores) / len(scores),
            "recovered": 100 * share_above(scores, self.threshold),
            "label_errors": float(fields["label_errors"]),
        }
        if (similarity := _similarity(self.attack, seen, found, watch.images)) is not None:
            measures["lsim"] = similarity
        told = {"metrics": {"psnr": scores}, "extra": {**fields["extra"], "measures": measures}}
        epochs = None if by_epoch is None else by_epoch.detach().numpy()
        return Finding({**fields, **told}, Strips(truth.images.numpy(), shown.detach().numpy(), epochs))

    def seconds(self, load: Load) -> float:
        return attack_seconds(self.attack, load)


class _Watch:
    """Matches and averages, and remembers what was merged."""

    images: Tensor  # (epochs, n, c, h, w), pixels

    def merge(self, images: Tensor) -> Tensor:
        self.images = images
        return MatchAndAverage().merge(images)


def _similarity(attack: Attack, seen: Observation, found: Reconstruction, images: Tensor) -> float | None:
    """1 - cosine between the message and what the reconstruction would have sent, each epoch's images its own."""
    if Fact.BATCH_LABELS in needs_of(attack.labels):
        return None  # the order of the labels in each epoch is not part of a reconstruction
    forward = attack.stages[-1].forward.bind(seen)
    own = [found.unknowns[u.name] for u in forward.unknowns]
    whitened = seen.knows.whitening.whiten(images)
    predicted = forward.predict(Candidate(whitened, found.labels), own)
    return 1 - cosine(predicted, forward.target)


def _by_epoch(images: Tensor, matching: Matching) -> Tensor | None:
    """Each epoch's images in the order of the originals.  # (epochs, n, c, h, w)"""
    if len(images) == 1:
        return None
    partners = [assign(squared_distances(images[0], later)) for later in images]
    return torch.stack([matching.apply(epoch[partner]) for epoch, partner in zip(images, partners, strict=True)])
