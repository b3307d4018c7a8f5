"""Networks of which a part is not trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedglass.core.errors import ModelError
from fedglass.core.identity import of_model
from fedglass.core.tensors import buffers_of, weights_of
from fedglass.core.types import BatchNorm
from fedglass.models.names import matching_parameters, unmoved, with_fixed
from fedglass.models.network import Network


class Tied(nn.Module):
    """A layer that is used twice, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(2, 2)
        self.two = nn.Linear(2, 2)
        self.two.weight = self.one.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.two(self.one(inputs))
        return found


def two_layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(3, 2))


def test_the_function_is_the_same() -> None:
    model, inputs = two_layers(), torch.ones(4, 2)
    fixed = with_fixed(model, ["0.weight", "0.bias"])
    network = Network(fixed, buffers_of(fixed), BatchNorm.FROZEN)
    assert network.names == ("2.weight", "2.bias")
    assert torch.equal(network(list(weights_of(fixed).values()), inputs), model(inputs))
    assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_it_is_another_network_to_whoever_keeps_records() -> None:
    model = two_layers()
    names = {of_model(made) for made in (model, with_fixed(model, ["0.bias"]), with_fixed(model, ["0.weight"]))}
    assert len(names) == 3


def test_a_head_that_is_not_trained_tells_no_labels() -> None:
    fixed = with_fixed(two_layers(), ["2.weight", "2.bias"])
    with pytest.raises(ModelError, match="last dense layer is not trained"):
        Network(fixed, buffers_of(fixed), BatchNorm.FROZEN).head  # noqa: B018 # it raises


@pytest.mark.parametrize("name", ["none", "one.weight", "two.weight"])
def test_what_cannot_be_held_fixed_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match=f"'{name}' cannot be held fixed"):
        with_fixed(Tied(), [name])


def test_names_are_patterns() -> None:
    assert matching_parameters(two_layers(), ["0.*", "*.bias"]) == ["0.weight", "0.bias", "2.bias"]
    with pytest.raises(ModelError, match=r"'features.\*', which matches no parameter, expected some of 0.weight"):
        matching_parameters(two_layers(), ["features.*"])
    with pytest.raises(ModelError, match="all parameters"):
        matching_parameters(two_layers(), ["*"])


def test_the_rounding_of_a_mean_is_no_movement() -> None:
    before = torch.tensor([1.0, -3.0, 0.0])
    mean = (before * 0.3 + before * 0.7).sub(before)
    assert unmoved(before, mean)
    assert not unmoved(before, torch.tensor([0.0, 0.0, 1e-12]))
    assert not unmoved(before, 1e-6 * before)
