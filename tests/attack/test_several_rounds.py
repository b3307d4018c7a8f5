"""Several rounds of the same examples, attacked together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedglass.attack.forward.gradients import OnSegment
from fedglass.attack.forward.unroll import Unroll
from fedglass.attack.labels.given import fixed_labels
from fedglass.attack.parts import Evaluation, Forward
from fedglass.attack.stages import bind_forward, bind_objective, labels_of_rounds, with_mean_update
from fedglass.attack.terms.distance import Cosine
from fedglass.core.errors import UsageError
from fedglass.core.tensors import assign, squared_distances
from fedglass.core.types import Candidate, Training
from fedglass.defend.noise import GaussianNoise
from fedglass.federation.federation import observe
from fedglass.federation.peer import PeerView
from fedglass.federation.views import AggregateView, Knows, ServerView, Together
from fedglass.recipes import recipe

ROUNDS = Together(tuple(ServerView(0, index) for index in range(6)))


def error(images: torch.Tensor, truth: torch.Tensor) -> float:
    distances = squared_distances(truth, images)
    return float(distances[torch.arange(len(truth)), assign(distances)].mean())


def noisy(toy: Any, std: float) -> Any:
    federation = toy.federation(Training(0.01), examples=1)
    clients = [replace(client, release=GaussianNoise(std)) for client in federation.clients]
    return replace(federation, clients=clients)


def test_noise_that_hides_one_message_averages_out_over_several(toy: Any) -> None:
    federation, attack = noisy(toy, 0.001), recipe("inverting_gradients", iterations=150, tv=0.0)
    alone, truth = observe(federation, ServerView(), Knows())
    together, _ = observe(federation, ROUNDS, Knows())
    assert len(together.also) == 5
    one, many = (error(attack.run(seen).images, truth.images) for seen in (alone, together))
    assert many < 0.3 * one


def test_the_energy_is_the_mean_over_the_rounds(toy: Any) -> None:
    federation, attack = noisy(toy, 0.001), recipe("inverting_gradients", iterations=3)
    seen, truth = observe(federation, Together((ServerView(0, 2), ServerView(0, 0))), Knows())
    found = attack.run(seen)
    parts = [replace(seen, also=()), *seen.also]
    each = [attack.energy_of(part, truth.images, truth.labels, found) for part in parts]
    assert attack.energy_of(seen, truth.images, truth.labels, found) == pytest.approx(sum(each) / 2, rel=1e-5)


@pytest.mark.parametrize("name", ["sme", "dlfa", "coarse_to_fine", "dlfa_unknown_epochs", "coarse_to_fine_statistics"])
def test_every_kind_of_operator_can_be_played_over_rounds(toy: Any, name: str) -> None:
    """Each round has unknowns of its own where the operator has some."""
    federation = toy.federation(Training(0.1, epochs=2, batch_size=2), examples=3)
    seen, truth = observe(federation, Together((ServerView(0, 0), ServerView(0, 1))), Knows())
    attack = recipe(name, iterations=3)
    attack.check(seen)
    found = attack.run(seen)
    assert found.images.shape == truth.images.shape
    assert len(found.unknowns) % 2 == 0


@pytest.mark.parametrize("forward", [Unroll(), OnSegment()], ids=repr)
@pytest.mark.parametrize("rounds", [1, 2])
def test_the_gradient_reaches_images_and_unknowns_of_all_rounds_and_repeats_itself(
    toy: Any, forward: Forward, rounds: int
) -> None:
    federation = toy.federation(Training(0.1, epochs=2, batch_size=2), examples=3)
    view = Together(tuple(ServerView(0, index) for index in range(rounds))) if rounds > 1 else ServerView()
    seen, truth = observe(federation, view, Knows())
    before = {name: tensor.clone() for name, tensor in seen.update.items()}

    def gradients() -> list[torch.Tensor]:
        bound = bind_forward(forward, seen)
        assert len(bound.rounds) == (rounds if rounds > 1 else 0)
        images = (truth.images[None] + 0.1).requires_grad_()
        unknowns = [u.start.clone().requires_grad_() for u in bound.unknowns]
        candidate = Candidate(images, truth.labels)
        energy = bind_objective(Cosine(), bound, seen.knows)(Evaluation(bound.predict(candidate, unknowns), candidate))
        return list(torch.autograd.grad(energy, [images, *unknowns]))

    first, again = gradients(), gradients()
    assert all(bool(gradient.isfinite().all()) and bool(gradient.any()) for gradient in first)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(torch.equal(tensor, before[name]) for name, tensor in seen.update.items())


def test_labels_are_read_off_the_mean_update(toy: Any) -> None:
    seen, _ = observe(noisy(toy, 0.1), ROUNDS, Knows())
    updates = [each.update for each in (seen, *seen.also)]
    for name, tensor in with_mean_update(seen).update.items():
        torch.testing.assert_close(tensor, sum(u[name] for u in updates) / len(updates))


def test_the_earliest_round_stands_for_all(toy: Any) -> None:
    view = Together((ServerView(0, 4), ServerView(0, 1), ServerView(0, 2)))
    assert view.rounds() == (4, 2, 1)
    assert view.describe().endswith("and the same of rounds 2, 3, 5 together")
    assert view.label()[1] == "server, client 0, 3 rounds together"


def test_what_can_not_be_looked_at_together_is_said(toy: Any) -> None:
    with pytest.raises(UsageError, match="must be different ones, at least two"):
        Together((ServerView(0, 1), ServerView(0, 1)))
    federation = toy.federation(Training(0.1), clients=3)
    with pytest.raises(UsageError, match="cannot be attacked together: they have different clients or"):
        observe(federation, Together((ServerView(0, 0), ServerView(1, 1))), Knows())
    with pytest.raises(UsageError, match="cannot be attacked together by a peer"):
        observe(federation, Together((PeerView(0, 0), PeerView(0, 1))), Knows())
    seen, _ = observe(federation, Together((AggregateView(0), AggregateView(1))), Knows())
    assert seen.knows.clients == 3
    short = toy.federation(Training(0.1, batch_size=1, steps=1), examples=4)
    with pytest.raises(UsageError, match="they have different clients or different examples"):
        observe(short, Together(tuple(ServerView(0, i) for i in range(4))), Knows())


def test_labels_on_which_all_rounds_agree_are_taken(toy: Any) -> None:
    """The mean of rounds belongs to no one model."""

    class FromTheFirstEntry:
        """A label from one number of the update, which its mean over rounds has otherwise."""

        def bind(self, observation: Any, generator: torch.Generator) -> Any:
            first = next(iter(observation.update.values())).flatten()[0]
            return fixed_labels((first.abs() > 0.5).long().reshape(1))

    seen, _ = observe(noisy(toy, 0.001), Together((ServerView(0, 0), ServerView(0, 1))), Knows())

    def with_first(*values: float) -> Any:
        made = []
        for value, each in zip(values, (seen, *seen.also), strict=True):
            name, tensor = next(iter(each.update.items()))
            changed = tensor.clone()
            changed.view(-1)[0] = value
            made.append(replace(each, update={**each.update, name: changed}, also=()))
        return replace(made[0], also=tuple(made[1:]))

    def labels(*values: float) -> list[int]:
        found = labels_of_rounds(FromTheFirstEntry(), with_first(*values), torch.Generator)
        return list(found.decode(()))

    assert labels(1.0, -1.0) == [1]
    assert labels(1.0, 0.2) == [1]  # they do not agree: that of the mean
    assert labels(0.4, 0.2) == [0]
