"""Guidance against its formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.diffusion.denoiser import with_guidance

NOISY = torch.arange(6.0).view(2, 1, 1, 3)
STEPS = torch.tensor([5, 9])
LABELS = torch.tensor([1, 0])
NONE = 7


def network(noisy: Tensor, steps: Tensor, labels: Tensor | None) -> Tensor:
    told = torch.full_like(steps, NONE) if labels is None else labels
    return noisy * (1.0 + told.view(-1, 1, 1, 1)) + steps.view(-1, 1, 1, 1)


@pytest.mark.parametrize("scale", [0.0, 1.0, 4.0])
def test_the_answer_for_the_class_is_exaggerated_against_that_for_none(scale: float) -> None:
    of_class, of_none = network(NOISY, STEPS, LABELS), network(NOISY, STEPS, None)
    found = with_guidance(network, NONE, scale)(NOISY, STEPS, LABELS)
    assert torch.allclose(found, of_none + scale * (of_class - of_none))


def test_without_classes_there_is_nothing_to_guide() -> None:
    assert torch.equal(with_guidance(network, NONE, 4.0)(NOISY, STEPS, None), network(NOISY, STEPS, None))


def test_guidance_is_not_negative() -> None:
    with pytest.raises(UsageError, match="negative, got -1"):
        with_guidance(network, NONE, -1)
