"""What clients do with their turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from fedglass.core.errors import DataError, UsageError
from fedglass.core.tensors import Update
from fedglass.core.types import Training
from fedglass.defend.noise import Clip, norm_of
from fedglass.federation.behaviours import (
    Backdoor,
    Behaviour,
    Gaussian,
    Honest,
    PerRound,
    RejoinAfterRejection,
    SignFlip,
    Turn,
)
from fedglass.federation.federation import Federation

FEDAVG = Training(0.2, epochs=2, batch_size=3)


def acting(toy: Any, behaviour: Behaviour) -> Federation:
    federation: Federation = toy.federation(FEDAVG, clients=2)
    first, second = federation.clients
    return replace(federation, clients=[replace(first, behaviour=behaviour), second])


def test_a_sign_is_flipped_and_the_other_client_is_left_alone(toy: Any, same: Callable[..., bool]) -> None:
    honest, flipped = (acting(toy, b).run().rounds[0] for b in (Honest(), SignFlip(3.0)))
    for name, tensor in honest.messages[0].update.items():
        assert torch.equal(flipped.messages[0].update[name], -3.0 * tensor)
    assert same(flipped.messages[1].update, honest.messages[1].update)


def test_defences_come_after_the_behaviour(toy: Any) -> None:
    federation = acting(toy, SignFlip(1000.0))
    guarded = replace(federation, clients=[replace(federation.clients[0], release=Clip(0.01)), federation.clients[1]])
    assert float(norm_of(guarded.run().rounds[0].messages[0].update)) == pytest.approx(0.01)


@dataclass(frozen=True)
class OtherLabels:
    """Trains on labels of its own making."""

    def examples(self, turn: Turn) -> tuple[torch.Tensor, torch.Tensor]:
        return turn.images, (turn.labels + 1) % 5

    def update(self, turn: Turn, trained: Update) -> Update:
        return trained

    def describe(self) -> str:
        return "lies about its labels"


def test_a_behaviour_may_change_what_is_trained_on(toy: Any, same: Callable[..., bool]) -> None:
    honest, lying = acting(toy, Honest()), acting(toy, OtherLabels())
    assert not same(honest.run().rounds[0].messages[0].update, lying.run().rounds[0].messages[0].update)
    assert torch.equal(lying.truths().of("client 0", 0).labels, honest.truths().of("client 0", 0).labels)


def test_one_behaviour_for_each_round_and_the_last_stays(toy: Any, same: Callable[..., bool]) -> None:
    switching = acting(toy, PerRound((Honest(), SignFlip()))).run(3).rounds
    honest = acting(toy, Honest()).run(3).rounds
    flipped = acting(toy, PerRound((Honest(), SignFlip(), SignFlip()))).run(3).rounds
    assert same(switching[0].step, honest[0].step)
    assert not same(switching[1].step, honest[1].step)
    assert same(switching[2].step, flipped[2].step)
    with pytest.raises(UsageError, match="at least one"):
        PerRound(())


def test_only_what_is_not_honest_is_told() -> None:
    assert Honest().describe() == PerRound((Honest(), Honest())).describe() == ""
    assert "sign flipped, times 2" in SignFlip(2.0).describe()


@dataclass(frozen=True)
class Crowd:
    """Trains on its examples several times over, or on none."""

    times: int

    def examples(self, turn: Turn) -> tuple[torch.Tensor, torch.Tensor]:
        return turn.images.repeat(self.times, 1, 1, 1), turn.labels.repeat(self.times)

    def update(self, turn: Turn, trained: Update) -> Update:
        return trained

    def describe(self) -> str:
        return f"trains on its examples {self.times} times over"


@pytest.mark.parametrize("times", [0, 2])
def test_examples_that_no_batch_would_hold_are_refused(toy: Any, times: int) -> None:
    with pytest.raises(DataError, match=r"behaviour of 'client 0' gave .* expected as many as the client has"):
        acting(toy, Crowd(times)).run()


def test_noise_is_as_long_as_the_update_or_as_asked(toy: Any) -> None:
    honest, alike, asked = (acting(toy, b).run().rounds[0] for b in (Honest(), Gaussian(), Gaussian(0.5)))
    own, noise = (float(norm_of(past.messages[0].update)) for past in (honest, alike))
    assert noise == pytest.approx(own, rel=0.1)
    values = torch.cat([tensor.flatten() for tensor in asked.messages[0].update.values()])
    assert float(values.std()) == pytest.approx(0.5, rel=0.1)
    assert abs(float(values.mean())) < 0.05


def test_a_backdoor_marks_a_share_of_the_examples(toy: Any) -> None:
    images = toy.images(5)
    turn = Turn(images, torch.tensor([1, 2, 3, 4, 1]), 0, {}, torch.Generator())
    marked, labels = Backdoor(target=2, share=0.4, side=3).examples(turn)
    assert labels.tolist() == [2, 2, 3, 4, 1]
    assert bool((marked[:2, :, -3:, -3:] == 1).all())
    assert torch.equal(marked[2:], images[2:])
    assert torch.equal(marked[:2, :, :5], images[:2, :, :5])
    assert not bool((images[:2, :, -3:, -3:] == 1).all())


@pytest.mark.parametrize(
    ("part", "words"),
    [(Backdoor(side=9), "does not fit into images of 8 x 8"), (Backdoor(target=5), "classes 0 to 4, got 5")],
)
def test_a_backdoor_that_does_not_fit_is_refused_before_anything_runs(toy: Any, part: Backdoor, words: str) -> None:
    for behaviour in (part, PerRound((Honest(), part)), RejoinAfterRejection(part, 2)):
        with pytest.raises(DataError, match=words):
            acting(toy, behaviour)


@pytest.mark.parametrize("wrong", [{"share": 0.0}, {"side": 0}, {"target": -1}])
def test_a_backdoor_out_of_bounds_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="backdoor"):
        Backdoor(**wrong)
