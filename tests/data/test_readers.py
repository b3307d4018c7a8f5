"""Every reader gives back what was written, in each form that its format knows."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from fedglass.core.errors import DataError, UsageError
from fedglass.core.registry import summaries
from fedglass.core.types import Whitening
from fedglass.data.catalogue import load
from fedglass.data.dataset import CIFAR10, CIFAR100, FEMNIST, Dataset, measured

Bytes = NDArray[np.uint8]
GREY = np.random.default_rng(0).integers(0, 256, (7, 6, 5), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2, 2])
CIFAR = np.random.default_rng(1).integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)


def same_pixels(data: Dataset, pixels: Bytes) -> bool:
    return torch.equal(data.images, torch.from_numpy(pixels.copy()).float() / 255)


def idx_bytes(array: Bytes) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, pack: bool = False, prefix: str = "train") -> Path:
    for stem, array in ((f"{prefix}-images-idx3-ubyte", GREY), (f"{prefix}-labels-idx1-ubyte", LABELS)):
        raw = idx_bytes(array.astype(np.uint8))
        (folder / (stem + ".gz" * pack)).write_bytes(gzip.compress(raw) if pack else raw)
    return folder / (f"{prefix}-images-idx3-ubyte" + ".gz" * pack)


@pytest.mark.parametrize("pack", [False, True])
def test_idx_by_file_by_folder_and_by_sniffing(tmp_path: Path, pack: bool) -> None:
    file = write_idx(tmp_path, pack)
    for source in (f"idx:{file}", f"idx:{tmp_path}", str(file), str(tmp_path)):
        data = load(source)
        assert same_pixels(data, GREY[:, None])
        assert data.labels.tolist() == LABELS.tolist()
        assert data.classes == 3


def test_idx_test_split(tmp_path: Path) -> None:
    write_idx(tmp_path, prefix="t10k")
    assert len(load(f"idx:{tmp_path}", split="test")) == 7


def python_2_pickle(pixels: Bytes, labels: list[int], key: bytes) -> bytes:
    """As Python 2 wrote the official batches: protocol 2 with byte strings, opcode by opcode."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    raw = pixels.tobytes()
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87Rq\x05"
    dtype += b"(K\x03" + text(b"|") + b"NNN" + number(-1) + number(-1) + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87Rq\x04"
    shape = number(len(pixels)) + number(pixels[0].size) + b"\x86"
    array += b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    entries = text(b"batch_label") + text(b"training batch 1 of 5")
    entries += text(key) + b"]q\x02(" + b"".join(map(number, labels)) + b"e" + text(b"data") + array
    return b"\x80\x02}q\x01(" + entries + b"u."


def test_the_hand_written_pickle_is_a_pickle() -> None:
    value = pickle.loads(python_2_pickle(CIFAR, [1, 2, 3, 4], b"labels"), encoding="bytes")
    assert np.array_equal(value[b"data"], CIFAR.reshape(4, -1))


def cifar_file(classes: int, version: str) -> tuple[str, bytes, list[int]]:
    labels = [1, 9, 0, 3] if classes == 10 else [99, 0, 50, 3]
    stem, key = ("data_batch_1", "labels") if classes == 10 else ("train", "fine_labels")
    if version == "python 2":
        return stem, python_2_pickle(CIFAR, labels, key.encode()), labels
    if version == "python 3":
        value = {key.encode(): labels, b"data": CIFAR.reshape(4, -1), "filenames": ["a.png"] * 4}
        return stem, pickle.dumps(value, protocol=4), labels
    coarse = [] if classes == 10 else [7]
    rows = [bytes([*coarse, y]) + x.tobytes() for x, y in zip(CIFAR, labels, strict=True)]
    return stem + ".bin", b"".join(rows), labels


@pytest.mark.parametrize("version", ["binary", "python 2", "python 3"])
@pytest.mark.parametrize("classes", [10, 100])
def test_cifar_as_file_folder_and_archive(tmp_path: Path, classes: int, version: str) -> None:
    name, raw, labels = cifar_file(classes, version)
    folder = tmp_path / f"cifar-{classes}-batches"
    folder.mkdir()
    (folder / name).write_bytes(raw)
    archive = tmp_path / f"cifar-{classes}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname="cifar-batches")
    for path in (folder / name, folder, tmp_path, archive):
        data = load(f"cifar{classes}:{path}")
        assert same_pixels(data, CIFAR)
        assert data.labels.tolist() == labels
        assert data.classes == classes
        assert data.whitening == (CIFAR10 if classes == 10 else CIFAR100)
    assert load(str(archive)).classes == classes


def test_cifar_batches_are_joined_in_order_and_once(tmp_path: Path) -> None:
    for i in (2, 1):
        (tmp_path / f"data_batch_{i}.bin").write_bytes(bytes([i]) + CIFAR[i].tobytes())
    (tmp_path / "data_batch_1").write_bytes(python_2_pickle(CIFAR[1:2], [1], b"labels"))
    data = load(f"cifar10:{tmp_path}")
    assert data.labels.tolist() == [1, 2]
    assert same_pixels(data, CIFAR[1:3])


def leaf_text(side: int = 28) -> str:
    data = {
        user: {"x": [[v] * side**2 for v in values], "y": labels}
        for user, values, labels in (("f0", [0.0, 0.5], [3, 61]), ("f1", [1.0], [10]))
    }
    return json.dumps({"users": list(data), "num_samples": [2, 1], "user_data": data})


def test_leaf_users_are_writers(tmp_path: Path) -> None:
    file = tmp_path / "all_data_0.json"
    file.write_text(leaf_text())
    for source in (f"leaf:{file}", f"leaf:{tmp_path}", str(file), str(tmp_path)):
        data = load(source)
        assert data.shape == (1, 28, 28)
        assert data.images[:, 0, 3, 4].tolist() == [0.0, 0.5, 1.0]
        assert data.labels.tolist() == [3, 61, 10]
        assert data.writers is not None
        assert data.writers.tolist() == [0, 0, 1]
        assert (data.classes, data.whitening) == (62, FEMNIST)
        assert data.class_names is not None
        assert [data.class_names[y] for y in (3, 61, 10)] == ["3", "z", "A"]


def test_leaf_user_in_two_files_is_one_writer_and_other_sizes_are_measured(tmp_path: Path) -> None:
    for i in (0, 1):
        (tmp_path / f"{i}.json").write_text(leaf_text(side=4))
    data = load(f"leaf:{tmp_path}")
    assert data.writers is not None
    assert data.writers.tolist() == [0, 0, 1, 0, 0, 1]
    assert data.whitening == measured(data.images)


@pytest.mark.parametrize(
    "keys", [("images", "labels"), ("x", "y"), ("train_images", "train_labels"), ("x_train", "y_train")]
)
@pytest.mark.parametrize("layout", ["grey", "channels last", "channels first", "float", "fortran", "big endian"])
def test_npz_names_and_layouts(tmp_path: Path, keys: tuple[str, str], layout: str) -> None:
    colour = np.repeat(GREY[:, None], 3, 1)
    stored, expected = {
        "grey": (GREY, GREY[:, None]),
        "channels last": (colour.transpose(0, 2, 3, 1), colour),
        "channels first": (colour, colour),
        "float": ((GREY / 255).astype(np.float32), GREY[:, None]),
        "fortran": (np.asfortranarray(GREY), GREY[:, None]),
        "big endian": ((GREY / 255).astype(">f8"), GREY[:, None]),
    }[layout]
    file = tmp_path / "set.npz"
    np.savez_compressed(file, **{keys[0]: stored, keys[1]: LABELS[:, None]}, client_id=LABELS)
    data = load(f"npz:{file}")
    assert torch.allclose(data.images, torch.from_numpy(expected.copy()).float() / 255, atol=1e-7)
    assert data.labels.tolist() == LABELS.tolist()
    assert data.writers is not None
    assert torch.equal(data.writers, data.labels)
    assert torch.equal(load(str(file)).images, data.images)


def test_npz_split_and_class_names(tmp_path: Path) -> None:
    file = tmp_path / "set.npz"
    arrays = {
        "train_images": GREY,
        "train_labels": LABELS,
        "test_images": GREY[:2],
        "test_labels": LABELS[:2],
    }
    np.savez(file, **arrays, class_names=np.array(["ä", "<b>", "c", "never seen"]))
    assert len(load(str(file), split="test")) == 2
    assert load(str(file)).class_names == ("ä", "<b>", "c", "never seen")
    assert load(str(file)).classes == 4


def write_pictures(root: Path, size: tuple[int, int] = (9, 8)) -> None:
    for name, shade in (("cats", 40), ("dogs", 200)):
        (root / name).mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", size, (shade, i, 7)).save(root / name / f"{i}.png")
    Image.new("RGB", size, (200, 9, 7)).save(root / "dogs" / "9.JPEG", quality=95)
    (root / "dogs" / "notes.txt").write_text("not a picture")


def test_folder_classes_are_subfolders(tmp_path: Path) -> None:
    write_pictures(tmp_path)
    for source in (f"folder:{tmp_path}", str(tmp_path)):
        data = load(source)
        assert data.shape == (3, 8, 9)
        assert data.class_names == ("cats", "dogs")
        assert data.labels.tolist() == [0, 0, 1, 1, 1]
        assert torch.allclose(data.images[2, :, 4, 4], torch.tensor([200, 0, 7]) / 255)


def test_folder_cuts_the_central_square(tmp_path: Path) -> None:
    (tmp_path / "only").mkdir()
    pixels = np.zeros((10, 30), np.uint8)
    pixels[:, 10:20] = 255
    Image.fromarray(pixels).save(tmp_path / "only" / "wide.png")
    Image.new("L", (5, 5), 255).save(tmp_path / "only" / "small.png")
    data = load(f"folder:{tmp_path}", size=6)
    assert data.shape == (1, 6, 6)
    assert float(data.images.min()) == 1.0


def test_folder_of_unequal_pictures_needs_a_size(tmp_path: Path) -> None:
    write_pictures(tmp_path)
    Image.new("RGB", (5, 5)).save(tmp_path / "cats" / "odd.png")
    with pytest.raises(DataError, match=r"odd.png: is 5x5.*9x8.*set size"):
        load(f"folder:{tmp_path}")
    assert load(f"folder:{tmp_path}", size=4).shape == (3, 4, 4)


def test_folder_split(tmp_path: Path) -> None:
    write_pictures(tmp_path / "train")
    write_pictures(tmp_path / "test", size=(4, 4))
    assert load(str(tmp_path)).shape == (3, 8, 9)
    assert load(str(tmp_path), split="test").shape == (3, 4, 4)


def test_load_resizes_and_takes_a_whitening(tmp_path: Path) -> None:
    given = Whitening((0.1, 0.2, 0.3), (1.0, 1.0, 1.0))
    data = load("photos", size=16, whitening=given)
    assert data.shape == (3, 16, 16)
    assert data.whitening == given


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("glyps", "Unknown dataset 'glyps': did you mean 'glyphs'"),
        ("cifr10:/tmp", "Unknown dataset format 'cifr10': did you mean 'cifar10'"),
        ("/no/such/file.npz", "No such file or folder"),
        ("npz:/no/such/file.npz", "no such file or folder"),
        ("idx:", "no such file or folder"),
    ],
)
def test_unknown_sources(source: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load(source)


def test_what_can_not_be_told_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "what").write_bytes(b"hello")
    with pytest.raises(DataError, match=r"format is not evident.*idx:, leaf:"):
        load(str(tmp_path / "what"))
    with pytest.raises(DataError, match="format is not evident"):
        load(str(tmp_path))


def test_splits_that_are_not_there() -> None:
    with pytest.raises(UsageError, match="'train' or 'test', got 'dev'"):
        load("glyphs", split="dev")
    with pytest.raises(UsageError, match="photos has no test split"):
        load("photos", split="test")


def test_names_are_loadable_or_formats() -> None:
    assert all("\n" not in says and says for says in summaries("datasets").values())
    data = load("glyphs")
    assert (data.name, len(data)) == ("glyphs", 3000)


@pytest.mark.parametrize(
    ("file", "shape", "classes", "writers"),
    [
        ("mnist_10k.npz", (1, 28, 28), 10, None),
        ("cifar10_10k.npz", (3, 32, 32), 10, None),
        ("femnist_digits_12clients.npz", (1, 28, 28), 10, 12),
        ("pneumoniamnist_reduced.npz", (1, 28, 28), 2, None),
        ("orl_faces.npz", (1, 112, 92), 40, None),
    ],
)
def test_real_files(
    shared_data: Path, file: str, shape: tuple[int, int, int], classes: int, writers: int | None
) -> None:
    data = load(str(shared_data / file))
    assert (data.shape, data.classes) == (shape, classes)
    assert (None if data.writers is None else len(set(data.writers.tolist()))) == writers
    with np.load(shared_data / file) as oracle:
        images = oracle["train_images" if "train_images" in oracle else "images"][:50].astype(np.float32) / 255
    placed = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    assert torch.allclose(data.images[:50], torch.from_numpy(placed.copy()))


def test_an_archive_in_memory_equals_a_plain_tar(tmp_path: Path) -> None:
    name, raw, labels = cifar_file(10, "binary")
    file = tmp_path / "cifar-10.tar"
    with tarfile.open(file, "w") as tar:
        info = tarfile.TarInfo(f"deep/er/{name}")
        info.size = len(raw)
        tar.addfile(info, io.BytesIO(raw))
    assert load(f"cifar10:{file}").labels.tolist() == labels
