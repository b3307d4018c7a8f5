"""What may be said of a reconstruction: its scores beside what guesses reach, and whether absence was shown.

Everything here may look at the truth, and nothing of it reaches an attack.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from fedglass.attack.attack import part
from fedglass.attack.hypotheses import AnyAttack
from fedglass.attack.needs import uses_of
from fedglass.attack.parts import Progress
from fedglass.audit.consistency import contradictions
from fedglass.audit.controls import controlled
from fedglass.audit.guesses import DEAR, best_guess
from fedglass.audit.isolation import isolated
from fedglass.audit.judgement import Judgement, energy_at, energy_blind, energy_others, judge, told_apart
from fedglass.audit.likeness import shown_otherwise
from fedglass.audit.looks import Effort, Experiment, Rerun, other_priors, other_starts
from fedglass.audit.noise import Fit
from fedglass.audit.remains import remains
from fedglass.audit.repeats import between, within
from fedglass.audit.replay import Replay, replay
from fedglass.audit.strangers import strangers
from fedglass.audit.target import Target
from fedglass.core.facts import Fact
from fedglass.core.params import subtract
from fedglass.core.types import Observation, Reconstruction
from fedglass.rounds.truth import Truth
from fedglass.verdict.findings import Findings, Look
from fedglass.verdict.gate import Gate
from fedglass.verdict.images import ImageScores

FEW: Fit = "too few weights"
ROUNDED = "rounding"


@dataclass(frozen=True, eq=False)
class Question:
    """A reconstruction of which something is to be said, and all that is needed for it."""

    attack: AnyAttack
    target: Target
    truth: Truth
    found: Reconstruction
    metrics: tuple[str, ...]
    gate: Gate
    seed: int
    effort: Effort
    progress: Progress

    @property
    def seen(self) -> Observation:
        return self.target.observation


@dataclass(frozen=True, eq=False)
class Assessment:
    """The answer."""

    judged: Judgement
    findings: Findings


def unplayed(asked: Question, findings: Findings) -> Assessment:
    """What may be said where there was no message to attack, and a guess stands in for a reconstruction."""
    judged = judge(None, asked.seen, asked.found, asked.truth, asked.metrics)
    return Assessment(judged, _scored(asked, findings, judged, asked.seen, asked.found))


def assess(asked: Question, findings: Findings) -> Assessment:
    """Score, compare with guesses, and take further looks where something was not read."""
    attack, seen, found, truth = asked.attack, asked.seen, asked.found, asked.truth
    judged = judge(attack, seen, found, truth, asked.metrics)
    # Of another number of images than there are, no label is the label of a true one.
    wrong = judged.label_errors > 0 and len(found.labels) == len(truth.labels)
    findings = replace(
        _scored(asked, findings, judged, seen, found),
        energy_truth=judged.energy_truth,
        energy_decoys=judged.energy_decoys,
        energy_blind=energy_blind(attack, seen, found),
        energy_labels=energy_at(attack, seen, truth.images, found.labels, found) if wrong else None,
        label_errors=judged.label_errors,
        defended=asked.target.defended,
        batch_statistics=asked.target.batch_statistics and Fact.STATISTICS not in uses_of(attack),
        in_clear=asked.target.batch_statistics,
        further=asked.target.further,
        overlooked=asked.target.overlooked,
        miscounted=asked.target.miscounted,
        unread=asked.target.unread,
        **explained_in(asked.target),
    )
    if findings.open and not (findings.explained and not findings.defended):
        # A replay that gives an undefended message has explained it, whatever traces of it look like.
        findings = replace(findings, contradictions=contradictions_in(asked.target))
    return Assessment(judged, _looked_closer(asked, findings))


def _scored(
    asked: Question, findings: Findings, judged: Judgement, seen: Observation, found: Reconstruction
) -> Findings:
    """The findings with the scores of guesses and of a refinement's controls, and what is shown in another way."""
    raw = {} if judged.scores_raw is None else judged.scores_raw.values
    blind = best_guess(asked.seen, asked.truth, found.labels, asked.metrics, asked.target.public, asked.attack)
    control = controlled(asked.attack, seen, found, asked.truth, judged.scores, asked.seed)
    scores = ImageScores(judged.scores.values, raw, blind.values, blind.names, control.values, control.kept)
    versions = [images for images in (found.images, found.raw) if images is not None]
    otherwise = shown_otherwise(torch.cat(versions), asked.truth.private.images)
    return replace(findings, scores=scores, otherwise=tuple(otherwise))


def explained_in(target: Target) -> dict[str, Any]:
    """The message of a target that is explained least, where several are attacked together."""
    found = [_explained(each) for each in (target, *target.also)]
    return min(found, key=lambda told: (False, None, True).index(told["explained"]))


def _explained(target: Target) -> dict[str, Any]:
    """Whether the declared training gives the message; of a simulation it does."""
    if target.simulated:
        return {"explained": True}
    said = f"; the recorder says: {' '.join(target.reserved)}" if target.reserved else ""
    if target.declared is None:
        return {"explained": None, "replay": f"Say how the clients trained: recording.training{said or '.'}"}
    found = replay(target.declared)
    if found is None:
        return {"explained": None, "replay": "It is too long to be played again."}
    unknown = _unknown(target, found)
    if unknown and not found.explained and not found.other:
        words = f"{found.words}, and {unknown}" if unknown == target.unplayable else found.words
        return {"explained": None, "replay": f"{words[0].upper()}{words[1:]}."}
    other = f"; what explains it: {found.other}" if found.other else ""
    return {"explained": found.explained, "replay": f"{found.words}{other}{'' if found.explained else said}"}


def _unknown(target: Target, found: Replay) -> str:
    """What else may have made the rest of the message; empty where nothing may."""
    if found.noise == FEW:
        return FEW
    return ROUNDED if found.untold else target.unplayable


def contradictions_in(target: Target) -> tuple[str, ...]:
    """What of a recorded message can not be as declared, whatever the data are."""
    found = target.doubts + (() if target.statement is None else contradictions(target.statement))
    return (*found, *(words for each in target.also for words in contradictions_in(each)))


def _looked_closer(asked: Question, findings: Findings) -> Findings:
    """The findings with what further runs tell, where that could decide anything."""
    if not findings.open or findings.explained is False or findings.contradictions:
        return findings
    if findings.hidden:
        bare = asked.target.bare
        if bare is not None:
            later = zip(asked.seen.also, bare.also, strict=True)
            left = remains(asked.seen.update, bare.update, *((sent.update, plain.update) for sent, plain in later))
            again = (*repeated(asked.seen, bare), *asked.target.alike)
            others = () if left else _strangers(asked)
            if again or others:
                # No run of an attack takes out what another message shares with this one, nor scores what nobody knows.
                return replace(findings, remains=left, repeats=again, strangers=others)
            findings = replace(findings, remains=left, read_without=_reads(asked, bare))
        # An attack that nothing hides from is blind, and its prior may be why.
        return findings if findings.covered else _with_looks(asked, findings, [])
    if not findings.reached:
        return findings
    findings = replace(findings, apart=told_apart(asked.attack, asked.seen, asked.found, asked.truth))
    return _with_looks(asked, findings, other_starts(asked.attack, asked.seed, asked.effort))


def _strangers(asked: Question) -> tuple[str, ...]:
    """Where recorded messages hold other examples than the truth."""
    declared = [each.declared for each in (asked.target, *asked.target.also)]
    labels, classes = asked.found.labels, asked.seen.knows.classes
    found = [name for each in declared if each is not None for name in strangers(each, labels, classes)]
    return tuple(dict.fromkeys(found))


def repeated(seen: Observation, bare: Observation) -> tuple[str, ...]:
    """Where the noise of a message is not drawn anew, inside of it or from one to another of those attacked with it.

    What the model that it adds to has in common with it may be weight decay, which is in the undefended message too.
    """
    messages = (seen, *seen.also)
    found = [words for each in messages for words in within(each.update)]
    for each, plain in zip(messages, (bare, *bare.also), strict=True):
        left, model = subtract(each.update, plain.update), {"as in the model that was sent": each.before}
        found += [words for words in between(each.update, model) if [*between(left, model)]]
    later = {f"as of message {i + 2}": each.update for i, each in enumerate(seen.also)}
    return tuple(dict.fromkeys([*found, *between(seen.update, later)]))


def _with_looks(asked: Question, findings: Findings, runs: list[Rerun]) -> Findings:
    """The findings with these looks, and those with the priors that do best on decoys."""
    parts = len(runs) + asked.effort.priors + 1
    own = None if asked.seen.own is None else asked.seen.own.images.detach().cpu()
    public = None if asked.target.public is None else asked.target.public.pictures
    has = [pictures for pictures in (own, public) if pictures is not None]
    experiment = Experiment(
        asked.attack, asked.seen, asked.found, torch.cat(has) if has else None, asked.seed, asked.effort
    )
    runs = [*runs, *other_priors(experiment, part(asked.progress, 0, parts))]
    looks = [_look(asked, run, part(asked.progress, i + 1, len(runs) + 1)) for i, run in enumerate(runs)]
    return replace(findings, looks=tuple(looks), asked=len(runs))


def _reads(asked: Question, bare: Observation) -> bool:
    """Whether the attack recovers every image of the message without what protects it; there may be none."""
    if not any(bool(tensor.any()) for tensor in bare.update.values()):
        return False
    seen = isolated(bare, asked.attack, _device(asked.seen))
    found = asked.attack.run(seen, asked.seed, asked.progress)
    return shown_by(asked, seen, found).all_recovered


def _look(asked: Question, run: Rerun, progress: Progress) -> Look:
    found = run.attack.run(asked.seen, run.seed, progress)
    truth, again = asked.truth, shown_by(asked, asked.seen, found)
    return Look(
        run.words,
        found.energy,
        energy_at(run.attack, asked.seen, truth.images, truth.labels, found),
        energy_others(run.attack, asked.seen, found, truth),
        sum(again.recovered),
        again.doubtful,
        told_apart(run.attack, asked.seen, found, truth),
        run.must_reach,
    )


def shown_by(asked: Question, seen: Observation, found: Reconstruction) -> Findings:
    """What a further run shows of the private images, by all metrics that are cheap and by the gate's."""
    chosen = tuple(name for name in asked.metrics if name not in DEAR or name == asked.gate.metric)
    again = replace(asked, metrics=chosen)
    return _scored(again, Findings(asked.gate), judge(None, seen, found, asked.truth, chosen), seen, found)


def _device(seen: Observation) -> torch.device:
    return next(iter(seen.update.values())).device
