"""The masked diffusion transformer: patches, conditions, and what hidden patches may reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.diffusion.denoiser import Prediction, Schedule
from fedglass.diffusion.networks import MaskedDiffusionTransformer, some_tokens
from fedglass.diffusion.training import Batch, DenoisingTask, ImageModelTraining, Loss, TrainingOptions, masked_loss

SMALL = {"patch": 4, "width": 16, "depth": 3, "decoder": 1, "heads": 2}
STEPS = torch.tensor([3, 700])
LABELS = torch.tensor([0, 2])


def network(shape: tuple[int, int, int] = (1, 8, 8)) -> MaskedDiffusionTransformer:
    """With no layer at zero, as after some training."""
    made = MaskedDiffusionTransformer(shape, 3, **SMALL)
    draws = stream(0, "weights")
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=draws))
    return made.eval()


def noisy(shape: tuple[int, int, int] = (1, 8, 8)) -> Tensor:
    return torch.randn(2, *shape, generator=stream(0, "noisy"))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 12), (1, 7, 10)])
def test_patches_are_put_back_where_they_came_from(shape: tuple[int, int, int]) -> None:
    net, images = network(shape), noisy(shape)
    assert torch.equal(net._picture(net._patches(images)), images)
    assert net(images, STEPS, LABELS).shape == images.shape


def test_a_patch_is_a_square_of_the_picture() -> None:
    images = noisy((2, 8, 8))
    patches = network((2, 8, 8))._patches(images)
    assert torch.equal(patches[:, 1], images[:, :, :4, 4:].reshape(2, -1))


def test_an_untrained_network_answers_nothing() -> None:
    net = MaskedDiffusionTransformer((1, 8, 8), 3, **SMALL)
    assert not net(noisy(), STEPS, LABELS).any()


def test_hidden_patches_do_not_reach_the_encoder_and_are_answered_for_all_the_same() -> None:
    net, images = network(), noisy()
    kept = torch.tensor([[0, 3], [1, 2]])
    seen: list[Tensor] = []
    net.encoder[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    before = net(images, STEPS, LABELS, kept)
    assert seen[0].shape == (2, 2, 16)
    other = images.clone()
    other[0, :, :4, 4:] += 5  # patch 1 of the first image, which is hidden
    assert torch.equal(net(other, STEPS, LABELS, kept), before)
    other[0, :, :4, :4] += 5  # patch 0, which is not
    after = net(other, STEPS, LABELS, kept)
    assert not torch.allclose(after[0, :, :4, 4:], before[0, :, :4, 4:])
    assert torch.equal(after[1], before[1])


def test_without_hiding_every_patch_counts_and_the_interpolater_does_not() -> None:
    net, images = network(), noisy()
    before = net(images, STEPS, LABELS)
    with torch.no_grad():
        net.mask_token.add_(1)
        for parameter in net.interpolater.parameters():
            parameter.add_(1)
    assert torch.equal(net(images, STEPS, LABELS), before)
    all_of_them = torch.arange(4).expand(2, 4)
    assert torch.allclose(net(images, STEPS, LABELS, all_of_them), before)


def test_step_and_class_are_heard_and_no_class_is_one_of_its_own() -> None:
    net, images = network(), noisy()
    answer = net(images, STEPS, LABELS)
    assert not torch.allclose(net(images, STEPS + 50, LABELS), answer)
    assert not torch.allclose(net(images, STEPS, LABELS - LABELS + 1), answer)
    assert torch.equal(net(images, STEPS, None), net(images, STEPS, torch.full((2,), 3)))


def test_the_hidden_share_is_drawn_anew_for_each_example() -> None:
    kept = some_tokens(50, 20, 0.3, stream(0, "x"))
    assert kept.shape == (50, 14)
    assert all(len(set(row)) == 14 and row == sorted(row) for row in kept.tolist())
    assert len({tuple(row) for row in kept.tolist()}) > 40
    assert some_tokens(1, 4, 0.99, stream(0, "x")).shape == (1, 1)
    with pytest.raises(UsageError, match="must be in"):
        some_tokens(1, 4, 1.0, stream(0, "x"))


def test_the_loss_has_both_parts_and_hides_some_classes() -> None:
    net, images = network(), noisy()
    target = torch.randn(images.shape, generator=stream(0, "target"))

    def loss(part: Loss) -> Tensor:
        return part(net, Batch(images, STEPS, LABELS, target, stream(0, "x")))

    whole = (net(images, STEPS, LABELS) - target).square().mean()
    without = (net(images, STEPS, None) - target).square().mean()
    assert torch.allclose(loss(masked_loss(hidden=0.0, unlabelled=0.0)), 2 * whole)
    assert torch.allclose(loss(masked_loss(hidden=0.0, unlabelled=1.0)), 2 * without)
    assert not torch.allclose(loss(masked_loss(hidden=0.5, unlabelled=0.0)), 2 * whole)


@pytest.mark.parametrize(("hidden", "unlabelled"), [(1.0, 0.1), (-0.1, 0.1), (0.3, 1.1)])
def test_shares_are_shares(hidden: float, unlabelled: float) -> None:
    with pytest.raises(UsageError, match="must be in"):
        masked_loss(hidden, unlabelled)


def test_it_learns_which_class_looks_how() -> None:
    """Class 0 is dark and class 1 bright: from pure noise the class alone tells what to answer."""
    images = torch.cat([torch.full((8, 1, 8, 8), -0.9), torch.full((8, 1, 8, 8), 0.9)])
    labels = torch.tensor([0] * 8 + [1] * 8)
    torch.manual_seed(0)
    net = MaskedDiffusionTransformer((1, 8, 8), 2, **SMALL)
    lesson = DenoisingTask(images, labels, Schedule(2, 0.98, 0.99), Prediction.SAMPLE, masked_loss())
    ImageModelTraining(net, lesson, TrainingOptions(steps=40, lr=0.1, batch_size=16, average=0.0)).run()
    start = torch.randn(1, 1, 8, 8, generator=stream(0, "start")).expand(2, -1, -1, -1)
    dark, bright = net(start, torch.tensor([1, 1]), torch.tensor([0, 1])).mean((1, 2, 3)).tolist()
    assert bright - dark > 0.4


@pytest.mark.parametrize(
    "size",
    [
        {"width": 12, "heads": 4},
        {"patch": 0},
        {"depth": 2, "decoder": 2},
        {"decoder": 0},
        {"classes": 0},
        {"shape": (1, 8)},
        {"width": 16.0},
    ],
    ids=str,
)
def test_sizes_that_can_not_be_built_are_refused(size: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="transformer"):
        MaskedDiffusionTransformer(**{"shape": (1, 8, 8), "classes": 3, **size})


def test_it_is_built_again_from_its_options() -> None:
    net = network((3, 8, 12))
    again = MaskedDiffusionTransformer(**net.options())
    again.load_state_dict(net.state_dict())
    assert again.options() == net.options()
