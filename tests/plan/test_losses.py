"""The key `loss` of a training, and the targets that a plan's data bring."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedglass import recording
from fedglass.audit.audit import run
from fedglass.audit.simulated import Simulated
from fedglass.core.errors import UsageError
from fedglass.core.losses import TargetKind
from fedglass.core.types import Training
from fedglass.fl.loss.losses import BinaryCrossEntropy, CrossEntropy, SquaredLoss
from fedglass.plan.compile import compile_plan
from fedglass.plan.options import code_of
from fedglass.plan.schema import parse_plan
from fedglass.plan.tables import TrainingTable

PLAN = """
[federation]
data = "{data}"
model = "{model}"
examples = 2
{more}
[federation.training]
lr = 0.1
{training}
[[attacks]]
name = "inverting_gradients"
iterations = 2
"""


def simulated(folder: Path, training: str, data: str = "npz:set.npz", model: str = "mlp", more: str = "") -> Simulated:
    plan = parse_plan(PLAN.format(data=data, model=model, training=training, more=more))
    (source,) = compile_plan(plan, folder).sources
    assert isinstance(source, Simulated)
    return source


def store(folder: Path, **arrays: Any) -> None:
    np.savez(folder / "set.npz", images=np.random.default_rng(0).integers(0, 256, (6, 8, 8), np.uint8), **arrays)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, Training(0.1)),
        ({"label_smoothing": 0.1}, Training(0.1, label_smoothing=0.1)),
        ({"loss": "cross_entropy"}, Training(0.1)),
        ({"loss": {"name": "cross_entropy", "label_smoothing": 0.1}}, Training(0.1, label_smoothing=0.1)),
        (
            {"loss": {"name": "cross_entropy", "weight": [1.0, 2.0], "ignore_index": -1}},
            Training(0.1, loss=CrossEntropy(weight=(1.0, 2.0), ignore_index=-1)),
        ),
        ({"loss": "mse_loss"}, Training(0.1, loss=SquaredLoss())),
        ({"loss": {"name": "mse_loss", "reduction": "sum"}}, Training(0.1, loss=SquaredLoss("sum"))),
    ],
)
def test_a_training_names_its_loss(keys: dict[str, Any], expected: Training) -> None:
    assert TrainingTable(lr=0.1, **keys).value() == expected
    assert repr(TrainingTable(lr=0.1, **keys).value()) == repr(expected)


def test_targets_come_from_the_data(tmp_path: Path) -> None:
    store(tmp_path, targets=np.eye(6, 4, dtype=np.uint8))
    federation = simulated(tmp_path, 'loss = "binary_cross_entropy_with_logits"').federation
    assert federation.training.loss == BinaryCrossEntropy()
    assert federation.clients[0].labels.shape == (2, 4)
    assert federation.classes == 4


def test_a_single_number_is_predicted(tmp_path: Path) -> None:
    store(tmp_path, targets=np.linspace(-1, 3, 6))
    federation = simulated(tmp_path, 'loss = "mse_loss"').federation
    assert federation.clients[0].labels.shape == (2, 1)
    assert federation.classes == 1


def test_classes_become_one_hot_where_the_loss_has_numbers(tmp_path: Path) -> None:
    store(tmp_path, labels=np.array([0, 1, 2, 0, 1, 2]))
    labels = simulated(tmp_path, 'loss = "mse_loss"').federation.clients[0].labels
    assert labels.shape == (2, 3)
    assert torch.equal(labels.sum(1), torch.ones(2))


OWN = """
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedglass.core.losses import TargetKind


@dataclass(frozen=True)
class Quartic:
    power: int = 4

    targets: ClassVar[TargetKind] = TargetKind.NUMBERS

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).pow(self.power).mean()


class Masks(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Conv2d(shape[0], classes, 3, padding=1)

    def forward(self, images):
        return self.body(images)
"""


DENSE = """
from torch import nn


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Sigmoid(), nn.Linear(8, 3))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_losses.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_losses", raising=False)
    return tmp_path


def test_a_loss_of_one_s_own(own: Path) -> None:
    store(own, targets=np.linspace(-1, 3, 12).reshape(6, 2))
    text = 'loss = { name = "own_losses:Quartic", power = 2 }'
    loss: Any = simulated(own, text).federation.training.loss
    assert repr(loss) == "Quartic(power=2)"
    assert loss.targets is TargetKind.NUMBERS
    listed = code_of(parse_plan(PLAN.format(data="photos", model="mlp", training=text, more="")))
    assert [str(code) for code in listed] == ["own_losses:Quartic (loss)"]


def test_masks_and_a_network_of_one_s_own(own: Path) -> None:
    store(own, targets=np.random.default_rng(1).integers(0, 3, (6, 8, 8)))
    federation = simulated(own, 'loss = "pixel_cross_entropy"', model="own_losses:Masks").federation
    assert federation.clients[0].labels.shape == (2, 8, 8)
    resized = simulated(own, 'loss = "dice"', model="own_losses:Masks", more="size = 4").federation
    assert resized.clients[0].labels.shape == (2, 4, 4)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("percentile = 101", r"percentile must be in \[0, 100\], got 101.0: choose a percentage"),
        ("percentile = -1", r"percentile must be in \[0, 100\], got -1.0: choose a percentage"),
        ("gamma = -1", "gamma must be a finite number above 0, got -1.0: leave the defence out to switch it off"),
        ("gamma = 0", "gamma must be a finite number above 0, got 0.0: leave the defence out to switch it off"),
    ],
)
def test_options_of_filters_are_refused_with_their_range(tmp_path: Path, option: str, says: str) -> None:
    store(tmp_path, labels=np.arange(6) % 3)
    with pytest.raises(UsageError, match=says):
        simulated(tmp_path, f'[[defences]]\nname = "percentile_privacy"\n{option}')


@pytest.mark.parametrize(
    ("training", "targets", "says"),
    [
        ('loss = "huber"', np.zeros((6, 3)), "Unknown loss 'huber': name one of your own as package.module:name"),
        ('loss = "bce"', np.zeros((6, 3)), "Unknown loss 'bce'"),
        ('loss = { name = "mse_loss", reduction = "none" }', np.zeros((6, 3)), 'reduction must be "mean" or "sum"'),
        ('loss = { name = "mse_loss", delta = 1.0 }', np.zeros((6, 3)), "Unknown option 'delta'"),
        ('loss = "unknown"', np.zeros((6, 3)), "cannot train with an unknown loss"),
        ("", np.ones((6, 3)), "do not add up to 1, but cross_entropy needs one class for each example"),
        ('loss = "cross_entropy"', np.arange(384).reshape(6, 8, 8) % 3, "needs one class for each example"),
        ('loss = "pixel_cross_entropy"', np.arange(384).reshape(6, 8, 8) % 3, "but the network's outputs have shape"),
        ('loss = "binary_cross_entropy_with_logits"', np.full((6, 3), 1.5), r"needs targets in \[0, 1\]"),
        ('loss = "mse_loss"', np.full((6, 3), np.nan), "NaN or infinity"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, training: str, targets: Any, says: str) -> None:
    store(tmp_path, targets=targets)
    with pytest.raises(UsageError, match=says) as caught:
        simulated(tmp_path, training)
    assert not re.search(r"\. [A-Z]", str(caught.value).replace("Known: ", ""))


@pytest.mark.parametrize("attack", ["dlg", "idlg", "inverting_gradients"])
@pytest.mark.parametrize("ignored", [1, 255])
def test_attacks_run_where_a_class_is_ignored(tmp_path: Path, attack: str, ignored: int) -> None:
    store(tmp_path, labels=np.array([0, 2, 3, 2, 0, 3]))
    training = f'loss = {{ name = "cross_entropy", weight = [1.0, 2.0, 0.5, 1.0], ignore_index = {ignored} }}'
    text = PLAN.replace("inverting_gradients", attack).format(
        data="npz:set.npz", model="mlp", training=training, more=""
    )
    result = run(compile_plan(parse_plan(text), tmp_path), tmp_path / "out")
    (record,) = result.searches
    assert record.status == "done", record.error
    assert 1 not in record.labels_recovered, "an ignored example leaves no trace, so none is sought"


def test_a_recording_whose_loss_ignores_examples_is_attacked(own: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Sigmoid(), nn.Linear(8, 3))
    images, labels = torch.rand(3, 1, 8, 8), torch.tensor([0, 255, 2])
    with recording(own / "bundle", model, client="a", round=1, truth=True, whitening=((0.0,), (1.0,))):
        nn.CrossEntropyLoss(ignore_index=255)(model(images), labels).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    (own / "dense_net.py").write_text(DENSE, encoding="utf-8")
    names = ("dlg", "idlg", "inverting_gradients")
    attacks = "".join(f'[[attacks]]\nname = "{name}"\niterations = 2\n' for name in names)
    text = f'[recording]\nbundle = "bundle"\ntruth = "bundle-truth"\nmodel = "dense_net:make"\n{attacks}'
    records = run(compile_plan(parse_plan(text), own), own / "out").searches
    assert [(r.attack, r.status, r.labels_true) for r in records] == [(name, "done", [0, 255, 2]) for name in names]


def test_void_pixels_of_masks_are_ignored(own: Path) -> None:
    masks = np.random.default_rng(1).integers(0, 3, (6, 8, 8), np.uint8)
    masks[:, :2] = 255
    store(own, targets=masks)
    void = 'loss = { name = "pixel_cross_entropy", ignore_index = 255 }'
    source = simulated(own, void, model="own_losses:Masks")
    assert source.federation.model.body.weight.shape[0] == 3, "255 is not a class"
    text = PLAN.format(data="npz:set.npz", model="own_losses:Masks", training=void, more="")
    (record,) = run(compile_plan(parse_plan(text), own), own / "out").searches
    assert record.status == "done", record.error
    with pytest.raises(UsageError, match=r"label 255, expected 0 to 2: .* or set the loss's ignore_index"):
        simulated(own, 'loss = "pixel_cross_entropy"', model="own_losses:Masks")


def test_an_audit_of_several_labels_runs_to_its_report(tmp_path: Path) -> None:
    store(tmp_path, targets=np.eye(6, 4, dtype=np.uint8))
    more = "test_examples = 2"
    plan = parse_plan(
        PLAN.format(data="npz:set.npz", model="mlp", training='loss = "binary_cross_entropy_with_logits"', more=more)
    )
    summary = run(compile_plan(plan, tmp_path), tmp_path / "out")
    records = {record.attack: record for record in summary.records}
    searched, read = records["inverting_gradients"], records["exact"]
    assert (searched.labels_true, searched.label_errors) == ([-1, -1], None)
    assert (read.method, read.explains, read.labels_recovered) == ("division", True, [-1, -1])
    assert min(read.metrics["psnr"]) > 60


def test_a_backdoor_needs_classes(tmp_path: Path) -> None:
    store(tmp_path, targets=np.eye(6, 4, dtype=np.uint8))
    group = 'group = [{ clients = [0], behaviour = { name = "backdoor" } }]'
    federation = simulated(tmp_path, 'loss = "binary_cross_entropy_with_logits"', more=group).federation
    with pytest.raises(UsageError, match="'backdoor' needs a loss with one class for each example"):
        federation.run()
