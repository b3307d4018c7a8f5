"""The first screen of an audit's page, for a reader who decides: what was seen of whom, who could do it, what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fedglass.report.page import Names, PageTable, message_name
from fedglass.verdict.collect_doubts import flags_of
from fedglass.verdict.doubts import DoubtKind, Question
from fedglass.verdict.gate import Gate, State, attacks_in, is_mute
from fedglass.verdict.images import ImageScores
from fedglass.verdict.judge import Verdict, reads
from fedglass.verdict.records import Record, grouped
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
}
"""Standpoint -> who can run such an attack."""


@dataclass(frozen=True)
class Overview:
    """The lines of the first screen."""

    readers: Sequence[str]
    """Who sees what the attacks were given."""
    clients: PageTable | None
    """What was seen of each client."""
    steps: Sequence[str]


def overview(records: Sequence[Record], verdict: Verdict, gate: Gate, names: Names) -> Overview:
    """Return the first screen of these records."""
    seen: dict[str, str] = {}
    for client, text in _seen_of_clients(records, gate, names):
        seen.setdefault(client, text)
    table = PageTable(["client", "what was seen"], list(seen.items())) if seen else None
    return Overview(list(dict.fromkeys(map(reader, records))), table, list(_steps(records, verdict, gate)))


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


def _steps(records: Sequence[Record], verdict: Verdict, gate: Gate) -> Iterator[str]:
    """Yield what to do now: the verdict's step, then those of serious doubts and of doubts that name a setting."""
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
    yield from list(dict.fromkeys(step for step in steps if step))[:MOST_STEPS]
