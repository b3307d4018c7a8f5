"""A user's own model, and everything that can be wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fedglass.core.errors import ModelError
from fedglass.core.tensors import weights_of
from fedglass.models.catalogue import build
from fedglass.models.init import KaimingUniform

CODE = """
import torch
from torch import nn

def make(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))

def fixed():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))

def only_classes(*, classes, width=4, **options):
    assert not options
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.BatchNorm1d(width), nn.Linear(width, classes))

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.fc = nn.Linear(12, classes)
    def forward(self, x):
        return self.fc(x.flatten(1))

class Zoo:
    net = Net

class Twice(Net):
    def forward(self, x):
        return super().forward(x), x

def broken(shape, classes):
    raise KeyError("width")

def text(shape, classes):
    return "a model"

instance = fixed()
number = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "mine_for_tests.py").write_text(CODE)
    (tmp_path / "wrong_for_tests.py").write_text("def make(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "mine_for_tests"


def built(name: str, classes: int = 3, seed: int = 0) -> nn.Module:
    return build(name, shape=(3, 2, 2), classes=classes, seed=seed)


@pytest.mark.parametrize("factory", ["make", "fixed", "only_classes", "Net", "Zoo.net"])
def test_a_factory_gets_what_it_takes(mine: str, factory: str) -> None:
    before = torch.get_rng_state()
    model, again, other = (built(f"{mine}:{factory}", seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert model(torch.zeros(2, 3, 2, 2)).shape == (2, 3)
    assert all(torch.equal(w, weights_of(again)[name]) for name, w in weights_of(model).items())
    assert any(not torch.equal(w, weights_of(other)[name]) for name, w in weights_of(model).items())
    assert all(layer.training for layer in model.modules())


def test_the_trial_changes_no_statistics(mine: str) -> None:
    assert built(f"{mine}:only_classes").get_buffer("2.num_batches_tracked") == 0


def test_another_initialisation_replaces_the_weights(mine: str) -> None:
    model = build(f"{mine}:fixed", shape=(3, 2, 2), classes=3, init=KaimingUniform())
    assert not model.get_parameter("1.bias").any()


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("no_such_package.x:make", "does not import: ModuleNotFoundError: No module named 'no_such_package'"),
        ("mine_for_tests:mak", "has no 'mak', .* did you mean 'make'"),
        ("wrong_for_tests:make", "does not import: SyntaxError"),
        (":make", "not of the form 'package.module:name'"),
        ("mine_for_tests:", "not of the form 'package.module:name'"),
        ("mine_for_tests:number", "is int, expected a function or a class"),
        ("mine_for_tests:instance", "is Sequential, expected a function or a class"),
        ("mine_for_tests:broken", "failed: KeyError: 'width'"),
        ("mine_for_tests:text", "returned str, expected a torch.nn.Module"),
        ("mine_for_tests:Twice", "returned tuple for a batch of 2, expected logits of shape \\(2, 4\\)"),
        (
            "mine_for_tests:fixed",
            "returned shape \\(2, 3\\) for a batch of 2, expected logits of shape \\(2, 4\\), one output for each "
            "class or for each number of a target: correct the network, the number of classes or the targets",
        ),
    ],
)
def test_what_is_wrong_is_said(mine: str, name: str, match: str) -> None:
    with pytest.raises(ModelError, match=match):
        built(name, classes=4)


def test_a_shape_that_does_not_fit_is_said(mine: str) -> None:
    with pytest.raises(ModelError, match=r"does not take a batch of shape \(2, 3, 9, 9\): RuntimeError"):
        build(f"{mine}:fixed", shape=(3, 9, 9), classes=3)
