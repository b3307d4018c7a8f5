"""Which buffers moved: in the last digits of one that seems unmoved there is room for a picture."""

from __future__ import annotations

import pytest
import torch

from fedglass.core.tensors import moved_others, moved_statistics


@pytest.mark.parametrize(("start", "share"), [(0.0, 5e-9), (1.0, 4e-6)])
def test_a_faint_picture_in_a_buffer_has_moved_it(start: float, share: float) -> None:
    before = torch.full((3, 8, 8), start)
    after = before + share * torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert moved_others({"seen": before}, {"seen": after}) == ["seen"]
    assert moved_others({"seen": before}, {"seen": after}, averaged=True) == ([] if start else ["seen"])
    statistics = {"norm.running_mean": before}, {"norm.running_mean": after}
    assert moved_statistics(*statistics) == ([] if start else ["norm.running_mean"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_storage_in_half_precision_moves_nothing(dtype: torch.dtype) -> None:
    before = torch.rand(100, generator=torch.Generator().manual_seed(0))
    assert moved_others({"seen": before}, {"seen": before.to(dtype).float()}) == []
