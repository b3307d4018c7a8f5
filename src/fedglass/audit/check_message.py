"""The check of a message: is it what it is said to be, is everything in view, and what bounds what it reveals?

It runs once for each message, whatever attacks are run on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fedglass.attack.parts import Progress
from fedglass.audit.assessment import guessed_public
from fedglass.audit.certificate import (
    DIVERGES,
    TOO_LONG,
    bound_of,
    declared_bound,
    planned_certificate,
    shown_figures,
)
from fedglass.audit.probes import unusable_state
from fedglass.audit.target import ProbeResult, Target
from fedglass.checks.claim import Claim
from fedglass.checks.consistency import contradictions
from fedglass.checks.noise import (
    noise_models,
    public_directions,
    replayed,
    residual_of,
    signal_directions,
    tensors_with_less_noise,
    total_std,
    usable_pool,
    without_noise,
)
from fedglass.checks.replay import ORDERS, has_fixed_order, replay, too_long
from fedglass.checks.residual import refutations, rounding_of, spread_of
from fedglass.core.tensors import Params
from fedglass.core.text import some
from fedglass.core.thresholds import CLIP_SLACK_RECORDED, NOISE_LEVEL, REPLAY_SPREAD
from fedglass.defend.filters import FlowerFixedClipping, PercentilePrivacy
from fedglass.defend.noise_model import NoiseModel, epsilon_claims, named_parts
from fedglass.metrics.catalogue import DEFAULT_METRICS
from fedglass.verdict.doubts import Doubt, DoubtKind, doubt
from fedglass.verdict.records import Certificate

SHOWN = 3
"""Tensors named in one sentence."""
RECORD_ORDER = "Record the order of the batches."


@dataclass(frozen=True)
class CheckMessage:
    """The probe that checks one message and states its certificate."""

    kind: ClassVar[str] = "certificate"
    metrics: ClassVar[tuple[str, ...]] = ()

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        unsound = unusable_state(target.observation)
        if unsound is not None:
            return _finding([doubt(unsound)])
        doubts = [doubt_ for doubt_ in target.doubts if doubt_.kind is not DoubtKind.NOT_AS_DECLARED]
        replays: list[dict[str, Any]] = []
        if not target.simulated:
            doubts += message_doubts(target, replays)
        doubts += _filter_doubts(target)
        certificate = None
        claims = [doubt_.claim for doubt_ in (target, *target.joint_targets)]
        if target.truth is None:
            doubts.append(doubt(DoubtKind.NO_TRUTH))
            certificate = _without_truth(target, doubts)
        elif all(claim is not None for claim in claims):
            certificate = _certificate(target, [claim for claim in claims if claim is not None], doubts, seed)
        elif not any(doubt_.kind is DoubtKind.NOT_REPLAYED for doubt_ in doubts):
            doubts.append(doubt(DoubtKind.NOT_REPLAYED, why="What was declared of the message was not kept."))
        guessed = {} if target.pool is None else guessed_public(target.pool, DEFAULT_METRICS)
        return _finding(doubts, certificate, blind_public=guessed, extra={"replay": replays} if replays else {})


def _finding(doubts: Sequence[Doubt], certificate: Certificate | None = None, **fields: Any) -> ProbeResult:
    unique = list({doubt_.model_dump_json(): doubt_ for doubt_ in doubts}.values())
    return ProbeResult({"kind": "certificate", "doubts": unique, "certificate": certificate, **fields})


def message_doubts(target: Target, replays: list[dict[str, Any]] | None = None) -> list[Doubt]:
    """Return the doubts whether a recorded message, and those attacked together with it, are as claimed.

    The outcomes of replays are appended to `replays`.
    """
    outcomes: list[dict[str, Any]] = [] if replays is None else replays
    return [doubt_ for message in (target, *target.joint_targets) for doubt_ in _claim_doubts(message, outcomes)]


def _claim_doubts(target: Target, replays: list[dict[str, Any]]) -> Iterator[Doubt]:
    """Yield the doubts whether one recorded message is as claimed."""
    claim, explained = target.claim, False
    reasons = [str(doubt_.details["found"]) for doubt_ in target.doubts if doubt_.kind is DoubtKind.NOT_AS_DECLARED]
    if claim is None or any(client.truth is None for client in claim.clients):
        if target.truth is not None:
            missing = "Say how the clients trained: recording.training."
            yield doubt(DoubtKind.NOT_REPLAYED, why=" ".join([missing, *target.recorder_caveats]))
    elif not claim.honest:
        why = "Some participants are not honest, and what they do is not run again."
        yield doubt(DoubtKind.NOT_REPLAYED, why=why)
    elif not claim.combined_by_mean:
        why = "A rule other than the mean combined the updates, and only a mean is run again."
        yield doubt(DoubtKind.NOT_REPLAYED, why=why)
    elif any(isinstance(model, NoiseModel) for model in noise_models(claim.clients)):
        yield from _noise_doubts(target, claim)
        explained = True  # what the noise leaves is tested as a whole
    else:
        outcome = replay(claim)
        # An unnamed defence cannot be run again, so that a replay cannot give the message.
        defended = claim.unnamed_defence and bool(target.defences)
        if outcome is None or (outcome.proves_nothing and not defended):
            yield doubt(DoubtKind.NOT_REPLAYED, why=TOO_LONG if outcome is None else f"{outcome.text}.")
        else:
            explained = outcome.explained
            replays.append({"residual": outcome.residual, "explained": explained})
            if not explained and not defended:
                correction = f"; what explains it: {outcome.correction}" if outcome.correction else ""
                reasons += [outcome.text + correction, *target.recorder_caveats]
    if not explained and claim is not None:
        reasons += contradictions(claim)
    if reasons:
        yield doubt(DoubtKind.NOT_AS_DECLARED, found="; ".join(dict.fromkeys(reasons)))


def _noise_doubts(target: Target, claim: Claim) -> Iterator[Doubt]:
    """Test whether what a replay without noise leaves of the message is the claimed noise."""
    models = [model for model in noise_models(claim.clients) if isinstance(model, NoiseModel)]
    laws = {model.law for model in models}
    std = total_std(claim, hidden=False) if laws == {"gaussian"} else None
    if laws == {"laplacian"} and len(claim.clients) == 1:
        std = models[0].std
    if not all(model.testable for model in models) or not std:
        yield from _size_doubts(claim, models)
        return
    if too_long(claim):
        yield doubt(DoubtKind.NOISE_NOT_TESTABLE, why=TOO_LONG)
        return
    plain = without_noise(claim)
    replays = [replayed(plain, order) for order in range(1 if has_fixed_order(claim) else ORDERS - 1)]
    if not all(bool(torch.isfinite(tensor).all()) for update in replays for tensor in update.values()):
        yield doubt(DoubtKind.NOT_AS_DECLARED, found=DIVERGES)
        return
    if len(replays) > 1 and spread_of(replays, std) > REPLAY_SPREAD:
        why = "The order of the batches was not recorded, and changes the message by more than the noise allows."
        yield doubt(DoubtKind.NOISE_NOT_TESTABLE, why=why, remedy=RECORD_ORDER)
        return
    residual = residual_of(
        claim,
        replays[0],
        std,
        models[0].law,
        public=public_directions(claim, usable_pool(claim, target.pool)),
        signal=signal_directions(plain),
        others=target.same_noise_in,
    )
    if rounding_of(residual) > 1:
        why = "The message is rounded more coarsely than the noise."
        yield doubt(DoubtKind.NOISE_NOT_TESTABLE, why=why, remedy="Send the message in a finer type.")
        return
    refuted = refutations(residual)
    if refuted:
        tests = dict.fromkeys(refutation.test.replace("_", " ") for refutation in refuted)
        yield doubt(DoubtKind.NOISE_REFUTED, tests=list(tests), p=min(refutation.p for refutation in refuted))


def _size_doubts(claim: Claim, models: Sequence[NoiseModel]) -> Iterator[Doubt]:
    """Refute noise that leaves no residual to test where a tensor holds far less of it than replays do."""
    if too_long(claim):
        yield doubt(DoubtKind.NOISE_NOT_TESTABLE, why=TOO_LONG)
        return
    in_steps = has_fixed_order(claim) and any(client.steps > 1 for client in claim.clients)
    if in_steps and not all(model.additive for model in models):
        why, remedy = "It is added in several local steps.", "Use one noisy step per round."
    else:
        why = "Something is done to the noisy result, or the noise is added in several local steps."
        remedy = RECORD_ORDER
    yield doubt(DoubtKind.NOISE_NOT_TESTABLE, why=why, remedy=remedy)
    lacking = tensors_with_less_noise(claim, replayed(without_noise(claim)))
    if lacking:
        found = f"less noise than declared in {some(lacking, SHOWN)}"
        yield doubt(DoubtKind.NOISE_REFUTED, tests=[found], p=NOISE_LEVEL)


def _filter_doubts(target: Target) -> Iterator[Doubt]:
    """Yield the doubts about the filters of a message, and of those that are attacked together with it."""
    for message in (target, *target.joint_targets):
        if message.claim is not None:
            yield from _idle_filters(message.claim)
    # A bundle has its declared epsilons compared when it is read, over all of its rounds.
    if target.claim is not None and not any(known.kind is DoubtKind.EPSILON_NOT_AS_DECLARED for known in target.doubts):
        entries = sum(tensor.numel() for tensor in target.claim.before.values())
        releases = 1 + len(target.joint_targets) + target.further
        for client in target.claim.private:
            for claim in epsilon_claims(client.protection.release, releases, entries):
                if claim.exceeded:
                    yield doubt(DoubtKind.EPSILON_NOT_AS_DECLARED, **claim.details)


def _idle_filters(claim: Claim) -> Iterator[Doubt]:
    """Yield the filters that did nothing to the message of one client; a mean of several clients shows none.

    Only the last filter can be seen in the message: what comes after it changes what it left.
    """
    if len(claim.clients) != 1:
        return
    last = named_parts(claim.clients[0].protection.release)[-1:]
    for part in last:
        # Buffers count in NVFlare's percentile and in Flower's norm, and are not in the update.
        if type(part) is PercentilePrivacy and not claim.buffers:
            yield from _without_cutoff(part, claim.update)
        if type(part) is FlowerFixedClipping:
            length = math.sqrt(sum(float(t.double().square().sum()) for t in claim.update.values()))
            if length < part.clipping_norm * (1 - CLIP_SLACK_RECORDED) and not claim.buffers:
                why = f"the update has the norm {length:.3g}, which it allows"
                yield doubt(DoubtKind.IDLE_FILTER, filter=repr(part), why=why)


def _without_cutoff(part: PercentilePrivacy, update: Params) -> Iterator[Doubt]:
    """Compare the zeros with those that a cutoff above 0 leaves: with more of them it was 0."""
    entries = torch.cat([tensor.flatten() for tensor in update.values()])
    zeros = int((entries == 0).sum())
    if part.percentile > 0 and zeros <= part.most_zeros(len(entries)):
        return
    clipped = int((entries.abs() >= part.gamma * part.steps * (1 - CLIP_SLACK_RECORDED)).sum())
    why = f"{zeros:,} of {len(entries):,} entries were 0 before, so its cutoff is 0 and it removed nothing"
    why = "a percentile of 0 removes nothing" if part.percentile == 0 else why
    why = f"{why}; it cut {clipped:,} entries off" if clipped else why
    yield doubt(DoubtKind.IDLE_FILTER, filter=repr(part), why=why)


def _certificate(target: Target, claims: Sequence[Claim], doubts: list[Doubt], seed: int) -> Certificate | None:
    """Return the certificate of a message with known examples, and append why it does not hold."""
    if not claims[0].honest:
        doubts.append(doubt(DoubtKind.DEFENCE_NOT_BOUNDED, defence="a client that is not honest", why=""))
        return None
    pool = usable_pool(claims[0], target.pool)
    bound = bound_of(claims, pool)
    if isinstance(bound, Doubt):
        if not any(doubt_.kind is DoubtKind.DEFENCE_NOT_NAMED for doubt_ in doubts):
            doubts.append(bound)
        return None
    certificate = planned_certificate(bound, target.further)
    if target.further and certificate.success_planned is None:
        doubts.append(doubt(DoubtKind.MORE_ROUNDS, rounds=target.further))
    basis = "construction" if target.simulated else "tested"
    if any(doubt_.kind is DoubtKind.NOISE_NOT_TESTABLE for doubt_ in doubts):
        basis = "declared"
    assumptions = {"noise": basis, "training": basis, "unpredictable noise": "declared"}
    if target.further and not target.simulated:
        assumptions["rounds that are not audited"] = "declared"
    if bound.identical:
        assumptions = {"training": basis}
    if certificate.accounting == "pld":
        assumptions["Poisson samples"] = basis
    return certificate.model_copy(update={"assumptions": assumptions, **shown_figures(claims, bound, pool, seed)})


def _without_truth(target: Target, doubts: list[Doubt]) -> Certificate | None:
    """Return the certificate by the claim alone; it counts only where the gate trusts declarations."""
    if target.claim is None or target.claim.unnamed_defence:
        return None
    bound = declared_bound(target.claim, 1 + len(target.joint_targets))
    if isinstance(bound, Doubt):
        doubts.append(bound)
        return None
    certificate = planned_certificate(bound, target.further)
    return certificate.model_copy(update={"assumptions": dict.fromkeys(("noise", "training"), "declared")})
