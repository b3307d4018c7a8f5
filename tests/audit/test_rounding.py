"""What rounding decides is no reason to doubt a training, and hides no other one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.audit.check_message import message_doubts
from fedglass.audit.target import Target
from fedglass.checks.claim import Claim, ClientClaim
from fedglass.checks.replay import exact_replay, replay
from fedglass.core.optimisers import SGD, Adam
from fedglass.core.tensors import buffers_of, weights_of
from fedglass.core.thresholds import MOST_UNDECIDED
from fedglass.core.types import BatchNorm, Knowledge, Observation, Training, Whitening
from fedglass.federation.truth import Examples
from fedglass.verdict.doubts import DoubtKind

WHITENING = Whitening((0.4,), (0.3,))
IMAGES = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(2))
OTHERS = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(3))
LABELS = torch.arange(6) % 5
ADAM = Training(lr=0.01, epochs=3, batch_norm=BatchNorm.BATCH, optimiser=Adam())
Make = Callable[..., torch.optim.Optimizer]


def network() -> nn.Module:
    """With biases before batch normalisation, whose gradient is zero but for rounding."""
    torch.manual_seed(0)
    body = [nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Tanh(), nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6), nn.Tanh()]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(96, 5))


def declared(
    made: Make = torch.optim.Adam,
    training: Training = ADAM,
    images: Tensor = IMAGES,
    model: Callable[[], nn.Module] = network,
    **options: Any,
) -> Claim:
    """A message that torch's own optimiser has made of some images, said to be of `IMAGES` and of a training."""
    trained = model().train()
    before, buffers = weights_of(trained), buffers_of(trained)
    optimiser = made(trained.parameters(), **{"lr": 0.01, **options})
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(trained(WHITENING.whiten(images)), LABELS).backward()
        optimiser.step()
    update = {name: after - before[name] for name, after in weights_of(trained).items()}
    client = ClientClaim(training, Examples(IMAGES, LABELS))
    return Claim(model(), before, buffers, update, WHITENING, (client,))


def test_adam_before_batch_normalisation_is_exact_replay() -> None:
    said = declared()
    strictly = exact_replay(said)
    assert strictly is not None
    assert not strictly.explained  # to the last entry it can not be: this is what rounding decides
    found = replay(said)
    assert found is not None
    assert found.explained
    assert found.residual < 1e-3
    biases = 12 / sum(p.numel() for p in network().parameters())
    assert found.undecided == pytest.approx(biases, rel=0.5)
    assert "entries, which rounding decides" in found.text


def test_biases_that_start_at_zero_are_no_doubt_of_plain_sgd() -> None:
    """Whatever is small beside the weights is passed over; beside none there is nothing small."""

    def model() -> nn.Module:
        made = network()
        for layer in made:
            if isinstance(layer, nn.Conv2d) and layer.bias is not None:
                nn.init.zeros_(layer.bias)
        return made

    training = replace(ADAM, optimiser=SGD(), lr=0.1)
    found = replay(declared(torch.optim.SGD, training, model=model, lr=0.1))
    assert found is not None
    assert found.explained
    assert found.residual < 1e-3


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(lambda: declared(images=OTHERS), id="other data"),
        pytest.param(lambda: declared(images=torch.cat([IMAGES[:5], OTHERS[5:]])), id="one other picture"),
        pytest.param(lambda: declared(lr=0.011), id="another rate"),
        pytest.param(lambda: declared(betas=(0.5, 0.99)), id="other moments"),
        pytest.param(lambda: declared(weight_decay=0.01), id="decay"),
        pytest.param(lambda: declared(torch.optim.SGD, lr=0.1), id="no Adam"),
        pytest.param(lambda: declared(torch.optim.SGD, momentum=0.9), id="momentum"),
        pytest.param(
            lambda: declared(torch.optim.SGD, replace(ADAM, optimiser=SGD(momentum=0.3)), momentum=0.9),
            id="another momentum",
        ),
        pytest.param(lambda: declared(training=replace(ADAM, batch_norm=BatchNorm.FROZEN)), id="another mode"),
        pytest.param(lambda: declared(training=replace(ADAM, epochs=2)), id="fewer steps"),
    ],
)
def test_another_training_is_found(said: Callable[[], Claim]) -> None:
    found = replay(said())
    assert found is not None
    assert not found.explained
    assert found.undecided <= MOST_UNDECIDED
    assert kinds(said()) == [DoubtKind.NOT_AS_DECLARED]


def test_what_explains_the_message_in_its_place_is_found_but_for_rounding() -> None:
    found = replay(declared(training=replace(ADAM, optimiser=SGD())))
    assert found is not None
    assert not found.explained
    assert found.correction == 'the optimiser is Adam: set optimiser = "adam"'


def test_more_than_rounding_makes_is_not_left_to_it() -> None:
    said = declared()
    loud = {name: tensor * 30 if name == "0.bias" else tensor for name, tensor in said.update.items()}
    found = replay(replace(said, update=loud))
    assert found is not None
    assert not found.explained


def channels() -> nn.Module:
    """Normalised channels of one number each: neither its weight nor its bias is left of them."""
    torch.manual_seed(0)
    body = [nn.Conv2d(1, 32, 1), nn.BatchNorm2d(32, eps=1e-12), nn.Tanh(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(32, 5, bias=False))


def test_where_rounding_decides_much_of_it_nothing_can_be_told() -> None:
    said = declared(model=channels)
    found = replay(said)
    assert found is not None
    assert not found.explained
    assert found.undecided > MOST_UNDECIDED
    assert found.proves_nothing
    assert kinds(said) == [DoubtKind.NOT_REPLAYED]
    assert "rounding decides" in found.text


def test_what_rounding_does_not_decide_is_still_compared_there() -> None:
    assert kinds(declared(model=channels, lr=0.02)) == [DoubtKind.NOT_AS_DECLARED]
    assert kinds(declared(model=channels, images=OTHERS)) == [DoubtKind.NOT_AS_DECLARED]


def kinds(said: Claim) -> list[DoubtKind]:
    knows = Knowledge(shape=(1, 8, 8), classes=5, examples=6, whitening=WHITENING)
    seen = Observation(said.model, said.before, said.buffers, said.update, knows)
    return [each.kind for each in message_doubts(Target(seen, None, claim=said))]
