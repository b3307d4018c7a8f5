"""Small messages for tests of the candidate game."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.checks.message_scores import ScoredMessage
from fedglass.checks.singling_out import GameResult, counterfactual_update, play
from fedglass.core.rng import stream
from fedglass.core.tensors import buffers_of, weights_of
from fedglass.core.types import Training, Whitening
from fedglass.federation.truth import Examples

GREY = Whitening((0.5,), (0.25,))
ONE_STEP = Training(lr=0.05)
FEDAVG = Training(lr=0.05, epochs=5, batch_size=8)


def toy(count: int, seed: int, classes: int = 4, side: int = 8) -> Examples:
    """Blurred noise around a picture of each class, the same in every set."""
    labels = torch.arange(count) % classes
    shared = torch.rand(classes, 1, side, side, generator=stream(0, "classes"))
    own = F.avg_pool2d(torch.rand(count, 1, side + 2, side + 2, generator=stream(seed, "own")), 3, 1)
    return Examples((0.4 * shared[labels] + 1.6 * (own - 0.5) + 0.3).clamp(0, 1), labels)


def small_cnn(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(128, 4),
        )  # fmt: skip


def sent(model: nn.Module, training: Training, trained_on: Examples, whitening: Whitening = GREY) -> ScoredMessage:
    bare = ScoredMessage(model, weights_of(model), buffers_of(model), {}, training, whitening)
    return replace(bare, update=counterfactual_update(bare, trained_on, seed=11))


def rows_of(examples: Examples, rows: Tensor | slice) -> Examples:
    return Examples(examples.images[rows], examples.labels[rows])


def pool_of(count: int, seed: int = 1) -> Examples:
    made = toy(count, seed)
    return Examples(made.images, made.labels)


def with_control(message: ScoredMessage, records: Examples, pool: Examples, **options: int | float) -> GameResult:
    """The game beside messages of half of the records."""

    def counterfactual(rows: Tensor) -> dict[str, Tensor]:
        return counterfactual_update(message, rows_of(records, rows), seed=5)

    return play(message, records, pool, counterfactual=counterfactual, **options)
