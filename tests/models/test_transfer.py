"""A transfer takes all that fits, draws a first or last layer of another size anew, and refuses all else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedglass.core.errors import DataError, ModelError
from fedglass.core.rng import stream
from fedglass.models.catalogue import build
from fedglass.models.init import Transfer
from fedglass.models.large import densenet

SMALL, LARGE = (3, 32, 32), (3, 96, 96)


def saved(path: Path, state: dict[str, Tensor]) -> str:
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    return str(path)


def taken(model: nn.Module, source: nn.Module) -> set[str]:
    """The names of all that the model has from the source."""
    own, other = model.state_dict(), source.state_dict()
    return {name for name in own if own[name].shape == other[name].shape and torch.equal(own[name], other[name])}


@pytest.mark.parametrize("classes", [1000, 10])
def test_a_resnet_for_photographs_lends_all_but_its_stem_to_one_for_thumbnails(tmp_path: Path, classes: int) -> None:
    source = build("resnet18", shape=LARGE, classes=classes, seed=1)
    path = saved(tmp_path / "w.safetensors", source.state_dict())
    model, again, other = (build("resnet18", shape=SMALL, classes=10, init=Transfer(path), seed=s) for s in (2, 2, 3))
    drawn = {"conv1.weight"} | ({"fc.weight", "fc.bias"} if classes != 10 else set())
    assert set(model.state_dict()) - taken(model, source) == drawn
    assert taken(model, again) == set(model.state_dict()), "what is drawn depends on the seed"
    assert "conv1.weight" not in taken(model, other)
    stem = model.get_parameter("conv1.weight")
    assert stem.shape == (64, 3, 3, 3)
    assert float(stem.detach().std()) == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.1)


def test_a_densenet_lends_all_but_its_stem_too(tmp_path: Path) -> None:
    source = densenet(shape=LARGE, classes=7, blocks=(2, 1))
    model = densenet(shape=SMALL, classes=4, blocks=(2, 1))
    Transfer(saved(tmp_path / "w.safetensors", source.state_dict())).apply(model, stream(0, "x"))
    drawn = {"features.conv0.weight", "classifier.weight", "classifier.bias"}
    assert set(model.state_dict()) - taken(model, source) == drawn


@pytest.mark.parametrize(
    "change",
    [
        {"conv1.weight": torch.zeros(32, 1, 7, 7)},
        {"conv1.weight": torch.zeros(16, 3, 7, 7)},
        {"conv1.weight": torch.zeros(32, 3, 99, 99)},
        {"conv1.weight": torch.zeros(32, 3, 7, 7), "bn1.weight": torch.zeros(16)},
    ],
)
def test_all_else_must_still_match(tmp_path: Path, change: dict[str, Tensor]) -> None:
    model = build("resnet8", shape=SMALL, classes=4, seed=1)
    assert set(change) <= set(model.state_dict())
    path = saved(tmp_path / "w.safetensors", model.state_dict() | change)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.raises(ModelError, match=r"belongs to another architecture: its .* has shape"):
        Transfer(path).apply(model, stream(0, "x"))
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_another_network_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "w.safetensors", build("resnet18", shape=LARGE, classes=10).state_dict())
    with pytest.raises(ModelError, match="belongs to another architecture: it lacks"):
        Transfer(path).apply(build("mobilenet_v2", shape=SMALL, classes=10), stream(0, "x"))


def test_a_file_that_cannot_be_read_is_met_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"\xff" * 64)
    with pytest.raises(DataError, match=r"damaged or of another format\. Save it again with safetensors"):
        Transfer(str(path)).apply(build("resnet8", shape=SMALL, classes=4), stream(0, "x"))
