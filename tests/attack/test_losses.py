"""Attacks on trainings with other losses than the cross entropy: reference trials next to the best blind guess."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.attack.forward.gradients import ObservedResidual, OneGradient
from fedglass.attack.forward.messages import GlobalModel
from fedglass.attack.forward.unroll import Unroll
from fedglass.attack.labels.counts import BiasCounts, CountsBefore, InstanceCounts
from fedglass.attack.labels.given import OracleLabels
from fedglass.attack.labels.targets import RecoveredTargets, SignRule, labels_for_loss, mean_targets, noise_outputs
from fedglass.attack.peer_knowledge import FixOwnLabels
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Candidate, Observation, Training, Whitening
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation, observe
from fedglass.federation.truth import Truth
from fedglass.federation.views import Knows, ServerView
from fedglass.fl.loss.losses import (
    AbsoluteLoss,
    BinaryCrossEntropy,
    CrossEntropy,
    Dice,
    PixelCrossEntropy,
    SquaredLoss,
    UnknownLoss,
)
from fedglass.metrics.catalogue import score
from fedglass.recipes.exact import exact
from fedglass.recipes.inverting_gradients import inverting_gradients

SIDE = 24
GREY = Whitening((0.4,), (0.25,))


def xray(seed: int) -> Tensor:
    """Draw a picture like an X-ray: a bright body with two dark lungs, ribs and a heart.  # (1, h, w)"""
    draws = torch.Generator().manual_seed(seed)

    def between(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=draws))

    def ellipse(at: tuple[float, float], size: tuple[float, float]) -> Tensor:
        return torch.sigmoid((1 - ((x - at[0]) / size[0]) ** 2 - ((y - at[1]) / size[1]) ** 2) / 0.12)

    y, x = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
    x, y = x - between(-0.25, 0.25), y - between(-0.25, 0.25)
    body = ellipse((0, 0), (between(0.7, 1), between(0.9, 1.3)))
    picture = between(0.02, 0.2) + between(0.4, 0.75) * body
    for side in (-1, 1):
        lung = ellipse((side * between(0.3, 0.5), between(-0.2, 0.2)), (between(0.2, 0.35), between(0.4, 0.7)))
        picture = picture - between(0.2, 0.5) * lung
    picture = picture + between(0.03, 0.12) * torch.sin(y * between(8, 14) + between(0, 6) + 2 * x.abs()) * body
    heart = ellipse((between(-0.1, 0.25), between(0.1, 0.4)), (between(0.2, 0.35), between(0.25, 0.45)))
    return (picture + between(0.1, 0.35) * heart).clamp(0, 1)[None]


IMAGES = torch.stack([xray(1), xray(2)])
LABELS = torch.zeros(2, 14)
LABELS[0, [1, 4]] = LABELS[1, [4, 7, 9]] = 1.0
MASKS = (IMAGES[:, 0] > 0.3).long() + (IMAGES[:, 0] > 0.6).long()


def blind(images: Tensor) -> float:
    """Return the PSNR of the best guess without a message: the colour of an image, or the mean of 100 others."""
    others = torch.stack([xray(seed) for seed in range(100, 200)])
    mean = F.interpolate(others, size=images.shape[2:], mode="area").mean(0)
    errors = torch.stack([(images - guess).square().mean((1, 2, 3)) for guess in (images.mean((2, 3), True), mean)])
    return float(-10 * errors.amin().log10())


def cnn(outputs: int, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    front = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU())
    return nn.Sequential(front, nn.Flatten(), nn.Linear(4 * SIDE**2, outputs))


def pixelwise() -> nn.Module:
    torch.manual_seed(0)
    down = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
    return nn.Sequential(
        down, nn.Conv2d(32, 16, 3, 1, 1), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(16, 3, 3, 1, 1)
    )


def seen(
    loss: Any, targets: Tensor, model: nn.Module, knows: Knows | None = None, **training: Any
) -> tuple[Observation, Truth]:
    outputs = 3 if targets.ndim == 3 else targets.shape[1]
    client = Client("a", IMAGES[: len(targets)], targets)
    federation = Federation(model, [client], Training(0.1, loss=loss, **training), outputs, GREY)
    return observe(federation, ServerView(0), knows or Knows())


def recovered(attack: Any, observation: Observation, truth: Truth) -> list[float]:
    found = attack.run(observation, 0)
    return list(score(found.images.clamp(0, 1), truth.images, ["psnr"]).values["psnr"])


def test_two_x_rays_with_several_labels_come_back() -> None:
    """The reference, 30 lines of plain PyTorch, has 23.5 and 23.4 dB."""
    observation, truth = seen(BinaryCrossEntropy(), LABELS, cnn(14))
    found = inverting_gradients(iterations=300).run(observation, 0)
    assert torch.equal(found.labels.sort(0).values, LABELS.sort(0).values)
    psnr = score(found.images, truth.images, ["psnr"]).values["psnr"]
    assert min(psnr) > 30 > 22 > blind(IMAGES)


def test_a_single_label_is_counted() -> None:
    """Which example has it is a matter of their order."""
    for labels in ([[1.0], [0.0]], [[1.0], [1.0]], [[0.0], [0.0]]):
        observation, _ = seen(BinaryCrossEntropy(), torch.tensor(labels), cnn(1))
        found = RecoveredTargets().bind(observation, stream(0, "x"))
        assert not found.unknowns
        assert found.decode([]).tolist() == labels


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("examples", [2, 3, 4])
def test_several_labels_of_each_example_are_read_from_the_last_layer(examples: int, seed: int) -> None:
    images = torch.stack([xray(100 * seed + i) for i in range(examples)])
    labels = (torch.rand(examples, 14, generator=torch.Generator().manual_seed(seed)) < 0.25).float()
    training = Training(0.1, loss=BinaryCrossEntropy())
    federation = Federation(cnn(14, seed), [Client("a", images, labels)], training, 14, GREY)
    observation, _ = observe(federation, ServerView(0), Knows())
    found = RecoveredTargets().bind(observation, stream(0, "x"))
    assert not found.unknowns
    assert sorted(found.decode([]).tolist()) == sorted(labels.tolist())


def test_examples_with_the_same_labels_are_not_guessed() -> None:
    images = torch.stack([xray(i) for i in range(3)])
    federation = Federation(
        cnn(14), [Client("a", images, LABELS[[0, 0, 1]])], Training(0.1, loss=BinaryCrossEntropy()), 14, GREY
    )
    observation, _ = observe(federation, ServerView(0), Knows())
    (unknown,) = RecoveredTargets().bind(observation, stream(0, "x")).unknowns
    torch.testing.assert_close(unknown.start.mean(0), LABELS[[0, 0, 1]].mean(0), rtol=0, atol=0.15)


@pytest.mark.parametrize("loss", [SquaredLoss(), AbsoluteLoss(), SquaredLoss("sum")], ids=repr)
def test_an_image_behind_a_regression_comes_back(loss: Any) -> None:
    observation, truth = seen(loss, torch.tensor([[0.7, -1.3]]), cnn(2))
    assert recovered(inverting_gradients(iterations=300), observation, truth)[0] > 28 > 20 > blind(IMAGES[:1])


@pytest.mark.parametrize("loss", [PixelCrossEntropy(), Dice()], ids=repr)
def test_an_image_behind_a_segmentation_comes_back_where_its_mask_is_known(loss: Any) -> None:
    observation, truth = seen(loss, MASKS[:1], pixelwise(), Knows(labels=True))
    attack = inverting_gradients(labels=OracleLabels(), iterations=300)
    assert recovered(attack, observation, truth)[0] > 21 > 20 > blind(IMAGES[:1])


@pytest.mark.parametrize("loss", [PixelCrossEntropy(), Dice()], ids=repr)
def test_an_image_behind_a_segmentation_comes_back_without_its_mask(loss: Any) -> None:
    """On 12 x 12 pixels; on 24 x 24, with the same network, it does not."""
    image = F.interpolate(IMAGES[:1], size=(12, 12), mode="area")
    mask = (image[:, 0] > 0.3).long() + (image[:, 0] > 0.6).long()
    federation = Federation(pixelwise(), [Client("a", image, mask)], Training(0.1, loss=loss), 3, GREY)
    observation, truth = observe(federation, ServerView(0), Knows())
    found = inverting_gradients(iterations=600).run(observation, 0)
    (psnr,) = score(found.images, truth.images, ["psnr"]).values["psnr"]
    assert psnr > 28 > 20 > blind(image)
    right = float((found.labels.argmax(1) == mask).float().mean())
    assert right > 2 * float(mask.flatten().bincount().max() / mask.numel())


CASES = [
    (BinaryCrossEntropy(), LABELS, cnn(14)),
    (SquaredLoss("sum"), LABELS - 0.3, cnn(14)),
    (AbsoluteLoss(), LABELS + 1.1, cnn(14)),
    (PixelCrossEntropy(0.1), MASKS, pixelwise()),
    (Dice(), MASKS, pixelwise()),
]


@pytest.mark.parametrize(("loss", "targets", "model"), CASES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(("forward", "steps"), [(OneGradient(), 1), (ObservedResidual(), 1), (Unroll(), 3)], ids=repr)
def test_the_truth_has_zero_residual(loss: Any, targets: Tensor, model: nn.Module, forward: Any, steps: int) -> None:
    observation, truth = seen(loss, targets, model, epochs=steps)
    bound = forward.bind(observation)
    predicted = bound.predict(Candidate(GREY.whiten(truth.images)[None], truth.labels), [])
    for mine, sent in zip(predicted, bound.target, strict=True):
        torch.testing.assert_close(mine.detach(), sent, rtol=1e-3, atol=1e-5)


def test_the_observed_residual_needs_no_target() -> None:
    observation, truth = seen(SquaredLoss(), LABELS[:1] * 7, cnn(14))
    bound = ObservedResidual().bind(observation)
    anything = torch.zeros(1, 14).requires_grad_()
    predicted = bound.predict(Candidate(GREY.whiten(truth.images)[None], anything), [])
    for mine, sent in zip(predicted, bound.target, strict=True):
        torch.testing.assert_close(mine.detach(), sent, rtol=1e-3, atol=1e-5)
    assert torch.autograd.grad(predicted[0].sum(), anything)[0].shape == (1, 14)


def test_the_bias_gives_the_mean_of_targets_for_the_outputs_of_the_images() -> None:
    """Exact where the outputs of noise are those of the images: with a last layer of zeros."""
    model = cnn(14)
    nn.init.zeros_(model[-1].weight)  # type: ignore[index, arg-type] # a sequence of layers
    for loss in (BinaryCrossEntropy(), BinaryCrossEntropy(pos_weight=(2.0,) * 14), SquaredLoss(), SquaredLoss("sum")):
        observation, truth = seen(loss, LABELS, model)
        mean = mean_targets(observation, noise_outputs(observation, stream(0, "x")))
        assert mean is not None
        torch.testing.assert_close(mean, truth.labels.mean(0), rtol=1e-4, atol=1e-5)
    observation, _ = seen(AbsoluteLoss(), LABELS, model)
    assert mean_targets(observation, noise_outputs(observation, stream(0, "x"))) is None
    observation, _ = seen(BinaryCrossEntropy(), LABELS, model, clip=0.1)
    assert mean_targets(observation, noise_outputs(observation, stream(0, "x"))) is None


def test_labels_parts_are_replaced_inside_of_their_wrappers() -> None:
    observation, _ = seen(BinaryCrossEntropy(), LABELS, cnn(14))
    part = inverting_gradients().labels
    assert labels_for_loss(part, observation) == RecoveredTargets()
    assert labels_for_loss(FixOwnLabels(part), observation) == FixOwnLabels(RecoveredTargets())
    assert labels_for_loss(OracleLabels(), observation) == OracleLabels()
    classes = replace(observation, knows=replace(observation.knows, training=Training(0.1)))
    assert labels_for_loss(part, classes) is part


def test_known_targets_come_in_any_order_and_in_the_right_number() -> None:
    observation, _ = seen(BinaryCrossEntropy(), LABELS, cnn(14), Knows(labels=True))
    known = OracleLabels().bind(observation, stream(0, "x")).decode([])
    assert sorted(known.tolist()) == sorted(LABELS.tolist())
    wrong = replace(observation, knows=replace(observation.knows, labels=LABELS[:1]))
    with pytest.raises(UsageError, match="told 1 targets for 2 examples"):
        OracleLabels().bind(wrong, stream(0, "x"))


def mlp(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 100), nn.ReLU(), nn.Linear(100, outputs))


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (BinaryCrossEntropy(), LABELS),
        (BinaryCrossEntropy(), LABELS[:1]),
        (SquaredLoss(), torch.tensor([[0.3], [2.0]])),
        (AbsoluteLoss(), torch.tensor([[0.3, 1.0]])),
    ],
)
def test_exact_attacks_need_no_loss(loss: Any, targets: Tensor, unknown: bool) -> None:
    observation, truth = seen(loss, targets, mlp(targets.shape[1]))
    if unknown:
        training = replace(observation.knows.training, loss=UnknownLoss())  # type: ignore[type-var] # it is known
        observation = replace(observation, knows=replace(observation.knows, training=training))
    found = exact().run(observation, 0)
    assert found.explains
    assert min(score(found.images, truth.images, ["psnr"]).values["psnr"]) > 60
    assert found.labels.tolist() == [-1] * len(targets)


def test_other_images_are_not_verified_without_the_loss() -> None:
    observation, truth = seen(BinaryCrossEntropy(), LABELS, mlp(14))
    energies = [
        exact().energy_of(observation, images, torch.tensor([-1, -1]), exact().run(observation))
        for images in (truth.images, truth.images.flip(-1), F.avg_pool2d(truth.images, 3, 1, 1))
    ]
    assert energies[0] < 1e-4 < 0.05 < min(energies[1:])


def counted(part: Any, training: Training) -> list[int]:
    labels = torch.tensor([0, 1, 1, 4, 4, 4])
    images = torch.rand(6, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    federation = Federation(mlp(5), [Client("a", images, labels)], training, 5, GREY)
    observation, _ = observe(federation, ServerView(0), Knows())
    found: list[int] = part.bind(observation, stream(0, "x")).decode([]).sort().values.tolist()
    return found


@pytest.mark.parametrize("part", [BiasCounts(), InstanceCounts(), CountsBefore(), SignRule()], ids=repr)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("size", [None, 3])
def test_a_summed_cross_entropy_gives_the_same_labels(part: Any, smoothing: float, size: int | None) -> None:
    options: dict[str, Any] = {"batch_size": size, "shuffle": False}
    mean = Training(1e-3, label_smoothing=smoothing, **options)
    # Steps that are as long: the sum is as many times the mean as a batch has examples.
    summed = Training(1e-3 / (size or 6), loss=CrossEntropy(smoothing, reduction="sum"), **options)
    assert counted(part, summed) == counted(part, mean)


def test_weights_of_classes_are_taken_out_of_counts() -> None:
    weights = (1.0, 1.5, 1.0, 1.0, 0.8)
    for part in (BiasCounts(), InstanceCounts()):
        assert counted(part, Training(1e-3, loss=CrossEntropy(weight=weights))) == [0, 1, 1, 4, 4, 4]


def test_model_inversion_needs_classes() -> None:
    observation, _ = seen(BinaryCrossEntropy(), LABELS, cnn(14))
    with pytest.raises(UsageError, match="GlobalModel needs a loss with one class for each example"):
        GlobalModel().bind(observation)
