"""Files from others: whatever they hold, the answer is a DataError or data, never a crash or a flood."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedglass.core.errors import DataError
from fedglass.core.files import parse_json
from fedglass.data import files
from fedglass.data.catalogue import load
from fedglass.data.cifar import plain_values

MIB = 1 << 20


def refused(source: str, says: str) -> None:
    """The file is refused, and for no more than a little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=says) as caught:
            load(source)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * MIB
    assert "\n" not in str(caught.value)


def idx(path: Path, magic: bytes, shape: tuple[int, ...], body: bytes) -> Path:
    path.write_bytes(magic + struct.pack(f">{len(shape)}I", *shape) + body)
    path.with_name(path.name.replace("images-idx3", "labels-idx1")).write_bytes(
        b"\0\0\x08\x01" + struct.pack(">I", 2) + b"\0\1"
    )
    return path


IMAGES = b"\0\0\x08\x03"


@pytest.mark.parametrize(
    ("magic", "shape", "body", "says"),
    [
        (b"\0\0\x0d\x03", (2, 2, 2), bytes(32), "got magic 0, 13, 3"),
        (b"\0\0\x08\x01", (2,), bytes(2), "got magic 0, 8, 1"),
        (b"GIF8", (2, 2, 2), bytes(8), "expected an idx file"),
        (IMAGES, (2, 2, 2), bytes(7), "truncated, expected 8 more bytes, got 7"),
        (IMAGES, (2, 2, 2), bytes(9), "longer than its header announces"),
        (IMAGES, (2, 2), b"", "truncated"),
        (IMAGES, (0, 2, 2), b"", "no empty side"),
        (IMAGES, (3, 2, 2), bytes(12), "each of 3 images, got 2 labels"),
        (IMAGES, (2**32 - 1, 2**32 - 1, 2**32 - 1), b"", "announces .* at most"),
        (IMAGES, (2**10, 2**9, 2**9), b"", "truncated, expected 268435456 more bytes, got 0"),
    ],
)
def test_idx(tmp_path: Path, magic: bytes, shape: tuple[int, ...], body: bytes, says: str) -> None:
    file = idx(tmp_path / "train-images-idx3-ubyte", magic, shape, body)
    refused(f"idx:{file}", says)


def test_idx_without_labels_or_with_broken_gzip(tmp_path: Path) -> None:
    file = idx(tmp_path / "train-images-idx3-ubyte", IMAGES, (2, 2, 2), bytes(8))
    packed = gzip.compress(file.read_bytes())
    file.write_bytes(packed[:-9])
    refused(f"idx:{file}", "gzip data is truncated or corrupt")
    file.write_bytes(packed[:12] + bytes(8) + packed[20:])
    refused(f"idx:{file}", "gzip data is truncated or corrupt")
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    refused(f"idx:{file}", "expected the labels next to it as train-labels-idx1-ubyte")


def test_gzip_bomb_is_read_no_further_than_announced(tmp_path: Path) -> None:
    file = idx(tmp_path / "train-images-idx3-ubyte", IMAGES, (2, 2, 2), b"")
    file.write_bytes(gzip.compress(file.read_bytes() + bytes(100 * MIB)))
    refused(f"idx:{file}", "longer than its header announces")


def npy(header: str, body: bytes = b"", magic: bytes = b"\x93NUMPY\x01\x00") -> bytes:
    return magic + struct.pack("<H", len(header)) + header.encode() + body


def npz(path: Path, images: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", images)
        buffer = io.BytesIO()
        np.save(buffer, np.array([0, 1]))
        archive.writestr("labels.npy", buffer.getvalue())
    return path


HEADER = "{'descr': '%s', 'fortran_order': False, 'shape': %s}"


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (b"", "wrong magic"),
        (npy(HEADER % ("|u1", "(2, 2, 2)"), bytes(7)), "7 bytes long, its header announces"),
        (npy(HEADER % ("|u1", "(2, 2, 2)"), bytes(9)), "9 bytes long, its header announces"),
        (npy(HEADER % ("|u1", "(1000000, 1000000, 1000)")), "announces .* at most"),
        (npy(HEADER % ("|u1", "(2, -2, -2)"), bytes(8)), "corrupt shape"),
        (npy(HEADER % ("|u1", "[2, 2, 2]"), bytes(8)), "corrupt shape"),
        (npy(HEADER % ("|V8", "(2, 2, 2)"), bytes(64)), "plain numbers"),
        (npy(HEADER % ("<c8", "(2, 2, 2)"), bytes(64)), "plain numbers"),
        (npy("{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (2,)}"), "plain numbers"),
        (npy("__import__('os').abort()"), "corrupt header"),
        (npy("(" * 5000), "corrupt header"),
        (npy("[1]"), "corrupt header"),
        (npy(HEADER % ("<i8", "(2, 2, 2)"), bytes(64)), "uint8, or floats"),
        (npy(HEADER % ("|u1", "(2, 4)"), bytes(8)), "must have shape"),
        (npy(HEADER % ("|u1", "(2, 2, 2, 2)"), bytes(16)), "must have shape"),
        (npy(HEADER % ("|u1", "(3, 2, 2)"), bytes(12)), "each of 3 images, got 2 labels"),
        (npy(HEADER % ("<f4", "(2, 1, 1)"), struct.pack("<2f", 0, float("nan"))), "NaN"),
        (npy(HEADER % ("<f8", "(2, 1, 1)"), struct.pack("<2d", 0, 1e300)), "infinity"),
        (npy(HEADER % ("<f4", "(2, 1, 1)"), struct.pack("<2f", 0, 255)), r"\[0, 1\], got \[0, 255\]"),
    ],
)
def test_npz(tmp_path: Path, images: bytes, says: str) -> None:
    refused(f"npz:{npz(tmp_path / 'set.npz', images)}", says)


class Evil:
    """Would leave a mark in the environment if it were ever unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return os.putenv, ("FEDGLASS_WAS_HERE", "1")


def test_npz_with_pickles_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "set.npz"
    np.savez(file, images=np.array([Evil(), None], dtype=object), labels=np.array([0, 1]))
    refused(f"npz:{file}", "images holds Python objects as pickles.*refused")


def test_npz_bomb_and_missing_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = npz(tmp_path / "set.npz", npy(HEADER % ("|u1", "(2, 8192, 8192)"), bytes(128 * MIB)))
    assert file.stat().st_size < MIB
    monkeypatch.setattr("fedglass.data.readers.MAX_BYTES", 100 * MIB)
    refused(f"npz:{file}", "images unpacks to 134217.* bytes, at most 104857600")
    np.savez(file, pictures=np.zeros(3))
    refused(f"npz:{file}", "expected an array named 'images'.*found pictures: rename it")
    np.savez(file, **{"pic\ntures\x1b": np.zeros(3), "x" * 3000: np.zeros(3)})
    refused(f"npz:{file}", r"found pic\?tures\?, x{40}: rename it")


def test_arrays_of_an_npz_are_compared_and_summed_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, many = tmp_path / "set.npz", np.zeros(80 * MIB, np.uint8)
    np.savez_compressed(file, images=np.zeros((2, 3, 3), np.uint8), labels=many)
    refused(f"npz:{file}", "each of 2 images, got 83886080 labels")
    np.savez_compressed(file, images=many.reshape(-1, 1, 1), labels=many, client_id=many)
    refused(f"npz:{file}", "announces 419430400 values, at most")
    monkeypatch.setattr("fedglass.data.readers.MAX_BYTES", 100 * MIB)
    refused(f"npz:{file}", "labels unpacks to 838.* bytes, at most 104857600 are read of all arrays together")
    np.savez_compressed(file, images=np.zeros((2, 3, 3), np.uint8), labels=[0, 1], class_names=["a"] * 70_000)
    refused(f"npz:{file}", "class_names has 70000 names")


def test_npz_labels(tmp_path: Path) -> None:
    file, images = tmp_path / "set.npz", np.zeros((2, 3, 3), np.uint8)
    for labels, says in (
        (np.array([0, -1]), "must lie in"),
        (np.array([0, 2**63], dtype=np.uint64), "must lie in"),
        (np.array([0, 10**8]), "would mean 100000001 classes"),
        (np.array([0.0, 1.0]), "whole numbers"),
        (np.array(["a", "b"]), "whole numbers"),
        (np.zeros((2, 2), int), "whole numbers"),
    ):
        np.savez(file, images=images, labels=labels)
        refused(f"npz:{file}", says)


def png(width: int, height: int) -> bytes:
    """A valid header that announces any size, over no pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def picture(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "not a readable PNG"),
        (b"hello", "not a readable PNG"),
        (picture("GIF"), "not a readable PNG"),
        (picture("PNG")[:2000], "not a readable PNG"),
        (picture("JPEG")[:700], "not a readable PNG"),
        (png(40, 40), "not a readable PNG"),
        (png(12_000, 12_000), "announces 12000x12000 pixels"),
        (png(100_000, 100_000), "announces more than"),
        (png(2**31 - 1, 2**31 - 1), "announces more than|not a readable PNG"),
    ],
)
def test_pictures(tmp_path: Path, raw: bytes, says: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "bad.png").write_bytes(raw)
    refused(f"folder:{tmp_path}", f"bad.png: ({says})")


def test_deep_pictures_and_empty_folders(tmp_path: Path) -> None:
    refused(f"folder:{tmp_path}", "expected 1 to .* pictures in subfolders, one per class, got 0")
    (tmp_path / "a").mkdir()
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(tmp_path / "a" / "deep.png")
    refused(f"folder:{tmp_path}", "8 bits deep, got mode I")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not readable as json"),
        ('{"user_data": {"a": {"x": [[0.5', "not readable as json"),
        ("[" * 200_000, "not readable as json"),
        ("\x00\xff", "not readable as json"),
        ('{"user_data": {"a": {"x": [[%s]], "y": [0]}}}' % ("9" * 5000), "not readable as json"),
        ("[1, 2]", "expected LEAF's 'user_data'"),
        ('{"user_data": []}', "expected LEAF's 'user_data'"),
        ('{"user_data": {"a": 3}}', "user 'a' must have 'x'"),
        ('{"user_data": {"a": {"x": [[0, 1], [0]], "y": [0, 1]}}}', "user 'a' must have 'x'"),
        ('{"user_data": {"a": {"x": [[0, 0, 0, 0]], "y": [0, 1]}}}', "user 'a' must have 'x'"),
        ('{"user_data": {"a": {"x": ["img.jpg"], "y": [0]}}}', "user 'a' must have 'x'"),
        ('{"user_data": {"a": {"x": [[0, 0, 0, NaN]], "y": [0]}}}', "NaN is not a number"),
        ('{"user_data": {"a": {"x": [[0, 0, 0, 1e999]], "y": [0]}}}', "infinity"),
        ('{"user_data": {"a": {"x": [[0, 0, 0, 7]], "y": [0]}}}', r"\[0, 1\]"),
        ('{"user_data": {"a": {"x": [[0, 0, 0]], "y": [0]}}}', "grey square images"),
        ('{"user_data": {"a": {"x": [[0, 0, 0, 0]], "y": [0.5]}}}', "whole numbers"),
        ('{"user_data": {"a": {"x": [[0, 0, 0, 0]], "y": [-1]}}}', "must lie in"),
    ],
)
def test_leaf(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "data.json"
    file.write_text(text, encoding="latin-1")
    refused(f"leaf:{file}", says)


def test_files_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedglass.data.readers._MOST", 1000)
    file = tmp_path / "data.json"
    file.write_bytes(gzip.compress(b" " * (100 * MIB)))
    refused(f"leaf:{file}", "holds more than 1000 bytes")


def test_the_files_of_a_leaf_folder_are_limited_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        users = {f"{name}{i}": {"x": [[0, 0, 0, 0]] * 9, "y": [0] * 9} for i in range(10)}
        (tmp_path / f"{name}.json").write_bytes(gzip.compress(json.dumps({"user_data": users}).encode()))
    assert len(load(f"leaf:{tmp_path}")) == 270
    for limit, most, says in (
        ("_MOST_USERS", 20, "holds more than 20 users"),
        ("MAX_BYTES", 5000, "its files hold more than 5000 bytes together"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"fedglass.data.readers.{limit}", most)
            refused(f"leaf:{tmp_path}", says)
    monkeypatch.setattr("fedglass.data.files.MAX_VALUES", 1000)
    monkeypatch.setattr("fedglass.data.readers._images", None)  # refused before they are put together
    refused(f"leaf:{tmp_path}", "announces 1008 values")


def twice_each(times: int) -> bytes:
    """Opcodes that put a tuple on the stack which holds the one before it twice, so many times over."""
    return b"".join(b"q%ch%c\x86" % (i, i) for i in range(times))


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "whole records of 3073 bytes, got 0"),
        (bytes(3072), "whole records of 3073 bytes, got 3072"),
        (b"\x0a" + bytes(3072), r"labels must lie in \[0, 10\), got 10 to 10"),
        (pickle.dumps(Evil(), 2), "names '(os|posix|nt).putenv', which could run code: refused"),
        (pickle.dumps({"data": Evil()}, 4), "could run code: refused"),
        (pickle.dumps({"data": 3, "labels": [1]}, 2), "expected an array of unsigned bytes"),
        (pickle.dumps({"data": np.zeros((1, 3072))}, 4), "whole numbers under 'labels'"),
        (pickle.dumps({"data": np.zeros((1, 3072)), "labels": [1]}, 4), "array of unsigned bytes"),
        (
            pickle.dumps({"data": np.zeros((1, 3), np.uint8), "labels": [1]}, 4),
            r"shape \(1, 3072\), got \(1, 3\)",
        ),
        (pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [12]}, 4), "labels must lie in"),
        (
            pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [1]}, 4)[:-9],
            "not a readable pickle",
        ),
        (pickle.dumps([1, 2], 2), "whole numbers under 'labels'"),
        (b"\x80\x02", "not a readable pickle"),
        (b"\x80\x02}(tttt.", "not a readable pickle"),
        (b"\x80\x02r\xff\xff\xff\x7f.", "not a readable pickle"),
        (b"\x80\x04\x8e" + b"\xff" * 8, "not a readable pickle"),
        (b"\x80\x02cnumpy\nndarray\nK\xff\x85R.", "whole numbers under 'labels'"),
        (b"\x80\x02(cposix\nsystem\nU\x04trueo.", "could run code"),
        (b"\x80\x02(U\x04trueiposix\nsystem\n.", "uses INST"),
        (b"\x80\x02U\x01xQ.", "uses BINPERSID"),
        (b"\x80\x02})" + b"\x85" * 150_000 + b"K\x01s.", "text or whole numbers as keys"),
        (b"\x80\x02})" + twice_each(60) + b"K\x01s.", "text or whole numbers as keys"),
        (b"\x80\x02})G" + bytes(8) + b"s.", "text or whole numbers as keys"),
        (b"\x80\x02" + b"]" * 100 + b"a" * 99 + b".", "deeper than 16 levels"),
        (b"\x80\x02}U\x06labels)" + twice_each(60) + b"s.", "deeper than 16 levels"),
        (b"\x80\x02]q\x00(" + b"h\x00" * 9 + b"e.", "whole numbers under 'labels'"),
        (b"\x80\x02cnumpy\ndtype\n](K\x01eR.", "tuple of arguments"),
    ],
)
def test_cifar(tmp_path: Path, raw: bytes, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr("os.putenv", lambda *given: calls.append(given))
    (tmp_path / "data_batch_1").write_bytes(raw)
    refused(f"cifar10:{tmp_path}", says)
    assert not calls


def test_a_pickle_of_too_many_steps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedglass.data.cifar._MOST_STEPS", 1000)
    plain_values(b"\x80\x02(" + b"K\x01" * 990 + b"t.", Path("x"))
    with pytest.raises(DataError, match="more than 1000 steps"):
        plain_values(b"\x80\x02" + b"}" * 1000 + b".", Path("x"))


def test_every_truncation_of_a_pickle_is_refused() -> None:
    raw = pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [1, 2, 300], "t": (1, None, True)}, 4)
    for end in [*range(120), *range(len(raw) - 60, len(raw))]:
        with pytest.raises(DataError):
            plain_values(raw[:end], Path("x"))


def tar(path: Path, name: str, raw: bytes, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]  # the mode is a plain string here
        info = tarfile.TarInfo(name)
        info.size = len(raw)
        archive.addfile(info, io.BytesIO(raw))
    return path


def test_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tar(tmp_path / "cifar-10.tar.gz", "x/data_batch_1.bin", bytes(3073) * 50)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    refused(f"cifar10:{file}", "truncated or corrupt")
    file.write_bytes(gzip.compress(b"not a tar" * 1000))
    refused(f"cifar10:{file}", "truncated or corrupt")
    tar(file, "x/readme", b"hello")
    refused(f"cifar10:{file}", "expected data_batch_1 or data_batch_1.bin in it")
    monkeypatch.setattr("fedglass.data.cifar._MOST", MIB)
    tar(file, "x/padding", bytes(100 * MIB))
    refused(f"cifar10:{file}", "unpacks to more than is read")


def test_chained_headers_of_an_archive_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "cifar-10.tar"
    header = tarfile.TarInfo("x")
    header.type = tarfile.GNUTYPE_LONGNAME
    file.write_bytes(header.tobuf(tarfile.GNU_FORMAT) * 2000)
    refused(f"cifar10:{file}", "truncated or corrupt")


def test_texts_as_labels_take_no_memory(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_text(json.dumps({"user_data": {"a": {"x": [[0, 0, 0, 0]] * 1000, "y": ["1" * 10**6, *["2"] * 999]}}}))
    refused(f"leaf:{file}", "user 'a' must have")


def test_a_json_text_of_too_many_values_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    for text, says in ((b"0," * (2**25 + 1), "33,554,432 values"), (b"[]" * (2**22 + 1), "4,194,304 lists")):
        with pytest.raises(ValueError, match=says):
            parse_json(text)


def test_unreadable_paths(tmp_path: Path) -> None:
    file = tmp_path / "data_batch_1"
    file.mkdir()
    refused(f"cifar10:{tmp_path}", "found neither")
    refused(f"leaf:{tmp_path}", "found none")
    refused(f"npz:{tmp_path}", "not a readable npz")
    refused(f"idx:{tmp_path}", "found none")


def sound_files(root: Path) -> list[tuple[str, Path]]:
    """One small sound file of every format, to be damaged."""
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 3), dtype=np.uint8)
    np.savez_compressed(root / "set.npz", images=images, labels=np.array([0, 1]))
    shape = struct.pack(">3I", 2, 3, 3)
    (root / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(IMAGES + shape + images.tobytes()))
    (root / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + struct.pack(">I", 2) + b"\0\1")
    user = {"x": [[0.0, 0.5, 1.0, 0.25]], "y": [1]}
    (root / "leaf.json").write_text(json.dumps({"user_data": {"a": user}}))
    batch = {"data": np.zeros((1, 3072), np.uint8), "labels": [1]}
    (root / "data_batch_1").write_bytes(pickle.dumps(batch, 4))
    tar(root / "cifar-10.tar.gz", "x/data_batch_1.bin", bytes(3073))
    for kind, name in (("PNG", "p.png"), ("JPEG", "j.jpg")):
        (root / kind / "only").mkdir(parents=True)
        (root / kind / "only" / name).write_bytes(picture(kind))
    return [
        ("npz:", root / "set.npz"),
        ("idx:", root / "train-images-idx3-ubyte.gz"),
        ("leaf:", root / "leaf.json"),
        ("cifar10:", root / "data_batch_1"),
        ("cifar10:", root / "cifar-10.tar.gz"),
        ("folder:", root / "PNG" / "only" / "p.png"),
        ("folder:", root / "JPEG" / "only" / "j.jpg"),
    ]


@pytest.mark.parametrize("which", range(7))
def test_damage_gives_an_error_or_sound_data(tmp_path: Path, which: int) -> None:
    kind, file = sound_files(tmp_path)[which]
    source = kind + str(file.parents[1] if kind == "folder:" else file)
    whole, random = file.read_bytes(), np.random.default_rng(which)
    load(source)
    outcomes = set()
    for trial in range(120):
        raw = bytearray(whole)
        if trial % 3 == 0:
            del raw[int(random.integers(len(raw))) :]
        for _ in range(trial % 3):
            # Most bytes of structure are near the two ends.
            at = int(min(random.integers(len(raw)), random.integers(300))) * (1 if trial % 2 else -1)
            raw[at % len(raw)] = int(random.integers(256))
        file.write_bytes(raw)
        try:
            data = load(source)
        except DataError:
            outcomes.add("refused")
        else:
            assert torch.isfinite(data.images).all()
            outcomes.add("read")
    assert "refused" in outcomes


def test_the_limits_leave_room_for_the_real_datasets() -> None:
    assert files.MAX_VALUES >= 60_000 * 3 * 32 * 32
