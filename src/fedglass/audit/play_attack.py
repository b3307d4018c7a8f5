"""The probe of an audit: an attack is played, judged beside the truth, and flagged."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedglass.attack.hypotheses import AnyAttack
from fedglass.attack.parts import Progress
from fedglass.audit.assessment import Assessment, Question, assess, contradictions_in, unplayed
from fedglass.audit.isolation import iterations_of, oracle_facts
from fedglass.audit.judgement import clipped, grey
from fedglass.audit.looks import Effort
from fedglass.audit.probe import Finding
from fedglass.audit.target import Target
from fedglass.core.types import Observation, Reconstruction
from fedglass.ledger.evidence import Reconstructed
from fedglass.metrics.matching import Matching
from fedglass.rounds.truth import Truth
from fedglass.verdict.findings import Findings, State
from fedglass.verdict.flags import flags_of
from fedglass.verdict.gate import Gate

NO_TRUTH = "the true images were not given: look at the pictures"


@dataclass(frozen=True)
class PlayAttack:
    """Plays an attack, scores what it found, compares energies and raises flags."""

    attack: AnyAttack
    metrics: tuple[str, ...]
    gate: Gate
    effort: Effort = Effort.STANDARD

    def measure(self, target: Target, seed: int, progress: Progress) -> Finding:
        seen = target.observation
        state = state_of(seen)
        played = state == "sound"
        found = self.attack.run(seen, seed, progress) if played else _guess(seen)
        fields = of_run(self.attack, found)
        oracle = oracle_facts(self.attack)
        findings = Findings(
            self.gate,
            state,
            energy=found.energy,
            energy_refined=found.energy_refined,
            oracle=oracle,
            notes=found.notes,
        )
        if target.truth is None:
            told = contradictions_in(target) if played else ()
            return self._unjudged(seen, found, replace(findings, truth=False, contradictions=told), fields)
        asked = Question(self.attack, target, target.truth, found, self.metrics, self.gate, seed, self.effort, progress)
        assessed = assess(asked, findings) if played else unplayed(asked, findings)
        fields |= _of_truth(assessed, target.truth.private, fields["extra"])
        judged, findings = assessed.judged, assessed.findings
        fields |= {"flags": flags_of(findings), "absence": findings.absence}
        evidence = _evidence(seen, found, judged.shown, judged.shown_raw, judged.scores.matching)
        private, names = target.truth.private, target.class_names
        labels = tuple(str(i) if names is None else names[i] for i in private.labels.tolist())
        return Finding(fields, replace(evidence, originals=private.images.numpy(), labels=labels))

    def _unjudged(
        self, seen: Observation, found: Reconstruction, findings: Findings, fields: dict[str, Any]
    ) -> Finding:
        skipped = dict.fromkeys(self.metrics, NO_TRUTH)
        raw = None if found.raw is None else clipped(found.raw, seen)
        told = {"skipped_metrics": skipped, "flags": flags_of(findings)}
        order = Matching(tuple(range(len(found.images))))
        return Finding({**fields, **told}, _evidence(seen, found, clipped(found.images, seen), raw, order))


def state_of(seen: Observation) -> State:
    """Whether there is a message to invert."""
    if not all(bool(torch.isfinite(t).all()) for t in seen.update.values()):
        return "non-finite"
    return "sound" if any(bool(t.any()) for t in seen.update.values()) else "zero"


def of_run(attack: AnyAttack, found: Reconstruction) -> dict[str, Any]:
    """What a record says of an attack's run, without the truth; where unknowns ended and what it supposed as JSON."""
    return {
        "energy": found.energy,
        "trace": list(found.trace),
        "labels_recovered": found.labels.tolist(),
        "iterations": iterations_of(attack),
        "energy_refined": found.energy_refined,
        "extra": {
            "notes": list(found.notes),
            "unknowns": {name: tensor.tolist() for name, tensor in found.unknowns.items()},
            "supposed": None if found.supposed is None else repr(found.supposed),
            **({"rule": found.rule} if found.rule else {}),
            **({"kept": asdict(found.kept)} if found.kept else {}),
            **({"grouping": [list(labels) for labels in found.grouping]} if found.grouping else {}),
            **({"tried": [asdict(trial) for trial in found.tried]} if found.tried else {}),
        },
    }


def _evidence(
    seen: Observation, found: Reconstruction, shown: Tensor, raw: Tensor | None, order: Matching
) -> Reconstructed:
    """The images to keep, with the raw ones and the way between them where they were refined."""
    film = found.film
    frames = None if film is None else torch.stack([order.apply(clipped(frame, seen)) for frame in film.frames])
    captions = () if film is None else tuple("" if i is None else film.caption(i) for i in order.partner)
    return Reconstructed(
        found.images.detach().cpu().numpy(),
        found.labels.detach().cpu().numpy(),
        shown.numpy(),
        raw=None if raw is None else raw.numpy(),
        found_raw=None if found.raw is None else found.raw.detach().cpu().numpy(),
        film=None if frames is None else frames.numpy(),
        film_captions=captions,
    )


def _guess(seen: Observation) -> Reconstruction:
    """What remains without a message: grey images under the first class."""
    n = seen.knows.examples
    return Reconstruction(grey(seen, n), torch.zeros(n, dtype=torch.int64), float("nan"))


def _of_truth(assessed: Assessment, private: Truth, extra: dict[str, Any]) -> dict[str, Any]:
    judged, found = assessed.judged, assessed.findings
    scores, raw = judged.scores, judged.scores_raw
    more = {
        "matching": list(scores.matching.partner),
        "energy_decoys": list(judged.energy_decoys),
        "gate": {"metric": found.gate.metric, "threshold": found.gate.threshold},
    }
    return {
        "metrics": {name: list(values) for name, values in scores.values.items()},
        "metrics_raw": {} if raw is None else {name: list(values) for name, values in raw.values.items()},
        "controls": {
            control: {name: list(values) for name, values in of.items()}
            for control, of in found.scores.controls.items()
        },
        "identity_kept": list(found.scores.kept),
        "skipped_metrics": dict(scores.skipped),
        "blind": {name: list(values) for name, values in found.scores.blind.items()},
        "blind_by": {name: list(guesses) for name, guesses in found.scores.blind_by.items()},
        "labels_true": private.labels.tolist(),
        "owners": list(private.owners),
        "labels_recovered": list(judged.labels),
        "label_errors": judged.label_errors,
        "energy_truth": judged.energy_truth,
        "energy_blind": found.energy_blind,
        "replay": found.replay or None,
        "looks": [f"{look.words}: energy {look.energy:.3g}, recovered {look.recovered}" for look in found.looks],
        "extra": {**extra, **more},
    }
