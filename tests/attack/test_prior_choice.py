"""Decoys are messages with a known answer, and the prior that reads them best is chosen without the private data."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedglass.attack.attack import Attack
from fedglass.attack.decoys import MOST_STEPS, dead_leaves, decoy_images, decoy_like
from fedglass.attack.prior_choice import matched_error, tried_on
from fedglass.core.params import buffers_of, weights_of
from fedglass.core.rng import stream
from fedglass.core.types import Knowledge, Observation, Reconstruction, Training, Whitening
from fedglass.models.catalogue import build
from fedglass.models.init import Uniform
from fedglass.recipes.catalogue import recipe

SHAPE, CLASSES = (1, 8, 8), 4
KNOWS = Knowledge(SHAPE, CLASSES, 2, Whitening((0.5,), (0.25,)), training=Training(lr=0.1))


def observed(knows: Knowledge = KNOWS, size: float = 1.0) -> Observation:
    model: nn.Module = build("lenet", shape=SHAPE, classes=CLASSES, init=Uniform())
    before = weights_of(model)
    update = {name: size * torch.ones_like(w) for name, w in before.items()}
    return Observation(model, before, buffers_of(model), update, knows)


def found(*labels: int) -> Reconstruction:
    return Reconstruction(torch.zeros(len(labels), *SHAPE), torch.tensor(labels), 0.0)


def norm(update: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(t.square().sum()) for t in update.values()))


def test_the_decoys_themselves_explain_their_message() -> None:
    """The law of every forward operator, by which a decoy is known to be a message of the known training."""
    seen = observed()
    decoy = decoy_like(seen, found(3, 1), None, 0)
    assert decoy is not None
    attack = recipe("inverting_gradients", iterations=1, tv=0.0)
    run = attack.run(decoy.observation)
    at_decoys = attack.energy_of(decoy.observation, decoy.images, torch.tensor([3, 1]), run)
    assert at_decoys < 1e-5 < attack.energy_of(decoy.observation, decoy.images.flip(-1), torch.tensor([3, 1]), run)
    assert sorted(run.labels.tolist()) == [1, 3]


def test_nothing_of_the_message_but_its_labels_decides_the_decoys() -> None:
    one, other = (decoy_like(observed(size=size), found(0, 2), None, 0) for size in (1.0, -3.0))
    assert one is not None
    assert other is not None
    assert torch.equal(one.images, other.images)
    for name, tensor in one.observation.update.items():
        assert torch.equal(tensor, other.observation.update[name])


@pytest.mark.parametrize(
    "knows",
    [
        replace(KNOWS, training=None),
        replace(KNOWS, training=None, lr=0.1, steps=3),
        replace(KNOWS, clients=2, sizes=(1, 1)),
        replace(KNOWS, training=Training(lr=0.1, epochs=2, batch_size=1), batch_labels=((3,), (1,), (3,), (1,))),
    ],
    ids=["training unknown", "steps alone", "two clients", "oracle of batches"],
)
def test_a_decoy_can_be_made_of_any_knowledge(knows: Knowledge) -> None:
    seen = observed(knows)
    decoy = decoy_like(seen, found(3, 1), None, 0)
    assert decoy is not None
    assert all(bool(torch.isfinite(t).all()) for t in decoy.observation.update.values())
    if knows.lr is None and knows.training is None:
        # Nobody knows how long a step is: the decoy's message is as long as the real one.
        assert norm(dict(decoy.observation.update)) == pytest.approx(norm(dict(seen.update)), rel=1e-4)
    if knows.batch_labels is not None:
        told = decoy.observation.knows.batch_labels
        assert told is not None
        assert sorted(label for step in told for label in step) == [1, 1, 3, 3]


def test_a_training_too_long_to_be_played_gives_no_decoy() -> None:
    assert decoy_like(observed(replace(KNOWS, training=Training(0.1, MOST_STEPS + 1))), found(0, 1), None, 0) is None


def test_pictures_that_the_adversary_has_come_first_and_made_up_ones_have_edges_and_smooth_places() -> None:
    has = torch.rand(1, *SHAPE, generator=stream(0, "has"))
    images = decoy_images(replace(KNOWS, examples=6), has, 0)
    assert torch.equal(images[0], has[0])
    assert torch.equal(images[1], has[0].flip(-1))
    assert len(images) == 6
    made = dead_leaves(replace(KNOWS, shape=(3, 32, 32)), 8, stream(0, "leaves"))
    steps = (made[..., 1:] - made[..., :-1]).abs()
    assert float((steps == 0).float().mean()) > 0.5
    assert float(steps.max()) > 0.2
    assert made.min() >= 0
    assert made.max() <= 1


def test_a_prior_far_too_strong_is_found_out_on_decoys() -> None:
    """And one that is well set is not weakened: the choice follows the decoys, not a rule."""
    strong: Attack = recipe("inverting_gradients", iterations=60, tv=10.0)
    decoy = decoy_like(observed(replace(KNOWS, examples=1)), found(2), None, 0)
    assert decoy is not None
    best, *others = tried_on(decoy, strong, (1.0, 0.1, 0.001), 0)
    assert best.factor == 0.001
    assert all(best.error < 0.8 * other.error for other in others)
    right = tried_on(decoy, strong.weakened(0.001), (1.0, 1000.0), 0)
    assert right[0].factor == 1.0


def test_the_error_on_decoys_is_that_of_the_best_pairing() -> None:
    images = torch.rand(3, *SHAPE, generator=stream(0, "pairing"))
    assert matched_error(images[[2, 0, 1]], images) == 0.0
    assert matched_error(images[:2], images) == math.inf
    assert matched_error(images * math.nan, images) == math.inf
