"""DDRM as a part of attacks: units, colours, and the embedded model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.parts import Refinement
from fedglass.attack.refine.restoration import DDRM, ddrm
from fedglass.core.errors import UsageError
from fedglass.core.registry import make
from fedglass.core.rng import stream
from fedglass.core.types import Knowledge, Whitening
from fedglass.data.catalogue import glyphs
from fedglass.diffusion.ddrm import BlockMean, Noise, RestorationChain
from fedglass.diffusion.denoiser import Denoiser, Schedule, spaced


def given(images: Tensor) -> Refinement:
    shape = (images.shape[1], images.shape[2], images.shape[3])
    knows = Knowledge(shape, 5, len(images), Whitening((0.0,) * shape[0], (1.0,) * shape[0]))
    return Refinement(images, torch.zeros(len(images)).long(), knows, stream(0, "x"))


@dataclass(frozen=True)
class Grey:
    """A model that takes every image for grey, of any shape."""

    title: str = "grey"

    def load(self) -> Denoiser:
        return Denoiser(lambda noisy, steps, labels: 0 * noisy, Schedule())

    def untrained(self) -> Grey:
        return self


@pytest.mark.parametrize("channels", [1, 3])
def test_without_noise_the_means_of_blocks_are_those_of_the_raw_picture(channels: int) -> None:
    raw = 0.3 + 0.4 * torch.rand(5, channels, 8, 8, generator=stream(0, "raw"))
    found = DDRM(Grey(), BlockMean(2), sigma=0.0, chain=RestorationChain(4)).refine(given(raw))
    means = F.avg_pool2d(found, 2), F.avg_pool2d(raw, 2)
    inside = (found > 0).all() and (found < 1).all()
    assert not inside or torch.allclose(*means, atol=1e-5)
    assert float((means[0] - means[1]).abs().mean()) < 0.02


def test_noise_is_told_in_pixels_of_zero_to_one() -> None:
    """In [-1, 1] it is twice that: where it is the last step's noise, that step is shown the picture as it is."""
    raw = torch.full((1, 1, 8, 8), 0.9)
    asked: list[float] = []

    @dataclass(frozen=True)
    class Watched:
        title: str = "watched"

        def load(self) -> Denoiser:
            def network(noisy: Tensor, steps: Tensor, labels: Tensor | None) -> Tensor:
                asked.append(float(noisy.std() / Schedule().abar[steps[0]].sqrt()))
                return 0 * noisy

            return Denoiser(network, Schedule())

        def untrained(self) -> Watched:
            return self

    last, before = Schedule().sigma[spaced(Schedule(), 10)[-1]], Schedule().sigma[spaced(Schedule(), 10)[-2]]
    DDRM(Watched(), Noise(), float(last) / 2, RestorationChain(10)).refine(given(raw))
    assert asked[-1] < 1e-3
    assert asked[-2] == pytest.approx(float((before**2 - last**2).sqrt()), rel=0.3)
    DDRM(Watched(), Noise(), float(last) / 4, RestorationChain(10)).refine(given(raw))
    assert asked[-1] > 0.5 * float(last)


def test_the_embedded_model_restores_glyphs_that_it_was_not_trained_on() -> None:
    truth = glyphs(writers=4, per_writer=4).images
    small = F.avg_pool2d(truth, 2) + 0.03 * torch.randn(16, 1, 14, 14, generator=stream(0, "noise"))
    raw = small.repeat_interleave(2, -1).repeat_interleave(2, -2)
    spec = ddrm(factor=2, steps=10)
    found = spec.refine(given(raw))
    blank = spec.untrained().refine(given(raw))
    errors = [float((images - truth).square().mean()) for images in (found, raw, blank)]
    assert errors[0] < 0.8 * errors[1] < errors[2]
    assert torch.equal(found, spec.refine(given(raw)))


def test_progress_is_told_of_every_call() -> None:
    heard: list[tuple[int, int]] = []
    told = replace(given(torch.rand(70, 1, 8, 8)), progress=lambda done, total: heard.append((done, total)))
    DDRM(Grey(), BlockMean(2), chain=RestorationChain(3)).refine(told)
    assert heard == [(i, 6) for i in range(1, 7)]


def test_images_of_another_shape_are_refused_before_and_at_work() -> None:
    wrong = given(torch.zeros(1, 3, 32, 32))
    for act in (lambda: ddrm().refine(wrong), lambda: ddrm().check(wrong.knows)):
        with pytest.raises(
            UsageError, match=r"'glyphs' makes images of 1 x 28 x 28 .* these are 3 x 32 x 32: train one"
        ):
            act()
    with pytest.raises(UsageError, match="cannot be reduced by the factor 8"):
        ddrm(factor=8).check(given(torch.zeros(1, 1, 28, 28)).knows)


@pytest.mark.parametrize(
    "options", [{"sigma": -1.0}, {"eta": 1.5}, {"eta_b": -0.1}, {"model": "no/such/folder"}], ids=repr
)
def test_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        make("refinements", "ddrm", **options)
