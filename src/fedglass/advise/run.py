"""The run: audit one strength after another, each in a folder of its own, then check the best one on other seeds.

Everything that is decided follows from the audits on disk. A run that was stopped asks the same questions again, and
finished audits answer at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from fedglass.advise.chains import DefenceChain, chains_of, check_plan, settings_of, with_defences
from fedglass.advise.search import declared_success, formal_strength, next_strength
from fedglass.advise.tried import TriedSetting, by_utility, chance_accuracy, tried_setting
from fedglass.audit.audit import CPU, Effort, Job, run
from fedglass.audit.cases import AuditProgress
from fedglass.audit.simulated import Simulated
from fedglass.core.errors import UsageError
from fedglass.core.identity import digest
from fedglass.execution.executor import Executor, persistent
from fedglass.plan.compile import compile_plan
from fedglass.plan.options import defences_of
from fedglass.plan.schema import Plan
from fedglass.report.html import write_report
from fedglass.verdict.directory import alone, claim
from fedglass.verdict.gate import Gate

CHECKED = "checked"
"""Prefix of the folders that check a setting on other seeds."""


class AdviceProgress(AuditProgress, Protocol):
    """Callbacks for the progress of the audits, and of the settings that they belong to."""

    def setting_started(self, name: str, number: int, most: int) -> None:
        """Report the setting that is audited now, its number, and the largest number of settings."""
        return

    def setting_finished(self, setting: TriedSetting) -> None:
        return


@dataclass(frozen=True)
class Advice:
    """The settings that were tried, and the one to use."""

    title: str
    gate: Gate
    chains: Sequence[DefenceChain]
    tried: Sequence[TriedSetting]
    recommended: TriedSetting | None
    """The cheapest setting that meets the gate, as it was first tried."""
    checked: Sequence[TriedSetting]
    """The same settings on other seeds, which had no part in the choice; the last one is the recommended one's."""
    chance: float
    """Accuracy of naming the commonest class."""
    seeds: int
    stopped: bool = False
    """Whether the time was over before all settings were tried."""
    plan: Plan | None = field(default=None, repr=False)
    """The plan with the recommended setting."""

    @property
    def exit_code(self) -> int:
        return 3 if self.recommended is None else 0

    def of_chain(self, chain: DefenceChain) -> list[TriedSetting]:
        """Return the settings of a chain, the weakest first."""
        same = [s for s in self.tried if (s.title, s.option) == (chain.title, chain.strength.option)]
        return sorted(same, key=lambda s: chain.strength.position(s.value))


@dataclass(frozen=True, eq=False)
class ChainSearch:
    """A chain with its audit at the strongest value, and the value at which the accountant meets the gate."""

    chain: DefenceChain
    job: Job
    formal: float | None


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

        return ChainSearch(chain, job, formal_strength(chain.strength, success, job.gate.max_success))

    def job(self, chain: DefenceChain, value: float, seeds: Sequence[int]) -> Job:
        """Return the audit of a chain at a value, on a federation for each seed."""
        return compile_plan(with_defences(self.plan, chain.at(value), seeds), self.folder)

    def audit(
        self, chain: DefenceChain, value: float, seeds: Sequence[int], place: str, *, attacks: bool
    ) -> TriedSetting:
        """Audit a setting; without `attacks` the plan's searches wait, and exact attacks and the game run alone."""
        job = self.job(chain, value, seeds)
        probe = job if attacks else replace(job, chosen=frozenset(job.attacks), effort=Effort.QUICK)
        directory = self.directory / place
        result = run(probe, directory, executor=self.executor, device=self.device, progress=self.progress)
        write_report(directory)
        setting = tried_setting(chain.title, chain.strength.option, value, place, job, result)
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

    `folder` is what the paths of the plan are relative to. After so many `minutes` no other setting is begun.
    """
    check_plan(plan)
    chains = chains_of(plan)
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    with alone(directory), persistent(executor) as pool:
        auditor = Auditor(plan, folder, directory, pool, device, progress or QuietAdviceProgress())
        searches = [auditor.search(chain) for chain in chains]  # this also checks the plan
        claim(directory, digest("advice", *(s.chain.title for s in searches), *(s.job.digest for s in searches)))
        tried, stopped = _explore(auditor, searches, deadline)
        if not tried:
            raise UsageError("The time was over before a setting was tried: raise --minutes.")
        recommended, checked = _checked(auditor, chains, tried)
    chance = chance_accuracy([source for search in searches for source in search.job.sources])
    best = None
    if recommended is not None:
        best = with_defences(plan, _chain_of(chains, recommended).at(recommended.value))
    return Advice(
        plan.title, plan.gate.value(), chains, tried, recommended, checked, chance, len(auditor.seeds), stopped, best
    )


class QuietAdviceProgress(AdviceProgress):
    """Callbacks that do nothing."""


def _explore(
    auditor: Auditor, searches: Sequence[ChainSearch], deadline: float | None
) -> tuple[list[TriedSetting], bool]:
    """Try one strength of each chain in turn; return what was tried, and whether the time was over before the end."""
    tried: list[TriedSetting] = []
    most = settings_of(auditor.plan).strengths
    for turn in range(most):
        for number, search in enumerate(searches, 1):
            chain, strength = search.chain, search.chain.strength
            states = {s.value: s.state for s in tried if (s.title, s.option) == (chain.title, strength.option)}
            value = next_strength(strength, states, search.formal, most)
            if value is None:
                continue
            if deadline is not None and time.monotonic() >= deadline:
                return tried, True
            auditor.progress.setting_started(chain.setting(value), turn * len(searches) + number, most * len(searches))
            place, at_end = f"{number}-{strength.option}-{value:g}", value in (strength.at(0.0), strength.at(1.0))
            tried.append(auditor.audit(chain, value, auditor.seeds, place, attacks=at_end))
    return tried, False


def _checked(
    auditor: Auditor, chains: Sequence[DefenceChain], tried: list[TriedSetting]
) -> tuple[TriedSetting | None, list[TriedSetting]]:
    """Return the cheapest setting that meets the gate with the named attacks too, and on other seeds; and the checks.

    A setting that fails takes its new verdict in `tried`.
    """
    checked: list[TriedSetting] = []
    while candidates := by_utility(tried):
        best = candidates[0]
        auditor.progress.setting_started(f"check of {best.name}", len(tried), len(tried))
        audit = partial(auditor.audit, _chain_of(chains, best), best.value, attacks=True)
        full = audit(seeds=auditor.seeds, place=best.folder)
        place = tried.index(best)
        tried[place] = full
        if not full.clear:
            continue
        others = range(auditor.seeds.stop, auditor.seeds.stop + len(auditor.seeds))
        again = audit(seeds=others, place=f"{CHECKED}-{best.folder}")
        checked.append(again)
        if again.clear:
            return full, checked
        tried[place] = replace(full, state=again.state)
    return None, checked


def _chain_of(chains: Sequence[DefenceChain], setting: TriedSetting) -> DefenceChain:
    return next(c for c in chains if (c.title, c.strength.option) == (setting.title, setting.option))
