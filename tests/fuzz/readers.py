"""Every reader of files of others, each with a sound folder that it reads."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import shutil
import struct
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch
from click.testing import CliRunner
from PIL import Image

from fedglass.cli.main import cli
from fedglass.core.types import Training, Whitening
from fedglass.data.catalogue import load
from fedglass.diffusion.denoiser import Denoiser, Prediction, Schedule
from fedglass.diffusion.folder import load_folder, save_folder
from fedglass.diffusion.networks import UNet
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation
from fedglass.federation.transcript import Transcript
from fedglass.federation.truth import Truths
from fedglass.models.catalogue import build
from fedglass.plan.bundles import open_bundle, recorded_bundle
from fedglass.plan.schema import AdversaryTable, read_plan
from fedglass.plan.tables import BundleTable
from fedglass.recordings.join import bundle_of_saved
from fedglass.recordings.observed import contradictions_of
from fedglass.report.audit_page import write_report
from fedglass.report.pipelines import write_junit, write_sarif
from fedglass.verdict.outcomes import read_audit

SHAPE, CLASSES = (1, 8, 8), 4
PLAN = """
title = "A plan"
seed = 3
[[federation]]
data = "photos"
size = 16
clients = 3
examples = [1, 2, 1]
model = "lenet"
training = { lr = 0.1, epochs = 2, batch_size = 1, optimiser = "adam", betas = [0.9, 0.99] }
rule = { name = "krum", byzantine = 1 }
sweep = { defence = "gaussian", option = "std", values = [0.1, 0.2] }
group = [{ clients = [0], behaviour = { name = "sign_flip" } }]
[adversary]
view = "server"
client = [0, 1]
[[defences]]
name = "gaussian"
std = 0.1
[[attacks]]
name = "inverting_gradients"
iterations = 3
refine = [{ name = "median" }]
[metrics]
names = ["psnr", "ssim"]
[gate]
threshold = 20.0
"""
AUDITED = """
[federation]
data = "photos"
size = 16
clients = 2
examples = 2
training.lr = 0.1
[[attacks]]
name = "inverting_gradients"
iterations = 2
[metrics]
names = ["psnr", "ssim"]
"""


@dataclass(frozen=True)
class Reader:
    """A reader, and what makes a sound folder for it."""

    make: Callable[[Path], object]
    read: Callable[[Path], object]


def federation() -> Federation:
    images = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(0))
    clients = [Client("a", images[:2], torch.tensor([0, 1])), Client("b", images[2:].clone(), torch.tensor([3]))]
    model = build("mlp", shape=SHAPE, classes=CLASSES)
    return Federation(model, clients, Training(lr=0.1, batch_size=1), CLASSES, Whitening((0.5,), (0.3,)))


@cache
def model() -> torch.nn.Module:
    return build("mlp", shape=SHAPE, classes=CLASSES)


def make_transcript(folder: Path) -> None:
    federation().run(2).save(folder)


def make_bundle(folder: Path) -> None:
    make_transcript(folder.with_name("saved"))
    bundle_of_saved(folder.with_name("saved"), folder)
    shutil.rmtree(folder.with_name("saved"))


def read_recording(folder: Path) -> object:
    table = BundleTable(bundle=str(folder), model="mlp")
    opened = open_bundle(table, Path())
    for index in opened[0].rounds:
        contradictions_of(opened[0], index)
    sources = recorded_bundle(table, AdversaryTable(), Path(), opened)
    return [(source.threat(), source.rehearse()) for source in sources]


def make_truths(folder: Path) -> None:
    federation().truths(range(2)).save(folder)


def make_records(folder: Path) -> None:
    plan = folder.with_name("plan.toml")
    plan.write_text(AUDITED)
    CliRunner().invoke(cli, ["audit", str(plan), "-o", str(folder), "--workers", "1"], catch_exceptions=False)
    for name in ("report.html", ".lock"):
        (folder / name).unlink()


def read_records(folder: Path) -> None:
    write_report(folder)
    write_junit(read_audit(folder), folder / "junit.xml")
    write_sarif(read_audit(folder), folder / "audit.sarif")


def make_pictures(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    for kind in ("PNG", "JPEG"):
        (folder / kind).mkdir(parents=True)
        Image.fromarray(pixels).save(folder / kind / f"picture.{kind.lower()}", kind)


def make_npz(folder: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 6, 6), dtype=np.uint8)
    np.savez(folder / "set.npz", images=images, labels=np.array([0, 1]), class_names=np.array(["a", "b"]))
    np.savez_compressed(folder / "packed.npz", images=images, labels=np.array([0, 1]), client_id=np.array([0, 1]))


def read_npz(folder: Path) -> object:
    return [load(f"npz:{path}") for path in sorted(folder.glob("*.npz"))]


def make_idx(folder: Path) -> None:
    images = b"\0\0\x08\x03" + struct.pack(">3I", 2, 3, 3) + bytes(range(18))
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(images, mtime=0))
    (folder / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + struct.pack(">I", 2) + b"\0\1")


def make_leaf(folder: Path) -> None:
    entries = {name: {"x": [[0.0, 0.5, 1.0, 0.25]] * 2, "y": [1, 0]} for name in ("f0", "f1")}
    table = {"users": list(entries), "num_samples": [2, 2], "user_data": entries}
    (folder / "data.json").write_text(json.dumps(table))


def make_cifar(folder: Path) -> None:
    batch = {b"data": np.zeros((1, 3072), np.uint8), b"labels": [1], b"filenames": [b"a.png"]}
    raw = pickle.dumps(batch, 4)
    (folder / "data_batch_1").write_bytes(raw)
    with tarfile.open(folder / "cifar-10.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("x/data_batch_1")
        info.size = len(raw)
        archive.addfile(info, io.BytesIO(raw))


def read_cifar(folder: Path) -> object:
    return load(f"cifar10:{folder / 'data_batch_1'}"), load(f"cifar10:{folder / 'cifar-10.tar.gz'}")


def make_diffusion(folder: Path) -> None:
    network = UNet(SHAPE, widths=(8,), patch=2)
    denoiser = Denoiser(network, Schedule(steps=20), Prediction.EPSILON)
    save_folder(folder, network, network.state_dict(), denoiser)


READERS: dict[str, Reader] = {
    "plans": Reader(lambda folder: (folder / "plan.toml").write_text(PLAN), lambda f: read_plan(f / "plan.toml")),
    "bundles": Reader(make_bundle, read_recording),
    "truths": Reader(make_truths, Truths.load),
    "transcripts": Reader(make_transcript, lambda folder: Transcript.load(folder, model())),
    "records": Reader(make_records, read_records),
    "pictures": Reader(make_pictures, lambda folder: load(f"folder:{folder}")),
    "npz": Reader(make_npz, read_npz),
    "idx": Reader(make_idx, lambda folder: load(f"idx:{folder}")),
    "leaf": Reader(make_leaf, lambda folder: load(f"leaf:{folder}")),
    "cifar": Reader(make_cifar, read_cifar),
    "diffusion": Reader(make_diffusion, load_folder),
}


@cache
def sound(name: str) -> Path:
    """Return a sound folder of a reader, made once."""
    folder = Path(mkdtemp(prefix="fedglass-sound-")) / "input"
    folder.mkdir()
    READERS[name].make(folder)
    READERS[name].read(folder)
    return folder
