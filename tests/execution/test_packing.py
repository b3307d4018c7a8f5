"""What is packed comes back as it was, to the last bit, and in memory of torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedglass.execution.executor import UnsendableJob, from_bytes, to_bytes

PLAIN = (
    torch.tensor([[0.1, float("nan")], [float("inf"), -0.0]]),
    torch.rand(3, 5, dtype=torch.float64),
    torch.tensor(7),
    torch.zeros(0, 4),
)
OTHERS = (
    torch.rand(4, 6).T,
    torch.rand(10)[2:5],
    torch.rand(3).bfloat16(),
    torch.rand(3).half(),
    torch.tensor([True, False]),
    torch.rand(3, dtype=torch.complex64).conj(),
    torch.rand(3).expand(2, 3),
)


@pytest.mark.parametrize("tensor", [*PLAIN, *OTHERS], ids=lambda t: f"{t.dtype} {tuple(t.shape)}")
def test_tensors_come_back(tensor: Tensor) -> None:
    found = from_bytes(to_bytes({"a": tensor}))["a"]
    assert (found.dtype, found.shape, found.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert torch.equal(found.nan_to_num(9.0), tensor.nan_to_num(9.0))
    assert not found.is_floating_point() or torch.equal(found.signbit(), tensor.signbit())


def test_memory_is_aligned_as_torch_aligns_it() -> None:
    for size in (1, 3, 33, 1001):
        assert from_bytes(to_bytes(torch.rand(size))).data_ptr() % 64 == 0


def test_models_keep_their_ties_and_what_learns() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    found = from_bytes(to_bytes(model))
    assert found[2].weight is found[0].weight
    assert all(p.requires_grad for p in found.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor)


def test_one_tensor_in_two_places_stays_one() -> None:
    tensor = torch.rand(3)
    first, second = from_bytes(to_bytes([tensor, tensor]))
    assert first is second


def test_what_has_no_bytes_is_said() -> None:
    with pytest.raises(UnsendableJob, match="cannot be sent to a worker process"):
        to_bytes(lambda: None)
