"""An attack on the images, scored as the papers score it."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedglass.attack.attack import Attack
from fedglass.attack.best_of import BestOf, possible_trainings, trainings_of_steps, with_training
from fedglass.attack.needs import needs_of
from fedglass.attack.parts import Labels, MatchAndAverage, Progress
from fedglass.attack.search import SearchByOwnImages
from fedglass.attack.stages import energy_rank, progress_part
from fedglass.audit.cases import ProbeResult
from fedglass.audit.target import Target
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.rng import stream
from fedglass.core.tensors import assign, squared_distances
from fedglass.core.types import Candidate, Observation, Reconstruction, Training
from fedglass.metrics.catalogue import score, share_above
from fedglass.metrics.images import psnr
from fedglass.metrics.matching import Matching, label_errors, match, match_by_psnr
from fedglass.reproduce.charts import LogPlot
from fedglass.reproduce.cost import Workload, attack_seconds, iterations_of_stages
from fedglass.reproduce.probes.geometry import cosine, sparsity
from fedglass.reproduce.probes.probe import of_attack
from fedglass.verdict.directory import Strips


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

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
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
        return ProbeResult({**fields, **told}, Strips(truth.images.numpy(), shown.detach().numpy(), epochs))

    def seconds(self, load: Workload) -> float:
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


# An attack scored as the coarse-to-fine paper scores it, with the sparsity of what it was given.


METRICS = ("psnr", "ssim", "lpips")


@dataclass(frozen=True)
class Invert:
    """Mean PSNR, SSIM and LPIPS of the restart of lowest energy [K. Zhu et al., 2025, Sec. 5.1].

    The attack's own merge and refinements are kept, and several restarts are one run.
    """

    accelerated: ClassVar[bool] = True

    attack: Attack

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        seen, truth = target.observation, target.known_truth
        found = self.attack.run(seen, seed, progress)
        scores = score(found.images, truth.images, METRICS)
        fields = of_attack(self.attack, target, found)
        measures = {name: sum(values) / len(values) for name, values in scores.values.items()}
        measures["label_errors"] = float(fields["label_errors"])
        measures["sparsity"] = sparsity(seen.update.values())  # of the message, as the attack was given it
        extra = {**fields["extra"], "measures": measures, "skipped": dict(scores.skipped)}
        told = {"metrics": dict(scores.values), "iterations": sum(iterations_of_stages(self.attack)), "extra": extra}
        shown = scores.matching.apply(found.images.detach().cpu())
        return ProbeResult({**fields, **told}, Strips(truth.images.numpy(), shown.numpy()))

    def seconds(self, load: Workload) -> float:
        return attack_seconds(self.attack, load)


# A reconstruction for every training that the adversary can not rule out.


@dataclass(frozen=True)
class TryTrainings:
    """Epochs and batch size are unknown: every divisor of the number of steps is tried, and the lowest energy wins.

    The way out that the paper names but does not measure [Dimitrov et al., 2022, App. C.4].
    """

    accelerated: ClassVar[bool] = False

    probe: Reconstruct

    @property
    def attack(self) -> Attack:
        return self.probe.attack

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        seen, found = target.observation, []
        guesses = possible_trainings(seen)
        for i, guess in enumerate(guesses):
            supposed = replace(target, observation=with_training(seen, guess))
            found.append(self.probe.measure(supposed, seed, progress_part(progress, i, len(guesses))))
        best = min(range(len(guesses)), key=lambda i: energy_rank(found[i].record["energy"]))
        fields = found[best].record
        extra = {**fields["extra"], "supposed": repr(guesses[best])}
        extra["notes"] = [*extra["notes"], _chosen(guesses, found, best)]
        return replace(found[best], record={**fields, "extra": extra})

    def seconds(self, load: Workload) -> float:
        guesses = trainings_of_steps(load.training.lr, load.steps, load.examples)
        return sum(self.probe.seconds(replace(load, training=guess)) for guess in guesses)


def _chosen(guesses: list[Training], found: list[ProbeResult], best: int) -> str:
    """Which training was supposed in the end, and the energies of all of them."""
    each = ", ".join(f"E={g.epochs} {f.record['energy']:.4g}" for g, f in zip(guesses, found, strict=True))
    return f"E={guesses[best].epochs} was chosen by its energy: {each}."


# How many labels are read off a message, without images.


@dataclass(frozen=True)
class CountLabels:
    """Half the L1 distance between the recovered label counts and the true ones [Dimitrov et al., 2022, Table 2]."""

    accelerated: ClassVar[bool] = False
    attack: ClassVar[None] = None

    labels: Labels

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        seen, truth = target.observation, target.known_truth
        found = self.labels.bind(seen, stream(seed, "labels")).decode([])
        errors = label_errors(found, truth.labels, seen.knows.classes)
        fields = {"labels_true": truth.labels.tolist(), "labels_recovered": found.tolist(), "label_errors": errors}
        return ProbeResult({**fields, "extra": {"measures": {"label_errors": float(errors)}}})

    def seconds(self, load: Workload) -> float:
        return 60 * load.gradient(50)  # 3000 dummy images, twice, without a gradient


# Whether a participant finds out by its own images what it was not told [Wilson et al., 2024, Appendix B].


NEAR = 1.25
"""A guess within this factor of the truth has found it: the grids' neighbours are farther."""


@dataclass(frozen=True)
class SearchUnknowns:
    """What the search takes for the learning rate and the number of images, beside what they are.

    The search looks at no image of another client; the truth is for the score alone.
    """

    accelerated: ClassVar[bool] = True

    attack: Attack
    search: SearchByOwnImages
    lr: float
    """The clients' true rate, which the adversary may not know."""

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        attack, truth = BestOf(self.attack, self.search), target.known_truth
        found = attack.run(target.observation, seed, progress)
        if found.supposed is None:
            raise UsageError("The search has told nothing of what it found.")
        ratios = {"rate": found.supposed.lr / self.lr, "images": len(found.labels) / len(truth.labels)}
        shown = found.images.detach().cpu().clamp(0, 1)
        private = truth.private.images
        matching = Matching(match(shown, truth.images).partner[: len(private)])
        values = dict(score(shown, private, ("psnr",), matching).values)
        hit = all(1 / NEAR <= ratio <= NEAR for ratio in ratios.values())
        measures = {**ratios, "found": 100.0 * hit, "psnr": statistics.fmean(values["psnr"])}
        fields = {"energy": found.energy, "trace": list(found.trace), "metrics": values}
        extra = {"measures": measures, "lines": [asdict(line) for line in _drawn(found)]}
        return ProbeResult({**fields, "extra": extra}, Strips(private.numpy(), matching.apply(shown).numpy()))

    def seconds(self, load: Workload) -> float:
        tries = len(self.search.rates) * len(self.search.counts) + 1
        return tries * attack_seconds(self.search.probe, load)


def _drawn(found: Reconstruction) -> list[LogPlot]:
    """The error of the adversary's own images under each guess, over what was unknown."""
    error, drawn = "error of its own images", []
    for axis, of in (("learning rate", lambda trial: trial.lr), ("images", lambda trial: float(trial.examples))):
        best: dict[float, float] = {}
        for trial in found.tried:
            best[of(trial)] = min(trial.error, best.get(of(trial), trial.error))
        points = [(place, value) for place, value in best.items() if value > 0]
        if len(points) > 1:
            drawn.append(LogPlot(error, axis, {"guesses": points}))
    return drawn
