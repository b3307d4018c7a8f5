"""Every kind of bad input: one clear sentence on stderr, exit code 2, no traceback, nothing written."""

from __future__ import annotations

import gzip
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from PIL import Image
from safetensors.torch import save_file

from fedglass.core.tensors import weights_of
from fedglass.models.catalogue import build

Run = Callable[..., Result]
Write = Callable[..., Path]

RECORDING = """
[recording]
model = "lenet"
classes = 10
before = "before.safetensors"
update = "update.safetensors"
truth = "truth.npz"
whitening = { mean = [0.5, 0.5, 0.5], std = [0.25, 0.25, 0.25] }
training = { lr = 0.1 }
[[attacks]]
name = "idlg"
[metrics]
names = ["psnr"]
"""


def refused(result: Result, *words: str) -> None:
    """One message on stderr that holds the words, after the notice that code is run, where it is."""
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    *notice, said = result.stderr.strip().splitlines()
    assert len(notice) <= 1
    assert all(line.startswith("This plan runs code outside fedglass: ") for line in notice)
    assert said.startswith("fedglass: ")
    for word in words:
        assert word in said, said


@pytest.fixture
def audited(fedglass: Run, tmp_path: Path) -> Callable[[Path], Result]:
    """The audit of a plan that must be refused before anything is written."""

    def run(plan: Path) -> Result:
        result = fedglass("audit", plan, "-o", tmp_path / "out", "--workers", 1)
        assert not (tmp_path / "out").exists()
        checked = fedglass("check", plan)
        assert (checked.exit_code, checked.stderr) == (result.exit_code, result.stderr)
        return result

    return run


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('"inverting_gradients"', '"inverting_gradient"'), ["Unknown attack", "did you mean 'inverting_gradients'?"]),
        (('"lenet"', '"lennet"'), ["Unknown model 'lennet'", "did you mean 'lenet'?"]),
        (("examples = 1", "exampels = 1"), ["federation.exampels", "did you mean 'examples'?"]),
        (("examples = 1", "examples = 100"), ["federation.examples", "200 examples", "photos has 24"]),
        (('"lenet"', '"no_such_package.models:make"'), ["'no_such_package.models:make' does not import", "--code DIR"]),
        (('"lenet"', '"collections:Counter"'), ["returned Counter", "expected a torch.nn.Module"]),
        (('"lenet"', '"os:nothing"'), ["'os' has no 'nothing'", "the model 'os:nothing'"]),
        (("size = 16", "size = 0"), ["federation.size", "greater than or equal to 1", "got 0"]),
        (("size = 16", "size = 100000"), ["federation.size", "less than or equal to 2048", "got 100000"]),
        (('"photos"', '"idx:nowhere"'), ["no such file or folder"]),
    ],
)
def test_names_and_keys(
    change: tuple[str, str], words: list[str], audited: Callable[[Path], Result], write_plan: Write
) -> None:
    refused(audited(write_plan(change)), *words)


def npz(path: Path, **arrays: object) -> None:
    np.savez(path, **arrays)  # type: ignore[arg-type]  # bad on purpose


SOUND = np.zeros((4, 16, 16), np.uint8)
DATA: dict[str, tuple[dict[str, object], list[str]]] = {
    "shape": (
        {"images": np.zeros((4, 16), np.uint8), "labels": np.zeros(4, np.int64)},
        ["images must have shape", "(4, 16)"],
    ),
    "channels": ({"images": np.zeros((4, 7, 16, 16), np.uint8), "labels": np.zeros(4, np.int64)}, ["(4, 7, 16, 16)"]),
    "range": ({"images": np.full((4, 16, 16), 2.5), "labels": np.zeros(4, np.int64)}, ["[0, 1]", "[2.5, 2.5]"]),
    "nan": ({"images": np.full((4, 16, 16), np.nan), "labels": np.zeros(4, np.int64)}, ["NaN"]),
    "type": ({"images": np.zeros((4, 16, 16), np.int64), "labels": np.zeros(4, np.int64)}, ["uint8", "int64"]),
    "labels": ({"images": SOUND, "labels": np.array([0, 1, 2, -1])}, ["labels must lie in", "-1"]),
    "count": ({"images": SOUND, "labels": np.zeros(3, np.int64)}, ["4 images", "3 labels"]),
    "lacking": ({"images": SOUND}, ["'labels'"]),
    "pickles": ({"images": SOUND, "labels": np.array([0, "a", None, {}], dtype=object)}, ["pickles", "refused"]),
}


@pytest.mark.parametrize("kind", DATA)
def test_arrays(kind: str, audited: Callable[[Path], Result], write_plan: Write, tmp_path: Path) -> None:
    arrays, words = DATA[kind]
    npz(tmp_path / "own.npz", **arrays)
    refused(audited(write_plan(('"photos"', '"npz:own.npz"'), ("size = 16\n", ""))), "own", *words)


def test_labels_outside_the_classes(audited: Callable[[Path], Result], write_plan: Write, tmp_path: Path) -> None:
    npz(tmp_path / "own.npz", images=SOUND, labels=np.array([0, 1, 2, 3]))
    plan = write_plan(('"photos"', '"npz:own.npz"'), ("size = 16", "classes = 2"))
    refused(audited(plan), "labels must lie in [0, 2)", "got 0 to 3")


@pytest.mark.parametrize("keep", [0, 10, 300])
def test_truncated_npz(keep: int, audited: Callable[[Path], Result], write_plan: Write, tmp_path: Path) -> None:
    npz(tmp_path / "own.npz", images=SOUND, labels=np.zeros(4, np.int64))
    (tmp_path / "own.npz").write_bytes((tmp_path / "own.npz").read_bytes()[:keep])
    refused(audited(write_plan(('"photos"', '"npz:own.npz"'))), "own.npz", "truncated or corrupt")


@pytest.mark.parametrize("packed", [False, True])
def test_truncated_idx(packed: bool, audited: Callable[[Path], Result], write_plan: Write, tmp_path: Path) -> None:
    raw = struct.pack(">IIII", 0x803, 4, 16, 16) + bytes(4 * 16 * 16)
    labels = struct.pack(">II", 0x801, 4) + bytes(4)
    raw = gzip.compress(raw) if packed else raw
    (tmp_path / "train-images-idx3-ubyte").write_bytes(raw[: len(raw) // 2])
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(labels)
    plan = write_plan(('"photos"', '"idx:train-images-idx3-ubyte"'))
    refused(audited(plan), "train-images-idx3-ubyte", "truncated")


@pytest.mark.parametrize("damage", ["truncated", "nonsense"])
def test_broken_png(damage: str, audited: Callable[[Path], Result], write_plan: Write, tmp_path: Path) -> None:
    folder = tmp_path / "pictures" / "cats"
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8)
    for name in ("a.png", "b.png"):
        Image.fromarray(noise).save(folder / name)
    whole = (folder / "b.png").read_bytes()
    (folder / "b.png").write_bytes(whole[:200] if damage == "truncated" else b"\x89PNG nonsense")
    refused(audited(write_plan(('"photos"', '"folder:pictures"'))), "b.png")


@pytest.fixture
def recording(tmp_path: Path) -> dict[str, torch.Tensor]:
    """A sound recording on disk; the update is returned to be broken."""
    before = weights_of(build("lenet", shape=(3, 16, 16), classes=10))
    update = {name: torch.full_like(tensor, 0.01) for name, tensor in before.items()}
    save_file(before, tmp_path / "before.safetensors")
    save_file(update, tmp_path / "update.safetensors")
    npz(tmp_path / "truth.npz", images=np.zeros((1, 16, 16, 3), np.uint8), labels=np.array([1]))
    return update


def test_the_recording_is_sound_until_it_is_broken(fedglass: Run, write_plan: Write, recording: object) -> None:
    assert fedglass("check", write_plan(text=RECORDING)).exit_code == 0


UPDATES: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], list[str]]] = {
    "names": (lambda u: u.update(strange=u.pop("fc.0.bias")), ["lacks 'fc.0.bias'", "has the unknown 'strange'"]),
    "extra": (lambda u: u.update(strange=torch.zeros(1)), ["has the unknown 'strange'"]),
    "shapes": (lambda u: u.update({"fc.0.bias": torch.zeros(7)}), ["'fc.0.bias' has shape (7,), expected (10,)"]),
    "nan": (lambda u: u["fc.0.bias"].fill_(float("nan")), ["'fc.0.bias' holds NaN"]),
    "zero": (lambda u: [t.zero_() for t in u.values()], ["zero in every entry", "check that it trained"]),
}


@pytest.mark.parametrize("kind", UPDATES)
def test_updates(
    kind: str,
    audited: Callable[[Path], Result],
    write_plan: Write,
    recording: dict[str, torch.Tensor],
    tmp_path: Path,
) -> None:
    change, words = UPDATES[kind]
    change(recording)
    save_file(recording, tmp_path / "update.safetensors")
    refused(audited(write_plan(text=RECORDING)), "recording.update", *words)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('update = "update', 'after = "before', ["recording.after is the same as recording.before"]),
        ("classes = 10", "classes = 10\nexamples = 3", ["recording.examples is 3", "holds 1 images"]),
        ("classes = 10", "classes = 10\nclients = 2", ["recording.clients must be at most", "got 2"]),
        ('truth = "truth.npz"', "shape = [3, 16, 16]\nexamples = 4000000000", ["less than or equal to 1000000"]),
        ('truth = "truth.npz"', "shape = [3, 2048, 2048]\nexamples = 100", ["at most 268435456 pixels"]),
        ('truth = "truth.npz"', "shape = [3, 90000, 90000]\nexamples = 1", ["less than or equal to 2048"]),
    ],
)
def test_recordings_that_can_not_be(
    old: str, new: str, words: list[str], audited: Callable[[Path], Result], write_plan: Write, recording: object
) -> None:
    refused(audited(write_plan((old, new), text=RECORDING)), "recording", *words)


@pytest.mark.parametrize("name", ["before", "update"])
@pytest.mark.parametrize("keep", [0, 6, 200])
def test_truncated_safetensors(
    name: str, keep: int, audited: Callable[[Path], Result], write_plan: Write, recording: object, tmp_path: Path
) -> None:
    path = tmp_path / f"{name}.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refused(audited(write_plan(text=RECORDING)), f"recording.{name}", "truncated, corrupt")


def test_corrupt_initial_weights(audited: Callable[[Path], Result], write_plan: Write, tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"\xff" * 100)
    refused(audited(write_plan(('"uniform"', '"file:w.safetensors"'))), "w.safetensors", "cannot be read")


def test_another_plans_records(fedglass: Run, write_plan: Write, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert fedglass("audit", write_plan(), "-o", out, "--workers", 1).exit_code == 0
    before = (out / "records.jsonl").read_bytes()
    other = fedglass("audit", write_plan(("iterations = 3", "iterations = 4")), "-o", out, "--workers", 1)
    refused(other, str(out), "another plan's records", "choose another directory")
    assert (out / "records.jsonl").read_bytes() == before


def test_a_directory_that_can_not_be_made(fedglass: Run, write_plan: Write, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    refused(fedglass("audit", write_plan(), "-o", tmp_path / "file" / "out"), "file/out", "choose another one")
    refused(fedglass("init", tmp_path / "file" / "plan.toml"), "Cannot write", "choose another place")


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file system that nobody can write to")
def test_a_directory_that_nobody_can_write_to(fedglass: Run, write_plan: Write) -> None:
    refused(fedglass("audit", write_plan(), "-o", "/proc/fedglass"), "/proc/fedglass", "choose another one with -o")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_an_unwritable_directory(fedglass: Run, write_plan: Write, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    refused(fedglass("audit", write_plan(), "-o", locked), "Permission denied", "choose another one")


def test_no_plan_and_no_audit(fedglass: Run, tmp_path: Path) -> None:
    refused(fedglass("audit", tmp_path / "none.toml"), "none.toml", "fedglass init")
    refused(fedglass("report", tmp_path), "is not an audit directory")
    assert fedglass("audit").exit_code == 2
    assert fedglass("audit", "x", "--device", "abacus").exit_code == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device")
def test_a_device_that_is_not_there(fedglass: Run, write_plan: Write, tmp_path: Path) -> None:
    missing = fedglass("audit", write_plan(), "-o", tmp_path / "out", "--device", "cuda")
    refused(missing, "device 'cuda'", "choose auto or cpu")


def test_html_specials_are_escaped(fedglass: Run, write_plan: Write, tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>&\\\""
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    folder.mkdir()
    plan = write_plan(
        ('[federation]\ndata = "photos"', f'[federation]\nname = "{evil}"\ndata = "photos"'),
        ("iterations = 3", f'iterations = 3\nlabel = "{evil}"'),
    )
    assert fedglass("audit", plan, "-o", folder / "out", "--workers", 1).exit_code == 0
    page = (folder / "out" / "report.html").read_text()
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "&lt;script&gt;alert" in page


def test_terminal_markup_and_control_codes_in_names_do_nothing(
    fedglass: Run, write_plan: Write, tmp_path: Path
) -> None:
    plan = write_plan(("iterations = 3", 'iterations = 3\nlabel = "[bold red]x[/nonsense] \\u001b[31m"'))
    result = fedglass("audit", plan, "-o", tmp_path / "out", "--workers", 1)
    assert result.exit_code == 0
    assert "[bold red]x[/nonsense]" in result.output
    assert "\x1b" not in result.output


PEER = """
[federation]
data = "photos"
size = 32
clients = 4
examples = 1
model = "lenet"
training.lr = 0.1
[adversary]
view = "peer"
client = [0, 1, 2, 3]
[[attacks]]
name = "curious_client"
iterations = 2
[metrics]
names = ["psnr"]
"""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("examples = 1", "examples = 1\nparticipation = 0.5"), ["did not take part in round 0: choose another"]),
        (("examples = 1", "examples = 1\nparticipation = 0.25"), ["did not take part in round 0"]),
        (("examples = 1", "examples = 1\nclasses = 2"), ["labels must lie in"]),
        (("iterations = 2", "factor = 5"), ["images.factor must divide the height and the width", "32 and 32, got 5"]),
        (("iterations = 2", 'own = "keep"'), ["Unknown own 'keep'", "along, fixed, subtract"]),
        (("client = [0, 1, 2, 3]", "client = 0\nknows_examples = false"), ["needs the number of examples", "search"]),
        (("client = [0, 1, 2, 3]", "client = 0\nknows_lr = false"), ["needs the clients' learning rate"]),
    ],
)
def test_a_peer_that_can_not_be(
    change: tuple[str, str], words: list[str], audited: Callable[[Path], Result], write_plan: Write
) -> None:
    refused(audited(write_plan(change, text=PEER)), *words)


def test_a_peer_of_nobody(audited: Callable[[Path], Result], write_plan: Write) -> None:
    alone = ("clients = 4", "clients = 1"), ("client = [0, 1, 2, 3]", "client = 0")
    refused(audited(write_plan(*alone, text=PEER)), "is alone in round 0, but a peer needs other participants")
