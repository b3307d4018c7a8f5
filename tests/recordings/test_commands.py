"""`record-info`, `audit BUNDLE` and `init --from`: what is in a bundle, and an audit of it without a plan."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result

from fedglass.core.registry import built_in
from fedglass.plan import draft as from_bundle
from fedglass.recordings import BundleWriter

from .federations import TERMS, Real, examples
from .mutations import original, sign

Run = Callable[..., Result]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    Real(sizes=(1,), rounds=1).record(tmp_path / "b")
    return tmp_path / "b"


def test_record_info_tells_what_is_there_and_what_is_missing(fedglass: Run, tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b", facts={"rule": {"name": "mean"}})
    state = dict(Real().model().state_dict())
    writer.round(3).sent(state)
    writer.round(3).received("a", {name: t + 1 for name, t in state.items()}, examples="unknown")
    writer.round(3).absent("b", "timed out")
    found = fedglass("record-info", tmp_path / "b")
    assert found.exit_code == 0
    assert "Missing: model, shape, classes, whitening. No attack runs before a plan gives it" in found.stdout
    assert "Attacks that the other facts allow then: " in found.stdout
    assert "absent: b" in found.stdout
    assert "No defence was recorded. Name it in a plan" in found.stdout
    assert "dlfa lacks the clients' learning rate, epochs and batch size" in found.stdout
    told = json.loads(fedglass("record-info", tmp_path / "b", "--json").stdout)
    assert told["needed"] == ["model", "shape", "classes", "whitening"]
    attacks = {each["name"]: each for each in told["attacks"]}
    assert attacks["inverting_gradients"]["missing"] == ["examples"]
    assert "training" in attacks["dlfa"]["missing"]
    assert told["rounds"][0]["messages"][1]["absent"] == "timed out"
    assert fedglass("record-info", tmp_path / "b", "-q").stdout == ""


def test_an_unknown_loss_is_said_once(fedglass: Run, bundle: Path) -> None:
    BundleWriter(bundle, resume=True).training("client 0", 1, {"objective": {"name": "unknown"}})
    found = fedglass("record-info", bundle).stdout
    assert found.count("lack the loss that the clients train on: name it as training.loss in a plan.") == 1
    assert "attacks by gradient matching lack the loss" in found
    assert (
        "Attacks that the facts allow: exact\n" in found or "Attacks that the other facts allow then: exact\n" in found
    )


def test_what_a_recorder_says_of_a_training_is_shown_whole(fedglass: Run, bundle: Path) -> None:
    said = ["Dropout was active.", "The learning rate was not the same in all steps and for all parameters."] * 2
    BundleWriter(bundle, resume=True).training("client 0", 1, {"x-reservations": said}, source="read")
    found = fedglass("record-info", bundle)
    assert all(f"the recorder says: {each}" in found.stdout for each in said)
    assert "No defence was recorded" not in found.stdout


def test_record_info_says_what_is_not_as_it_was_said(fedglass: Run, bundle: Path) -> None:
    BundleWriter(bundle, resume=True).training("client 0", 1, {"lr": 3.0}, source="declared")
    assert "sources disagree on lr: 0.1 (read), 3.0 (declared)" in fedglass("record-info", bundle).stdout


def test_a_bundle_is_audited_without_a_plan(
    fedglass: Run, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = built_in("attacks")
    monkeypatch.setattr(from_bundle, "built_in", lambda kind: {name: known[name] for name in ("idlg", "dlfa", "dlg")})
    found = fedglass("audit", bundle, "-o", tmp_path / "out", "--workers", 1, "--json", "--all")
    told = json.loads(found.stdout)
    assert {each["attack"] for each in told["attacks"]} == {"exact", "idlg"}
    assert "Skipped: dlfa: one local step is explained by inverting_gradients as well" in found.stderr
    plan = (tmp_path / "out" / "plan.toml").read_text()
    assert str(bundle) in plan
    assert (tmp_path / "out" / "report.html").is_file()


def test_the_plan_of_a_bundle_is_sound(fedglass: Run, bundle: Path, tmp_path: Path) -> None:
    place = tmp_path / "plans"
    place.mkdir()
    assert fedglass("init", place / "plan.toml", "--from", bundle).exit_code == 0
    text = (place / "plan.toml").read_text()
    assert 'bundle = "../b"' in text
    assert 'truth = "../b-truth"' in text
    checked = fedglass("check", place / "plan.toml")
    assert checked.exit_code == 0
    assert "is sound" in " ".join(checked.stdout.split())


def test_public_examples_are_named_once_for_audit_and_plan(fedglass: Run, bundle: Path, tmp_path: Path) -> None:
    shape, classes = TERMS["shape"], TERMS["classes"]
    labels = np.arange(60) % classes
    images = np.random.default_rng(0).integers(0, 256, (60, *shape[1:], shape[0]), dtype=np.uint8)
    np.savez(tmp_path / "public.npz", images=images, labels=labels)
    given = ("--public", tmp_path / "public.npz")
    assert "--public" in fedglass("record-info", bundle).stdout
    assert fedglass("init", tmp_path / "plan.toml", "--from", bundle, *given).exit_code == 0
    assert f'public = "{tmp_path / "public.npz"}"' in (tmp_path / "plan.toml").read_text()
    assert fedglass("check", tmp_path / "plan.toml").exit_code == 0
    fedglass("audit", bundle, "-o", tmp_path / "out", "--effort", "quick", *given)
    records = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text().splitlines()]
    games = [record for record in records if record["kind"] == "game"]
    assert games
    assert not any(each["kind"] == "no_candidates" for game in games for each in game["doubts"])
    refused = fedglass("audit", tmp_path / "plan.toml", "-o", tmp_path / "other", *given)
    assert refused.exit_code == 2
    assert "--public are options for a recorded folder" in " ".join(refused.stderr.split())


def test_the_plan_of_an_incomplete_bundle_says_what_is_missing(fedglass: Run, tmp_path: Path) -> None:
    Real().record(tmp_path / "b", whitening=None)
    found = fedglass("init", tmp_path / "plan.toml", "--from", tmp_path / "b", "--code", tmp_path)
    assert found.exit_code == 0
    assert f"Next: fedglass check {tmp_path / 'plan.toml'} --code {tmp_path}\n" in found.stdout
    assert "The plan is not ready yet" in found.stderr
    assert "# whitening = {" in (tmp_path / "plan.toml").read_text()


def test_hostile_names_stay_text(fedglass: Run, tmp_path: Path) -> None:
    name = 'x"]\n[evil]\x1b[31m'
    writer = BundleWriter(tmp_path / "b", facts=TERMS)
    state = dict(Real().model().state_dict())
    writer.round(1).sent(state)
    writer.round(1).received(name, {key: t + 0.1 for key, t in state.items()}, examples=1)
    told = fedglass("record-info", tmp_path / "b").stdout
    assert "\x1b" not in told
    assert fedglass("init", tmp_path / "plan.toml", "--from", tmp_path / "b").exit_code == 0
    assert fedglass("check", tmp_path / "plan.toml").exit_code == 0


def _newer(folder: Path) -> None:
    told = json.loads((folder / "manifest.json").read_text())
    sign(folder, {**told, "format": 3})


def _half(folder: Path) -> None:
    (folder / "round-00002-client-00001.safetensors").unlink()


def _no_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (_newer, "has format 3, expected at most 2: a newer fedglass recorded it"),
        (_half, "is missing: the bundle is incomplete"),
        (_no_manifest, "manifest.json is missing"),
        (shutil.rmtree, "is not a folder, expected that of a bundle"),
    ],
)
@pytest.mark.parametrize("command", ["record-info", "audit", "init"])
def test_bad_bundles_are_refused_in_a_sentence(
    fedglass: Run, tmp_path: Path, spoil: Callable[[Path], None], match: str, command: str
) -> None:
    original(tmp_path / "b")
    spoil(tmp_path / "b")
    if command == "audit" and not (tmp_path / "b").exists():
        return  # it is taken for the name of a plan then
    arguments = (
        ("init", tmp_path / "plan.toml", "--from", tmp_path / "b") if command == "init" else (command, tmp_path / "b")
    )
    found = fedglass(*arguments)
    assert found.exit_code == 2
    assert match in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may read everything")
def test_a_bundle_of_somebody_else_is_refused(fedglass: Run, bundle: Path) -> None:
    (bundle / "manifest.json").chmod(0)
    found = fedglass("record-info", bundle)
    assert found.exit_code == 2
    assert "only the user who recorded it may" in found.stderr


def test_a_model_is_no_option_of_a_plan(fedglass: Run, tmp_path: Path) -> None:
    found = fedglass("audit", tmp_path / "plan.toml", "--model", "lenet")
    assert found.exit_code == 2
    assert "are options for a recorded folder" in found.stderr


def test_record_info_of_a_bundle_without_a_round(fedglass: Run, tmp_path: Path) -> None:
    BundleWriter(tmp_path / "b", facts=TERMS)
    found = fedglass("record-info", tmp_path / "b")
    assert found.exit_code == 3
    assert "has nothing to attack: it holds no round yet, record one first." in found.stdout


def test_the_folder_above_a_bundle_is_not_called_a_broken_one(fedglass: Run, bundle: Path) -> None:
    found = fedglass("record-info", bundle.parent)
    assert found.exit_code == 2
    said = " ".join(found.stderr.split())
    assert f"{bundle.parent} holds no bundle: name the folder that was recorded, such as {bundle}." in said


@pytest.mark.parametrize("name", ["manifest.json", "round-00001-sent.safetensors"])
def test_a_file_of_a_bundle_is_no_plan(name: str, fedglass: Run, bundle: Path) -> None:
    found = fedglass("audit", bundle / name)
    assert found.exit_code == 2
    assert "is a file of a recorded federation: give its folder" in " ".join(found.stderr.split())


def test_an_audit_is_not_written_into_a_bundle(fedglass: Run, bundle: Path) -> None:
    """Which is handed over, and the private pictures in the report with it."""
    before = sorted(bundle.iterdir())
    found = fedglass("audit", bundle, "-o", bundle)
    assert found.exit_code == 2
    assert "is a recorded federation" in found.stderr
    assert sorted(bundle.iterdir()) == before


@pytest.mark.parametrize("command", [("record-info",), ("audit",)])
def test_a_network_of_something_else_than_images_is_named_as_such(
    command: tuple[str, ...], fedglass: Run, tmp_path: Path
) -> None:
    """To ask for the shape of the images would send its user the wrong way."""
    Real(sizes=(1,), rounds=1).record(tmp_path / "b", shape=None)
    BundleWriter(tmp_path / "b", resume=True).facts({"x-inputs": [12]}, source="read")
    shutil.rmtree(tmp_path / "b-truth")
    found = fedglass(*command, tmp_path / "b", *(("-o", tmp_path / "out") if command == ("audit",) else ()))
    said = " ".join((found.stdout + found.stderr).split())
    assert "with inputs of shape (12,), and fedglass attacks images" in said
    assert found.exit_code == (3 if command == ("record-info",) else 2)
    assert "Missing: " not in said


def test_all_that_is_missing_is_named_at_once(fedglass: Run, tmp_path: Path) -> None:
    Real(sizes=(1,), rounds=1).record(tmp_path / "b", shape=None, classes=None)
    shutil.rmtree(tmp_path / "b-truth")
    found = fedglass("audit", tmp_path / "b", "-o", tmp_path / "out")
    assert found.exit_code == 2
    said = " ".join(found.stderr.split())
    assert "does not have its shape, classes, expected in" in said
    assert "add the clients' own recordings with `fedglass join`" in said


def test_a_truth_that_may_not_be_read_is_named(
    fedglass: Run, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for somebody who is not its owner; a test may run as one who reads everything."""
    plain = Path.exists

    def closed(path: Path) -> bool:
        if path.name == "truth.json":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return plain(path)

    monkeypatch.setattr(Path, "exists", closed)
    found = fedglass("audit", bundle, "-o", tmp_path / "out")
    assert found.exit_code == 2
    assert "truth.json: Permission denied; only the client that wrote it may" in found.stderr


def test_labels_of_other_classes_are_refused(fedglass: Run, bundle: Path, tmp_path: Path) -> None:
    images, _ = examples(0, 1)
    BundleWriter(bundle, resume=True).truth("client 0", images, torch.tensor([9]))
    found = fedglass("audit", bundle, "-o", tmp_path / "out")
    assert found.exit_code == 2
    assert "labels of 'client 0' outside the 4 classes" in found.stderr
