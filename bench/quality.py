"""Time to the published quality: the default recipes beside those that follow the papers, on the same messages.

The embedded data stand in for the papers': `fedglass reproduce` has the papers' own settings.
"""

from __future__ import annotations

import time

from bench import cases
from fedglass.attack.attack import Attack
from fedglass.attack.labels.given import OracleLabels
from fedglass.core.types import Observation, Training
from fedglass.federation.truth import Truth
from fedglass.metrics.catalogue import match
from fedglass.metrics.images import psnr
from fedglass.recipes.dlfa import dlfa, dlfa_published
from fedglass.recipes.sme import sme, sme_published

LABELS = OracleLabels()


def measure() -> list[tuple[str, str, str]]:
    colour = cases.colour(10, Training(lr=0.004, epochs=10, batch_size=10))
    grey = cases.grey(20, Training(lr=0.004, epochs=5, batch_size=5))
    return [
        compare("sme, 10 photos, E=10, B=10", sme(labels=LABELS), sme_published(labels=LABELS), *colour),
        compare("dlfa, 20 glyphs, E=5, m=5", dlfa(labels=LABELS), dlfa_published(labels=LABELS), *grey),
    ]


def compare(what: str, ours: Attack, published: Attack, seen: Observation, truth: Truth) -> tuple[str, str, str]:
    """A row: seconds and PSNR of both."""
    (our_time, our_psnr), (their_time, their_psnr) = (timed(attack, seen, truth) for attack in (ours, published))
    found = f"{our_time / their_time:.2f} x: {our_time:.0f} s, {our_psnr:.1f} dB"
    return (
        f"{what}: default beside published",
        f"{found} ({their_time:.0f} s, {their_psnr:.1f} dB)",
        "at most 0.5 x at the published dB",
    )


def timed(attack: Attack, seen: Observation, truth: Truth) -> tuple[float, float]:
    start = time.perf_counter()
    images = attack.run(seen).images.clamp(0, 1)
    seconds = time.perf_counter() - start
    return seconds, float(psnr(match(images, truth.images).apply(images), truth.images).mean())
