"""The rank of the true examples is as rare as it claims to be, whatever the decoys look like."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy.stats import binom

from fedglass.core.rng import stream
from fedglass.core.types import Training
from fedglass.guard.checks import decoys_for, decoys_of, rank_of_first
from fedglass.guard.outbound import Outbound

TRIALS, LEVEL, ENTRIES = 600, 0.05, 200


def share_of_alarms(signal: float, length: float, common: float) -> float:
    """How often the first of 20 messages is best; its own length and what all have in common say nothing of it."""
    alarms = 0
    for trial in range(TRIALS):
        draws = stream(trial, "alarms")
        apart = torch.randn(decoys_for(LEVEL) + 1, ENTRIES, generator=draws, dtype=torch.float64)
        apart[0] *= length
        messages = apart + common * torch.randn(ENTRIES, generator=draws, dtype=torch.float64)
        sent = signal * messages[0] + 10 * torch.randn(ENTRIES, generator=draws, dtype=torch.float64)
        alarms += rank_of_first(sent, messages) <= LEVEL
    return alarms / TRIALS


@pytest.mark.parametrize("length", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("common", [0.0, 10.0])
def test_noise_alone_raises_no_more_alarms_than_it_may(length: float, common: float) -> None:
    most = binom.ppf(1 - 1e-6, TRIALS, LEVEL) / TRIALS
    assert share_of_alarms(0.0, length, common) <= most


def test_a_message_that_tells_is_found() -> None:
    assert share_of_alarms(10.0, 1.0, 0.0) > 0.95
    assert share_of_alarms(1.0, 1.0, 0.0) > 3 * LEVEL


def test_candidates_that_all_send_the_same_tell_nothing() -> None:
    assert rank_of_first(torch.ones(3), torch.ones(5, 3)) == 1.0


def test_a_decoy_that_diverges_fits_nothing() -> None:
    messages = torch.tensor([[1.0, 0.0], [float("inf"), 0.0], [0.0, 1.0]], dtype=torch.float64)
    assert rank_of_first(messages[0], messages) == pytest.approx(1 / 3)


@pytest.mark.parametrize("others", [0, 1, 3, 40])
def test_decoys_are_all_different_and_none_is_the_truth(toy: Any, others: int) -> None:
    inputs = toy.images(2, "true")
    given = torch.cat([inputs, toy.images(others, "others")]) if others else None
    model = toy.dense()
    before = {name: t.detach() for name, t in model.named_parameters()}
    out = Outbound(model, before, before, inputs, torch.tensor([0, 1]), Training(lr=0.1), others=given)
    found = [out.colours.whiten(images) for images in decoys_of(out, 19, 0)]
    assert len({images.numpy().tobytes() for images in found}) == 19
    for images in found:
        assert images.shape == inputs.shape
        assert all(float((image - true).abs().max()) > 1e-3 for image in images for true in inputs)
