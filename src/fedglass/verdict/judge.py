"""From records to a verdict: LEAK, EXPOSED, CLEAR or INCONCLUSIVE, judged once, at the end of an audit.

A leak needs a demonstration. A pass needs, for every audited record, a certificate whose assumptions were tested.
Everything else is inconclusive.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Literal

from fedglass.bounds.success import Game
from fedglass.core.text import TEST_ACCURACY
from fedglass.verdict import texts
from fedglass.verdict.collect_doubts import doubts_of, flag, with_refutations
from fedglass.verdict.doubts import Doubt, DoubtKind
from fedglass.verdict.gate import MUTE, Gate, State, Tally, attacks_in, is_mute
from fedglass.verdict.images import ImageScores
from fedglass.verdict.records import BASE_RATE, Record
from fedglass.verdict.texts import TABLE, count, percent

ExitCode = Literal[0, 1, 3]
Message = tuple[str, int]
FIRST = (DoubtKind.NOT_AS_DECLARED, DoubtKind.NOISE_REFUTED, DoubtKind.CERTIFICATE_REFUTED, DoubtKind.NO_TRUTH)
"""Doubts that explain an inconclusive audit before all others: something is wrong, or nothing can be scored."""
LONGEST_REASON = 160
PLACES = {kind: place for place, kind in reversed(list(enumerate([*FIRST, *DoubtKind])))}


@dataclass(frozen=True)
class Verdict:
    """The answer of an audit; `passed` is None if the audit is inconclusive."""

    state: State
    exit_code: ExitCode
    passed: bool | None
    lead: str
    caveat: str = ""
    """A restriction of the lead, such as that oracle knowledge was used; often empty."""
    at_least: float | None = None
    """Success in naming a record that the candidate game shows; None if no game was played."""
    at_most: float | None = None
    """Success that the certificates allow; None if a message has no certificate."""
    interval: str = ""
    step: str = ""
    """The next step: what would narrow the interval, or what the leak demands."""
    limits: tuple[str, ...] = ()
    """Limits of what the verdict says."""
    by_value: tuple[str, ...] = ()
    """What the verdict would be at the values of each swept option alone."""

    @property
    def sentence(self) -> str:
        return f"{self.lead} {self.caveat}".rstrip()

    @property
    def title(self) -> str:
        return texts.TITLES[self.state]


def judge(records: Sequence[Record], gate: Gate, missing: int | None = 0) -> Verdict:
    """Return the verdict; `missing` counts the planned cases that have not run (None: an unknown number).

    >>> judge([], Gate()).sentence
    'The audit could not complete: no case has run.'
    """
    evidence = _Evidence(with_refutations(records), gate, missing)
    verdict = _leak(evidence) or _exposed(evidence) or _incomplete(evidence) or _clear(evidence)
    verdict = verdict or _inconclusive(evidence)
    return replace(verdict, by_value=tuple(_by_swept_value(records, gate)))


def _by_swept_value(records: Sequence[Record], gate: Gate) -> Iterator[str]:
    """Yield what the verdict would be at each swept value alone; neighbouring values of one state share a sentence."""
    for option in dict.fromkeys(name for record in records for name in record.swept):
        values = sorted({record.swept[option] for record in records if option in record.swept})
        records_at = {value: [r for r in records if r.swept.get(option) == value] for value in values}
        state_at = {value: judge(records_at[value], gate).state for value in values} if len(values) > 1 else {}
        for state, neighbours in groupby(state_at, key=state_at.__getitem__):
            together = list(neighbours)
            parts, shown = [records_at[value] for value in together], _range([f"{value:g}" for value in together])
            images = _images_at(parts, gate) if state == "leak" else ""
            yield f"{option.replace('_', ' ')} {shown}: {texts.STATE_AT_VALUES[state]}{images}{_accuracy_at(parts)}."


def _range(shown: Sequence[str]) -> str:
    """Return the first and the last of some figures; one figure if they are the same.

    >>> _range(["0.03", "0.1", "0.3"]), _range(["4", "4"])
    ('0.03 to 0.3', '4')
    """
    return " to ".join(dict.fromkeys((shown[0], shown[-1])))


def _images_at(parts: Sequence[Sequence[Record]], gate: Gate) -> str:
    worst = [tally for records in parts for tally in [t for t in gate.tally(records) if not t.oracle][:1]]
    if not worst:
        return ""
    return f" ({_range([str(tally.recovered) for tally in worst])} of {count(worst[0].images, 'image')})"


def _accuracy_at(parts: Sequence[Sequence[Record]]) -> str:
    measured = [[value for r in records if (value := r.utility.get(TEST_ACCURACY)) is not None] for records in parts]
    shown = [percent(round(statistics.fmean(values), 3)) for values in measured if values]
    return f"; test accuracy {_range(shown)}" if shown else ""


def serious_doubts(record: Record, gate: Gate) -> list[Doubt]:
    """Return the doubts that make a certificate unreliable or insufficient, the most important first."""
    serious = [doubt for doubt in doubts_of(record, gate) if TABLE[doubt.kind].severity == "serious"]
    return sorted(serious, key=lambda doubt: PLACES[doubt.kind])


@dataclass(frozen=True)
class _Evidence:
    """The records with the gate, and the values that are computed from them once."""

    records: Sequence[Record]
    gate: Gate
    missing: int | None

    @cached_property
    def tallies(self) -> list[Tally]:
        """Attacks without oracle knowledge that have scored images."""
        return [tally for tally in self.gate.tally(self.records) if not tally.oracle]

    @cached_property
    def problems(self) -> list[str]:
        return problems_of(self.records, self.gate, self.missing)

    @property
    def also_incomplete(self) -> str:
        """The sentence that a leak of an incomplete audit carries; empty for a complete audit."""
        return f"The audit is also incomplete: {'; '.join(self.problems)}." if self.problems else ""

    @property
    def certificates(self) -> list[Record]:
        return [record for record in self.records if record.kind == "certificate" and record.status == "done"]

    @cached_property
    def messages(self) -> set[Message]:
        return {record.message for record in self.records}

    @cached_property
    def uncertified(self) -> set[Message]:
        """The messages without a bound on what they reveal."""
        certified = {record.message for record in self.certificates if record.certificate is not None}
        # One that is only too weak still bounds the success.
        doubted = {
            record.message
            for record in self.certificates
            if record.certificate is None
            or any(doubt.kind is not DoubtKind.WEAK_CERTIFICATE for doubt in serious_doubts(record, self.gate))
        }
        return self.messages - (certified - doubted)

    @cached_property
    def untested(self) -> float | None:
        """Return what the declared noise would allow, if every message has a certificate and lacks only its test."""
        waived = {DoubtKind.WEAK_CERTIFICATE, DoubtKind.NOISE_NOT_TESTABLE}
        bounds = [
            self.gate.allowed(record)
            for record in self.certificates
            if record.certificate is not None and {d.kind for d in serious_doubts(record, self.gate)} <= waived
        ]
        return max(bounds) if bounds and len(bounds) == len(self.messages) else None

    def verdict(self, state: State, exit_code: ExitCode, lead: str, caveat: str = "", step: str = "") -> Verdict:
        """Return a verdict with the interval of these records."""
        games = [r.game for r in self.records if r.game is not None and r.game.same_source and r.game.control]
        game = max(games, key=lambda game: game.low, default=None)
        at_most = None if self.uncertified else max(map(self.gate.allowed, self.certificates), default=None)
        return Verdict(
            state=state,
            exit_code=exit_code,
            passed=None if exit_code == 3 else exit_code == 0,
            lead=lead,
            caveat=caveat,
            at_least=None if game is None else game.low,
            at_most=at_most,
            interval=_interval(game, at_most, self.untested),
            step=step,
            limits=texts.LIMITS if state == "clear" else (),
        )


def _leak(evidence: _Evidence) -> Verdict | None:
    gate = evidence.gate
    leaked = [tally for tally in evidence.tallies if tally.recovered]
    exact = [record for record in attacks_in(evidence.records) if reads(record)]
    read = [record for record in exact if not any(gate.hits(ImageScores.of(record)))]
    if not leaked and not read:
        return None
    guilty = bool(read) or any(tally.share > gate.max_share for tally in leaked)
    lead, about_truth = (_leak_sentence(evidence.tallies, gate), "") if leaked else _read_sentence(read)
    caveat = " ".join(filter(None, [about_truth, "" if guilty else texts.ALLOWED, evidence.also_incomplete]))
    allowed: ExitCode = 3 if evidence.problems else 0  # cases that have not run may leak more than the plan allows
    return evidence.verdict("leak", 1 if guilty else allowed, lead, caveat, texts.PROTECT if guilty else "")


def reads(record: Record) -> bool:
    """Return whether an exact attack without oracle knowledge read images that explain the message."""
    return record.explains and not record.oracle


def _read_sentence(read: Sequence[Record]) -> tuple[str, str]:
    """Return what exact attacks read without a score, and a remark about the truth."""
    most = max(read, key=lambda record: len(record.labels_recovered))
    images = len(most.labels_recovered)
    explains = "it explains" if images == 1 else "they explain"
    lead = (
        f"{most.attack} ({most.method}) read {count(images, 'image')} from the message of {most.client}, and "
        f"{explains} the message."
    )
    if not most.metrics:
        return lead, "The true examples are not needed for this."
    return lead, (
        "They differ from the examples that were given as the truth: the truth is wrong, or the network sees only a "
        "part of each image."
    )


def _exposed(evidence: _Evidence) -> Verdict | None:
    exposed = [(r.client, r.game) for r in evidence.records if r.game and evidence.gate.exposes(r)]
    if not exposed:
        return None
    client, game = max(exposed, key=lambda pair: pair[1].low)
    lead = (
        f"No image was recovered, but the message of {client} singles out its records: among {game.candidates:,} "
        f"similar images it names {round(game.top1 * game.records)} of {count(game.records, 'record')} used in "
        f"training, and {percent(game.control_top1 or 0.0)} of records that were not used."
    )
    more = f"The same holds for {count(len(exposed) - 1, 'other message')}." if len(exposed) > 1 else ""
    return evidence.verdict("exposed", 1, lead, f"{more} {evidence.also_incomplete}".strip(), texts.PROTECT)


def _incomplete(evidence: _Evidence) -> Verdict | None:
    if not evidence.problems:
        return None
    return evidence.verdict("incomplete", 3, f"The audit could not complete: {'; '.join(evidence.problems)}.")


def _clear(evidence: _Evidence) -> Verdict | None:
    if evidence.uncertified or any(serious_doubts(record, evidence.gate) for record in evidence.certificates):
        return None
    worst = max(evidence.certificates, key=evidence.gate.allowed)
    certificate = worst.certificate
    assert certificate is not None, "certified messages have a certificate"
    rounds = certificate.rounds if certificate.success_planned is None else certificate.planned or certificate.rounds
    lead = (
        f"A certificate covers every audited record of {count(len(evidence.messages), 'message')}: no adversary names "
        f"a record among 1,000 with a chance above {percent(evidence.gate.allowed(worst))} over "
        f"{count(rounds, 'round')}."
    )
    doubts = [doubt for record in evidence.certificates for doubt in doubts_of(record, evidence.gate)]
    trusted = next((flag(doubt).text for doubt in doubts if doubt.kind is DoubtKind.DECLARATION_TRUSTED), "")
    return evidence.verdict("clear", 0, lead, trusted)


def _inconclusive(evidence: _Evidence) -> Verdict:
    oracle = [tally for tally in evidence.gate.tally(evidence.records) if tally.oracle and tally.recovered]
    about_oracle = "".join(
        f"{t.attack} recovered {t.recovered} of {count(t.images, 'image')} with oracle knowledge, which a real "
        "adversary lacks."
        for t in oracle[:1]
    )
    doubts = [doubt for record in evidence.certificates for doubt in serious_doubts(record, evidence.gate)]
    reason = flag(min(doubts, key=lambda doubt: PLACES[doubt.kind])) if doubts else None
    why = (
        texts.UNCHECKED.format(messages=count(len(evidence.uncertified), "message")) if reason is None else reason.text
    )
    exit_code: ExitCode = 3 if evidence.gate.inconclusive_fails else 0
    steps = [*([] if reason is None else [reason.step]), *_steps_to_a_game(evidence.records)]
    lead, caveat = _nothing_sentence(evidence), f"{about_oracle} {why}".strip()
    return evidence.verdict("inconclusive", exit_code, lead, caveat, " ".join(steps))


def _steps_to_a_game(records: Sequence[Record]) -> list[str]:
    """Return what lets the candidate game decide; empty if it decided for some message."""
    missing = (DoubtKind.NO_CANDIDATES, DoubtKind.FEW_CANDIDATES, DoubtKind.OTHER_DOMAIN)
    doubts = [[d for d in r.doubts if d.kind in missing] for r in records if r.kind == "game"]
    return [flag(doubts[0][0]).step] if doubts and all(doubts) else []


def _interval(game: Game | None, at_most: float | None, untested: float | None) -> str:
    """Return the interval of the success in naming a record among 1,000 as text."""
    low, high = "not measured", "no certificate: nothing bounds it"
    if game is not None:
        among = "" if game.candidates >= 1 / BASE_RATE else f" among {game.candidates}"
        guess = f"; a guess reaches {percent(1 / game.candidates)}" if among and game.low > 0 else ""
        low = f"at least {percent(game.low)}{among} (candidate game{guess})"
    if at_most is not None:
        high = f"at most {percent(at_most)} (certificate)"
    elif untested is not None:
        high = f"at most {percent(untested)} if the declared noise was added, which was not tested"
    return f"Success in naming a record among 1,000: {low}; {high}."


def problems_of(records: Sequence[Record], gate: Gate, missing: int | None) -> list[str]:
    """Return the reasons why the audit is not complete; empty if it is."""
    problems, cases = [] if records else ["no case has run"], count(len(records), "case")
    failed = [r for r in records if r.status == "failed"]
    if failed:
        why = f"{failed[0].attack}: {_short(failed[0].error or '')}"
        problems.append(f"{len(failed)} of {cases} failed ({why})")
    blank = [r for r in attacks_in(records) if r.status == "done" and not is_mute(r) and not gate.judged(r)]
    if blank:
        why = _short(blank[0].skipped_metrics.get(gate.metric, "no score for some image"))
        problems.append(f"{gate.scale.title} is missing in {len(blank)} of {cases} ({why})")
    mute = [flag(doubt) for r in records for doubt in r.doubts if doubt.kind in MUTE]
    if mute:
        name, step = mute[0].name, mute[0].step.rstrip(".")
        problems.append(f"there was nothing to attack in {sum(map(is_mute, records))} of {cases} ({name}): {step}")
    if missing is None:
        problems.append("it was stopped before its end; run it again to continue")
    elif missing > 0:
        problems.append(f"{count(missing, 'planned case')} not run yet; run it again to continue")
    return problems


def _leak_sentence(tallies: Sequence[Tally], gate: Gate) -> str:
    worst = tallies[0]
    sentence = f"{worst.attack} recovered {worst.recovered} of {count(worst.images, 'private image')}"
    if len(tallies) > 1:
        guilty = f"{sum(t.recovered > 0 for t in tallies)} of {len(tallies)} attacks recovered private images"
        sentence = f"{guilty}: the worst, {worst.attack}, recovered {worst.recovered} of {count(worst.images, 'image')}"
    sentence += f" ({gate.rule}; best {gate.scale.show(worst.best)})"
    sentence += "; an image that is in several messages counts once in each" if worst.repeated else ""
    sentence += f", {worst.refined} of them only after refinement" if worst.refined else ""
    if gate.max_share > 0:
        limit = "more" if worst.share > gate.max_share else "no more"
        sentence += f", {limit} than the {percent(gate.max_share)} that the gate allows"
    return f"{sentence}."


def _nothing_sentence(evidence: _Evidence) -> str:
    """Say that no attack recovered anything, and how close the best one came."""
    tallies, gate = evidence.tallies, evidence.gate
    if not tallies:
        return "No attack could be scored." if attacks_in(evidence.records) else "No attack was run."
    attack, best = tallies[0].attack, gate.scale.show(tallies[0].best)
    if len(tallies) == 1:
        return f"{attack} recovered no private image ({gate.rule}); its best was {best}."
    return (
        f"None of the {len(tallies)} attacks recovered a private image ({gate.rule}); the closest, {attack}, reached "
        f"{best}."
    )


def _short(text: str) -> str:
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 1] + "…"
