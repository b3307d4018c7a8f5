"""Doubts about the filters of NVFlare and the mods of Flower that a message passed."""

from __future__ import annotations

from collections.abc import Iterator

from fedglass.audit.target import Target
from fedglass.checks.claim import Claim
from fedglass.checks.idle_filters import idle_filters
from fedglass.core.text import some
from fedglass.defend.declared_epsilon import epsilon_claims
from fedglass.defend.filters import FlowerLocalDP
from fedglass.defend.noise_model import named_parts
from fedglass.verdict.doubts import Doubt, DoubtKind, doubt


def filter_doubts(target: Target) -> Iterator[Doubt]:
    """Yield the doubts about the filters of a message, and of those that are attacked together with it."""
    for message in (target, *target.joint_targets):
        if message.claim is not None:
            for idle in idle_filters(message.claim):
                yield doubt(DoubtKind.IDLE_FILTER, filter=idle.filter, why=idle.why)
    # A bundle has its declared epsilons compared when it is read, over all of its rounds.
    if target.claim is not None and not any(known.kind is DoubtKind.EPSILON_NOT_AS_DECLARED for known in target.doubts):
        entries = sum(tensor.numel() for tensor in target.claim.before.values())
        releases = 1 + len(target.joint_targets) + target.further
        for client in target.claim.private:
            for claim in epsilon_claims(client.protection.release, releases, entries):
                if claim.exceeded:
                    yield doubt(DoubtKind.EPSILON_NOT_AS_DECLARED, **claim.details)


def scalars_without_noise(claim: Claim) -> Doubt | None:
    """Return that Flower's noise leaves out the 0-d parameters of this network; None where it has none."""
    scalars = [name for name, tensor in claim.before.items() if tensor.dim() == 0]
    parts = (part for client in claim.private for part in named_parts(client.protection.release))
    noise = next((part for part in parts if isinstance(part, FlowerLocalDP)), None)
    if noise is None or not scalars:
        return None
    why = f"It leaves 0-d parameters ({some(scalars)}) without clipping and noise."
    return doubt(DoubtKind.DEFENCE_NOT_BOUNDED, defence=repr(noise), why=why)
