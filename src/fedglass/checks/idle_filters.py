"""Filters that did nothing to a message, as the message alone shows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fedglass.checks.claim import Claim
from fedglass.core.tensors import Params
from fedglass.core.thresholds import CLIP_SLACK_RECORDED
from fedglass.defend.filters import FlowerFixedClipping, PercentilePrivacy
from fedglass.defend.noise_model import named_parts


@dataclass(frozen=True)
class IdleFilter:
    """A filter that did nothing, and why."""

    filter: str
    why: str


def idle_filters(claim: Claim) -> Iterator[IdleFilter]:
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
                yield IdleFilter(repr(part), f"the update has the norm {length:.3g}, which it allows")


def _without_cutoff(part: PercentilePrivacy, update: Params) -> Iterator[IdleFilter]:
    """Compare the zeros with those that a cutoff above 0 leaves: with more of them it was 0."""
    entries = torch.cat([tensor.flatten() for tensor in update.values()])
    zeros = int((entries == 0).sum())
    if part.percentile > 0 and zeros <= part.most_zeros(len(entries)):
        return
    clipped = int((entries.abs() >= part.gamma * part.steps * (1 - CLIP_SLACK_RECORDED)).sum())
    why = f"{zeros:,} of {len(entries):,} entries were 0 before, so its cutoff is 0 and it removed nothing"
    why = "a percentile of 0 removes nothing" if part.percentile == 0 else why
    yield IdleFilter(repr(part), f"{why}; it cut {clipped:,} entries off" if clipped else why)
