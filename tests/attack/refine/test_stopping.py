"""When the search for a start is over."""

from __future__ import annotations

import pytest
import torch

from fedglass.attack.refine.masked_diffusion import Flattening, OracleEpoch
from fedglass.core.errors import UsageError


def test_a_curve_that_has_become_flat_is_told_from_one_that_falls() -> None:
    rule = Flattening(share=0.1, over=2)
    assert rule.stops(torch.tensor([[1.0, 1.0], [0.2, 0.8]])).tolist() == [False, False]  # too early to tell
    errors = [[1.0, 1.0], [0.2, 0.8], [0.18, 0.6], [0.17, 0.4]]
    assert rule.stops(torch.tensor(errors)).tolist() == [True, False]


def test_a_curve_that_goes_up_and_down_is_judged_by_its_lowest_points() -> None:
    assert Flattening(0.1, 2).stops(torch.tensor([[1.0], [0.2], [0.5], [0.3]])).tolist() == [True]


def test_an_epoch_that_was_told_is_kept_to() -> None:
    assert not OracleEpoch(1).stops(torch.tensor([[1.0, 1.0]])).any()
    assert OracleEpoch(1).stops(torch.tensor([[1.0, 1.0], [2.0, 0.1]])).all()
    assert OracleEpoch(0).stops(torch.tensor([[1.0, 1.0]])).all()


def test_rules_without_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1 epoch"):
        Flattening(over=0)
    with pytest.raises(UsageError, match="negative, got -1"):
        OracleEpoch(-1)
