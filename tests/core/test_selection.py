"""Selection is compared with a sorted copy."""

from __future__ import annotations

import pytest
import torch

from fedglass.core.rng import stream
from fedglass.core.tensors import kth_smallest


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("k", [1, 2, 500, 1000, 1001])
def test_the_kth_smallest_stands_there_in_a_sorted_copy(dtype: torch.dtype, k: int) -> None:
    values = (10 * torch.randn(1001, generator=stream(0, "values"))).to(dtype)  # many equal ones among the integers
    before = values.clone()
    found = kth_smallest(values, k)
    assert found == values.sort().values[k - 1]
    assert found.dtype == dtype
    assert found.shape == ()
    assert torch.equal(values, before)


def test_selection_leaves_the_graph_alone() -> None:
    values = torch.tensor([2.0, 1.0], requires_grad=True)
    assert not kth_smallest(values, 1).requires_grad
