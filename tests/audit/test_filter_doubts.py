"""Filters that do nothing, or less than they declare, are doubts of the message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fedglass.audit.check_message import CheckMessage
from fedglass.audit.simulated import Simulated
from fedglass.audit.target import Target
from fedglass.core.types import Training, Whitening
from fedglass.defend.filters import FlowerFixedClipping, FlowerLocalDP, PercentilePrivacy, SVTPrivacy
from fedglass.defend.noise import GaussianNoise
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation
from fedglass.fl.release import Chain
from fedglass.verdict.collect_doubts import flag
from fedglass.verdict.doubts import Doubt, DoubtKind

SHAPE, PLAIN = (1, 8, 8), Whitening((0.0,), (1.0,))


def doubts(release: Any, model: nn.Module, rounds: int = 1) -> dict[DoubtKind, Doubt]:
    """The doubts of a message whose pictures are black in half of their pixels."""
    images = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0))
    images[..., :4] = 0.0
    client = Client("client 0", images, torch.tensor([0, 1]), release=release)
    source = Simulated(Federation(model, [client], Training(lr=0.1), 10, PLAIN), rounds)
    (target,) = source.targets(lambda done, total: None)
    assert isinstance(target, Target)
    found = CheckMessage().measure(target, 0, lambda *given: None)
    return {each.kind: each for each in found.record["doubts"]}


def dense() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Sigmoid(), nn.Linear(20, 10))


class Scaled(nn.Module):
    """A network with a 0-d parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scale = dense(), nn.Parameter(torch.tensor(1.0))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.body(images) * self.scale
        return logits


def test_a_cutoff_of_zero_is_a_doubt() -> None:
    """Black pixels make half of the first layer's gradient exactly 0, far more than ten per cent."""
    text = flag(doubts(PercentilePrivacy(10, gamma=1.0), dense())[DoubtKind.IDLE_FILTER]).text
    assert "640 of 1,510 entries were 0 before, so its cutoff is 0 and it removed nothing" in text
    assert "cut" not in text.partition("nothing;")[2]


def test_entries_that_are_cut_off_are_counted() -> None:
    text = flag(doubts(PercentilePrivacy(10, gamma=1e-4), dense())[DoubtKind.IDLE_FILTER]).text
    assert "entries off" in text


@pytest.mark.parametrize("percentile", [50, 95])
def test_a_filter_that_removes_entries_is_none(percentile: float) -> None:
    assert DoubtKind.IDLE_FILTER not in doubts(PercentilePrivacy(percentile, gamma=1.0), dense())


def test_clipping_that_is_not_reached_is_a_doubt() -> None:
    assert "which it allows" in flag(doubts(FlowerFixedClipping(1e3), dense())[DoubtKind.IDLE_FILTER]).text
    assert DoubtKind.IDLE_FILTER not in doubts(FlowerFixedClipping(1e-3), dense())


@pytest.mark.parametrize(
    ("release", "model", "said"),
    [
        (FlowerFixedClipping(1.0, adaptive=True), dense, "so epsilon is not computed."),
        (SVTPrivacy(), dense, "only its own accounting bounds it."),
        (FlowerLocalDP(1.0, 1.0, 1.0, 1e-5), Scaled, "It leaves 0-d parameters (scale) without clipping and noise."),
        (
            Chain((FlowerFixedClipping(0.1), GaussianNoise(0.1))),
            Scaled,
            "It leaves 0-d parameters (scale) without clipping.",
        ),
    ],
)
def test_why_a_filter_has_no_certificate(release: Any, model: Callable[[], nn.Module], said: str) -> None:
    found = doubts(release, model())
    assert flag(found[DoubtKind.DEFENCE_NOT_BOUNDED]).text.endswith(said)


@pytest.mark.parametrize(("rounds", "real"), [(1, "2.13e+08"), (4, "8.52e+08")])
def test_a_declared_epsilon_that_does_not_hold_is_a_doubt(rounds: int, real: str) -> None:
    flip = FlowerLocalDP(clipping_norm=1.0, sensitivity=1e-4, epsilon=10.0, delta=1e-5)
    text = flag(doubts(flip, dense(), rounds)[DoubtKind.EPSILON_NOT_AS_DECLARED]).text
    assert f"declares epsilon 10, but it is {real}: " in text


def test_a_declared_epsilon_that_holds_is_none() -> None:
    calibrated = FlowerLocalDP(clipping_norm=0.1, sensitivity=0.1, epsilon=1.0, delta=1e-5)
    assert DoubtKind.EPSILON_NOT_AS_DECLARED not in doubts(calibrated, dense())
    assert DoubtKind.EPSILON_NOT_AS_DECLARED in doubts(calibrated, dense(), rounds=3)
    silent = doubts(FlowerLocalDP(0.1, 0.0, 1.0, 1e-5), dense())
    assert "it is infinite: it adds no noise" in flag(silent[DoubtKind.EPSILON_NOT_AS_DECLARED]).text


def test_the_release_of_svt_privacy_is_counted() -> None:
    """151 of 1,510 entries at 0.1 each, and 0.1 for their choice."""
    text = flag(doubts(SVTPrivacy(), dense())[DoubtKind.EPSILON_NOT_AS_DECLARED]).text
    assert "declares epsilon 0.1, but it is 15.2: the values that it sends cost 15.1 in each release." in text
