"""Probes of attacks by the server: images, labels and unknown facts, scored as the papers score them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedglass.attack.attack import Attack
from fedglass.attack.best_of import BestOf, possible_trainings, trainings_of_steps, with_training
from fedglass.attack.hypotheses import SearchByOwnImages
from fedglass.attack.parts import Labels, MatchAndAverage, Progress, needs_of
from fedglass.attack.stages import energy_rank, progress_part
from fedglass.audit.cost import Workload, attack_seconds
from fedglass.audit.target import ProbeResult, Target
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.identity import LATER
from fedglass.core.rng import derive, stream
from fedglass.core.tensors import assign, squared_distances
from fedglass.core.types import Candidate, Observation, Reconstruction
from fedglass.metrics.catalogue import Matching, label_errors, match, match_by_psnr, share_above
from fedglass.reproduce.probes.geometry import cosine, sparsity
from fedglass.reproduce.probes.probe import (
    AttackProbe,
    PublishedProbe,
    attack_fields,
    blind_guesses,
    match_images,
    means,
    with_measures,
)

PAIRINGS: Mapping[str, Callable[[Tensor, Tensor], Matching]] = {"error": match, "psnr": match_by_psnr}
"""Ways to match images: by least total squared error, as SME reports, or by greatest total PSNR, as DLFA reports."""


@dataclass(frozen=True)
class Reconstruct(AttackProbe):
    """Mean PSNR (range 1, not clipped), share of recovered images, and 1 - cosine of the predicted update."""

    accelerated: ClassVar[bool] = False

    attack: Attack
    threshold: float
    """PSNR above which an image counts as recovered."""
    pairing: str
    """One of `PAIRINGS`."""

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        observation, truth, merge = target.observation, target.known_truth, _RecordingMerge()
        reconstruction = replace(self.attack, merge=merge).run(observation, seed, progress)
        matched = match_images(reconstruction.images, truth, PAIRINGS[self.pairing], clip=False)
        psnr_by_image = list(matched.score(("psnr",)).values["psnr"])
        fields = attack_fields(self.attack, target, reconstruction)
        measures = {
            "psnr": sum(psnr_by_image) / len(psnr_by_image),
            "recovered": 100 * share_above(psnr_by_image, self.threshold),
            "label_errors": float(fields["label_errors"]),
            **blind_guesses(target, ("psnr",), self.attack),
        }
        # With labels of each batch, their order in each epoch is not part of a reconstruction.
        if Fact.BATCH_LABELS not in needs_of(self.attack.labels):
            measures["lsim"] = _similarity(self.attack, observation, reconstruction, merge.images)
        scored = {"metrics": {"psnr": psnr_by_image}, "extra": {**fields["extra"], "measures": measures}}
        return ProbeResult({**fields, **scored}, matched.strips(by_epoch=_by_epoch(merge.images, matched.matching)))


class _RecordingMerge:
    """Matches and averages, and stores the images that were merged."""

    images: Tensor  # (epochs, n, c, h, w), pixels

    def merge(self, images: Tensor) -> Tensor:
        self.images = images
        return MatchAndAverage().merge(images)


def _similarity(attack: Attack, observation: Observation, reconstruction: Reconstruction, images: Tensor) -> float:
    """Return 1 - cosine between the message and what the images of each epoch would have sent."""
    forward = attack.stages[-1].forward.bind(observation)
    unknowns = [reconstruction.unknowns[unknown.name] for unknown in forward.unknowns]
    whitened = observation.knows.whitening.whiten(images)
    predicted = forward.predict(Candidate(whitened, reconstruction.labels), unknowns)
    return 1 - cosine(predicted, forward.target)


def _by_epoch(images: Tensor, matching: Matching) -> Tensor | None:
    """Return each epoch's images in the order of the originals; None of a single epoch.  # (epochs, n, c, h, w)"""
    if len(images) == 1:
        return None
    partners = [assign(squared_distances(images[0], later)) for later in images]
    return torch.stack([matching.apply(epoch[partner]) for epoch, partner in zip(images, partners, strict=True)])


METRICS = ("psnr", "ssim", "lpips")


@dataclass(frozen=True)
class Invert(AttackProbe):
    """Mean PSNR, SSIM and LPIPS of the restart of lowest energy, and the sparsity of the message.

    [K. Zhu et al., 2025, Sec. 5.1]. The attack keeps its merge and refinements, and several restarts are one run.
    """

    attack: Attack
    retries: int = field(default=1, metadata=LATER)
    """Runs on the same message: the best counts, next to the median and the mean PSNR of all."""

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        if self.retries == 1:
            return self._once(target, seed, progress)
        runs = [
            self._once(target, derive(seed, "retry", i), progress_part(progress, i, self.retries))
            for i in range(self.retries)
        ]
        values = [run.record["extra"]["measures"]["psnr"] for run in runs]
        best, median, average = max(values), statistics.median(values), statistics.fmean(values)
        return with_measures(runs[values.index(best)], best=best, median=median, average=average)

    def _once(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        observation = target.observation
        reconstruction = self.attack.run(observation, seed, progress)
        matched = match_images(reconstruction.images, target.known_truth, clip=False)
        scores = matched.score(METRICS)
        fields = attack_fields(self.attack, target, reconstruction)
        measures = {name: sum(values) / len(values) for name, values in scores.values.items()}
        measures["label_errors"] = float(fields["label_errors"])
        measures["sparsity"] = sparsity(observation.update.values())  # of the message that the attack got
        measures |= blind_guesses(target, METRICS, self.attack)
        extra = {**fields["extra"], "measures": measures, "skipped": dict(scores.skipped)}
        scored = {"metrics": dict(scores.values), "iterations": sum(self.stages()), "extra": extra}
        return ProbeResult({**fields, **scored}, matched.strips())

    def seconds(self, load: Workload) -> float:
        return self.retries * attack_seconds(self.attack, load)


@dataclass(frozen=True)
class TryTrainings(PublishedProbe):
    """A reconstruction for every training that the adversary cannot rule out; the lowest energy wins.

    Epochs and batch size are unknown, so that every divisor of the number of steps is tried. The paper names this
    solution but does not measure it [Dimitrov et al., 2022, App. C.4].
    """

    probe: Reconstruct

    def stages(self) -> tuple[int, ...]:
        return self.probe.stages()

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        observation, findings = target.observation, list[ProbeResult]()
        guesses = possible_trainings(observation)
        for i, guess in enumerate(guesses):
            supposed = replace(target, observation=with_training(observation, guess))
            findings.append(self.probe.measure(supposed, seed, progress_part(progress, i, len(guesses))))
        best = min(range(len(guesses)), key=lambda i: energy_rank(findings[i].record["energy"]))
        pairs = zip(guesses, findings, strict=True)
        energies = ", ".join(f"E={guess.epochs} {finding.record['energy']:.4g}" for guess, finding in pairs)
        choice = f"E={guesses[best].epochs} was chosen by its energy: {energies}."
        fields = findings[best].record
        notes = [*fields["extra"]["notes"], choice]
        extra = {**fields["extra"], "supposed": repr(guesses[best]), "notes": notes}
        return replace(findings[best], record={**fields, "extra": extra})

    def seconds(self, load: Workload) -> float:
        guesses = trainings_of_steps(load.training.lr, load.steps, load.examples)
        return sum(self.probe.seconds(replace(load, training=guess)) for guess in guesses)


@dataclass(frozen=True)
class CountLabels(PublishedProbe):
    """Half the L1 distance between the recovered label counts and the true ones [Dimitrov et al., 2022, Table 2]."""

    labels: Labels

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        observation, truth = target.observation, target.known_truth
        labels = self.labels.bind(observation, stream(seed, "labels")).decode([])
        errors = label_errors(labels, truth.labels, observation.knows.classes)
        fields = {"labels_true": truth.labels.tolist(), "labels_recovered": labels.tolist(), "label_errors": errors}
        return ProbeResult({**fields, "extra": {"measures": {"label_errors": float(errors)}}})

    def seconds(self, load: Workload) -> float:
        return 60 * load.gradient(50)  # 3000 dummy images, twice, without a gradient


NEAR = 1.25
"""A guess within this factor of the truth is a hit: neighbours on the grids are farther apart."""


@dataclass(frozen=True)
class SearchUnknowns(AttackProbe):
    """The result of a search for learning rate and number of images, next to the truth [Wilson et al., 2024, App. B].

    The search uses the participant's own images and no image of another client; the truth is for the score alone.
    """

    attack: Attack
    search: SearchByOwnImages
    lr: float
    """The clients' true rate; the adversary may not know it."""

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        attack, truth = BestOf(self.attack, self.search), target.known_truth
        reconstruction = attack.run(target.observation, seed, progress)
        supposed = reconstruction.supposed
        if supposed is None:
            raise UsageError("The search did not report the training that it chose.")
        ratios = {"rate": supposed.lr / self.lr, "images": len(reconstruction.labels) / len(truth.labels)}
        matched = match_images(reconstruction.images, truth)
        values = dict(matched.score(("psnr",)).values)
        hit = all(1 / NEAR <= ratio <= NEAR for ratio in ratios.values())
        measures = {**ratios, "found": 100.0 * hit, **means(values)}
        fields = {"energy": reconstruction.energy, "trace": list(reconstruction.trace), "metrics": values}
        extra = {"measures": measures, "lines": _plots(reconstruction)}
        return ProbeResult({**fields, "extra": extra}, matched.strips())

    def seconds(self, load: Workload) -> float:
        tries = len(self.search.rates) * len(self.search.counts) + 1
        return tries * attack_seconds(self.search.probe, load)


def _plots(reconstruction: Reconstruction) -> list[dict[str, Any]]:
    """Plot the error of the adversary's own images under each guess, over each unknown."""
    plots = []
    for axis, of in (("learning rate", lambda trial: trial.lr), ("images", lambda trial: float(trial.examples))):
        best: dict[float, float] = {}
        for trial in reconstruction.tried:
            best[of(trial)] = min(trial.error, best.get(of(trial), trial.error))
        points = [(x, error) for x, error in best.items() if error > 0]
        if len(points) > 1:
            plots.append({"title": "error of its own images", "axis": axis, "points": {"guesses": points}})
    return plots
