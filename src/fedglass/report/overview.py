"""The first screen of an audit's page, for a reader who decides: what was seen of whom, who could do it, what to do.

Below it is the threat model: a drawing of each adversary, what all adversaries know, and what only some know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from markupsafe import Markup

from fedglass.report.page import Names, PageTable, TableCell, environment, message_name, some
from fedglass.verdict.collect_doubts import flags_of
from fedglass.verdict.doubts import DoubtKind, Question
from fedglass.verdict.gate import Gate, State, attacks_in, is_mute
from fedglass.verdict.images import ImageScores
from fedglass.verdict.judge import Verdict, reads
from fedglass.verdict.records import STANDPOINTS, UNNAMED, KnownFact, Record, ThreatModel, grouped
from fedglass.verdict.texts import Flag, count

MOST_STEPS = 5
"""Steps that are named on the first screen; the other ones are next to their doubts."""
OF_MESSAGE = (Question.MESSAGE, Question.COVERAGE)
QUESTIONS: dict[State, Sequence[Question]] = {
    "leak": OF_MESSAGE,
    "exposed": OF_MESSAGE,
    "clear": (*OF_MESSAGE, Question.PROTECTION),
    "inconclusive": (*OF_MESSAGE, Question.PROTECTION, Question.SINGLING_OUT, Question.PICTURES),
    "incomplete": OF_MESSAGE,
}
"""State of a verdict -> the questions of the doubts that ask for a step."""
ALWAYS = (DoubtKind.NOISE_THAT_SUFFICES, DoubtKind.EPSILON_NOT_AS_DECLARED, DoubtKind.IDLE_FILTER)
"""Doubts that name a setting; their steps are shown whatever the verdict is."""
READERS = {
    "server": "Anyone with access to the server",
    "aggregate": "Anyone with access to the server",
    "peer": "Any of the {participants} participants",
    "malicious_server": "Anyone who controls the server and the model that it sends",
}
"""Standpoint -> who can run such an attack."""


def overview(records: Sequence[Record], verdict: Verdict, gate: Gate, names: Names) -> dict[str, Any]:
    """Return the first screen: who sees what the attacks were given, what was seen of each client, and what to do."""
    seen: dict[str, str] = {}
    for client, text in _seen_of_clients(records, gate, names):
        seen.setdefault(client, text)
    table = PageTable(["client", "what was seen in its worst message"], list(seen.items())) if seen else None
    return {
        "readers": list(dict.fromkeys(map(reader, records))),
        "clients": table,
        "steps": _steps(records, verdict, gate),
    }


def reader(record: Record) -> str:
    """Return who can run an attack from the standpoint of a record."""
    return READERS.get(record.standpoint, "Whoever sees such a message").format(participants=len(record.participants))


def recovered_by_client(records: Iterable[Record], gate: Gate) -> dict[str, tuple[int, int]]:
    """Return for each client the images of one message that any attack recovered in any repeat, and their number."""
    scored = [record for record in records if record.status == "done" and record.owners and not is_mute(record)]
    if not scored:
        return {}
    owners = scored[0].owners
    recovered = {i for record in scored for i, hit in enumerate(gate.hits(ImageScores.of(record))) if hit}
    hits = Counter(owners[i] for i in recovered if i < len(owners))
    return {client: (hits[client], images) for client, images in Counter(owners).items()}


def _seen_of_clients(records: Sequence[Record], gate: Gate, names: Names) -> Iterator[tuple[str, str]]:
    """Yield each client with what was recovered, read or named of it in a message, the worst message first."""
    fair = [record for record in records if not record.oracle]
    recovered = [
        (-hits, client, f"{hits} of {count(images, 'image')} recovered", group[0])
        for group in grouped(attacks_in(fair), lambda record: record.message).values()
        for client, (hits, images) in recovered_by_client(group, gate).items()
    ]
    for _, client, text, record in sorted(recovered, key=lambda row: row[0]):
        yield client, f"{text} ({message_name(record, names)})"
    for record in fair:
        game, read = record.game, len(record.labels_recovered)
        if game is not None and gate.exposes(record):
            named = f"{round(game.top1 * game.records)} of {count(game.records, 'record')} named"
            yield record.client, f"{named} ({message_name(record, names)})"
        elif record.kind == "attack" and reads(record) and not any(gate.hits(ImageScores.of(record))):
            yield record.client, f"{count(read, 'image')} read, not scored ({message_name(record, names)})"


def _steps(records: Sequence[Record], verdict: Verdict, gate: Gate) -> list[str]:
    """Return what to do now: the verdict's step, then those of serious doubts and of doubts that name a setting."""
    flags: dict[DoubtKind, Flag] = {}
    for record in records:
        for flag in flags_of(record, gate):
            flags.setdefault(flag.kind, flag)
    asked = [
        flag
        for flag in flags.values()
        if flag.kind in ALWAYS or (flag.question in QUESTIONS[verdict.state] and flag.severity == "serious")
    ]
    steps = [verdict.step, *(flag.step for flag in sorted(asked, key=lambda flag: flag.kind not in ALWAYS))]
    return list(dict.fromkeys(step for step in steps if step))[:MOST_STEPS]


WIDTH, HEIGHT = 220, 132
"""Size of the drawings in `templates/scene_*.svg`; their colours come from the page's style sheet."""


def drawing(standpoint: str, title: str) -> Markup | None:
    """Return the federation with its adversary and what it sees marked; None for a standpoint without a drawing."""
    if standpoint not in STANDPOINTS:
        return None
    return Markup(environment().get_template(f"scene_{standpoint}.svg").render(title=title))


MOST_ROUNDS = 12
"""Rounds that the page describes one by one."""


def threat_section(records: Sequence[Record], names: Names) -> dict[str, Any]:
    """Return the threat model of the records for the page.

    `common` are the facts that all adversaries know, `differences` those that only some know. `defences` come with the
    views that have them where views differ. `rounds` says which updates the aggregation rule accepted, and what
    poisoners did.
    """
    model = ThreatModel(records)
    return {
        "adversaries": [_adversary(standpoint, records, names) for standpoint in model.standpoints],
        "attacks": model.attacks,
        "common": PageTable(["", ""], [[name.replace("_", " "), _cell(fact)] for name, fact in model.common.items()]),
        "differences": _differences(model, names),
        "defences": _defences(records, names),
        "rounds": _rounds(records),
    }


def _adversary(standpoint: str, records: Sequence[Record], names: Names) -> dict[str, Any]:
    """Return one standpoint, drawn and described: who could do this, and how many images are in the message."""
    group = [r for r in records if (r.standpoint if r.standpoint in STANDPOINTS else "") == standpoint]
    who, sees = STANDPOINTS.get(standpoint, UNNAMED)
    scene, views = drawing(standpoint, f"{who} {sees}"), some([names[record.view] for record in group])
    return {"who": who, "sees": sees, "scene": scene, "views": views, "lines": _crowd(standpoint, group)}


def _crowd(standpoint: str, records: Sequence[Record]) -> list[str]:
    """Say who could do this, and among how many clients an image hides.

    >>> _crowd("server", [])
    []
    """
    if standpoint in ("server", "malicious_server"):
        return []
    sizes = [(len(r.participants), len(r.contributors), len(r.labels_true)) for r in records if r.contributors]
    lines = []
    for participants, contributors, images in dict.fromkeys(sizes):
        total = f", {count(images, 'image')} in all" if images else ""
        if standpoint == "peer":
            lines.append(f"Any of the {participants} participants could do this with what it receives anyway.")
            lines.append(f"The message contains images of {count(contributors, 'other client')}{total}.")
        else:
            lines.append(f"The message contains images of {count(contributors, 'client')}{total}.")
    return list(dict.fromkeys(lines))


def _differences(model: ThreatModel, names: Names) -> PageTable | None:
    """Return a row for each distinct set of facts that not all adversaries know."""
    columns = model.different_names
    if not columns:
        return None
    rows = []
    for sights, facts in model.differences:
        group = ThreatModel(sights)
        everywhere = len(group.views) == len(model.views) > 1
        text = "all views" if everywhere else "; ".join(some([names[view] for view in group.views]))
        attacks = "" if len(group.attacks) == len(model.attacks) else ", ".join(some(group.attacks))
        rows.append([TableCell(text, note=attacks), *(_cell(facts.get(name)) for name in columns)])
    return PageTable(["view", *(name.replace("_", " ") for name in columns)], rows)


def _cell(fact: KnownFact | None) -> TableCell:
    """Return a fact, with a badge where no real adversary has it."""
    if fact is None:
        return TableCell("")
    return TableCell(fact.text, badge="oracle" if fact.oracle else "", tone="inconclusive")


def _defences(records: Sequence[Record], names: Names) -> list[tuple[str, Sequence[str]]]:
    """Return the defences of the messages, with their views where these differ; nothing where none is known."""
    views_by_defences: dict[tuple[str, ...], list[str]] = {}
    for record in records:
        if record.defences is not None:
            views_by_defences.setdefault(tuple(record.defences) or ("No defence.",), []).append(names[record.view])
    together = len(views_by_defences) == 1 and all(record.defences is not None for record in records)
    return [("" if together else "; ".join(some(views)), lines) for lines, views in views_by_defences.items()]


def _rounds(records: Sequence[Record]) -> list[str]:
    """Say which updates the aggregation rule accepted in each audited round, and what poisoners did there."""
    rounds = dict.fromkeys((r.round, tuple(r.participants), tuple(r.accepted)) for r in records if r.participants)
    lines = [_accepted(*facts) for facts in sorted(rounds)]
    return some([*lines, *(line for record in records for line in record.behaviours)], MOST_ROUNDS)


def _accepted(index: int, participants: Sequence[str], accepted: Sequence[str]) -> str:
    """Describe one round.

    >>> _accepted(3, ("a", "b", "c"), ("b",))
    'Round 3: the aggregation rule accepted 1 of 3 updates (b) and rejected those of a, c.'
    """
    rejected = [name for name in participants if name not in accepted]
    everything = "the only update" if len(participants) == 1 else f"all {len(participants)} updates"
    if not rejected:
        return f"Round {index}: the aggregation rule accepted {everything}."
    if not accepted:
        return f"Round {index}: the aggregation rule rejected {everything}; the model did not change."
    return (
        f"Round {index}: the aggregation rule accepted {len(accepted)} of {len(participants)} updates "
        f"({', '.join(some(accepted))}) and rejected those of {', '.join(some(rejected))}."
    )
