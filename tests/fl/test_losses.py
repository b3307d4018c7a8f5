"""Losses as parts: they compute what torch does, print as themselves, and refuse targets that do not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.errors import DataError, UsageError
from fedglass.core.losses import TargetKind, class_numbers, target_kind
from fedglass.core.registry import built_in, make
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation
from fedglass.fl.local import MeanGradient, Step, schedule, train
from fedglass.fl.loss.losses import (
    AbsoluteLoss,
    BinaryCrossEntropy,
    CrossEntropy,
    Dice,
    PixelCrossEntropy,
    SquaredLoss,
    UnknownLoss,
)
from fedglass.fl.loss.targets import check_targets, loss_fields, name_and_options, named_loss
from fedglass.fl.trajectory import Trajectory
from fedglass.models.network import Network

DRAWS = torch.Generator().manual_seed(0)
ROWS, GRID = torch.randn(5, 3, generator=DRAWS), torch.randn(2, 3, 4, 4, generator=DRAWS)
CLASSES, PIXELS = torch.tensor([0, 2, 1, 1, 0]), torch.randint(3, (2, 4, 4), generator=DRAWS)
SHARES = torch.rand(5, 3, generator=DRAWS)
WEIGHTS = (0.5, 2.0, 1.0)
CASES: list[tuple[Any, Tensor, Tensor, Any]] = [
    (CrossEntropy(), ROWS, CLASSES, lambda: F.cross_entropy(ROWS, CLASSES)),
    (CrossEntropy(0.1), ROWS, CLASSES, lambda: F.cross_entropy(ROWS, CLASSES, label_smoothing=0.1)),
    (
        CrossEntropy(weight=WEIGHTS, ignore_index=2, reduction="sum"),
        ROWS,
        CLASSES,
        lambda: F.cross_entropy(ROWS, CLASSES, torch.tensor(WEIGHTS), ignore_index=2, reduction="sum"),
    ),
    (PixelCrossEntropy(), GRID, PIXELS, lambda: F.cross_entropy(GRID, PIXELS)),
    (BinaryCrossEntropy(), ROWS, SHARES, lambda: F.binary_cross_entropy_with_logits(ROWS, SHARES)),
    (
        BinaryCrossEntropy(WEIGHTS, WEIGHTS, "sum"),
        ROWS,
        SHARES,
        lambda: F.binary_cross_entropy_with_logits(
            ROWS, SHARES, torch.tensor(WEIGHTS), reduction="sum", pos_weight=torch.tensor(WEIGHTS)
        ),
    ),
    (SquaredLoss(), ROWS, SHARES, lambda: F.mse_loss(ROWS, SHARES)),
    (AbsoluteLoss("sum"), ROWS, SHARES, lambda: F.l1_loss(ROWS, SHARES, reduction="sum")),
]


@pytest.mark.parametrize(("loss", "outputs", "targets", "expected"), CASES, ids=[repr(case[0]) for case in CASES])
def test_a_loss_computes_what_torch_does(loss: Any, outputs: Tensor, targets: Tensor, expected: Any) -> None:
    assert torch.equal(loss.value(outputs, targets), expected())
    assert eval(repr(loss)) == loss
    assert len({loss, eval(repr(loss))}) == 1


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("ignored", [-100, 2, 255])
@pytest.mark.parametrize("weight", [None, WEIGHTS])
def test_one_hot_rows_have_the_loss_of_their_classes(reduction: str, ignored: int, weight: Any) -> None:
    loss, pixels = (kind(0.1, weight, ignored, reduction) for kind in (CrossEntropy, PixelCrossEntropy))
    rows, masks = F.one_hot(CLASSES, 3).float(), F.one_hot(PIXELS, 3).movedim(-1, 1).float()
    assert torch.allclose(loss.value(ROWS, rows), loss.value(ROWS, CLASSES))
    assert torch.allclose(pixels.value(GRID, masks), pixels.value(GRID, PIXELS))
    if ignored == 2:
        shared = torch.tensor([[0.5, 0.3, 0.2]]).expand(5, 3).clone().requires_grad_()
        renormalised = torch.tensor([[0.625, 0.375, 0.0]]).expand(5, 3)
        assert torch.allclose(loss.value(ROWS, shared), loss.value(ROWS, renormalised)), "no example is ignored"
        loss.value(ROWS, shared).backward()
        assert shared.grad is not None
        assert bool(shared.grad[:, :2].abs().amin() > 0)
        assert not bool(shared.grad[:, 2].any())


def test_dice_is_one_minus_the_overlap_of_masks() -> None:
    sure = 50.0 * F.one_hot(PIXELS, 3).movedim(-1, 1)
    assert float(Dice().value(sure, PIXELS)) == pytest.approx(0.0, abs=1e-5)
    assert float(Dice().value(sure, (PIXELS + 1) % 3)) == pytest.approx(1.0, abs=1e-3)
    slow = []
    for example, mask in zip(GRID.softmax(1), PIXELS, strict=True):
        for kind in range(3):
            same = mask == kind
            slow.append(1 - (2 * example[kind][same].sum() + 1e-5) / (example[kind].sum() + same.sum() + 1e-5))
    assert float(Dice().value(GRID, PIXELS)) == pytest.approx(float(torch.stack(slow).mean()), rel=1e-5)
    probabilities = F.one_hot(PIXELS, 3).movedim(-1, 1).float()
    assert torch.allclose(Dice().value(GRID, probabilities), Dice().value(GRID, PIXELS))
    single = Dice().value(GRID[:, :1], (PIXELS == 1).long())
    assert torch.allclose(single, Dice().value(GRID[:, :1], (PIXELS == 1).float()[:, None]))


def test_names_and_options_come_back() -> None:
    for loss, *_ in [*CASES, (Dice(0.1),), (UnknownLoss(),)]:
        named = name_and_options(loss)
        assert named is not None
        options = {key: tuple(value) if isinstance(value, list) else value for key, value in named[1].items()}
        assert named_loss(named[0], options) == loss
    assert {type(make("losses", name)) for name in built_in("losses")} >= {Dice, UnknownLoss, CrossEntropy}


def test_mean_cross_entropy_is_the_default_and_trains_bit_identically() -> None:
    assert loss_fields(CrossEntropy(0.2)) == {"loss": None, "label_smoothing": 0.2}
    assert Training(0.1, **loss_fields(CrossEntropy())) == Training(0.1)
    assert repr(Training(0.1)) == "Training(lr=0.1, epochs=1, batch_size=None, batch_norm=BatchNorm.FROZEN)"
    model = small(3)
    ends = [
        trained(model, CLASSES, Training(0.1, epochs=3, batch_size=2, **fields))
        for fields in ({"label_smoothing": 0.1}, {"loss": CrossEntropy(0.1)})
    ]
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def small(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, outputs))


def trained(model: nn.Module, targets: Tensor, training: Training) -> list[Tensor]:
    network = Network(model, {}, BatchNorm.FROZEN)
    inputs = torch.randn(len(targets), 1, 4, 4, generator=torch.Generator().manual_seed(1))
    return train(network, list(model.parameters()), inputs, targets, schedule(training, len(targets), None), training)


@pytest.mark.parametrize("loss", [BinaryCrossEntropy(), SquaredLoss(), AbsoluteLoss(), CrossEntropy(weight=WEIGHTS)])
def test_the_local_loop_and_its_adjoint_use_the_loss(loss: Any) -> None:
    """Compare with torch.optim, and the gradient along the trajectory with finite differences of the message."""
    model, targets = small(3), CLASSES if target_kind(loss) is TargetKind.CLASSES else SHARES
    training = Training(0.1, epochs=2, loss=loss)
    ours = trained(model, targets, training)
    inputs = torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        loss.value(model(inputs), targets).backward()
        optimiser.step()
    for mine, theirs in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-5, atol=1e-7)
    if not targets.is_floating_point():
        return
    network = Network(small(3).double(), {}, BatchNorm.FROZEN)
    weights = [w.double() for w in small(3).parameters()]
    run = Trajectory(network, weights, list(schedule(training, 5, None)), training)
    at = targets.double().requires_grad_()
    value = sum(g.square().sum() for g in run.gradient_sum(inputs.double()[None], at))
    assert isinstance(value, Tensor)
    (slope,) = torch.autograd.grad(value, at)
    with torch.no_grad():
        moved = at.detach().clone()
        moved[1, 2] += 1e-5
        after = sum(float(g.square().sum()) for g in run.gradient_sum(inputs.double()[None], moved))
    assert (after - float(value.detach())) / 1e-5 == pytest.approx(float(slope[1, 2]), rel=1e-3, abs=1e-7)


def test_the_sum_of_losses_is_that_of_single_examples() -> None:
    network = Network(small(3), {}, BatchNorm.FROZEN)
    weights = [w.detach().requires_grad_() for w in small(3).parameters()]
    inputs = torch.randn(5, 1, 4, 4)
    for objective, targets in ((None, CLASSES), (CrossEntropy(reduction="sum"), CLASSES), (SquaredLoss(), SHARES)):
        step = Step(network, weights, inputs, targets, objective=objective)
        logits = network(weights, inputs).detach()
        alone = sum(float(step.loss(logits[i : i + 1], targets[i : i + 1])) for i in range(5))
        assert float(step.sum_of_losses(logits)) == pytest.approx(alone, rel=1e-5)
    assert len(MeanGradient().gradient(step)) == 4


@pytest.mark.parametrize(
    ("loss", "targets", "outputs", "says"),
    [
        (BinaryCrossEntropy(), torch.zeros(2, 4), (3,), r"targets of shape \(4,\) .* outputs have shape \(3,\)"),
        (BinaryCrossEntropy(), torch.full((2, 3), 1.5), (3,), r"targets from 1.5 to 1.5, .*needs targets in \[0, 1\]"),
        (BinaryCrossEntropy(), torch.full((2, 3), -0.1), (3,), r"needs targets in \[0, 1\]"),
        (SquaredLoss(), torch.full((2, 3), torch.nan), (3,), "NaN or infinite"),
        (SquaredLoss(), torch.zeros(2, 3).long(), (3,), "needs floats: convert them"),
        (None, torch.tensor([0, 3]), (3,), "has label 3, expected 0 to 2"),
        (CrossEntropy(), torch.tensor([[-1.0, 1.0, 1.0]]), (3,), r"needs targets in \[0, 1\]"),
        (None, torch.ones(2, 3), (3,), "do not add up to 1, but cross_entropy needs one class for each example"),
        (CrossEntropy(), torch.tensor([0, 1]), (3, 4, 4), "such as pixel_cross_entropy"),
        (PixelCrossEntropy(), torch.zeros(2, 5, 5).long(), (3, 4, 4), "needs one class for each pixel"),
        (PixelCrossEntropy(), torch.full((2, 4, 4), 3), (3, 4, 4), "has label 3, expected 0 to 2"),
        (UnknownLoss(), torch.zeros(2, 3), (3,), "cannot train with an unknown loss: name it as training.loss"),
    ],
)
def test_targets_that_do_not_fit_are_refused_in_one_sentence(
    loss: Any, targets: Tensor, outputs: tuple[int, ...], says: str
) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        check_targets("Client 'a'", loss, targets, outputs)
    assert str(caught.value).count(". ") == 0


def test_ignored_classes_may_be_any() -> None:
    check_targets("Client 'a'", PixelCrossEntropy(ignore_index=255), torch.full((1, 4, 4), 255), (3, 4, 4))


def test_a_federation_refuses_targets_that_do_not_fit() -> None:
    images, whitening = torch.rand(2, 1, 4, 4), Whitening((0.5,), (0.5,))

    def federation(targets: Tensor, loss: Any) -> Federation:
        return Federation(small(3), [Client("a", images, targets)], Training(0.1, loss=loss), 3, whitening)

    federation(torch.rand(2, 3), BinaryCrossEntropy())
    with pytest.raises(DataError, match="targets of shape"):
        federation(torch.rand(2, 4), BinaryCrossEntropy())
    with pytest.raises(DataError, match=r"in \[0, 1\]"):
        federation(2 + torch.rand(2, 3), BinaryCrossEntropy())
    with pytest.raises(DataError, match=r"in the shape of the outputs"):
        federation(torch.rand(2, 4), None)


@pytest.mark.parametrize(
    ("make_loss", "says"),
    [
        (lambda: CrossEntropy(1.0), "label_smoothing must be at least 0 and below 1"),
        (lambda: CrossEntropy(weight=(-1.0, 1.0)), "weight must be finite numbers of at least 0"),
        (lambda: SquaredLoss("none"), 'reduction must be "mean" or "sum", got \'none\''),
        (lambda: Dice(0.0), "smooth must be positive"),
        (lambda: CrossEntropy(weight=(1.0,)).value(ROWS, CLASSES), "one weight for each of the 3 outputs"),
        (lambda: UnknownLoss().value(ROWS, CLASSES), "is not known"),
        (lambda: named_loss("bce"), "Unknown loss 'bce'"),
        (lambda: named_loss("os:system", own=False), "Unknown loss 'os:system'"),
        (lambda: Training(0.1, label_smoothing=0.1, loss=SquaredLoss()), "belongs to the mean cross entropy"),
    ],
)
def test_bad_options_are_refused(make_loss: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make_loss()


def test_records_list_minus_one_for_targets_without_classes() -> None:
    assert class_numbers(CLASSES) == CLASSES.tolist()
    assert class_numbers(PIXELS) == [-1, -1]
