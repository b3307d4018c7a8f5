"""Arithmetic on named tensors, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedglass.core.errors import ModelError, UpdateError, UsageError
from fedglass.core.tensors import add, buffers_of, check_update, check_weights, flatten, subtract, unflatten, weights_of


@pytest.fixture
def params() -> dict[str, torch.Tensor]:
    # The second one is not contiguous.
    return {"a": torch.arange(6.0).view(2, 3), "b": torch.arange(6.0).view(2, 3).t(), "c": torch.tensor(7.0)}


def test_flatten_and_unflatten_are_inverse(params: dict[str, torch.Tensor]) -> None:
    back = unflatten(flatten(params), params)
    assert list(back) == list(params)
    assert all(torch.equal(back[name], params[name]) for name in params)


def test_add_undoes_subtract(params: dict[str, torch.Tensor]) -> None:
    other = {name: tensor * 2 + 1 for name, tensor in params.items()}
    back = add(params, subtract(other, params))
    assert all(torch.equal(back[name], other[name]) for name in params)


def test_copies_share_nothing_with_the_model() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    weights, buffers = weights_of(model), buffers_of(model)
    for tensor in (*weights.values(), *buffers.values()):
        tensor.fill_(3)
    assert not any((p == 3).all() for p in (*model.parameters(), *model.buffers()))
    assert list(weights) == [name for name, _ in model.named_parameters()]


def test_a_fitting_update_passes(params: dict[str, torch.Tensor]) -> None:
    check_update(dict(reversed(params.items())), params)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"a": None}, "lacks 'a'"),
        ({"z": torch.zeros(1)}, "unknown 'z'"),
        ({"a": torch.zeros(3, 2)}, r"'a' has shape \(3, 2\), expected \(2, 3\)"),
        ({"c": torch.tensor(math.nan)}, "'c' holds NaN or infinity"),
        ({"c": torch.tensor(-math.inf)}, "'c' holds NaN or infinity"),
    ],
)
def test_a_wrong_update_is_refused_by_name(
    params: dict[str, torch.Tensor], change: dict[str, torch.Tensor | None], said: str
) -> None:
    update = {name: tensor for name, tensor in {**params, **change}.items() if tensor is not None}
    with pytest.raises(UpdateError, match=said):
        check_update(update, params)


def test_a_long_list_of_names_is_cut() -> None:
    like = {f"w{i}": torch.zeros(1) for i in range(10)}
    with pytest.raises(UsageError, match="'w0', 'w1', 'w2' and 7 more"):
        check_update({}, like)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bias": None}, "do not fit the model at 'bias'"),
        ({"more": torch.zeros(1)}, "do not fit the model at 'more'"),
        ({"weight": torch.zeros(3, 2)}, "do not fit the model at 'weight'"),
        ({"bias": torch.tensor([0.0, math.nan, 1.0])}, "NaN or infinity at 'bias'"),
    ],
)
def test_weights_of_another_model_are_refused(change: dict[str, torch.Tensor | None], said: str) -> None:
    model = nn.Linear(4, 3)
    check_weights(weights_of(model), model)
    weights = {name: tensor for name, tensor in {**weights_of(model), **change}.items() if tensor is not None}
    with pytest.raises(ModelError, match=said):
        check_weights(weights, model)
