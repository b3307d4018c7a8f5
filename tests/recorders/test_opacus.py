"""Opacus is read from its wrapper of the optimiser and its sampler; stand-ins here have their names and attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fedglass.cli.main import cli
from fedglass.core.optimisers import Adam
from fedglass.core.types import BatchNorm, Training
from fedglass.recorders.hooks import TrainingReader
from fedglass.recorders.plain import recording
from fedglass.recorders.training_facts import training_facts
from fedglass.recordings import BundleWriter
from fedglass.recordings.facts import ACCOUNTANT, RESERVATION_IDS, RESERVATIONS, FactSheet, preferred
from fedglass.recordings.privacy import recorded_epsilons
from fedglass.recordings.reader import read_bundle
from fedglass.recordings.transcript import training_of

EXAMPLES, CLASSES = 8, 3
IMAGES = torch.rand(EXAMPLES, 1, 4, 4, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(EXAMPLES) % CLASSES


class PRVAccountant:
    """What has been counted."""

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        def hook_fn(optim: Any) -> None:
            steps = self.history.pop()[2] if self.history else 0
            self.history.append((optim.noise_multiplier, sample_rate, steps + 1))

        return hook_fn


class DPOptimizer(torch.optim.Optimizer):
    """A wrapper that replaces the gradients, of a linear network in closed form."""

    def __init__(self, optimizer: torch.optim.Optimizer, model: nn.Module, **options: Any) -> None:
        given = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": EXAMPLES}
        vars(self).update({**given, "loss_reduction": "mean", **options}, step_hook=None)
        self.original_optimizer, self.model, self.accumulated_iterations = optimizer, model, 1
        self.batch: tuple[Tensor, Tensor] = IMAGES, LABELS

    def step(self, closure: Any = None) -> None:
        weight, bias = self.model.parameters()
        inputs = self.batch[0].flatten(1)
        errors = (inputs @ weight.T + bias).softmax(1).detach() - F.one_hot(self.batch[1], CLASSES)
        norms = ((1 + inputs.square().sum(1)) * errors.square().sum(1)).sqrt()
        clip = self.max_grad_norm if isinstance(self.max_grad_norm, float) else 1.0
        errors = errors * (clip / norms).clamp(max=1)[:, None]
        for parameter, total in ((weight, errors.T @ inputs), (bias, errors.sum(0))):
            noise = self.noise_multiplier * clip * torch.randn(total.shape)
            parameter.grad = (total + noise) / self.expected_batch_size
        if self.step_hook is not None:
            self.step_hook(self)
        self.original_optimizer.step()


class DPPerLayerOptimizer(DPOptimizer):
    """Another kind of clipping."""


class UniformWithReplacementSampler:
    """Poisson samples."""

    def __init__(self, sizes: list[int]) -> None:
        self.sample_rate, self.sizes = 0.5, sizes

    def __iter__(self) -> Iterator[list[int]]:
        yield from (list(range(size)) for size in self.sizes)


for stand_in in (PRVAccountant, DPOptimizer, DPPerLayerOptimizer, UniformWithReplacementSampler):
    stand_in.__module__ = "opacus.stand_in"


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, CLASSES))


Optimiser = Callable[[Any], torch.optim.Optimizer]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def train(
    model: nn.Module, *, sizes: list[int], kind: Any = DPOptimizer, inner: Optimiser = sgd, **options: Any
) -> Any:
    """Take a step on the first `cut` examples of each batch."""
    poisson, cut = options.pop("poisson", True), options.pop("cut", None)
    private = kind(inner(model.parameters()), model, **options)
    private.step_hook = PRVAccountant().get_optimizer_hook_fn(0.5 if poisson else 1.0)
    batches: Any = UniformWithReplacementSampler(sizes) if poisson else [list(range(size)) for size in sizes]
    for images, labels in DataLoader(TensorDataset(IMAGES, LABELS), batch_sampler=batches):
        private.batch = images[:cut], labels[:cut]
        model.zero_grad()
        F.cross_entropy(model(images[:cut]), labels[:cut]).backward()
        private.step()
    return private


def heard(**options: Any) -> dict[str, Any]:
    model = linear()
    with TrainingReader() as reader:
        train(model, **options)
    assert not reader.fault
    return training_facts(reader.steps)


def sheet(facts: dict[str, Any]) -> FactSheet:
    return {name: {"read": value} for name, value in facts.items()}


def test_full_batches_are_dpsgd() -> None:
    found = heard(sizes=[EXAMPLES] * 3, poisson=False, noise_multiplier=1.5, max_grad_norm=0.5)
    assert found["defences"] == [{"name": "dpsgd", "options": {"clip": 0.5, "noise_multiplier": 1.5}}]
    assert found[ACCOUNTANT] == {"name": "PRVAccountant", "history": [[1.5, 1.0, 3]]}
    assert RESERVATIONS not in found
    assert "clip" not in found
    assert training_of(sheet(found), EXAMPLES, False) == Training(0.1, 3, shuffle=False)


def test_poisson_batches_are_no_contradiction_and_no_reservation() -> None:
    found = heard(sizes=[3, 5, 4], expected_batch_size=4)
    options = {"clip": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.5, "expected_batch_size": 4.0}
    assert found["defences"] == [{"name": "dpsgd_poisson", "options": options}]
    assert (found["batch_sizes"], found["examples"]) == ([3, 5, 4], 5)
    assert RESERVATIONS not in found
    assert training_of(sheet(found), 5, False) == Training(0.1, steps=3)


def test_a_batch_that_is_cut_is_no_poisson_sample() -> None:
    found = heard(sizes=[3, 5, 4], cut=2, expected_batch_size=4)
    assert found["defences"][0]["name"] == "dpsgd"


@pytest.mark.parametrize(("kind", "norm"), [(DPPerLayerOptimizer, 1.0), (DPOptimizer, [0.5, 0.5]), (DPOptimizer, -1.0)])
def test_another_clipping_is_named_and_not_run_again(kind: Any, norm: Any) -> None:
    found = heard(sizes=[EXAMPLES], poisson=False, kind=kind, max_grad_norm=norm)
    (part,) = found["defences"]
    assert part["name"] == kind.__name__
    assert part["options"]["max_grad_norm"] == norm


def test_a_wrapper_of_somebody_else_is_named_with_its_module() -> None:
    own = type("Own", (DPOptimizer,), {"__module__": "task"})
    assert heard(sizes=[EXAMPLES], poisson=False, kind=own)["defences"][0]["name"] == "task.Own"


def test_private_steps_among_others_are_changed_gradients() -> None:
    model = linear()
    with TrainingReader() as reader:
        train(model, sizes=[EXAMPLES], poisson=False)
        optimiser = sgd(model.parameters())
        F.cross_entropy(model(IMAGES), LABELS).backward()
        optimiser.step()
    found = training_facts(reader.steps)
    assert "defences" not in found
    assert "changed_gradients" in found[RESERVATION_IDS]


def record(folder: Path, rounds: int = 1, declared: int | None = None, **options: Any) -> Path:
    model = linear()
    for index in range(rounds):
        with recording(folder, model, client="a", round=index):
            train(model, **options)
    if declared is not None:
        BundleWriter(folder, resume=True).training("a", 0, {"examples": declared}, source="declared")
    return folder


def said(folder: Path) -> str:
    return CliRunner().invoke(cli, ["record-info", str(folder)]).output


@pytest.mark.parametrize(("declared", "contradicts"), [(EXAMPLES, False), (2, True)])
def test_a_sample_may_leave_out_examples_and_not_have_more(declared: int, contradicts: bool, tmp_path: Path) -> None:
    record(tmp_path / "b", sizes=[3, 5, 4], declared=declared, expected_batch_size=4)
    assert ("Contradictions" in said(tmp_path / "b")) is contradicts


def test_clipping_that_was_asked_for_is_among_what_was_done(tmp_path: Path) -> None:
    folder = record(tmp_path / "b", sizes=[EXAMPLES], poisson=False)
    clipping = {"name": "flower_fixed_clipping", "options": {"clipping_norm": 1.0}}
    done = preferred(read_bundle(folder).facts_of("a", 0), "defences")
    writer = BundleWriter(folder, resume=True)
    writer.training("a", 0, {"defences": [clipping]}, source="declared")
    assert "sources disagree on defences" in said(folder)
    writer.training("a", 0, {"defences": [*done, clipping]}, source="read")
    assert "sources disagree on defences" not in said(folder)


def test_record_info_never_lacks_what_it_has_read(tmp_path: Path) -> None:
    """Batches of no whole epoch, in a training by Adam: the learning rate is known, and still nothing can be run."""
    model = linear()
    with recording(tmp_path / "b", model, client="a", round=0):
        optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
        for rows in ([0, 1, 2], [3, 4, 5], [0, 1, 6]):
            optimiser.zero_grad()
            F.cross_entropy(model(IMAGES[rows]), LABELS[rows]).backward()
            optimiser.step()
    text = said(tmp_path / "b")
    assert "lr = 0.1 (read)" in text
    assert "lacks the clients' learning rate" not in text
    assert "a, round 0: the training cannot be simulated, because its batches do not make whole epochs." in text
    assert "dlfa lacks a training that can be simulated" in text


def test_epsilon_is_that_of_all_rounds_next_to_what_was_counted(tmp_path: Path) -> None:
    """Each round has an accountant of its own here, which counts one step."""
    folder = record(tmp_path / "b", rounds=2, sizes=[EXAMPLES], poisson=False)
    ((found,),) = recorded_epsilons(read_bundle(folder)).values()
    assert found.declared == pytest.approx(4.377, abs=1e-3)
    assert found.real == pytest.approx(6.573, abs=1e-3)
    assert found.exceeded
    text = said(folder)
    assert "declares epsilon 4.38 at delta 1e-05; over 2 releases it is 6.57, because each record is in 2 steps" in text
    assert "Epsilon bounds what one record changes" in text


@pytest.mark.parametrize(
    "history", [None, {}, {"history": 3}, {"history": [[1.0, 2.0, 1]]}, {"history": [[1.0, 1.0, 10**400]]}, ["x"]]
)
def test_what_is_no_history_is_not_counted(history: Any, tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b")
    round_ = writer.round(0)
    round_.sent({"w": torch.zeros(3)})
    round_.received("a", {"w": torch.ones(3)}, form="update")
    part = {"name": "dpsgd", "options": {"clip": 1.0, "noise_multiplier": 1.0}}
    writer.training("a", 0, {"defences": [part], "steps": 1, ACCOUNTANT: history}, source="read")
    ((found,),) = recorded_epsilons(read_bundle(tmp_path / "b")).values()
    assert (found.declared, round(found.real, 3)) == (None, 4.377)


def test_an_optimiser_inside_of_the_wrapper_is_read() -> None:
    def adam(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.01)

    found = heard(sizes=[EXAMPLES], poisson=False, inner=adam)
    training = training_of(sheet(found), EXAMPLES, False)
    assert training == Training(0.01, batch_norm=BatchNorm.FROZEN, optimiser=Adam())
