"""Weights files: what fits is loaded, what does not is refused with a reason."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Generator, Tensor, nn

from fedglass.core.errors import DataError, ModelError
from fedglass.core.tensors import weights_of
from fedglass.models.catalogue import build
from fedglass.models.init import FromFile, Transfer
from fedglass.models.large import densenet

SHAPE = (1, 8, 8)


def saved(path: Path, state: dict[str, Tensor]) -> str:
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    return str(path)


def resnet(classes: int = 5, seed: int = 0) -> nn.Module:
    return build("resnet8", shape=SHAPE, classes=classes, seed=seed)


def load(model: nn.Module, path: str) -> None:
    FromFile(path).apply(model, Generator())


def test_weights_and_statistics_come_back(tmp_path: Path) -> None:
    source = resnet()
    source.train()(torch.randn(4, *SHAPE, generator=Generator().manual_seed(0)))
    path = saved(tmp_path / "w.safetensors", source.state_dict())
    model = build("resnet8", shape=SHAPE, classes=5, seed=1, init=FromFile(path))
    assert all(torch.equal(t, source.state_dict()[name]) for name, t in model.state_dict().items())


def test_half_precision_is_widened(tmp_path: Path) -> None:
    source = resnet()
    path = saved(tmp_path / "w.safetensors", {k: t.half() for k, t in source.state_dict().items()})
    model = resnet(seed=1)
    load(model, path)
    assert model.get_parameter("fc2.weight").dtype == torch.float32
    torch.testing.assert_close(weights_of(model), weights_of(source), rtol=1e-3, atol=1e-4)


def test_old_files_lack_the_counters_of_batches(tmp_path: Path) -> None:
    state = {k: t for k, t in resnet().state_dict().items() if not k.endswith("num_batches_tracked")}
    model = resnet(seed=1)
    load(model, saved(tmp_path / "w.safetensors", state))
    assert torch.equal(model.get_parameter("fc1.weight"), state["fc1.weight"])


def test_the_dotted_names_of_the_published_densenet(tmp_path: Path) -> None:
    """torchvision's file says `denselayer1.norm.1.weight` where the module is `denselayer1.norm1`."""
    source, model = (densenet(shape=SHAPE, classes=2, blocks=(2, 1)) for _ in range(2))
    dotted = {re.sub(r"(denselayer\d+\.\D+)(\d)", r"\1.\2", k): t for k, t in source.state_dict().items()}
    assert "features.denseblock1.denselayer2.conv.1.weight" in dotted
    load(model, saved(tmp_path / "w.safetensors", dotted))
    assert all(torch.equal(t, source.state_dict()[name]) for name, t in model.state_dict().items())


def test_tied_parameters_may_be_stored_once(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    load(model, saved(tmp_path / "w.safetensors", {"0.weight": torch.ones(3, 3), "0.bias": torch.ones(3)}))
    assert (model[1].weight == 1).all()


def refused(model: nn.Module, path: Path | str, error: type[Exception], match: str) -> None:
    before = {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.raises(error, match=match):
        load(model, str(path))
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "w.safetensors", build("lenet", shape=SHAPE, classes=5).state_dict())
    refused(resnet(), path, ModelError, "another architecture: it lacks 'conv1.weight' .* unknown 'body.0.bias'")


def test_another_stem_is_refused(tmp_path: Path) -> None:
    state = resnet().state_dict() | {"conv1.weight": torch.zeros(32, 1, 7, 7)}
    path = saved(tmp_path / "w.safetensors", state)
    refused(
        resnet(),
        path,
        ModelError,
        r"'conv1.weight' has shape \(32, 1, 7, 7\), expected \(32, 1, 3, 3\) \(1 such",
    )


def test_another_number_of_classes_is_said(tmp_path: Path) -> None:
    path = saved(tmp_path / "w.safetensors", resnet(classes=7).state_dict())
    refused(resnet(), path, ModelError, "a classifier of 7 classes, expected 5: .*'fc2.bias' and 'fc2.weight'")


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    state = resnet().state_dict() | {"fc2.bias": torch.full((5,), torch.nan)}
    refused(resnet(), saved(tmp_path / "w.safetensors", state), ModelError, "NaN or infinity in 'fc2.bias'")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    saved(path, resnet().state_dict())
    whole = path.read_bytes()
    header = json.dumps({"fc": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    lying = struct.pack("<Q", len(header)) + header + b"\0" * 8
    for content in (b"", b"\0" * 4, whole[:100], whole[:-1], b"\xff" * 64, b"PK\x03\x04" + whole[:99], lying):
        path.write_bytes(content)
        refused(resnet(), path, DataError, "cannot be read as safetensors .* damaged or of another format")
    refused(resnet(), tmp_path, DataError, "does not exist")
    refused(resnet(), tmp_path / "none.safetensors", DataError, "does not exist")


@pytest.mark.parametrize("init", [FromFile, Transfer])
def test_pytorchs_own_files_are_refused_with_what_converts_them(
    tmp_path: Path, init: type[FromFile] | type[Transfer]
) -> None:
    path, converted = tmp_path / "w.pth", tmp_path / "w.safetensors"
    torch.save(resnet().state_dict(), path)
    with pytest.raises(DataError, match=r"save_file\(torch.load\(path, weights_only=True\), 'weights.safetensors'\)"):
        init(str(path)).apply(resnet(), Generator())
    save_file(torch.load(path, weights_only=True), converted)
    init(str(converted)).apply(resnet(), Generator())
