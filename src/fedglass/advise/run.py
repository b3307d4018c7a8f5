"""The run: audit one strength after another, each in a folder of its own, then check the best one on other seeds.

Everything that is decided follows from the audits on disk. A run that was stopped asks the same questions again, and
finished audits answer at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from fedglass.advise.search import (
    DefenceChain,
    chains_of,
    check_plan,
    declared_success,
    formal_strength,
    next_strength,
    settings_of,
    stronger_value,
    with_defences,
)
from fedglass.advise.tried import TriedSetting, by_utility, chance_accuracy, tests_of_one_class, tried_setting
from fedglass.audit.audit import CPU, Effort, Job, missing_of, run
from fedglass.audit.simulated import Simulated
from fedglass.audit.target import AuditProgress
from fedglass.core.identity import digest
from fedglass.execution.executor import Executor, persistent
from fedglass.plan.compile import compile_plan
from fedglass.plan.options import defences_of
from fedglass.plan.schema import Plan
from fedglass.report.audit_page import write_report
from fedglass.verdict.directory import RECORDS, REPORT, RecordFile, alone, claim
from fedglass.verdict.gate import Gate

CHECKED = "checked"
"""Prefix of the folders that check a setting on other seeds."""
CHECKS = 2
"""Audits of the best setting: with the named attacks, and on other seeds."""


class AdviceProgress(AuditProgress):
    """Callbacks for the progress of the audits, and of the settings that they belong to; these do nothing."""

    def setting_started(self, name: str, number: int, most: int) -> None:
        """Report the setting that is audited now, its number, and the largest number of settings."""

    def setting_finished(self, setting: TriedSetting) -> None:
        """Report what the audit of a setting measured."""


@dataclass(frozen=True)
class Advice:
    """The settings that were tried, and the one to use."""

    title: str
    gate: Gate
    chains: Sequence[DefenceChain]
    tried: Sequence[TriedSetting]
    recommended: TriedSetting | None
    """The cheapest setting that meets the gate and has learned something, as it was first tried."""
    checked: Sequence[TriedSetting]
    """The same settings on other seeds, which had no part in the choice; the last one is the recommended one's."""
    chance: float
    """Accuracy of naming the commonest class."""
    seeds: int
    stopped: bool = False
    """Whether the time was over before all settings were tried."""
    plan: Plan | None = field(default=None, repr=False)
    """The plan with the recommended setting."""
    code: str = ""
    """The arguments of a command that name the folders of the plan's own code."""
    stronger: Sequence[tuple[DefenceChain, float]] = ()
    """Chains without a CLEAR setting, with the value beyond their range at which the accountant meets the gate."""
    one_class: bool = False
    """Whether the test examples of a seed all have the same class."""

    @property
    def exit_code(self) -> int:
        return 3 if self.recommended is None else 0

    def of_chain(self, chain: DefenceChain) -> list[TriedSetting]:
        """Return the settings of a chain, the weakest first."""
        return sorted((s for s in self.tried if s.chain is chain), key=lambda s: chain.strength.position(s.value))


@dataclass(frozen=True, eq=False)
class ChainSearch:
    """A chain with its audit at the strongest value, and the value at which the accountant meets the gate."""

    chain: DefenceChain
    job: Job
    formal: float | None
    stronger: float | None = None
    """The value beyond the strongest one at which it does, where none in the range does."""


@dataclass(frozen=True, eq=False)
class Auditor:
    """Audits chains at strengths below one output directory."""

    plan: Plan
    folder: Path
    directory: Path
    executor: Executor
    device: torch.device
    progress: AdviceProgress

    @property
    def seeds(self) -> range:
        """The seeds of the federations that every setting is tried on."""
        (table,) = self.plan.federation
        first = self.plan.seed if table.seed is None else table.seed
        return range(first, first + settings_of(self.plan).seeds)

    def search(self, chain: DefenceChain) -> ChainSearch:
        """Return the search of a chain, before anything is trained."""
        job = self.job(chain, chain.strength.at(1.0), self.seeds)
        source = job.sources[0]
        assert isinstance(source, Simulated), "the plan has a federation"

        def success(value: float) -> float | None:
            return declared_success(source, defences_of(chain.at(value)))

        formal = formal_strength(chain.strength, success, job.gate.max_success)
        stronger = stronger_value(chain.strength, success, job.gate.max_success) if formal is None else None
        return ChainSearch(chain, job, formal, stronger)

    def job(self, chain: DefenceChain, value: float, seeds: Sequence[int], *, attacks: bool = True) -> Job:
        """Return the audit of a chain at a value, on a federation for each seed.

        Without `attacks` the plan's searches wait, and exact attacks and the game run alone.
        """
        job = compile_plan(with_defences(self.plan, chain.at(value), seeds), self.folder)
        return job if attacks else replace(job, chosen=frozenset(job.attacks), effort=Effort.QUICK)

    def audit(self, chain: DefenceChain, value: float, place: str, job: Job) -> TriedSetting:
        """Run the audit of a setting, or read its records if it is finished; its page is written if any is new."""
        directory = self.directory / place
        before = _size(directory / RECORDS)
        result = run(job, directory, executor=self.executor, device=self.device, progress=self.progress)
        if _size(directory / RECORDS) != before or not (directory / REPORT).exists():
            write_report(directory)
        setting = tried_setting(chain, value, place, job, result)
        self.progress.setting_finished(setting)
        return setting


def advise(
    plan: Plan,
    folder: Path,
    directory: Path,
    *,
    executor: Executor,
    device: torch.device = CPU,
    progress: AdviceProgress | None = None,
    minutes: float | None = None,
) -> Advice:
    """Try each chain of a plan at several strengths, and return the cheapest setting that meets the gate.

    `folder` is what the paths of the plan are relative to. After so many `minutes` no other setting is begun; settings
    that an earlier run finished count, and take none of this time.
    """
    check_plan(plan)
    chains = chains_of(plan)
    with alone(directory), persistent(executor) as pool:
        auditor = Auditor(plan, folder, directory, pool, device, progress or AdviceProgress())
        searches = [auditor.search(chain) for chain in chains]  # this also checks the plan
        claim(directory, digest("advice", *(s.chain.title for s in searches), *(s.job.digest for s in searches)))
        at_most = settings_of(plan).strengths * len(chains) + CHECKS
        tried, stopped = _explore(auditor, searches, at_most, minutes)
        recommended, checked = _checked(auditor, tried, at_most)
    sources = [source for search in searches for source in search.job.sources]
    best = None
    if recommended is not None:
        best = with_defences(plan, recommended.chain.at(recommended.value))
    cleared = [s.chain for s in tried if s.clear]
    return Advice(
        plan.title,
        plan.gate.value(),
        chains,
        tried,
        recommended,
        checked,
        chance_accuracy(sources),
        len(auditor.seeds),
        stopped,
        best,
        stronger=[(s.chain, s.stronger) for s in searches if s.stronger is not None and s.chain not in cleared],
        one_class=tests_of_one_class(sources),
    )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _explore(
    auditor: Auditor, searches: Sequence[ChainSearch], at_most: int, minutes: float | None
) -> tuple[list[TriedSetting], bool]:
    """Try one strength of each chain in turn; return what was tried, and whether the time was over before the end.

    The time begins with the first setting that is not finished, so every run brings at least one more.
    """
    tried: list[TriedSetting] = []
    began: float | None = None
    most = settings_of(auditor.plan).strengths
    for turn in range(most):
        for number, search in enumerate(searches, 1):
            chain, strength = search.chain, search.chain.strength
            states = {s.value: s.state for s in tried if s.chain is chain}
            value = next_strength(strength, states, search.formal, most, too_weak=search.stronger is not None)
            if value is None:
                continue
            place, at_end = f"{number}-{strength.option}-{value:g}", value in (strength.at(0.0), strength.at(1.0))
            job = auditor.job(chain, value, auditor.seeds, attacks=at_end)
            # Failed cases are tried again, but do not stop a search.
            if minutes is not None and missing_of(job, RecordFile(auditor.directory / place / RECORDS).read()):
                now = time.monotonic()
                began = now if began is None else began
                if now - began > 60 * minutes:
                    return tried, True
            auditor.progress.setting_started(chain.setting(value), turn * len(searches) + number, at_most)
            tried.append(auditor.audit(chain, value, place, job))
    return tried, False


def _checked(
    auditor: Auditor, tried: list[TriedSetting], at_most: int
) -> tuple[TriedSetting | None, list[TriedSetting]]:
    """Return the cheapest setting that meets the gate with the named attacks too, and on other seeds; and the checks.

    A setting that fails takes its new verdict in `tried`.
    """
    checked: list[TriedSetting] = []
    while candidates := by_utility(tried):
        best = candidates[0]
        auditor.progress.setting_started(f"check of {best.name}", at_most - 1, at_most)
        chain = best.chain
        full = auditor.audit(chain, best.value, best.folder, auditor.job(chain, best.value, auditor.seeds))
        place = tried.index(best)
        tried[place] = full
        if not full.clear:
            continue
        auditor.progress.setting_started(f"check of {best.name} on other seeds", at_most, at_most)
        others = range(auditor.seeds.stop, auditor.seeds.stop + len(auditor.seeds))
        again = auditor.audit(chain, best.value, f"{CHECKED}-{best.folder}", auditor.job(chain, best.value, others))
        checked.append(again)
        if again.useful:
            return full, checked
        tried[place] = replace(full, state=again.state, learned=again.learned)
    return None, checked
