"""Doubts about the filters of NVFlare and the mods of Flower that a message passed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from fedglass.audit.target import Target
from fedglass.checks.claim import Claim
from fedglass.core.tensors import Params
from fedglass.core.text import some
from fedglass.core.thresholds import CLIP_SLACK_RECORDED
from fedglass.defend.filters import FlowerFixedClipping, FlowerLocalDP, PercentilePrivacy
from fedglass.defend.noise_model import epsilon_claims, named_parts
from fedglass.verdict.doubts import Doubt, DoubtKind, doubt


def filter_doubts(target: Target) -> Iterator[Doubt]:
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


def scalars_without_noise(claim: Claim) -> Doubt | None:
    """Return that Flower's mods leave out the 0-d parameters of this network; None where it has none."""
    scalars = [name for name, tensor in claim.before.items() if tensor.dim() == 0]
    parts = (part for client in claim.private for part in named_parts(client.protection.release))
    mod = next((part for part in parts if isinstance(part, FlowerLocalDP | FlowerFixedClipping)), None)
    if mod is None or not scalars:
        return None
    missing = "clipping and noise" if isinstance(mod, FlowerLocalDP) else "clipping"
    why = f"It leaves 0-d parameters ({some(scalars)}) without {missing}."
    return doubt(DoubtKind.DEFENCE_NOT_BOUNDED, defence=repr(mod), why=why)
