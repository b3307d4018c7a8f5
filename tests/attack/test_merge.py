"""One image out of one for each epoch."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import torch

from fedglass.attack.parts import FirstEpoch, MatchAndAverage
from fedglass.core.rng import stream


def test_the_order_within_later_epochs_does_not_matter(toy: Any) -> None:
    images = toy.images(4)
    shuffled = torch.stack(
        [images, *(images[torch.randperm(4, generator=stream(e, "o"))] for e in range(3))],
    )
    torch.testing.assert_close(MatchAndAverage().merge(shuffled), images)


def test_the_matching_maximises_the_mean_psnr(toy: Any) -> None:
    first, later = toy.images(4, "first"), toy.images(4, "later")

    def psnr(order: tuple[int, ...]) -> float:
        mse = (first - later[list(order)]).double().square().flatten(1).mean(1)
        return float((-10 * mse.log10()).mean())

    best = max(permutations(range(4)), key=psnr)
    expected = (first + later[list(best)]) / 2
    torch.testing.assert_close(MatchAndAverage().merge(torch.stack([first, later])), expected)


def test_noise_is_averaged_away(toy: Any) -> None:
    images = toy.images(4)
    noise = 0.1 * torch.randn(20, *images.shape, generator=stream(0, "noise"))
    merged = MatchAndAverage().merge(images + noise)
    assert (merged - images).square().mean() < 0.1 * noise.square().mean()


def test_one_epoch_is_left_alone(toy: Any) -> None:
    images = toy.images(4)[None]
    assert torch.equal(MatchAndAverage().merge(images), images[0])
    assert torch.equal(FirstEpoch().merge(torch.cat([images, images + 1])), images[0])
