"""The threat model of an audit in plain words, before it has run."""

from __future__ import annotations

from fedglass.audit.audit import Job
from fedglass.audit.looks import cost_of
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
    lines = [f"The audit fails (exit code 1) when an attack recovers {allowed}: {gate.rule}."]
    if gate.inconclusive_fails:
        lines.append("An inconclusive audit counts as not completed (exit code 3).")
    else:
        lines.append("An inconclusive audit passes (exit code 0), as gate.inconclusive_fails = false chooses.")
    lines.append(f"Metrics: {', '.join(job.metrics)}.")
    return lines + [f"{name} is left out: {why}" for name, why in _left_out(job).items()]


def _cost(job: Job) -> str:
    """What is done about images that an attack does not recover, which may take several times as long as the attack."""
    most = max((cost_of(attack, job.effort) for attack in job.attacks.values()), key=lambda cost: cost.runs)
    if not most.looks:
        return 'Images that are not recovered are not looked at again (effort "quick"): absence is seldom shown so.'
    length = "full" if job.effort.share == 1 else f"{job.effort.share:g} of the"
    tried = f" ({most.on_decoys} of {length} length on decoys, which choose the prior)" if most.on_decoys else ""
    return (
        f"Images that are not recovered are looked at up to {most.looks} more times (effort "
        f'"{job.effort.value}"): at most {most.runs} further runs per case{tried}, and one without the defence where '
        "there is one."
    )


def _left_out(job: Job) -> dict[str, str]:
    reasons = {name: why_not(name, source.shape) for name in job.metrics for source in job.sources}
    return {name: why for name, why in reasons.items() if why is not None}
