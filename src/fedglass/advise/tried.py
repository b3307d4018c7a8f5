"""Results of the audits of a setting, and the comparison of settings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import scipy
from torch import Tensor

from fedglass.advise.search import DefenceChain
from fedglass.audit.audit import AuditResult, Job
from fedglass.audit.simulated import Simulated
from fedglass.verdict.gate import Gate, State, Tally
from fedglass.verdict.records import Record
from fedglass.verdict.texts import count, percent

ACCURACY, UNDEFENDED = "test accuracy", "test accuracy, undefended"
CONFIDENCE = 0.95
LUCK = 1.645
"""Standard errors by which a model that learned nothing is above the commonest class in one of 20 cases."""


@dataclass(frozen=True)
class AccuracyEstimate:
    """The mean accuracy over seeds, with its 95 % interval."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def interval(self) -> str:
        return f"{percent(self.low)} to {percent(self.high)}, {count(self.seeds, 'seed')}"

    def __str__(self) -> str:
        return f"{percent(self.mean)} ({self.interval})"


def mean_accuracy(values: Sequence[float]) -> AccuracyEstimate:
    """Return the mean with Student's interval; every seed has its own test examples, so it covers their choice too.

    >>> str(mean_accuracy([0.8, 0.9]))
    '85 % (21.5 % to 100 %, 2 seeds)'
    """
    mean, half = _students_interval(values)
    return AccuracyEstimate(mean, max(0.0, mean - half), min(1.0, mean + half), len(values))


def _students_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half the width of its 95 % interval, which is infinite for a single value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.inf
    factor = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return mean, factor * statistics.stdev(values) / math.sqrt(len(values))


@dataclass(frozen=True)
class TriedSetting:
    """One chain at one strength, audited on some seeds."""

    chain: DefenceChain
    value: float
    folder: str
    """Folder of the audit, below the output directory."""
    state: State
    accuracies: tuple[float, ...]
    """By seed."""
    undefended: tuple[float, ...]
    measured: float | None
    """Measured leak: the share of records that the worst message names at least, or of images that were recovered."""
    certified: float | None
    """The most that any adversary names, over all rounds; None without a certificate."""
    recovered: int = 0
    """Images that the attack recovered which leaked most."""
    images: int = 0
    attacks: tuple[str, ...] = ()
    """The named attacks that were run."""
    learned: bool = True
    """Whether the model is better than naming the commonest class."""

    @property
    def accuracy(self) -> AccuracyEstimate:
        return mean_accuracy(self.accuracies)

    @property
    def cost(self) -> tuple[float, float] | None:
        """The accuracy that the defence costs, as the mean of the differences by seed, and half of its interval."""
        if len(self.undefended) != len(self.accuracies):
            return None
        return _students_interval([b - a for a, b in zip(self.accuracies, self.undefended, strict=True)])

    @property
    def clear(self) -> bool:
        return self.state == "clear"

    @property
    def useful(self) -> bool:
        """Return whether it is CLEAR and has learned something."""
        return self.clear and self.learned

    @property
    def name(self) -> str:
        return self.chain.setting(self.value)


def tried_setting(chain: DefenceChain, value: float, folder: str, job: Job, result: AuditResult) -> TriedSetting:
    """Return what an audit of one federation for each seed measured."""
    accuracies, undefended = (tuple(_by_seed(job, result.records, name)) for name in (ACCURACY, UNDEFENDED))
    tallies = [tally for tally in job.gate.tally(result.records) if not tally.oracle]
    return TriedSetting(
        chain,
        value,
        folder,
        result.verdict.state,
        accuracies or (0.0,),
        undefended,
        measured_leak(result.records, tallies),
        result.verdict.at_most,
        *((tallies[0].recovered, tallies[0].images) if tallies else (0, 0)),
        tuple(dict.fromkeys(record.attack for record in result.searches)),
        not accuracies or has_learned(accuracies, _test_labels(job.sources)),
    )


def measured_leak(records: Iterable[Record], tallies: Iterable[Tally]) -> float | None:
    """Return the largest leak that is no luck: the lower limit of a game, or the share of recovered images.

    A game of few records names one of them by luck, which would contradict a certificate.
    """
    named = [record.game.low for record in records if record.game is not None and record.game.same_source]
    return max([*named, *(tally.share for tally in tallies if tally.recovered)], default=None)


def tests_of_one_class(sources: Sequence[object]) -> bool:
    """Return whether the test examples of a federation of several classes all have the same class."""
    of_several = [s for s in sources if isinstance(s, Simulated) and s.federation.classes > 1]
    return any(_commonest_share(labels) == 1 for labels in _test_labels(of_several))


def _by_seed(job: Job, records: Sequence[Record], name: str) -> Iterable[float]:
    """Yield the figure of each federation that has one."""
    figures = {record.view: record.utility.get(name) for record in records}
    for source in job.sources:
        views = [info.facts["view"] for info in source.infos()]
        value = next((figures[view] for view in views if figures.get(view) is not None), None)
        if value is not None:
            yield value


def chance_accuracy(sources: Sequence[object]) -> float:
    """Return the accuracy of naming the commonest class of the test examples every time."""
    return statistics.fmean(map(_commonest_share, _test_labels(sources)))


def _test_labels(sources: Sequence[object]) -> list[Tensor]:
    return [source.test.labels for source in sources if isinstance(source, Simulated) and source.test is not None]


def _commonest_share(labels: Tensor) -> float:
    return float((labels == labels.flatten().mode().values).float().mean())


def has_learned(accuracies: Sequence[float], tests: Sequence[Tensor]) -> bool:
    """Return whether the mean accuracy is above naming the commonest class by more than luck.

    Luck is in the choice of the test examples, and in what differs between seeds; the larger of the two errors counts.

    >>> import torch
    >>> tests = [torch.arange(100) % 2] * 2
    >>> has_learned([0.52, 0.54], tests), has_learned([0.62, 0.64], tests)
    (False, True)
    """
    chance = statistics.fmean(map(_commonest_share, tests))
    error = max(
        math.sqrt(chance * (1 - chance) / sum(map(len, tests))),
        statistics.stdev(accuracies) / math.sqrt(len(accuracies)) if len(accuracies) > 1 else 0.0,
    )
    return statistics.fmean(accuracies) > chance + LUCK * error


def by_utility(settings: Iterable[TriedSetting]) -> list[TriedSetting]:
    """Return the settings that meet the gate and have learned something, the cheapest first.

    That is the highest accuracy, then the smallest bound.
    """
    useful = [setting for setting in settings if setting.useful]
    return sorted(useful, key=lambda s: (-s.accuracy.mean, 1.0 if s.certified is None else s.certified))


def nearest_to_gate(settings: Iterable[TriedSetting]) -> TriedSetting:
    """Return the setting that comes nearest to the gate: the smallest bound, then leak, then the highest accuracy.

    A setting that has learned nothing comes after all that have.
    """

    def distance(setting: TriedSetting) -> tuple[bool, bool, float, bool, float, float]:
        bound = 1.0 if setting.certified is None else setting.certified
        measured = 1.0 if setting.measured is None else setting.measured
        leaks = setting.state in ("leak", "exposed", "incomplete")
        return not setting.learned, not setting.clear, bound, leaks, measured, -setting.accuracy.mean

    return min(settings, key=distance)


def distance_in_words(setting: TriedSetting, gate: Gate) -> str:
    """Return how far a setting is from the gate.

    >>> from fedglass.defend.per_example import Strength
    >>> chain = DefenceChain("dpsgd", (), 0, Strength("noise_multiplier", 0.1, 10.0))
    >>> setting = TriedSetting(chain, 1.0, "", "inconclusive", (0.8, 0.8), (), 0.01, 0.3)
    >>> distance_in_words(setting, Gate())
    'certified 30 %, the gate allows 5 %'
    """
    if setting.clear:
        return "meets the gate" if setting.learned else "meets the gate but has learned nothing"
    if setting.certified is None:
        return "no certificate: nothing bounds what an adversary reads"
    if setting.certified > gate.max_success:
        return f"certified {percent(setting.certified)}, the gate allows {percent(gate.max_success)}"
    return f"the certificate is small enough, but the verdict is {setting.state}"


def cost_in_words(setting: TriedSetting) -> str:
    """Return what a setting costs against no defence on the same seeds; empty if that was not measured.

    >>> from fedglass.defend.per_example import Strength
    >>> chain = DefenceChain("dpsgd", (), 0, Strength("clip", 10.0, 0.1))
    >>> cost_in_words(TriedSetting(chain, 1.0, "", "clear", (0.84, 0.88), (0.95, 0.96), None, None))
    'It costs 9.5 points of accuracy against no defence (-9.56 to 28.6, paired by seed), which has 95.5 %.'
    """
    if setting.cost is None:
        return ""
    mean, half = setting.cost
    undefended = percent(statistics.fmean(setting.undefended))
    if mean < 0:
        interval = f"{-100 * (mean + half):.3g} to {100 * (half - mean):.3g}"
        return (
            f"It has {-100 * mean:.3g} points more accuracy than no defence ({interval}, paired by seed), which has "
            f"{undefended}: the training without a defence may be badly chosen."
        )
    interval = f"{100 * (mean - half):.3g} to {100 * (mean + half):.3g}"
    return (
        f"It costs {100 * mean:.3g} points of accuracy against no defence ({interval}, paired by seed), "
        f"which has {undefended}."
    )


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points (leak, accuracy) that no other one beats in both, by leak.

    >>> pareto_front([(0.1, 0.5), (0.2, 0.4), (0.3, 0.9)])
    [(0.1, 0.5), (0.3, 0.9)]
    """
    front: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda p: (p[0], -p[1])):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front
