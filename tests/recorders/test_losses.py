"""Losses that a recorder names with their options replay; a loss without a name is unknown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.checks.claim import Claim, ClientClaim, claim_of
from fedglass.checks.replay import ReplayOutcome, replay
from fedglass.core.errors import UsageError
from fedglass.core.losses import Loss, TargetKind, target_kind
from fedglass.core.types import Training, Whitening
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation
from fedglass.federation.transcript import Round, Terms, Transcript
from fedglass.federation.truth import Truths
from fedglass.federation.views import Knows, ServerView
from fedglass.fl.loss.losses import (
    AbsoluteLoss,
    BinaryCrossEntropy,
    CrossEntropy,
    PixelCrossEntropy,
    SquaredLoss,
    UnknownLoss,
)
from fedglass.guard import Guard
from fedglass.guard.runners import InlineRunner
from fedglass.recipes.exact import exact
from fedglass.recipes.inverting_gradients import inverting_gradients
from fedglass.recorders.hooks import TrainingReader
from fedglass.recorders.plain import recording
from fedglass.recorders.training_facts import training_facts
from fedglass.recordings.reader import read_bundle
from fedglass.recordings.transcript import TranscriptReader, loss_fact
from fedglass.recordings.truth_files import read_truths

IMAGES = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)).mul(255).round().div(255)
LABELS = torch.tensor([0, 2, 1, 2])
BITS = F.one_hot(LABELS, 3).float()
MASKS = torch.randint(3, (4, 8, 8), generator=torch.Generator().manual_seed(1))
WEIGHTS = torch.tensor([1.0, 2.0, 0.5])
Objective = Callable[[Tensor], Tensor]


def dense(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, outputs))


def pixelwise() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))


def step(model: nn.Module, objective: Objective, images: Tensor = IMAGES) -> None:
    objective(model(images)).backward()  # type: ignore[no-untyped-call] # of torch
    torch.optim.SGD(model.parameters(), lr=0.1).step()


NAMED: list[tuple[Loss, Objective, Callable[[], nn.Module]]] = [
    (BinaryCrossEntropy(), lambda out: F.binary_cross_entropy_with_logits(out, BITS), dense),
    (
        BinaryCrossEntropy(pos_weight=(1.0, 2.0, 0.5)),
        lambda out: nn.BCEWithLogitsLoss(pos_weight=WEIGHTS)(out, BITS),
        dense,
    ),
    (BinaryCrossEntropy(), lambda out: F.binary_cross_entropy(out.sigmoid(), BITS), dense),
    (BinaryCrossEntropy(), lambda out: F.binary_cross_entropy_with_logits(out[:, 0], BITS[:, 0]), lambda: dense(1)),
    (SquaredLoss(), lambda out: F.mse_loss(out, BITS), dense),
    (SquaredLoss("sum"), lambda out: F.mse_loss(out, BITS, reduction="sum"), dense),
    (SquaredLoss("sum"), lambda out: F.mse_loss(out, BITS, reduction="none").sum(), dense),
    (SquaredLoss(), lambda out: nn.MSELoss()(out.squeeze(1), 3 * BITS[:, 1]), lambda: dense(1)),
    (AbsoluteLoss(), lambda out: F.l1_loss(out, BITS), dense),
    (CrossEntropy(weight=(1.0, 2.0, 0.5)), lambda out: F.cross_entropy(out, LABELS, weight=WEIGHTS), dense),
    (CrossEntropy(reduction="sum"), lambda out: F.cross_entropy(out, LABELS, reduction="sum"), dense),
    (CrossEntropy(ignore_index=1), lambda out: F.cross_entropy(out, LABELS, ignore_index=1), dense),
    (PixelCrossEntropy(), lambda out: F.cross_entropy(out, MASKS), pixelwise),
    (PixelCrossEntropy(0.1), lambda out: F.cross_entropy(out, MASKS, label_smoothing=0.1), pixelwise),
]


def recorded(folder: Path, objective: Objective, make: Callable[[], nn.Module], images: Tensor = IMAGES) -> Round:
    """Record one step, and read it back."""
    model = make()
    with recording(folder / "b", model, client="a", round=1, truth=True, whitening=((0.0,), (1.0,))):
        step(model, objective, images)
    return TranscriptReader(read_bundle(folder / "b"), make(), {}).round(1)


@pytest.mark.parametrize(("loss", "objective", "make"), NAMED)
def test_a_loss_is_named_and_its_training_replays(
    loss: Loss, objective: Objective, make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    round_ = recorded(tmp_path, objective, make)
    training = round_.participants[0].training
    assert training is not None
    assert training.loss == loss
    truths = read_truths(tmp_path / "b-truth", ["a"])
    client = ClientClaim(training, truths.of("a", 1), order=truths.batches("a", 1))
    update = round_.messages[0].update
    outcome = replay(Claim(make(), round_.before, {}, update, Whitening((0.0,), (1.0,)), (client,)))
    assert isinstance(outcome, ReplayOutcome)
    assert outcome.explained, outcome


@pytest.mark.parametrize(("loss", "objective", "make"), NAMED)
def test_a_guard_replays_the_loss(loss: Loss, objective: Objective, make: Callable[[], nn.Module]) -> None:
    guard, model = Guard(runner=InlineRunner(), budget_seconds=600.0, false_alarms=0.0, attacks={}), make()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with guard.watch() as reader:
        step(model, objective)
    report = guard.check_watched(reader, before, after=dict(model.state_dict()))
    assert report.sound, report
    assert report.examined.residual is not None
    assert report.examined.residual < 1e-3


def test_classes_of_pixels_are_no_reservation() -> None:
    with TrainingReader() as reader:
        step(pixelwise(), lambda out: F.cross_entropy(out, MASKS))
    facts = training_facts(reader.steps)
    assert facts["objective"] == {"name": "pixel_cross_entropy", "options": {}}
    assert "x-reservations" not in facts


def by_hand(outputs: Tensor) -> Tensor:
    return (outputs - BITS[: len(outputs)]).abs().pow(1.5).mean()


@pytest.mark.parametrize("objective", [by_hand, lambda out: F.huber_loss(out, BITS[: len(out)])])
def test_a_loss_without_a_name_is_unknown_and_exact_attacks_run(objective: Objective, tmp_path: Path) -> None:
    round_ = recorded(tmp_path, objective, dense, IMAGES[:1])
    training = round_.participants[0].training
    assert training is not None
    assert training.loss == UnknownLoss()
    terms = Terms((1, 8, 8), 3, Whitening((0.0,), (1.0,)), ("a",), "")
    transcript = Transcript(dense(), terms, {0: round_})
    seen = ServerView(0).see(transcript, Knows(), None)
    assert target_kind(seen.observation.knows.objective) is TargetKind.UNKNOWN
    assert claim_of(transcript, 0, seen, None, {}) is None
    refusal = "Gradient matching needs the loss that the clients train on"
    with pytest.raises(UsageError, match=refusal) as caught:
        inverting_gradients().check(seen.observation)
    assert str(caught.value).count(". ") == 0
    with pytest.raises(UsageError, match=refusal):
        inverting_gradients(iterations=1).run(seen.observation)
    found = exact().run(seen.observation)
    assert (found.method, found.explains) == ("division", True)
    torch.testing.assert_close(found.images, IMAGES[:1], rtol=0, atol=1e-4)


def test_changed_outputs_and_penalties_have_no_name(tmp_path: Path) -> None:
    for i, objective in enumerate((lambda out: F.mse_loss(2 * out, BITS), lambda out: 3 * F.mse_loss(out, BITS))):
        training = recorded(tmp_path / str(i), objective, dense).participants[0].training
        assert training is not None
        assert training.loss == UnknownLoss()


def test_a_transcript_and_its_truths_keep_the_loss(tmp_path: Path) -> None:
    training = Training(0.1, loss=BinaryCrossEntropy(pos_weight=(1.0, 2.0, 0.5)))
    federation = Federation(dense(), [Client("a", IMAGES, BITS)], training, 3, Whitening((0.0,), (1.0,)))
    federation.run().save(tmp_path / "transcript")
    federation.truths().save(tmp_path / "truths")
    again = Transcript.load(tmp_path / "transcript", dense())
    assert again.rounds[0].participants[0].training == training
    assert torch.equal(Truths.load(tmp_path / "truths").of("a", 0).labels, BITS)


@pytest.mark.parametrize(
    ("facts", "loss"),
    [
        ({"loss": "mse_loss"}, {"loss": SquaredLoss()}),
        ({"loss": "cross_entropy", "label_smoothing": 0.1}, {"label_smoothing": 0.1}),
        (
            {"objective": {"name": "cross_entropy", "options": {"label_smoothing": 0.2}}},
            {"loss": None, "label_smoothing": 0.2},
        ),
        ({"objective": {"name": "unknown"}}, {"loss": UnknownLoss()}),
        ({"objective": {"name": "os:system", "options": {"command": "true"}}}, None),
        ({"objective": {"name": "mse_loss", "options": {"reduction": 7}}}, None),
        ({"objective": {"name": "cross_entropy", "options": {"weight": "many"}}}, None),
        ({"objective": {"name": "cross_entropy", "options": {"ignore_index": "none"}}}, None),
        ({"objective": {"name": "cross_entropy", "options": {"weight": [1.0, {}]}}}, None),
        ({"loss": "weighted cross_entropy"}, None),
        ({}, {"label_smoothing": 0.0}),
    ],
)
def test_facts_of_a_bundle_make_built_in_losses_only(facts: dict[str, Any], loss: dict[str, Any] | None) -> None:
    assert loss_fact({name: {"declared": value} for name, value in facts.items()}) == loss
