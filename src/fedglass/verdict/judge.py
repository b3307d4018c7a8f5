"""From records to a verdict: LEAK, EXPOSED, CLEAR or INCONCLUSIVE, judged once, at the end of an audit.

A leak needs a demonstration, and a pass needs a certificate for every audited record whose assumptions were tested.
Everything else is inconclusive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedglass.ledger.doubts import Doubt, Kind, doubt
from fedglass.ledger.records import Record
from fedglass.verdict.doubts import doubts_of
from fedglass.verdict.gate import RARE, Gate, State, Tally, attacks_in, is_mute
from fedglass.verdict.texts import TABLE, Flag, flag

ALLOWED = "This is allowed by the plan (gate.max_share)."
LIMITS = (
    "It holds for one record at a time, with all others known to the adversary.",
    "It does not cover what several pictures of a client share, such as a face or a scanner, nor labels, nor "
    "properties of the data.",
    "It assumes that nobody can predict the noise.",
)
"""What CLEAR does not say, printed with it."""
ExitCode = Literal[0, 1, 3]
TITLES: dict[State, str] = {
    "leak": "Leak found",
    "exposed": "Records exposed",
    "clear": "No leak: certified",
    "inconclusive": "Inconclusive",
    "incomplete": "Audit incomplete",
}


@dataclass(frozen=True)
class Verdict:
    """The answer in plain words; `passed` is None where the audit could not tell."""

    state: State
    exit_code: Literal[0, 1, 3]
    passed: bool | None
    lead: str
    caveat: str = ""
    """What must be said with it, such as that oracle knowledge was used; often empty."""
    at_least: float | None = None
    """Success in naming a record that the candidate game shows; None where it was not played."""
    at_most: float | None = None
    """Success that the certificates allow; None where some message has none."""
    interval: str = ""
    step: str = ""
    """The one step that would narrow the interval, or that the leak asks for."""
    limits: tuple[str, ...] = ()
    """What the verdict does not say."""

    @property
    def sentence(self) -> str:
        return f"{self.lead} {self.caveat}".rstrip()

    @property
    def title(self) -> str:
        return TITLES[self.state]


def judge(records: Sequence[Record], gate: Gate, missing: int | None = 0) -> Verdict:
    """Return the verdict; `missing` counts the planned cases that have not run (None: unknown, but some).

    >>> judge([], Gate()).sentence
    'The audit could not complete: no case has run.'
    """
    evidence = _Evidence(records, gate, missing)
    for decide in (_leak, _exposed, _incomplete, _clear):
        verdict = decide(evidence)
        if verdict is not None:
            return verdict
    return _inconclusive(evidence)


@dataclass(frozen=True)
class _Evidence:
    """The records beside the gate, and what is computed of them once."""

    records: Sequence[Record]
    gate: Gate
    missing: int | None

    @property
    def tallies(self) -> list[Tally]:
        """Attacks without oracle knowledge that have scored images."""
        return [tally for tally in self.gate.tally(self.records) if not tally.oracle]

    @property
    def problems(self) -> list[str]:
        return problems_of(self.records, self.gate, self.missing)

    def verdict(
        self, state: State, exit_code: Literal[0, 1, 3], lead: str, caveat: str = "", step: str = ""
    ) -> Verdict:
        """Return a verdict with the interval of these records."""
        games = [r.game for r in self.records if r.game is not None and self._counts(r)]
        at_least = max((game.low for game in games), default=None)
        at_most = None if self.uncertified else max(map(self.gate.allowed, self.certificates), default=None)
        passed = None if exit_code == 3 else exit_code == 0
        limits = LIMITS if state == "clear" else ()
        interval = _interval(at_least, at_most, max((game.candidates for game in games), default=1000))
        return Verdict(state, exit_code, passed, lead, caveat, at_least, at_most, interval, step, limits)

    @staticmethod
    def _counts(record: Record) -> bool:
        """Whether a game may be quoted as a lower limit: records of the same kind, beside a control."""
        return record.game is not None and record.game.same_source and bool(record.game.control)

    @property
    def certificates(self) -> list[Record]:
        return [record for record in self.records if record.kind == "certificate" and record.status == "done"]

    @property
    def messages(self) -> set[tuple[str, int]]:
        """The messages that were attacked, by view and round."""
        return {(record.view, record.round) for record in self.records}

    @property
    def uncertified(self) -> set[tuple[str, int]]:
        """The messages of which nothing bounds what they tell."""
        return self.messages - {(r.view, r.round) for r in self.certificates if r.certificate and not self.against(r)}

    def against(self, record: Record) -> list[Doubt]:
        """Return what keeps a certificate from being believed, apart from being too weak for the gate."""
        serious = [each for each in doubts_of(record, self.gate) if TABLE[each.kind].severity == "serious"]
        found = [each for each in serious if each.kind is not Kind.WEAK_CERTIFICATE]
        return [*found, *self._refuted(record)]

    def _refuted(self, record: Record) -> list[Doubt]:
        """Compare the wins of the game on the same message with what the certificate allows."""
        games = [r.game for r in self.records if (r.view, r.round) == (record.view, record.round) and r.game]
        if record.certificate is None or not games:
            return []
        from scipy.stats import binom  # dear to import, and seldom needed

        game, allowed = games[0], self.gate.allowed(record)
        wins = round(game.top1 * game.records)
        if wins and game.candidates >= 1000 and binom.sf(wins - 1, game.records, allowed) < RARE:
            return [doubt(Kind.CERTIFICATE_REFUTED, wins=wins, games=game.records, allowed=allowed)]
        return []


def _leak(given: _Evidence) -> Verdict | None:
    gate, tallies = given.gate, [tally for tally in given.tallies if tally.recovered]
    if tallies:
        also = f"The audit is also incomplete: {'; '.join(given.problems)}." if given.problems else ""
        guilty = any(tally.share > gate.max_share for tally in tallies)
        caveat = f"{'' if guilty else ALLOWED} {also}".strip()
        lead = _leak_sentence(given.tallies, gate)
        return given.verdict("leak", 1 if guilty else 0, lead, caveat, "" if not guilty else PROTECT)
    explained = [r for r in attacks_in(given.records) if r.explains and not r.oracle]
    if explained:
        read = max(explained, key=lambda record: len(record.labels_recovered))
        lead = (
            f"{read.attack} ({read.method}) read {_count(len(read.labels_recovered), 'image')} from the message of "
            f"{read.client}, and these images explain it."
        )
        return given.verdict("leak", 1, lead, "The true examples are not needed for this.", PROTECT)
    return None


PROTECT = (
    "Do not release such messages: add noise that hides single records (DP-SGD, or clipping and Gaussian noise), then "
    "audit again."
)


def _exposed(given: _Evidence) -> Verdict | None:
    found = [record for record in given.records if given.gate.exposes(record)]
    if not found:
        return None
    worst = max(found, key=lambda record: record.game.low if record.game else 0.0)
    game = worst.game
    assert game is not None, "only games expose"
    named = round(game.top1 * game.records)
    control = "" if game.control_top1 is None else f", against {game.control_top1:.0%} of records that were not used"
    lead = (
        f"No image was recovered, but the message of {worst.client} singles out its records: among {game.candidates:,} "
        f"similar examples it names {named} of the {_count(game.records, 'record')} that were trained on{control}."
    )
    also = f"The audit is also incomplete: {'; '.join(given.problems)}." if given.problems else ""
    return given.verdict("exposed", 1, lead, also, PROTECT)


def _incomplete(given: _Evidence) -> Verdict | None:
    if not given.problems:
        return None
    return given.verdict("incomplete", 3, f"The audit could not complete: {'; '.join(given.problems)}.")


def _clear(given: _Evidence) -> Verdict | None:
    if given.uncertified or not all(map(given.gate.certifies, given.certificates)):
        return None
    worst = max(given.certificates, key=given.gate.allowed)
    bound, certificate = given.gate.allowed(worst), worst.certificate
    assert certificate is not None, "certified messages have a certificate"
    rounds = certificate.rounds if certificate.success_planned is None else certificate.planned or certificate.rounds
    lead = (
        f"A certificate covers every audited record of {_count(len(given.messages), 'message')}: no adversary names a "
        f"record among 1,000 with a chance above {bound:.2%} over {_count(rounds, 'round')}."
    )
    trusted = any(each.kind is Kind.DECLARATION_TRUSTED for r in given.certificates for each in r.doubts)
    return given.verdict("clear", 0, lead, flag(doubt(Kind.DECLARATION_TRUSTED)).text if trusted else "")


def _inconclusive(given: _Evidence) -> Verdict:
    doubts = [each for record in given.certificates for each in given.against(record)]
    weak = [each for record in given.certificates for each in given.gate.doubts_of_certificate(record)]
    reason = _reason([*doubts, *weak])
    lead = _nothing_sentence(given)
    oracle = [tally for tally in given.gate.tally(given.records) if tally.oracle and tally.recovered]
    told = (
        f"{oracle[0].attack} recovered {oracle[0].recovered} of {_count(oracle[0].images, 'image')} with oracle "
        "knowledge, which a real adversary lacks."
        if oracle
        else ""
    )
    why = "" if reason is None else reason.text
    exit_code: Literal[0, 3] = 3 if given.gate.inconclusive_fails else 0
    step = "" if reason is None else reason.step
    return given.verdict("inconclusive", exit_code, lead, f"{told} {why}".strip(), step)


def _reason(doubts: Sequence[Doubt]) -> Flag | None:
    """Return the first serious doubt in words, in the order of the questions."""
    order = list(Kind)
    return flag(min(doubts, key=lambda each: order.index(each.kind))) if doubts else None


def _interval(at_least: float | None, at_most: float | None, candidates: int) -> str:
    low = "not measured" if at_least is None else f"at least {at_least:.1%} (candidate game)"
    high = "no certificate: nothing bounds it" if at_most is None else f"at most {at_most:.2%} (certificate)"
    return f"Success in naming a record among {candidates:,}: {low}; {high}."


def problems_of(records: Sequence[Record], gate: Gate, missing: int | None) -> list[str]:
    """Return why the records are not a whole audit; empty when they are."""
    total, problems = len(records), []
    if not records:
        problems.append("no case has run")
    failed = [r for r in records if r.status == "failed"]
    if failed:
        why = f"{failed[0].attack}: {_short(failed[0].error or '')}"
        problems.append(f"{len(failed)} of {_count(total, 'case')} failed ({why})")
    blank = [r for r in attacks_in(records) if r.status == "done" and not is_mute(r) and not gate.judged(r)]
    if blank:
        why = _short(blank[0].skipped_metrics.get(gate.metric, "no score for some image"))
        problems.append(f"{gate.scale.title} is missing in {len(blank)} of {_count(total, 'case')} ({why})")
    mute = [flag(each) for r in records for each in r.doubts if is_mute(r)]
    if mute:
        where = f"in {len([r for r in records if is_mute(r)])} of {_count(total, 'case')} ({mute[0].name})"
        problems.append(f"there was nothing to attack {where}: {mute[0].step.rstrip('.')}")
    if missing is None:
        problems.append("it was stopped before its end; run it again to continue")
    elif missing > 0:
        problems.append(f"{_count(missing, 'planned case')} not run yet; run it again to continue")
    return problems


def _leak_sentence(tallies: Sequence[Tally], gate: Gate) -> str:
    worst, guilty = tallies[0], sum(t.recovered > 0 for t in tallies)
    score = f"({gate.rule}; best {gate.scale.show(worst.best)})"
    found = f"recovered {worst.recovered} of {_count(worst.images, 'image')} {score}"
    if len(tallies) > 1:
        sentence = f"{guilty} of {len(tallies)} attacks recovered private images: the worst, {worst.attack}, {found}"
    else:
        sentence = f"{worst.attack} {found.replace(' image', ' private image', 1)}"
    if worst.repeated:
        sentence += ", where an image that is in several messages counts in each"
    if worst.refined:
        sentence += f", {worst.refined} of them only after refinement"
    if gate.max_share > 0:
        side = "more" if worst.share > gate.max_share else "no more"
        sentence += f", {side} than the {gate.max_share:.0%} that the gate allows"
    return f"{sentence}."


def _nothing_sentence(given: _Evidence) -> str:
    """Say that no attack recovered anything, and how near the nearest came."""
    tallies, gate = given.tallies, given.gate
    if not tallies:
        return "No attack could be scored." if attacks_in(given.records) else "No attack was run."
    worst, best = tallies[0], gate.scale.show(tallies[0].best)
    if len(tallies) == 1:
        return f"{worst.attack} recovered no private image ({gate.rule}); its best was {best}."
    return (
        f"None of the {len(tallies)} attacks recovered a private image ({gate.rule}); the closest, {worst.attack}, "
        f"reached {best}."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _short(text: str, limit: int = 160) -> str:
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= limit else line[: limit - 1] + "…"
