"""The probe of an audit: an attack is played, judged beside the truth, and flagged."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedglass.attack.best_of import AnyAttack, BestOf
from fedglass.attack.needs import needs_of, parts_of
from fedglass.attack.parts import Progress
from fedglass.audit.assessment import Assessment, Question, assess
from fedglass.audit.cases import Finding
from fedglass.audit.scoring import clipped, grey
from fedglass.audit.target import Target
from fedglass.core.facts import Fact
from fedglass.core.tensors import Params
from fedglass.core.types import Knowledge, Observation, Own, Reconstruction
from fedglass.federation.truth import Truth
from fedglass.metrics.matching import Matching
from fedglass.verdict.directory import Reconstructed
from fedglass.verdict.doubts import Doubt, Kind, doubt

# What an attack is handed: a copy on its device, with oracle facts only where its parts ask for them.


def oracle_facts(attack: object) -> frozenset[str]:
    """The oracle facts that the parts of an attack need, by name.

    >>> from fedglass.attack.labels.given import OracleLabels
    >>> from fedglass.recipes import recipe
    >>> oracle_facts(recipe("inverting_gradients", labels=OracleLabels()))
    frozenset({'labels'})
    """
    return frozenset(fact.value for fact in needs_of(attack) if fact.oracle)


def without_unused_oracles(knows: Knowledge, attack: object) -> Knowledge:
    """The knowledge without the oracle facts that no part of the attack needs: it can not use them unmarked."""
    needed = needs_of(attack)
    return replace(
        knows,
        labels=knows.labels if {Fact.LABELS, Fact.GROUPS} & needed else None,
        batch_labels=knows.batch_labels if Fact.BATCH_LABELS in needed else None,
    )


def isolated(observation: Observation, attack: object, device: torch.device) -> Observation:
    """The observation as one attack sees it, sharing neither a tensor nor the model with the original.

    Tensors are copied also where they are on the device already: fresh ones are aligned alike in every
    process, on which the last bits of a matrix product may depend.
    """
    knows = without_unused_oracles(observation.knows, attack)
    facts = {field.name: _copied(getattr(knows, field.name), device) for field in fields(Knowledge)}
    tensors = (observation.before, observation.buffers, observation.update, observation.buffers_after)
    before, buffers, update, after = (_copied_all(params, device) for params in tensors)
    model = copy.deepcopy(observation.model).to(device)
    also = tuple(isolated(each, attack, device) for each in observation.also)
    return Observation(model, before, buffers, update, Knowledge(**facts), _own(observation.own, device), after, also)


def iterations_of(attack: object) -> int | None:
    """How many iterations the last solver of an attack makes, if it says so."""
    while isinstance(attack, BestOf):  # not those of its trials
        attack = attack.attack
    found = [getattr(part, "iterations", None) for part in parts_of(attack)]
    return next((n for n in reversed(found) if isinstance(n, int)), None)


def _own(own: Own | None, device: torch.device) -> Own | None:
    if own is None:
        return None
    return Own(_copied(own.images, device), _copied(own.labels, device), _copied_all(own.update, device), own.share)


def _copied(value: Any, device: torch.device) -> Any:
    return value.detach().to(device, copy=True) if isinstance(value, Tensor) else value


def _copied_all(params: Params, device: torch.device) -> dict[str, Tensor]:
    return {name: _copied(tensor, device) for name, tensor in params.items()}


NO_TRUTH = "the true images were not given: look at the pictures"


@dataclass(frozen=True)
class PlayAttack:
    """Plays an attack, scores what it found and compares energies."""

    attack: AnyAttack
    metrics: tuple[str, ...]

    kind: ClassVar[str] = "attack"

    @property
    def played(self) -> AnyAttack:
        """What decides the figures, for the key of a case."""
        return self.attack

    def measure(self, target: Target, seed: int, progress: Progress) -> Finding:
        seen = target.observation
        unsound = state_of(seen)
        found = self.attack.run(seen, seed, progress) if unsound is None else _guess(seen)
        fields = of_run(self.attack, found)
        doubts = [*([] if unsound is None else [doubt(unsound)]), *self._doubts(found)]
        if target.truth is None:
            return self._unjudged(seen, found, {**fields, "doubts": [*doubts, doubt(Kind.NO_TRUTH)]})
        if unsound is None and not len(found.images):
            return Finding({**fields, "doubts": doubts})
        asked = Question(self.attack, target, target.truth, found, self.metrics, seed)
        assessed = assess(asked, played=unsound is None)
        fields |= {**_of_truth(assessed, target.truth.private, fields["extra"]), "doubts": doubts}
        judged = assessed.judged
        evidence = _evidence(seen, found, judged.shown, judged.shown_raw, judged.scores.matching)
        private, names = target.truth.private, target.class_names
        labels = tuple(str(i) if names is None else names[i] for i in private.labels.tolist())
        return Finding(fields, replace(evidence, originals=private.images.numpy(), labels=labels))

    def _doubts(self, found: Reconstruction) -> list[Doubt]:
        """Return what a reader must know of the run itself."""
        oracle = sorted(Fact(name).words for name in oracle_facts(self.attack))
        doubts = [doubt(Kind.ORACLE_USED, facts=oracle)] if oracle else []
        if found.reasons and not len(found.images):
            reasons = [f"{name}: {why}" for name, why in found.reasons.items()]
            doubts.append(doubt(Kind.NO_EXACT_METHOD, reasons="; ".join(reasons)))
        return doubts

    def _unjudged(self, seen: Observation, found: Reconstruction, fields: dict[str, Any]) -> Finding:
        skipped = dict.fromkeys(self.metrics, NO_TRUTH)
        raw = None if found.raw is None else clipped(found.raw, seen)
        order = Matching(tuple(range(len(found.images))))
        evidence = _evidence(seen, found, clipped(found.images, seen), raw, order)
        return Finding({**fields, "skipped_metrics": skipped}, evidence)


def state_of(seen: Observation) -> Kind | None:
    """Return what is wrong with a message that cannot be attacked; None where it can."""
    if not all(bool(torch.isfinite(t).all()) for t in seen.update.values()):
        return Kind.NON_FINITE_UPDATE
    return None if any(bool(t.any()) for t in seen.update.values()) else Kind.ZERO_UPDATE


def of_run(attack: AnyAttack, found: Reconstruction) -> dict[str, Any]:
    """What a record says of an attack's run, without the truth; where unknowns ended and what it supposed as JSON."""
    return {
        "energy": found.energy,
        "trace": list(found.trace),
        "labels_recovered": found.labels.tolist(),
        "iterations": iterations_of(attack),
        "energy_refined": found.energy_refined,
        "method": found.method,
        "explains": found.explains,
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
        images_raw=None if found.raw is None else found.raw.detach().cpu().numpy(),
        film=None if frames is None else frames.numpy(),
        film_captions=captions,
    )


def _guess(seen: Observation) -> Reconstruction:
    """What remains without a message: grey images under the first class."""
    n = seen.knows.examples
    return Reconstruction(grey(seen, n), torch.zeros(n, dtype=torch.int64), float("nan"))


def _of_truth(assessed: Assessment, private: Truth, extra: dict[str, Any]) -> dict[str, Any]:
    judged, found = assessed.judged, assessed.scores
    scores, raw = judged.scores, judged.scores_raw
    return {
        "metrics": {name: list(values) for name, values in scores.values.items()},
        "metrics_raw": {} if raw is None else {name: list(values) for name, values in raw.values.items()},
        "controls": {
            control: {name: list(values) for name, values in of.items()} for control, of in found.controls.items()
        },
        "identity_preserved": list(found.identity_preserved),
        "blends": [list(members) for members in found.blends] if any(found.blends) else [],
        "transformed_match": list(assessed.otherwise),
        "skipped_metrics": dict(scores.skipped),
        "blind": {name: list(values) for name, values in found.blind.items()},
        "blind_guess": {name: list(guesses) for name, guesses in found.blind_guess.items()},
        "labels_true": private.labels.tolist(),
        "owners": list(private.owners),
        "labels_recovered": list(judged.labels),
        "label_errors": judged.label_errors,
        "energy_truth": judged.energy_truth,
        "energy_blind": assessed.energy_blind,
        "extra": {**extra, "matching": list(scores.matching.partner)},
    }
