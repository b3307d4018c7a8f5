"""The probes of an audit: one plays an attack, the other the candidate game.

An attack is given a copy without unused oracles, run, and scored against the truth. The game asks: does the message
name the records that were trained on?
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedglass.attack.best_of import AnyAttack, BestOf
from fedglass.attack.parts import Progress, needs_of, parts_of
from fedglass.attack.peer_knowledge import without_own_update
from fedglass.audit.assessment import Assessment, assess
from fedglass.audit.scoring import grey, in_pixel_range
from fedglass.audit.target import ProbeResult, Target
from fedglass.bounds.success import Game
from fedglass.checks.claim import Claim, ClientClaim
from fedglass.checks.message_scores import ScoredMessage
from fedglass.checks.noise import total_std
from fedglass.checks.replay import message_of, too_long
from fedglass.checks.singling_out import Counterfactual, GameResult, play
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.losses import class_numbers
from fedglass.core.rng import derive
from fedglass.core.tensors import Params
from fedglass.core.thresholds import ENOUGH_CANDIDATES, LEAST_CANDIDATES
from fedglass.core.types import Knowledge, Observation, Reconstruction
from fedglass.federation.truth import Examples, Truth
from fedglass.metrics.catalogue import Matching
from fedglass.verdict.directory import Reconstructed
from fedglass.verdict.doubts import Doubt, DoubtKind, doubt
from fedglass.verdict.gate import Gate


def oracle_facts(attack: object) -> frozenset[str]:
    """Return the oracle facts that the parts of an attack need, by name.

    >>> from fedglass.attack.labels.given import OracleLabels
    >>> from fedglass.recipes import recipe
    >>> oracle_facts(recipe("inverting_gradients", labels=OracleLabels()))
    frozenset({'labels'})
    """
    return frozenset(fact.value for fact in needs_of(attack) if fact.oracle)


def without_unused_oracles(knows: Knowledge, attack: object) -> Knowledge:
    """Return the knowledge without the oracle facts that no part of the attack needs: it cannot use them unmarked."""
    needed = needs_of(attack)
    return replace(
        knows,
        labels=knows.labels if {Fact.LABELS, Fact.GROUPS} & needed else None,
        batch_labels=knows.batch_labels if Fact.BATCH_LABELS in needed else None,
    )


def isolate(observation: Observation, attack: object, device: torch.device) -> Observation:
    """Return a copy of the observation on a device, as one attack sees it."""
    knows = without_unused_oracles(observation.knows, attack)
    also = tuple(replace(other, knows=without_unused_oracles(other.knows, attack)) for other in observation.also)
    return replace(observation, knows=knows, also=also).copied_to(device)


def iterations_of(attack: object) -> int | None:
    """Return the number of iterations of the last solver of an attack; None where it has none."""
    while isinstance(attack, BestOf):  # not those of its trials
        attack = attack.attack
    counts = [getattr(part, "iterations", None) for part in parts_of(attack)]
    return next((n for n in reversed(counts) if isinstance(n, int)), None)


NO_TRUTH = "the true images were not given: look at the pictures"


@dataclass(frozen=True)
class PlayAttack:
    """The probe that plays an attack, scores its reconstruction and compares energies."""

    attack: AnyAttack
    metrics: tuple[str, ...]

    kind: ClassVar[str] = "attack"

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        observation = target.observation
        unsound = unusable_state(observation)
        if unsound is None:
            reconstruction = self.attack.run(observation, seed, progress)
        else:  # a guess without a message: grey images under the first class
            n = observation.knows.examples
            reconstruction = Reconstruction(grey(observation, n), torch.zeros(n, dtype=torch.int64), float("nan"))
        fields = run_fields(self.attack, reconstruction)
        doubts = [*([] if unsound is None else [doubt(unsound)]), *self._doubts(reconstruction)]
        if target.truth is None:
            skipped = dict.fromkeys(self.metrics, NO_TRUTH)
            fields |= {"doubts": [*doubts, doubt(DoubtKind.NO_TRUTH)], "skipped_metrics": skipped}
            raw = None if reconstruction.raw is None else in_pixel_range(reconstruction.raw, observation)
            shown, order = in_pixel_range(reconstruction.images, observation), range(len(reconstruction.images))
            return ProbeResult(fields, _evidence(observation, reconstruction, shown, raw, Matching(tuple(order))))
        if unsound is None and not len(reconstruction.images):
            return ProbeResult({**fields, "doubts": doubts})
        assessment = assess(self.attack, target, reconstruction, self.metrics, seed, played=unsound is None)
        extra = {**fields["extra"], "matching": list(assessment.matching.partner)}
        fields |= {**_truth_fields(assessment, target.truth.private), "doubts": doubts, "extra": extra}
        evidence = _evidence(observation, reconstruction, assessment.shown, assessment.shown_raw, assessment.matching)
        private, names = target.truth.private, target.class_names
        labels = tuple(str(i) if names is None or i < 0 else names[i] for i in class_numbers(private.labels))
        return ProbeResult(fields, replace(evidence, originals=private.images.numpy(), labels=labels))

    def _doubts(self, reconstruction: Reconstruction) -> list[Doubt]:
        """Return the doubts about the run itself."""
        oracle = sorted(Fact(name).words for name in oracle_facts(self.attack))
        doubts = [doubt(DoubtKind.ORACLE_USED, facts=oracle)] if oracle else []
        if reconstruction.reasons and not len(reconstruction.images):
            reasons = [f"{name}: {why}" for name, why in reconstruction.reasons.items()]
            doubts.append(doubt(DoubtKind.NO_EXACT_METHOD, reasons="; ".join(reasons)))
        return doubts


def unusable_state(observation: Observation) -> DoubtKind | None:
    """Return what is wrong with a message that cannot be attacked; None where it can."""
    if not all(bool(torch.isfinite(t).all()) for t in observation.update.values()):
        return DoubtKind.NON_FINITE_UPDATE
    return None if any(bool(t.any()) for t in observation.update.values()) else DoubtKind.ZERO_UPDATE


def run_fields(attack: AnyAttack, reconstruction: Reconstruction) -> dict[str, Any]:
    """Return the fields of a record about an attack's run, without the truth.

    The final unknowns and the supposed training are stored as JSON.
    """
    return {
        "energy": reconstruction.energy,
        "trace": list(reconstruction.trace),
        "labels_recovered": class_numbers(reconstruction.labels),
        "iterations": iterations_of(attack),
        "energy_refined": reconstruction.energy_refined,
        "method": reconstruction.method,
        "explains": reconstruction.explains,
        "extra": {
            "notes": [str(note) for note in reconstruction.notes],
            "unknowns": {name: tensor.tolist() for name, tensor in reconstruction.unknowns.items()},
            "supposed": None if reconstruction.supposed is None else repr(reconstruction.supposed),
            **({"rule": reconstruction.rule} if reconstruction.rule else {}),
            **({"kept": asdict(reconstruction.kept)} if reconstruction.kept else {}),
            **({"grouping": [list(labels) for labels in reconstruction.grouping]} if reconstruction.grouping else {}),
            **({"tried": [asdict(trial) for trial in reconstruction.tried]} if reconstruction.tried else {}),
        },
    }


def _evidence(
    observation: Observation, reconstruction: Reconstruction, shown: Tensor, raw: Tensor | None, order: Matching
) -> Reconstructed:
    """Return the images to keep, with the raw ones and the steps between them where they were refined."""
    evidence = Reconstructed(
        reconstruction.images.detach().cpu().numpy(),
        reconstruction.labels.detach().cpu().numpy(),
        shown.numpy(),
        raw=None if raw is None else raw.numpy(),
        images_raw=None if reconstruction.raw is None else reconstruction.raw.detach().cpu().numpy(),
    )
    film = reconstruction.film
    if film is None:
        return evidence
    frames = torch.stack([order.apply(in_pixel_range(frame, observation)) for frame in film.frames])
    captions = tuple("" if i is None else film.caption(i) for i in order.partner)
    return replace(evidence, film=frames.numpy(), film_captions=captions)


def _truth_fields(assessment: Assessment, private: Truth) -> dict[str, Any]:
    return {
        **vars(assessment.scores),
        "blends": assessment.scores.blends if any(assessment.scores.blends) else [],
        "transformed_match": assessment.shown_transformed,
        "skipped_metrics": assessment.skipped,
        "labels_true": class_numbers(private.labels),
        "owners": private.owners,
        "labels_recovered": assessment.labels,
        "label_errors": assessment.label_errors,
        "energy_truth": assessment.energy_truth,
        "energy_blind": assessment.energy_blind,
    }


GATE = Gate()
NO_TRAINING = "How the clients trained is not declared."
DISHONEST = "Some participants are not honest."


@dataclass(frozen=True)
class PlayGame:
    """The candidate game on one of some messages, over which its limits are corrected."""

    messages: int = 1

    kind: ClassVar[str] = "game"
    metrics: ClassVar[tuple[str, ...]] = ()

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        unsound = unusable_state(target.observation)
        if unsound is not None:
            return _finding(doubt(unsound))
        if target.truth is None:
            return _finding(doubt(DoubtKind.NO_TRUTH))
        if target.claim is None:
            return _finding(doubt(DoubtKind.GAME_NOT_PLAYED, why=NO_TRAINING))
        candidates = 0 if target.pool is None else len(target.pool.labels)
        if target.pool is None or candidates < LEAST_CANDIDATES:
            return _finding(doubt(DoubtKind.NO_CANDIDATES, found=candidates, least=LEAST_CANDIDATES))
        try:
            result = play_game(target, seed, self.messages)
        except UsageError as error:
            return _finding(doubt(DoubtKind.GAME_NOT_PLAYED, why=str(error)))
        game = Game.model_validate(result.model_dump(include=set(Game.model_fields)))
        return _finding(*_doubts(result, target.claim), game=game)


def play_game(target: Target, seed: int, messages: int = 1, gate: Gate = GATE) -> GameResult:
    """Play the candidate game on a target with truth, claim and pool, one of so many messages."""
    claim, pool, private = target.claim, target.pool, target.known_truth.private
    if claim is None or pool is None:
        raise UsageError("The candidate game needs a claim and candidates.")
    observation = without_own_update(replace(target.observation, also=()))
    private_claim = replace(claim, clients=claim.private, own_clients=0)
    message = ScoredMessage(
        observation.model,
        observation.before,
        observation.buffers,
        observation.update,
        claim.clients[0].training,
        claim.whitening,
        total_std(private_claim) or 0.0 if claim.combined_by_mean else 0.0,
    )
    return play(
        message,
        Examples(private.images, private.labels),
        pool,
        max_singling_out=gate.max_singling_out,
        messages=messages,
        counterfactual=None if not claim.honest or too_long(private_claim) else _replayed(private_claim, seed),
        seed=seed,
    )


def _replayed(claim: Claim, seed: int) -> Counterfactual:
    """Return a function from records to the update of the same clients trained on these records alone."""

    def counterfactual(rows: Tensor) -> Params:
        wanted, start, clients = set(rows.tolist()), 0, list[ClientClaim]()
        for client in claim.clients:
            places = [i for i in range(len(client.labels)) if start + i in wanted]
            start += len(client.labels)
            if places:
                reduced = client.with_examples(client.images[places], client.labels[places])
                clients.append(replace(reduced, order=None, weight=None))
        sent = message_of(replace(claim, clients=tuple(clients)), 0, derive(seed, "counterfactual", int(rows.sum())))
        pairs = zip(claim.before.items(), sent, strict=True)
        return {name: tensor.to(before.dtype) for (name, before), tensor in pairs}

    return counterfactual


def _doubts(result: GameResult, claim: Claim) -> list[Doubt]:
    details: dict[str, dict[str, Any]] = {
        "few_candidates": {"found": result.candidates, "least": ENOUGH_CANDIDATES},
        "no_control": {"why": "" if claim.honest else DISHONEST},
        "low_power": {"public": result.public},
    }
    return [doubt(DoubtKind(name), **details.get(name, {})) for name in result.doubts]


def _finding(*doubts: Doubt, **fields: Any) -> ProbeResult:
    return ProbeResult({"kind": "game", "doubts": list(doubts), **fields})
