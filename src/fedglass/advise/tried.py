"""What the audits of a setting measured, and the comparison of settings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import scipy

from fedglass.audit.audit import AuditResult, Job
from fedglass.audit.simulated import Simulated
from fedglass.verdict.gate import Gate, State
from fedglass.verdict.records import Record
from fedglass.verdict.texts import percent

ACCURACY, UNDEFENDED = "test accuracy", "test accuracy, undefended"
CONFIDENCE = 0.95


@dataclass(frozen=True)
class AccuracyEstimate:
    """The mean accuracy over seeds, with its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{percent(self.mean)} ({percent(self.low)} to {percent(self.high)})"


def mean_accuracy(values: Sequence[float]) -> AccuracyEstimate:
    """Return the mean with Student's interval; every seed has its own test examples, so it covers their choice too.

    >>> str(mean_accuracy([0.8, 0.9]))
    '85 % (21.5 % to 100 %)'
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return AccuracyEstimate(mean, 0.0, 1.0)
    factor = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    half = factor * statistics.stdev(values) / math.sqrt(len(values))
    return AccuracyEstimate(mean, max(0.0, mean - half), min(1.0, mean + half))


@dataclass(frozen=True)
class TriedSetting:
    """One chain at one strength, audited on some seeds."""

    title: str
    """The chain."""
    option: str
    value: float
    folder: str
    """Folder of the audit, below the output directory."""
    state: State
    accuracies: tuple[float, ...]
    """By seed."""
    undefended: tuple[float, ...]
    measured: float | None
    """Measured leak: the share of records that the worst message names, or of images that were recovered."""
    certified: float | None
    """The most that any adversary names, over all rounds; None without a certificate."""
    recovered: int = 0
    """Images that the attack recovered which leaked most."""
    images: int = 0
    attacks: tuple[str, ...] = ()
    """The named attacks that were run."""
    accuracy: AccuracyEstimate = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "accuracy", mean_accuracy(self.accuracies))

    @property
    def clear(self) -> bool:
        return self.state == "clear"

    @property
    def name(self) -> str:
        return f"{self.title}, {self.option} {self.value:g}"


def tried_setting(title: str, option: str, value: float, folder: str, job: Job, result: AuditResult) -> TriedSetting:
    """Return what an audit of one federation for each seed measured."""
    accuracies, undefended = (tuple(_by_seed(job, result.records, name)) for name in (ACCURACY, UNDEFENDED))
    tallies = [tally for tally in job.gate.tally(result.records) if not tally.oracle]
    named = [record.game.top1 for record in result.records if record.game is not None and record.game.same_source]
    shares = [tally.share for tally in tallies if tally.recovered]
    return TriedSetting(
        title,
        option,
        value,
        folder,
        result.verdict.state,
        accuracies or (0.0,),
        undefended,
        max([*named, *shares], default=None),
        result.verdict.at_most,
        *((tallies[0].recovered, tallies[0].images) if tallies else (0, 0)),
        tuple(dict.fromkeys(record.attack for record in result.searches)),
    )


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
    tests = [source.test.labels for source in sources if isinstance(source, Simulated) and source.test is not None]
    shares = [float((labels == labels.flatten().mode().values).float().mean()) for labels in tests]
    return statistics.fmean(shares)


def by_utility(settings: Iterable[TriedSetting]) -> list[TriedSetting]:
    """Return the settings that meet the gate, the cheapest first: the highest accuracy, then the smallest bound."""
    clear = [setting for setting in settings if setting.clear]
    return sorted(clear, key=lambda s: (-s.accuracy.mean, 1.0 if s.certified is None else s.certified))


def nearest_to_gate(settings: Iterable[TriedSetting]) -> TriedSetting:
    """Return the setting that comes nearest to the gate: the smallest bound, then leak, then the highest accuracy."""

    def distance(setting: TriedSetting) -> tuple[bool, float, bool, float, float]:
        bound = 1.0 if setting.certified is None else setting.certified
        measured = 1.0 if setting.measured is None else setting.measured
        leaks = setting.state in ("leak", "exposed", "incomplete")
        return not setting.clear, bound, leaks, measured, -setting.accuracy.mean

    return min(settings, key=distance)


def distance_in_words(setting: TriedSetting, gate: Gate) -> str:
    """Return how far a setting is from the gate.

    >>> setting = TriedSetting("dpsgd", "noise_multiplier", 1.0, "", "inconclusive", (0.8, 0.8), (), 0.01, 0.3)
    >>> distance_in_words(setting, Gate())
    'certified 30 %, the gate allows 5 %'
    """
    if setting.clear:
        return "meets the gate"
    if setting.certified is None:
        return "no certificate: nothing bounds what an adversary reads"
    if setting.certified > gate.max_success:
        return f"certified {percent(setting.certified)}, the gate allows {percent(gate.max_success)}"
    return f"the certificate is small enough, but the verdict is {setting.state}"


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
