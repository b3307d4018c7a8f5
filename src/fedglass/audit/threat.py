"""The threat model of an audit in plain words, before it has run."""

from __future__ import annotations

from fedglass.audit.audit import Job
from fedglass.audit.looks import cost_of
from fedglass.audit.target import Section
from fedglass.metrics.catalogue import why_not


def threat_model(job: Job) -> list[Section]:
    """What is protected, who attacks, what the adversary is given, and when the audit fails."""
    sections = [section for source in job.sources for section in source.threat()]
    attacks = [f"{name} = {attack!r}" for name, attack in job.attacks.items()]
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
    tried = f", {most.on_decoys} on decoys that choose the prior included" if most.on_decoys else ""
    short = f" of {job.effort.share:g} the length" if most.on_decoys and job.effort.share < 1 else ""
    return (
        f"Images that are not recovered are looked at {most.looks} more time{'' if most.looks == 1 else 's'} (effort "
        f'"{job.effort.value}"): at most {most.runs} further runs per case{tried}{short}, and one without the defence '
        "where there is one."
    )


def _left_out(job: Job) -> dict[str, str]:
    reasons = {name: why_not(name, source.shape) for name in job.metrics for source in job.sources}
    return {name: why for name, why in reasons.items() if why is not None}
