"""The candidate game and the distances of records whose targets are not classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedglass.checks.claim import Claim, ClientClaim
from fedglass.checks.noise import alike, candidate_label, tells_nothing
from fedglass.checks.replay import replay
from fedglass.checks.singling_out import singling_out
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.federation.truth import Examples
from fedglass.fl.local import schedule, train
from fedglass.fl.loss.losses import AbsoluteLoss, BinaryCrossEntropy, SquaredLoss
from fedglass.models.network import Network

PLAIN = Whitening((0.0,), (1.0,))
DRAWS = torch.Generator().manual_seed(0)
IMAGES = torch.rand(260, 1, 6, 6, generator=DRAWS)
RECORDS, POOL = IMAGES[:4], IMAGES[20:]
TARGETS = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.25, 0.0, 1.0]])


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.Tanh(), nn.Linear(20, 3))


def sent(training: Training, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
    model = network()
    run = Network(model, {}, BatchNorm.FROZEN)
    before = [w.detach() for w in model.parameters()]
    after = train(run, before, images, targets, schedule(training, len(images), None), training)
    return {name: a - b for name, a, b in zip(run.names, after, before, strict=True)}


@pytest.mark.parametrize("loss", [BinaryCrossEntropy(), SquaredLoss(), AbsoluteLoss("sum")], ids=repr)
def test_a_message_names_its_records_and_a_message_of_others_does_not(loss: Any) -> None:
    training = Training(0.1, loss=loss)
    for images, least, most in ((RECORDS, 0.75, 1.0), (IMAGES[4:8], 0.0, 0.0)):
        result = singling_out(
            network(),
            training=training,
            records=(RECORDS, TARGETS),
            candidates=(POOL, torch.zeros(len(POOL), dtype=torch.int64)),
            update=sent(training, images, TARGETS),
            number=200,
        )
        assert least <= result.top1 <= most
        assert result.candidates == 200
        assert result.control == "counterfactual"


def test_held_out_records_of_other_targets_are_left_out() -> None:
    training = Training(0.1, loss=BinaryCrossEntropy())
    result = singling_out(
        network(),
        training=training,
        records=(RECORDS, TARGETS),
        candidates=(POOL, torch.zeros(len(POOL), 3)),
        update=sent(training, RECORDS, TARGETS),
        held_out=(IMAGES[8:12], torch.cat([TARGETS[:2], torch.full((2, 3), 0.5)])),
        number=200,
    )
    assert (result.control, len(result.control_scores)) == ("held_out", 2)


def test_a_candidate_gets_the_target_of_the_record() -> None:
    client = ClientClaim(Training(0.1, loss=SquaredLoss()), Examples(RECORDS, TARGETS))
    pool = Examples(POOL, torch.zeros(len(POOL), dtype=torch.int64))
    rows, count = alike(client, 1, pool, torch.Generator().manual_seed(0))
    assert count == len(rows) == len(POOL)
    assert torch.equal(candidate_label(client, 1, pool, 0), TARGETS[1])
    classes = ClientClaim(Training(0.1), Examples(RECORDS, torch.tensor([0, 1, 2, 0])))
    assert candidate_label(classes, 1, pool, 0) == 0


def test_replay_and_distances_use_the_loss() -> None:
    training = Training(0.1, loss=SquaredLoss())
    update = sent(training, RECORDS, TARGETS)
    before = {name: w.detach() for name, w in network().named_parameters()}

    def claim(of: Training) -> Claim:
        return Claim(network(), before, {}, update, PLAIN, (ClientClaim(of, Examples(RECORDS, TARGETS)),))

    right, wrong = replay(claim(training)), replay(claim(Training(0.1, loss=BinaryCrossEntropy())), seconds=0.0)
    assert right is not None
    assert right.explained
    assert wrong is not None
    assert not wrong.explained
    assert not tells_nothing(claim(training), Examples(POOL, torch.zeros(len(POOL), 3)))
