"""What was read off a training, replayed by fedglass's own loop on what was kept, gives the message that was sent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass import recording
from fedglass.checks.claim import Claim, ClientClaim
from fedglass.checks.replay import ReplayOutcome, replay
from fedglass.core.optimisers import AdamW
from fedglass.core.types import Training, Whitening
from fedglass.federation.truth import Examples
from fedglass.recordings.reader import read_bundle
from fedglass.recordings.transcript import TranscriptReader
from fedglass.recordings.truth_files import read_truths

EXAMPLES = 10
IMAGES = torch.rand(EXAMPLES, 1, 8, 8, generator=torch.Generator().manual_seed(2))
LABELS = torch.arange(EXAMPLES) % 5
Optimiser = Callable[[Any], torch.optim.Optimizer]
OPTIMISERS: dict[str, Optimiser] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Nesterov and decay": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "Adam with decoupled decay": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
}


def network() -> nn.Module:
    """With a bias before batch normalisation: its gradient is rounding alone, of which Adam makes whole steps."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(108, 5))


def trained(
    optimiser: torch.optim.Optimizer,
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    clip: float | None = None,
) -> None:
    for _ in range(3):
        for rows in torch.randperm(EXAMPLES).split(4):
            optimiser.zero_grad()
            loss(model((IMAGES[rows] - 0.4) / 0.3), LABELS[rows]).backward()  # type: ignore[no-untyped-call] # of torch
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimiser.step()


def replayed(
    folder: Path,
    make: Optimiser,
    *,
    frozen: bool = False,
    clip: float | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
) -> tuple[Training | None, ReplayOutcome | None]:
    """Record one training, and play what the bundle says of it."""
    model = network().train(not frozen)
    with recording(folder / "b", model, client="a", round=1, truth=True, whitening=((0.4,), (0.3,))):
        trained(make(model.parameters()), model, loss, clip)
    bundle = read_bundle(folder / "b")
    past = TranscriptReader(bundle, network(), {}).round(1)
    training, message = past.participants[0].training, past.messages[0]
    if training is None:
        return None, None
    truths = read_truths(folder / "b-truth", bundle.clients)
    client = ClientClaim(training, truths.of("a", 1), order=truths.batches("a", 1))
    whitening = Whitening((0.4,), (0.3,))
    return training, replay(Claim(network(), past.before, past.buffers, message.update, whitening, (client,)))


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("frozen", [False, True])
def test_every_optimiser_and_mode_of_batch_normalisation(name: str, frozen: bool, tmp_path: Path) -> None:
    training, found = replayed(tmp_path, OPTIMISERS[name], frozen=frozen)

    assert training is not None
    assert found is not None
    assert (training.epochs, training.batch_size) == (3, 4)
    assert found.residual < 1e-3


def test_adam_with_decoupled_decay_is_adamw(tmp_path: Path) -> None:
    """Five honest steps on a full batch: the replay differs from the message by rounding alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.1, decoupled_weight_decay=True)
    with recording(tmp_path / "b", model, client="a", round=1):
        for _ in range(5):
            optimiser.zero_grad()
            F.cross_entropy(model(IMAGES), LABELS).backward()  # type: ignore[no-untyped-call] # of torch
            optimiser.step()

    round_ = TranscriptReader(read_bundle(tmp_path / "b"), model, {}).round(1)
    training = round_.participants[0].training
    assert training == Training(0.01, 5, optimiser=AdamW(weight_decay=0.1), shuffle=False)
    client = ClientClaim(training, Examples(IMAGES, LABELS))
    plain = Whitening((0.0,), (1.0,))
    repeated = replay(Claim(model, before, {}, round_.messages[0].update, plain, (client,)))
    assert repeated.residual < 1e-5


def test_clipped_gradients(tmp_path: Path) -> None:
    training, found = replayed(tmp_path, OPTIMISERS["momentum"], clip=0.5)

    assert training is not None
    assert found is not None
    assert training.clip == pytest.approx(0.5, rel=1e-3)
    assert found.residual < 1e-3


def test_smoothed_labels(tmp_path: Path) -> None:
    training, found = replayed(tmp_path, OPTIMISERS["SGD"], loss=nn.CrossEntropyLoss(label_smoothing=0.2))

    assert training is not None
    assert found is not None
    assert training.label_smoothing == 0.2
    assert found.residual < 1e-4


def test_another_loss_is_no_training_that_fedglass_has(tmp_path: Path) -> None:
    def doubled(logits: Tensor, labels: Tensor) -> Tensor:
        return 2 * F.cross_entropy(logits, labels)

    assert replayed(tmp_path, OPTIMISERS["SGD"], loss=doubled) == (None, None)


def test_batches_of_odd_sizes_are_no_training_that_fedglass_has(tmp_path: Path) -> None:
    """They are not taken for full ones."""
    model = network()
    with recording(tmp_path / "b", model, client="a", round=1):
        optimiser = OPTIMISERS["SGD"](model.parameters())
        for rows in torch.arange(EXAMPLES).split([2, 5, 3]):
            optimiser.zero_grad()
            F.cross_entropy(model(IMAGES[rows]), LABELS[rows]).backward()  # type: ignore[no-untyped-call] # of torch
            optimiser.step()

    (person,) = TranscriptReader(read_bundle(tmp_path / "b"), network(), {}).round(1).participants
    assert (person.training, person.steps, person.lr) == (None, 3, 0.1)
