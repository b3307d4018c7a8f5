"""The threat model of an audit in plain words, before it has run."""

from __future__ import annotations

from fedglass.audit.audit import Job
from fedglass.audit.target import Section
from fedglass.audit.words import learned_in_words
from fedglass.metrics.catalogue import why_not


def threat_model(job: Job) -> list[Section]:
    """What is protected, who attacks, what the adversary is given, and when the audit fails."""
    sections = [section for source in job.sources for section in source.threat()]
    attacks = [f"{name} = {attack!r}" for name, attack in job.attacks.items()]
    drawn = {name: words for name, attack in job.attacks.items() if (words := learned_in_words(attack))}
    attacks += [f"{name} looks for images that a network can draw: {words}." for name, words in drawn.items()]
    times = "" if job.repeats == 1 else f", each {job.repeats} times"
    sections.append(Section(f"Attacks ({len(job.cases)} cases in all{times})", attacks))
    sections.append(Section("Judgement", [*_judgement(job), _cost(job)]))
    return sections


def _judgement(job: Job) -> list[str]:
    gate = job.gate
    allowed = "any image" if gate.max_share == 0 else f"more than {gate.max_share:.0%} of the images"
    lines = [
        f"LEAK (exit code 1): an attack recovers {allowed}: {gate.rule}, and better than every blind guess.",
        "EXPOSED (exit code 1): the message names its records among 1,000 candidates more often than "
        f"{gate.max_singling_out:.0%} of the time, and more often than records that were not used.",
        "CLEAR (exit code 0): a certificate bounds the success of any adversary in naming a record among 1,000 by "
        f"{gate.max_success:.1%}.",
        f"INCONCLUSIVE (exit code {3 if gate.inconclusive_fails else 0}): everything else.",
    ]
    if gate.trust_declared:
        lines.append("Declared trainings and defences are believed where nothing tests them (gate.trust_declared).")
    lines.append(f"Metrics: {', '.join(job.metrics)}.")
    return lines + [f"{name} is left out: {why}" for name, why in _left_out(job).items()]


def _cost(job: Job) -> str:
    """Say what runs beside the attacks that were named."""
    first = "Exact attacks, the candidate game and the check of each message run first."
    if not job.chosen:
        return first
    minutes = job.effort.minutes(False) if job.minutes is None else job.minutes
    limit = "without a time limit" if minutes is None or job.everything else f"for {minutes:g} minutes at the most"
    return f"{first} Searches follow {limit}, and stop when one has shown a leak (--all runs them to their end)."


def _left_out(job: Job) -> dict[str, str]:
    reasons = {name: why_not(name, source.shape) for name in job.metrics for source in job.sources}
    return {name: why for name, why in reasons.items() if why is not None}
