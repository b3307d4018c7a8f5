"""The check of a message: is it what it is said to be, is everything in view, and what bounds what it tells?

Done once for each message, whatever attacks are run on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedglass.attack.parts import Progress
from fedglass.audit.assessment import guessed_public
from fedglass.audit.cases import Finding
from fedglass.audit.certificate import (
    DIVERGES,
    TOO_LONG,
    beside,
    bound_of,
    declared_bound,
    models_of,
    planned_certificate,
    total_std,
    without_noise,
)
from fedglass.audit.play_attack import state_of
from fedglass.audit.target import Target
from fedglass.checks.consistency import contradictions
from fedglass.checks.distances import distances, flat
from fedglass.checks.replay import ORDERS, Declared, has_no_order, message_of, replay, too_long
from fedglass.checks.residual import SPREAD, Residual, refutations, rounding_of, spread_of
from fedglass.checks.rounding_cells import grid_of
from fedglass.core.rng import stream
from fedglass.core.tensors import Params, subtract
from fedglass.core.types import BatchNorm
from fedglass.defend.noise_model import NoiseModel
from fedglass.federation.truth import Examples
from fedglass.fl.local import MeanGradient, Step
from fedglass.metrics.catalogue import DEFAULT_METRICS
from fedglass.models.network import Network
from fedglass.verdict.doubts import Doubt, Kind, doubt
from fedglass.verdict.records import Certificate

# Directions in which noise must not be missing: those of public gradients, and those by which records move a message.
#
# Noise that leaves out the directions of the signal passes every test of its entries, and hides nothing.


PUBLIC = 500
"""Public gradients, at most: 100 of their principal directions are then known well."""
MOST_VALUES = 50_000_000
"""Entries of all directions: 200 MB in single precision."""


def known_to(declared: Declared, pool: Examples | None) -> Examples | None:
    """Return the examples of a pool that the network has a class for; None where there are none."""
    if pool is None or not len(pool.labels):
        return None
    network = Network(declared.model, declared.buffers, BatchNorm.FROZEN)
    with torch.no_grad():
        inputs = declared.whitening.whiten(pool.images[:1])
        classes = network([declared.before[name] for name in network.names], inputs).shape[-1]
    rows = pool.labels < classes
    return Examples(pool.images[rows], pool.labels[rows]) if bool(rows.any()) else None


def public_directions(declared: Declared, pool: Examples | None) -> Tensor | None:
    """Return gradients of public examples at the weights before the message.  # (m, d)"""
    if pool is None:
        return None
    network = Network(declared.model, declared.buffers, BatchNorm.FROZEN)
    weights = [declared.before[name].detach().requires_grad_() for name in network.names]
    count = min(PUBLIC, MOST_VALUES // sum(w.numel() for w in weights), len(pool.labels))
    rows = torch.randperm(len(pool.labels), generator=stream(0, "public directions"))[:count].tolist()
    smoothing = declared.parts[0].training.label_smoothing
    found = []
    for i in rows:
        inputs = declared.whitening.whiten(pool.images[i : i + 1])
        step = Step(network, weights, inputs, pool.labels[i : i + 1], smoothing=smoothing)
        found.append(flat(MeanGradient().gradient(step)).float())
    return _rows(found)


def signal_directions(plain: Declared) -> Tensor | None:
    """Return by what each private record moves a message without its noise.  # (k, d)"""
    private = plain.parts[: len(plain.parts) - plain.own]
    most = MOST_VALUES // sum(tensor.numel() for tensor in plain.before.values())
    moved = (row.float() for part in private for row in distances(plain, part)[1:])
    return _rows(list(islice(moved, most)))


def _rows(found: list[Tensor]) -> Tensor | None:
    kept = [row for row in found if bool(torch.isfinite(row).all())]
    return torch.stack(kept) if kept else None


NO_TRAINING = "Say how the clients trained: recording.training."
OTHER_RULE = "A rule other than the mean combined the updates, and only a mean is run again."
NOT_HONEST = "Some participants are not honest, and what they do is not run again."
UNKNOWN_ORDER = "The order of the batches was not recorded, and changes the message by more than the noise allows."
ROUNDED = "The message is rounded more coarsely than the noise: send it in a finer type."
UNKNOWN = "What was declared of the message was not kept."
CHANGED_LATER = "Something is done to the noisy result, or the noise is added in several local steps."


@dataclass(frozen=True)
class CheckMessage:
    """Checks one message and states its certificate."""

    kind: ClassVar[str] = "certificate"
    metrics: ClassVar[tuple[str, ...]] = ()

    @property
    def played(self) -> CheckMessage:
        """What decides the figures, for the key of a case."""
        return self

    def measure(self, target: Target, seed: int, progress: Progress) -> Finding:
        unsound = state_of(target.observation)
        if unsound is not None:
            return _finding([doubt(unsound)])
        doubts = [*_coverage(target)]
        messages = (target, *target.also)
        claims = [each.declared for each in messages if each.declared is not None]
        replays: list[dict[str, Any]] = []
        if not target.simulated:
            doubts += message_doubts(target, replays)
        certificate = None
        if target.truth is None:
            doubts.append(doubt(Kind.NO_TRUTH))
            certificate = _without_truth(target, doubts)
        elif len(claims) == len(messages):
            certificate = _certificate(target, claims, doubts, seed)
        elif not any(each.kind is Kind.NOT_REPLAYED for each in doubts):
            doubts.append(doubt(Kind.NOT_REPLAYED, why=UNKNOWN))
        guessed = {} if target.pool is None else guessed_public(target.pool, DEFAULT_METRICS)
        return _finding(doubts, certificate, blind_public=guessed, extra={"replay": replays} if replays else {})


def _finding(doubts: Sequence[Doubt], certificate: Certificate | None = None, **fields: Any) -> Finding:
    unique = list({each.model_dump_json(): each for each in doubts}.values())
    return Finding({"kind": "certificate", "doubts": unique, "certificate": certificate, **fields})


def _coverage(target: Target) -> Iterator[Doubt]:
    """Say what left and no certificate covers."""
    if target.batch_statistics:
        yield doubt(Kind.STATISTICS_SENT)
    if target.overlooked:
        yield doubt(Kind.CLIENTS_NOT_AUDITED, clients=[repr(name) for name in target.overlooked])
    if target.unread:
        yield doubt(Kind.EXTRA_PAYLOAD, names=list(target.unread))
    if target.miscounted and target.truth is not None:
        stated, true = target.observation.knows.examples, len(target.truth.labels)
        yield doubt(Kind.WRONG_COUNT, stated=stated, true=true)


def message_doubts(target: Target, replays: list[dict[str, Any]] | None = None) -> list[Doubt]:
    """Return what of a recorded message, and of those attacked together with it, is not as declared."""
    kept: list[dict[str, Any]] = [] if replays is None else replays
    return [each for one in (target, *target.also) for each in _as_declared(one, kept)]


def _as_declared(target: Target, replays: list[dict[str, Any]]) -> Iterator[Doubt]:
    """Say what of one recorded message is not as declared."""
    if target.unnamed:
        yield doubt(Kind.DEFENCE_NOT_NAMED)
    found = [*target.doubts]
    explained = False
    claim = target.declared
    if claim is None:
        if target.truth is not None:
            yield doubt(Kind.NOT_REPLAYED, why=" ".join([NO_TRAINING, *target.reserved]))
    elif target.dishonest or not claim.combined_by_mean:
        yield doubt(Kind.NOT_REPLAYED, why=NOT_HONEST if target.dishonest else OTHER_RULE)
    elif any(isinstance(model, NoiseModel) for model in models_of(claim.parts)):
        yield from _noise_as_declared(target, claim)
        explained = True  # what the noise leaves is tested as a whole
    else:
        outcome = replay(claim)
        defended = target.unnamed and bool(target.defences)  # by what nobody says, so that a replay cannot give it
        if outcome is None or (outcome.untold and not defended):
            yield doubt(Kind.NOT_REPLAYED, why=TOO_LONG if outcome is None else f"{outcome.words}.")
        else:
            explained = outcome.explained
            replays.append({"residual": outcome.residual, "explained": explained})
            if not explained and not defended:
                found.append(outcome.words + (f"; what explains it: {outcome.other}" if outcome.other else ""))
                found += target.reserved
    if not explained and target.statement is not None:
        found += contradictions(target.statement)
    if found:
        yield doubt(Kind.NOT_AS_DECLARED, found="; ".join(dict.fromkeys(found)))


def _noise_as_declared(target: Target, claim: Declared) -> Iterator[Doubt]:
    """Test whether what a replay without noise leaves of the message is the declared noise."""
    models = [model for model in models_of(claim.parts) if isinstance(model, NoiseModel)]
    laws = {model.law for model in models}
    std = total_std(claim, hidden=False) if laws == {"gaussian"} else None
    if laws == {"laplacian"} and len(claim.parts) == 1:
        std = models[0].std
    if not all(model.testable for model in models) or not std:
        yield doubt(Kind.NOISE_NOT_TESTABLE, why=CHANGED_LATER)
        return
    if too_long(claim):
        yield doubt(Kind.NOISE_NOT_TESTABLE, why=TOO_LONG)
        return
    plain = without_noise(claim)
    orders = 1 if has_no_order(claim) else ORDERS - 1
    replays = [_named(plain, message_of(plain, order)) for order in range(orders)]
    if not all(bool(torch.isfinite(tensor).all()) for each in replays for tensor in each.values()):
        yield doubt(Kind.NOT_AS_DECLARED, found=DIVERGES)
        return
    if len(replays) > 1 and spread_of(replays, std) > SPREAD:
        yield doubt(Kind.NOISE_NOT_TESTABLE, why=UNKNOWN_ORDER)
        return
    given = _residual(target, claim, replays[0], std, models[0])
    if rounding_of(given) > 1:
        yield doubt(Kind.NOISE_NOT_TESTABLE, why=ROUNDED)
        return
    found = refutations(given)
    if found:
        tests = dict.fromkeys(each.test.replace("_", " ") for each in found)
        yield doubt(Kind.NOISE_REFUTED, tests=list(tests), p=min(each.p for each in found))


def _residual(target: Target, claim: Declared, plain: Params, std: float, model: NoiseModel) -> Residual:
    """Return what the replay without noise leaves of the message, and the directions in which noise may be missing."""
    update = {name: tensor.cpu() for name, tensor in claim.update.items()}
    before = {name: claim.before[name].cpu() for name in update}
    half = grid_of(update.values()) in (torch.float16, torch.bfloat16)
    residual = subtract({name: tensor.double() for name, tensor in update.items()}, plain)
    return Residual(
        residual,
        std,
        model.law,
        message=update if half else {name: before[name] + update[name] for name in update},
        before=before,
        weights_sent=not half,
        public=public_directions(claim, known_to(claim, target.pool)),
        signal=signal_directions(without_noise(claim)),
        others={name: other for name, other in target.others.items() if all(key in other for key in residual)},
    )


def _named(claim: Declared, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(zip(claim.before, (tensor.double().cpu() for tensor in tensors), strict=True))


def _certificate(target: Target, claims: Sequence[Declared], doubts: list[Doubt], seed: int) -> Certificate | None:
    """Return the certificate of a message whose data are known, and append why it does not hold."""
    if target.dishonest:
        doubts.append(doubt(Kind.DEFENCE_NOT_BOUNDED, defence="a client that is not honest", why=""))
        return None
    pool = known_to(claims[0], target.pool)
    bound = bound_of(claims, pool)
    if isinstance(bound, Doubt):
        if not any(each.kind is Kind.DEFENCE_NOT_NAMED for each in doubts):
            doubts.append(bound)
        return None
    certificate = planned_certificate(bound, target.further)
    if target.further and certificate.success_planned is None:
        doubts.append(doubt(Kind.MORE_ROUNDS, rounds=target.further))
    known = "construction" if target.simulated else "tested"
    if any(each.kind is Kind.NOISE_NOT_TESTABLE for each in doubts):
        known = "declared"
    told = {"noise": known, "training": known, "unpredictable noise": "declared"}
    if bound.identical:
        told = {"training": known}
    if certificate.accounting == "pld":
        told["Poisson samples"] = known
    return certificate.model_copy(update={"assumptions": told, **beside(claims, bound, pool, seed)})


def _without_truth(target: Target, doubts: list[Doubt]) -> Certificate | None:
    """Return what the declaration alone bounds; it counts only where the gate trusts declarations."""
    if target.statement is None or not target.protections or target.unnamed:
        return None
    found = declared_bound(target.protections, target.statement.trainings, 1 + len(target.also))
    if isinstance(found, Doubt):
        doubts.append(found)
        return None
    certificate = planned_certificate(found, target.further)
    return certificate.model_copy(update={"assumptions": dict.fromkeys(("noise", "training"), "declared")})
