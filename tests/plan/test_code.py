"""Which code a plan runs is known before any of it is imported."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedglass.core import registry
from fedglass.core.errors import UsageError, no_code
from fedglass.plan.compile import check_without_code
from fedglass.plan.options import code_of
from fedglass.plan.schema import parse_plan

PLAN = """
[federation]
data = "photos"
size = 16
clients = 2
examples = 1
model = "lenet"
init = "uniform"
training = { lr = 0.1 }
rule = { name = "mean" }
group = [{ clients = [0], behaviour = { name = "honest" }, defences = [{ name = "clip", norm = 1.0 }] }]
[[defences]]
name = "gaussian_noise"
std = 0.1
[[attacks]]
name = "inverting_gradients"
labels = "minimum_rule"
[metrics]
names = ["psnr", "ssim"]
[gate]
metric = "psnr"
"""
NAMED = {
    "datasets": '"photos"',
    "models": '"lenet"',
    "initialisations": '"uniform"',
    "rules": '"mean"',
    "behaviours": '"honest"',
    "defences": '"gaussian_noise"\nstd = 0.1',
    "attacks": '"inverting_gradients"',
    "labels": '"minimum_rule"',
    "metrics": '"ssim"',
}


def test_a_plan_of_built_in_parts_runs_no_code_of_others() -> None:
    assert code_of(parse_plan(PLAN)) == ()


@pytest.mark.parametrize("kind", NAMED)
def test_code_of_every_kind_is_found_and_not_imported(kind: str, tmp_path: Path) -> None:
    assert NAMED[kind] in PLAN
    plan = parse_plan(PLAN.replace(NAMED[kind], '"strange.module:name"'))
    (code,) = code_of(plan)
    assert (code.kind, code.name, code.origin) == (kind, "strange.module:name", "strange.module:name")
    assert "strange.module:name (" in str(code)
    check_without_code(plan, tmp_path)
    assert "strange" not in sys.modules


@pytest.mark.parametrize("place", ['clip", norm = 1.0', 'psnr"\n'])
def test_code_in_corners(place: str) -> None:
    """Of a group's own defence, and of the gate's metric."""
    text = PLAN.replace("[gate]\nmetric = ", "[gate]\n  metric = ")
    text = text.replace(f'"{place}', '"strange.module:name"' + ("\n" if place.endswith("\n") else ""))
    assert [code.name for code in code_of(parse_plan(text))] == ["strange.module:name"]


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("npz:faces.npz", None),
        ("folder:some.where/pictures", None),
        ("pictures/faces.npz", None),
        ("C:/faces.npz", None),
        ("idxx:faces", None),
        ("strange.module:reader:faces.db", "strange.module:reader"),
        ("json:loads", "json:loads"),
    ],
)
def test_a_path_is_no_code(data: str, name: str | None) -> None:
    plan = parse_plan(PLAN.replace('"photos"', f'"{data}"'))
    assert [code.name for code in code_of(plan)] == ([] if name is None else [name])


def test_parts_of_installed_packages_are_code_too(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("theirs", "strange.module:attack", "fedglass.attacks")]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "fedglass.attacks" else [])
    (code,) = code_of(parse_plan(PLAN.replace('"inverting_gradients"', '"theirs"')))
    assert str(code) == "theirs (attack of package of strange.module:attack)"
    with no_code(), pytest.raises(UsageError, match=r"'theirs' of .* is not looked at without running its code"):
        registry.find("attacks", "theirs")


def test_nothing_is_imported_where_it_is_forbidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "forbidden_code.py").write_text("raise AssertionError\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for kind in NAMED:
        with no_code(), pytest.raises(UsageError, match="is not looked at without running its code"):
            registry.find(kind, "forbidden_code:make")
    plan = parse_plan(PLAN.replace('"photos"', '"forbidden_code:read:faces.db"'))
    check_without_code(plan, tmp_path)
    assert "forbidden_code" not in sys.modules


@pytest.mark.parametrize(
    ("own", "old", "new", "words"),
    [
        ("models", "examples = 1", "examples = 100", "asks for 200 examples in all"),
        ("models", '"uniform"', '"file:"', "names no weights file"),
        ("models", '"photos"', '"npz:none.npz"', "no such file or folder"),
        ("datasets", '"uniform"', '"unifrom"', "Unknown initialisation 'unifrom'"),
        ("rules", '"lenet"', '"lennet"', "Unknown model 'lennet'"),
        ("attacks", "std = 0.1", "sdt = 0.1", "Unknown option 'sdt'"),
        ("defences", '"ssim"', '"ssmi"', "Unknown metric 'ssmi'"),
        ("labels", '[gate]\nmetric = "psnr"', '[gate]\nmetric = "psnr"\nmax_share = 2.0', "gate.max_share"),
        ("metrics", "training =", "classes = 3\ntraining =", "labels must lie in"),
        ("models", '"minimum_rule"', '"oracle"', None),
    ],
)
def test_the_rest_is_checked_without_the_code(own: str, old: str, new: str, words: str | None, tmp_path: Path) -> None:
    text = PLAN.replace(NAMED[own], '"strange.module:name"')
    assert old in text
    plan = parse_plan(text.replace(old, new))
    if words is None:
        assert check_without_code(plan, tmp_path)
        return
    with pytest.raises(UsageError, match=words):
        check_without_code(plan, tmp_path)


def test_what_can_be_told_is_told(tmp_path: Path) -> None:
    plan = parse_plan(PLAN.replace(NAMED["attacks"], '"strange.module:name"'))
    titles = [title for title, _ in check_without_code(plan, tmp_path)]
    assert titles == ["Federation", "What the adversary sees", "What it knows apart from the message", "Judgement"]
    plan = parse_plan(PLAN.replace(NAMED["models"], '"strange.module:name"'))
    assert [title for title, _ in check_without_code(plan, tmp_path)] == ["Attacks", "Judgement"]


RECORDING = """
[recording]
model = "strange.module:make"
classes = 10
before = "before.safetensors"
after = "after.safetensors"
truth = "truth.npz"
whitening = { mean = [0.5], std = [0.25] }
[[attacks]]
name = "idlg"
"""


def test_a_recording_is_checked_without_its_model(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(2)}, tmp_path / "before.safetensors")
    save_file({"w": torch.ones(2)}, tmp_path / "after.safetensors")
    np.savez(tmp_path / "truth.npz", images=np.zeros((1, 8, 8), np.uint8), labels=np.array([1]))
    check_without_code(parse_plan(RECORDING), tmp_path)
    assert [code.name for code in code_of(parse_plan(RECORDING))] == ["strange.module:make"]
    for old, new, words in (
        ("[0.5], std = [0.25]", "[0.5, 0.5], std = [0.25, 0.25]", "recording.whitening must have one mean"),
        ("classes = 10", "classes = 10\nclients = 2", "recording.clients must be at most"),
        ('"after.', '"none.', "recording.after: no such file"),
        ('after = "after.safetensors"', 'after = "truth.npz"', "recording.after: .*cannot be read as safetensors"),
    ):
        assert old in RECORDING
        with pytest.raises(UsageError, match=words):
            check_without_code(parse_plan(RECORDING.replace(old, new)), tmp_path)
