"""What a participant does not know, found by how well its own images come back."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.best_of import BestOf
from fedglass.attack.forward.unroll import SuperClient
from fedglass.attack.hypotheses import SearchByOwnImages, own_image_error, with_rate_and_examples
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.given import OracleLabels
from fedglass.attack.peer_knowledge import SubtractOwnUpdate
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.solvers.schedules import CosineDecay
from fedglass.attack.terms.distance import SquaredError
from fedglass.core.errors import UsageError
from fedglass.core.types import Observation, Reconstruction, Training
from fedglass.federation.federation import Federation, observe
from fedglass.federation.peer import PeerView
from fedglass.federation.truth import Truth
from fedglass.federation.views import AggregateView, Knows

LR = 0.05


def world(toy: Any, knows: Knows) -> tuple[Observation, Truth]:
    clients = [toy.client(i, 1) for i in range(2)]
    federation: Federation = replace(toy.federation(Training(LR, epochs=2)), clients=clients)
    return observe(federation, PeerView(0), knows)


def search(rates: tuple[float, ...] = (0.005, 0.05, 0.5), counts: tuple[int, ...] = (2, 4), zooms: int = 0) -> Any:
    solver = Adam(0.1, 80, CosineDecay())
    attack = Attack(OracleLabels(), (Stage(SuperClient(), Pixels(), SquaredError(), solver),))
    return BestOf(BestOf(attack, SubtractOwnUpdate()), SearchByOwnImages(attack, rates, counts, zooms))


def test_the_right_learning_rate_is_found(toy: Any) -> None:
    seen, truth = world(toy, Knows(labels=True, lr=False))
    assert seen.knows.lr is None
    assert seen.knows.training is None
    found = search().run(seen)
    assert found.supposed is not None
    assert found.supposed.lr == LR
    assert found.supposed.local_steps(2) == 2
    assert [trial.lr for trial in found.tried] == [0.005, 0.05, 0.5]
    assert all(trial.seconds > 0 for trial in found.tried)
    assert found.images.shape == truth.images.shape
    assert search().energy_of(seen, truth.images, truth.labels, found) < found.energy + 1e-2


class Probe:
    """In place of an attack: its images are off by how far the guesses are from the truth."""

    def __init__(self, lr: float, examples: int) -> None:
        self.lr, self.examples = lr, examples

    def run(self, seen: Observation, seed: int, progress: Any) -> Reconstruction:
        assert seen.own is not None
        assert seen.knows.lr is not None
        off = abs(math.log(seen.knows.lr / self.lr)) / 10 + abs(seen.knows.examples - self.examples) / 100
        images = (seen.own.images * (1 - off)).repeat(seen.knows.examples, 1, 1, 1)
        return Reconstruction(images, torch.zeros(len(images)).long(), 0.0)


@pytest.mark.parametrize(("lr", "examples"), [(0.05, 11), (0.11, 6), (0.02, 17)])
def test_what_lies_between_the_guesses_is_approached(toy: Any, lr: float, examples: int) -> None:
    seen, _ = world(toy, Knows(lr=False, examples=False))
    probe: Any = Probe(lr, examples)
    found = BestOf(probe, SearchByOwnImages(probe, (0.01, 0.1), (4, 8, 16), zooms=5)).run(seen)
    assert found.supposed is not None
    assert found.supposed.lr == pytest.approx(lr, rel=0.2)
    assert abs(len(found.images) - examples) <= 1
    assert len(found.tried) == len({(trial.lr, trial.examples) for trial in found.tried}) < 30


def test_the_number_of_images_is_searched_for_and_the_truth_is_judged_with_its_own(toy: Any) -> None:
    seen, truth = world(toy, Knows(labels=True, examples=False))
    assert seen.knows.examples == 2  # its own, and at least one of others
    assert not seen.knows.counted
    assert seen.knows.sizes is None
    found = search(counts=(2, 5)).run(seen)
    assert {trial.examples for trial in found.tried} == {2, 5}
    assert len(found.images) == min(found.tried, key=lambda trial: trial.error).examples
    assert math.isfinite(search().energy_of(seen, truth.images, truth.labels, found))


def test_both_are_searched_for_together(toy: Any) -> None:
    seen, _ = world(toy, Knows(labels=True, lr=False, examples=False))
    found = search(rates=(0.05, 0.5), counts=(2, 4)).run(seen)
    assert {(trial.lr, trial.examples) for trial in found.tried} == {(0.05, 2), (0.05, 4), (0.5, 2), (0.5, 4)}
    assert found.supposed is not None
    assert found.supposed.lr == LR


def test_nothing_is_searched_for_that_is_known(toy: Any) -> None:
    seen, _ = world(toy, Knows(labels=True))
    found = search().run(seen)
    assert found.tried == ()
    assert found.supposed is not None
    assert found.supposed.lr == LR


def test_the_others_images_play_no_part_in_the_choice(toy: Any) -> None:
    """The trials are scored by the adversary's own images: replacing these replaces the scores."""
    seen, _ = world(toy, Knows(labels=True, lr=False))
    assert seen.own is not None
    other = replace(seen, own=replace(seen.own, images=1 - seen.own.images))
    one, two = (search().run(o).tried for o in (seen, other))
    assert [t.error for t in one] != [t.error for t in two]


def test_an_attack_without_a_search_is_refused(toy: Any) -> None:
    seen, _ = world(toy, Knows(labels=True, examples=False))
    with pytest.raises(UsageError, match="The attack needs the number of examples behind the message"):
        search().attack.run(seen)
    with pytest.raises(UsageError, match="The attack needs the number of examples behind the message"):
        search().attack.check(seen)
    rateless, _ = world(toy, Knows(labels=True, lr=False))
    with pytest.raises(UsageError, match="SuperClient needs the clients' learning rate"):
        search().attack.run(rateless)


def test_a_server_has_nothing_to_lead_the_search(toy: Any) -> None:
    federation = toy.federation(Training(LR), clients=2)
    seen, _ = observe(federation, AggregateView(), Knows(labels=True, lr=False))
    with pytest.raises(UsageError, match="needs the adversary's own examples and update"):
        search().check(seen)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rates": (0.0,)}, "rates must be positive and finite"),
        ({"counts": ()}, "counts must be at least 1 each"),
        ({"zooms": -1}, "zooms must be at least 0, got -1"),
    ],
)
def test_an_empty_search_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        search(**options)


def test_counts_must_go_beyond_its_own(toy: Any) -> None:
    seen, _ = world(toy, Knows(labels=True, examples=False))
    with pytest.raises(UsageError, match="counts must go beyond the adversary's own 1 examples"):
        search(counts=(1,)).run(seen)


def test_own_error_pairs_each_image_with_another() -> None:
    own = torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)])
    assert own_image_error(own.flip(0), own) == 0
    assert own_image_error(torch.zeros(2, 1, 2, 2), own) == 0.5
    assert own_image_error(own[:1], own) == math.inf


def test_a_supposed_number_gives_the_own_update_its_share(toy: Any) -> None:
    seen, _ = world(toy, Knows(examples=False))
    assert seen.own is not None
    assert seen.own.share is None
    supposed = with_rate_and_examples(seen, LR, 4)
    assert supposed.own is not None
    assert supposed.own.share == 0.25
    assert supposed.knows.examples == 4
