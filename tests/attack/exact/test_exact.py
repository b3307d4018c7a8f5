"""The attack that tries exact methods: their order, their reasons, and a participant's own update."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch

from fedglass.attack.exact.exact import (
    FOUND_NOTHING,
    UNSOLVABLE,
    ExactAttack,
    ExactSolution,
    SearchBudget,
    cost_of,
    costs,
)
from fedglass.core.errors import UsageError
from fedglass.core.registry import built_in, register
from fedglass.core.types import Observation, Training
from fedglass.federation.federation import observe
from fedglass.federation.peer import PeerView
from fedglass.federation.views import Knows
from fedglass.recipes import recipe


@dataclass(frozen=True)
class Told:
    """A method that says what it is told to, and notes that it was asked."""

    name: str
    cost: float
    asked: list[str]
    reason: str = ""
    images: int = 0
    residual: float = 1.0
    explains: bool = False

    def read(self, observation: Observation, search: SearchBudget) -> ExactSolution | str:
        self.asked.append(self.name)
        images = torch.zeros(self.images, *observation.knows.shape)
        solution = ExactSolution(images, torch.zeros(self.images, dtype=torch.int64), self.residual, self.explains)
        return self.reason or solution


def attack_of(*methods: Told) -> ExactAttack:
    """An attack by these methods, under names that no other has."""
    for method in methods:
        register("exact", method.name, summary="")(costs(method.cost)(partial(method.read)))
    return ExactAttack(tuple(method.name for method in methods))


def test_cheap_methods_come_first_and_the_rest_is_left_out_once_all_is_explained(toy: Any) -> None:
    asked: list[str] = []
    dear, cheap, middle = (Told(name, cost, asked) for name, cost in (("dear", 9.0), ("cheap", 0.1), ("middle", 1.0)))
    message = toy.observation(examples=2)
    found = attack_of(dear, replace(middle, images=2, explains=True), replace(cheap, reason="no")).run(message)
    assert asked == ["cheap", "middle"]
    assert (found.method, found.explains, found.reasons) == ("middle", True, {"cheap": "no"})


def test_what_is_incomplete_or_unverified_does_not_end_the_search(toy: Any) -> None:
    asked: list[str] = []
    part = Told("part", 1.0, asked, images=1, explains=True)
    loose = Told("loose", 2.0, asked, images=2, residual=0.5)
    empty = Told("empty", 3.0, asked)
    found = attack_of(part, loose, empty).run(toy.observation(examples=2))
    assert asked == ["part", "loose", "empty"]
    assert found.method == "part"
    assert found.reasons == {"empty": FOUND_NOTHING}


def test_one_image_that_leaves_next_to_nothing_ends_it_too(toy: Any) -> None:
    asked: list[str] = []
    near, later = Told("near", 1.0, asked, images=1, residual=0.005), Told("later", 2.0, asked)
    assert not attack_of(near, later).run(toy.observation(examples=1)).explains
    assert asked == ["near"]


def test_a_method_without_a_solution_does_not_end_the_others(toy: Any) -> None:
    @register("exact", "unsolvable", summary="")
    @costs(0.1)
    def unsolvable(observation: Observation, search: SearchBudget) -> str:
        return str(torch.linalg.svd(torch.full((2, 2), torch.nan)))

    attack_of(Told("other", 1.0, [], images=1, explains=True))
    found = ExactAttack(("unsolvable", "other")).run(toy.observation(examples=1))
    assert (found.method, found.reasons) == ("other", {"unsolvable": UNSOLVABLE})


def test_a_message_of_almost_only_zeros_is_answered(plain: Any) -> None:
    """Pruning by 99.9 % leaves layers whose update, or that of their biases, is zero."""
    images, labels = plain.pictures(3)
    message = plain.seen(plain.dense(), images, labels, Training(0.1))
    for share in (0.5, 0.99, 0.999, 1.0):
        keep = {name: t.abs() > torch.quantile(t.abs(), min(share, 0.9999)) for name, t in message.update.items()}
        update = {name: tensor * keep[name] * (share < 1) for name, tensor in message.update.items()}
        found = recipe("exact").run(replace(message, update=update))
        assert found.method or found.reasons


def test_methods_of_the_recipe_name_their_cost_and_papers_are_cited() -> None:
    attack = recipe("exact")
    assert isinstance(attack, ExactAttack)
    assert {"division", "weak_noise", "spear", "vit_closed_form", "dense_features", "last_layer"} <= set(attack.methods)
    assert all(0 < cost_of(name) <= attack.seconds for name in attack.methods)
    assert any("APRIL" in entry.paper for entry in built_in("exact").values())
    assert eval(repr(attack)) == attack


def test_a_time_limit_is_a_positive_number() -> None:
    with pytest.raises(UsageError, match=r"exact\.seconds"):
        ExactAttack((), seconds=0.0)


def test_a_peer_takes_its_own_update_off(toy: Any) -> None:
    federation = toy.federation(Training(lr=0.1), clients=2, examples=1)
    observation, truth = observe(federation, PeerView(0), Knows())
    found = recipe("exact").run(observation)
    assert (found.method, found.explains) == ("division", True)
    assert len(found.images) == 1
    other = federation.clients[1].images
    assert float((found.images - other).square().mean()) < 1e-6
    assert len(truth.images) == 2
