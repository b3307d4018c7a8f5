"""Messages that a plain loop of PyTorch makes."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.optimisers import SGD
from fedglass.core.tensors import buffers_of, weights_of
from fedglass.core.types import Knowledge, Observation, Training, Whitening
from fedglass.data.catalogue import photos


class Plain:
    """A client that trains on all of its examples at each step, without the package."""

    def pictures(self, count: int, side: int = 12) -> tuple[Tensor, Tensor]:
        chosen = photos().resized(side)
        return chosen.images[:count], chosen.labels[:count]

    def dense(self, width: int = 128, classes: int = 10, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(432, width), activation(), nn.Linear(width, classes))

    def seen(
        self, model: nn.Module, images: Tensor, labels: Tensor, training: Training, classes: int = 10
    ) -> Observation:
        channels = images.shape[1]
        whitening = Whitening((0.5,) * channels, (0.25,) * channels)
        trained, optimiser = copy.deepcopy(model), training.optimiser
        options: dict[str, Any] = {"weight_decay": optimiser.weight_decay}
        options |= {"momentum": optimiser.momentum} if isinstance(optimiser, SGD) else {}
        steps = getattr(torch.optim, type(optimiser).__name__)(trained.parameters(), training.lr, **options)
        for _ in range(training.epochs):
            steps.zero_grad()
            F.cross_entropy(trained(whitening.whiten(images)), labels).backward()  # type: ignore[no-untyped-call]
            steps.step()
        before, after = weights_of(model), weights_of(trained)
        update = {name: after[name] - before[name] for name in before}
        shape = (channels, images.shape[2], images.shape[3])
        knows = Knowledge(shape, classes, len(labels), whitening, training=training)
        return Observation(model, before, buffers_of(model), update, knows)

    def psnr(self, found: Any, truth: Tensor) -> list[float]:
        """Of each true image, that of the nearest one that was read."""
        if not len(found.images):
            return [0.0] * len(truth)
        errors = (found.images.clamp(0, 1).unsqueeze(1) - truth).square().flatten(2).mean(2)  # (m, n)
        return [-10 * math.log10(max(float(error), 1e-20)) for error in errors.min(0).values]


@pytest.fixture(scope="session")
def plain() -> Plain:
    return Plain()
