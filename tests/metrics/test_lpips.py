"""LPIPS against its published reference pair, its laws, and damaged weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from fedglass.core.errors import DataError
from fedglass.core.rng import stream
from fedglass.metrics.lpips import ALEX, VGG, Lpips, Trunk, find_weights

ALEX_FILE, VGG_FILE = "lpips_alex_v0.1.safetensors", "lpips_vgg_v0.1_fp16.safetensors"


def random_weights(trunk: Trunk = ALEX) -> dict[str, Tensor]:
    generator = stream(0, "weights", trunk.name)
    return {n: 0.05 * torch.randn(s, generator=generator) for n, s in trunk.shapes().items()}


def noise(*shape: int, name: str = "noise") -> Tensor:
    return torch.rand(*shape, generator=stream(0, name))


@pytest.fixture(scope="module")
def alex() -> Lpips:
    return Lpips(ALEX, random_weights())


@pytest.mark.parametrize(
    ("file", "trunk", "expected"),
    [(ALEX_FILE, ALEX, (0.721881, 0.137566)), (VGG_FILE, VGG, (0.568596, 0.421653))],
)
def test_the_published_reference_pair(shared_data: Path, file: str, trunk: Trunk, expected):
    def read(name: str) -> Tensor:
        pixels = np.asarray(Image.open(shared_data / "lpips_reference" / f"ex_{name}.png").convert("RGB"))
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None] / 255

    metric = Lpips.load(shared_data / file)
    assert metric.trunk == trunk
    found = metric(torch.cat([read("p0"), read("p1")]), read("ref").expand(2, -1, -1, -1))
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_noise_raises_the_distance_of_small_grey_images(shared_data: Path):
    metric = Lpips.load(shared_data / ALEX_FILE)
    digits = torch.from_numpy(np.load(shared_data / "mnist_10k.npz")["test_images"][:4] / 255.0)[:, None]
    curve = torch.stack([metric(digits + s * noise(4, 1, 28, 28), digits) for s in (0.0, 0.1, 0.3, 1.0)])
    assert (curve[0] == 0).all()
    assert (curve.diff(dim=0) > 0).all()


def test_a_broken_reconstruction_is_worse_than_any_blind_guess(shared_data: Path):
    metric = Lpips.load(shared_data / ALEX_FILE)
    for name in ("mnist_10k", "fashion_mnist_10k"):
        truth = torch.from_numpy(np.load(shared_data / f"{name}.npz")["test_images"][:4] / 255.0)[:, None]
        broken = metric(torch.full_like(truth, torch.nan), truth)
        nearly = torch.full_like(truth, torch.nan)
        nearly[..., 0, 0] = 0.5
        for guess in (noise(4, 1, 28, 28), torch.full_like(truth, 0.5), 1 - truth, nearly):
            assert (metric(guess, truth) < broken).all()
        assert (metric(nearly, truth) > metric(noise(4, 1, 28, 28), truth)).all()


def test_equal_is_zero_symmetric_and_blind_to_the_rest_of_the_batch(alex: Lpips):
    a, b = noise(18, 3, 32, 32), noise(18, 3, 32, 32, name="b")  # more than one pass
    both = alex(a, b)
    assert (alex(a, a) == 0).all()
    torch.testing.assert_close(alex(b, a), both)
    torch.testing.assert_close(torch.cat([alex(a[i : i + 1], b[i : i + 1]) for i in range(18)]), both)


def test_grey_is_the_same_as_three_equal_channels(alex: Lpips):
    a, b = noise(2, 1, 28, 28), noise(2, 1, 28, 28, name="b")
    torch.testing.assert_close(alex(a, b), alex(a.repeat(1, 3, 1, 1), b.repeat(1, 3, 1, 1)))


def test_small_images_are_enlarged_to_64_and_larger_ones_left_alone(alex: Lpips):
    a, b = noise(1, 3, 28, 40), noise(1, 3, 28, 40, name="b")
    large = [functional.interpolate(x, (64, 91), mode="bilinear", align_corners=False) for x in (a, b)]
    torch.testing.assert_close(alex(a, b), alex(*large), rtol=1e-5, atol=0)


def test_the_stacks_are_torchvisions_layers():
    weights = random_weights()
    x = noise(1, 3, 70, 90)
    layers = dict(weights)
    steps: list[Tensor] = []
    h = functional.relu(functional.conv2d(x, layers["features.0.weight"], layers["features.0.bias"], 4, 2))
    steps.append(h)
    for index, padding, pooled in ((3, 2, True), (6, 1, True), (8, 1, False), (10, 1, False)):
        h = functional.max_pool2d(h, 3, 2) if pooled else h
        w, b = layers[f"features.{index}.weight"], layers[f"features.{index}.bias"]
        h = functional.relu(functional.conv2d(h, w, b, padding=padding))
        steps.append(h)
    for found, expected in zip(ALEX.features(x, weights), steps, strict=True):
        torch.testing.assert_close(found, expected)


def test_a_broken_reconstruction_gets_a_finite_figure(alex: Lpips):
    truth = noise(2, 3, 32, 32)
    assert torch.isfinite(alex(torch.full_like(truth, 1e30), truth)).all()
    for value in (torch.nan, torch.inf):
        assert (alex(torch.full_like(truth, value), truth) == 1).all()


def test_other_channel_counts_are_refused(alex: Lpips):
    with pytest.raises(DataError, match="Expected images of 1 or 3 channels for LPIPS, got 4"):
        alex(noise(1, 4, 32, 32), noise(1, 4, 32, 32))


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_load_reads_what_was_saved(tmp_path: Path, alex: Lpips, half: torch.dtype):
    save_file({n: t.to(half) for n, t in random_weights().items()}, tmp_path / "w.safetensors")
    a, b = noise(1, 3, 32, 32), noise(1, 3, 32, 32, name="b")
    torch.testing.assert_close(Lpips.load(tmp_path / "w.safetensors")(a, b), alex(a, b), rtol=0.05, atol=0)


def damaged(path: Path) -> list[tuple[str, str]]:
    """Files that must be refused, and a piece of what is said."""
    good = random_weights()
    cases = {
        "lacking": (
            {n: t for n, t in good.items() if n != "lin3.weight"},
            r"1 missing \(first: \['lin3.weight'\]",
        ),
        "extra": (good | {"more": torch.zeros(1)}, r"1 unknown \(first: \['more'\]"),
        "scalar": (good | {"more": torch.tensor(1.0)}, "1 unknown"),
        "empty": ({}, "15 missing|31 missing"),
        "shape": (good | {"lin0.weight": torch.zeros(1, 65, 1, 1)}, r"\(1, 64, 1, 1\).*got \(1, 65, 1, 1\)"),
        "nan": (good | {"lin0.weight": torch.full((1, 64, 1, 1), torch.nan)}, "got NaN or infinity"),
        "int": (good | {"lin0.weight": torch.zeros(1, 64, 1, 1, dtype=torch.int32)}, "got torch.int32"),
    }
    for name, (tensors, _) in cases.items():
        save_file(tensors, path / name)
    save_file(good, path / "good")
    whole = (path / "good").read_bytes()
    raw = {"truncated": whole[:-1000], "header": whole[:20], "none": b"", "text": b"no weights " * 9}
    for name, data in raw.items():
        (path / name).write_bytes(data)
    return [(n, said) for n, (_, said) in cases.items()] + [(n, "damaged or unreadable") for n in raw]


def test_damaged_files_are_refused_with_a_reason(tmp_path: Path):
    for name, said in damaged(tmp_path):
        with pytest.raises(DataError, match=f"^Expected .*{said}"):
            Lpips.load(tmp_path / name)
    with pytest.raises(DataError, match="got no such file"):
        Lpips.load(tmp_path / "absent")
    with pytest.raises(DataError, match="got no such file"):
        Lpips.load(tmp_path)


def test_find_weights_looks_at_the_variable_then_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FEDGLASS_LPIPS", raising=False)
    assert find_weights() is None
    cached = tmp_path / ".cache" / "fedglass" / ALEX_FILE
    cached.parent.mkdir(parents=True)
    cached.touch()
    assert find_weights() == cached
    monkeypatch.setenv("FEDGLASS_LPIPS", "")
    assert find_weights() == cached
    (tmp_path / "mine").touch()
    monkeypatch.setenv("FEDGLASS_LPIPS", "~/mine")
    assert find_weights() == tmp_path / "mine"
    monkeypatch.setenv("FEDGLASS_LPIPS", str(tmp_path / "absent"))
    with pytest.raises(DataError, match=r"FEDGLASS_LPIPS to name a file, got '.*absent'"):
        find_weights()


def test_the_vgg_file_is_read_as_float32(shared_data: Path):
    weights = Lpips.load(shared_data / VGG_FILE).weights
    assert {t.dtype for t in weights.values()} == {torch.float32}
    assert weights.keys() == load_file(shared_data / VGG_FILE).keys()
