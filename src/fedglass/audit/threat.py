"""The threat model of an audit in plain words, before it has run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedglass.audit.audit import Job
from fedglass.audit.sources import Recorded, Simulated, Source
from fedglass.audit.words import knowledge_in_words, training_in_words
from fedglass.metrics.catalogue import why_not
from fedglass.rounds.views import Knows


@dataclass(frozen=True)
class Section:
    """A heading and its sentences."""

    title: str
    lines: Sequence[str]


def threat_model(job: Job) -> list[Section]:
    """What is protected, who attacks, what the adversary is given, and when the audit fails."""
    sections = []
    for source in job.sources:
        sections += _simulated(source) if isinstance(source, Simulated) else _recorded(source)
    attacks = [f"{name} = {attack!r}" for name, attack in job.attacks.items()]
    times = "" if job.repeats == 1 else f", each {job.repeats} times"
    sections.append(Section(f"Attacks ({len(job.cases)} cases in all{times})", attacks))
    sections.append(Section("Judgement", _judgement(job)))
    return sections


def _simulated(source: Simulated) -> list[Section]:
    f, named = source.federation, f" {source.name!r}" if source.name else ""
    shape = " x ".join(map(str, f.clients[0].images.shape[1:]))
    counts = sorted({len(c.labels) for c in f.clients})
    examples = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    size = sum(p.numel() for p in f.model.parameters())
    share = "" if f.participation == 1 else f", {f.participation:.0%} of the clients in each"
    lines = [
        f"{len(f.clients)} client(s) with {examples} private example(s) each, {shape}, {f.classes} classes.",
        f"A {type(f.model).__name__} of {size:,} parameters, {source.rounds} round(s){share}.",
        f"Each client's training: {training_in_words(f.training)}.",
        *(source.protection() or ["No defence."]),
    ]
    sees = [f"{sight.words[0].upper()}{sight.words[1:]}." for sight in source.sights()]
    shown = sees if len(sees) <= 6 else [*sees[:5], f"... and {len(sees) - 5} more of this kind."]
    return [
        Section(f"Federation{named}", lines),
        Section(f"What the adversary sees{named and ' of' + named}", shown),
        Section(f"What it knows beside{named and ' of' + named}", knows_in_words(source.knows)),
    ]


def knows_in_words(knows: Knows) -> list[str]:
    """The optional facts as sentences.

    >>> knows_in_words(Knows(training=False))[1]
    "It does not know the clients' learning rate, epochs and batch size."
    """
    training = "the clients' learning rate, epochs and batch size"
    lines = [
        "It knows the model and its weights before the round, the shape, range and number of the images, and "
        "the number of classes.",
        f"It {'knows' if knows.training else 'does not know'} {training}.",
    ]
    if knows.steps and not knows.training:
        lines.append("It knows the number of local steps.")
    if knows.labels:
        lines.append("ORACLE: it is told the true labels, in no particular order.")
    if knows.batch_labels:
        lines.append("ORACLE: it is told the true labels of each local batch.")
    if not knows.labels and not knows.batch_labels:
        lines.append("It does not know the labels.")
    return lines


def _recorded(source: Source) -> list[Section]:
    assert isinstance(source, Recorded), "sources are simulated or recorded"
    seen, named = source.observation, f" {source.name!r}" if source.name else ""
    size = sum(p.numel() for p in seen.before.values())
    truth = "The true images are given for scoring." if source.truth else "No truth is given: nothing is scored."
    lines = [f"A {type(seen.model).__name__} of {size:,} parameters.", truth]
    facts = [f"{name}: {words}" for name, words in knowledge_in_words(seen.knows).items()]
    return [
        Section(f"Recording{named}", lines),
        Section(
            "What the adversary sees", [f"{sight.words[0].upper()}{sight.words[1:]}." for sight in source.sights()]
        ),
        Section("What it knows beside", facts),
    ]


def _judgement(job: Job) -> list[str]:
    gate = job.gate
    allowed = "any image" if gate.max_share == 0 else f"more than {gate.max_share:.0%} of the images"
    lines = [f"The audit fails (exit code 1) when an attack recovers {allowed}: {gate.rule}."]
    if gate.inconclusive_fails:
        lines.append("An inconclusive audit counts as not completed (exit code 3).")
    lines.append(f"Metrics: {', '.join(job.metrics)}.")
    return lines + [f"{name} is left out: {why}" for name, why in _left_out(job).items()]


def _left_out(job: Job) -> dict[str, str]:
    shapes = [
        tuple(s.federation.clients[0].images.shape[1:]) if isinstance(s, Simulated) else s.observation.knows.shape
        for s in job.sources
        if isinstance(s, Simulated | Recorded)
    ]
    reasons = {name: why_not(name, shape) for name in job.metrics for shape in shapes}
    return {name: why for name, why in reasons.items() if why is not None}
