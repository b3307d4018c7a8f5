"""Guesses about whose updates got through the server's rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedglass.attack.best_of import AttacksByRule, BestOf
from fedglass.attack.hypotheses import AcceptedClients, AllClients, AllOthers, GuessAccepted, OneOther, SomeOthers
from fedglass.attack.labels.given import OracleLabels
from fedglass.core.errors import UsageError
from fedglass.core.types import Accepted, Observation, Reconstruction, Training
from fedglass.federation.behaviours import Behaviour, Honest, SignFlip
from fedglass.federation.federation import observe
from fedglass.federation.peer import PeerView
from fedglass.federation.truth import Truth
from fedglass.federation.views import Knows
from fedglass.fl.aggregate.coordinates import Median
from fedglass.fl.aggregate.rule import Aggregated, AggregationContext, Aggregator, State, WeightedMean, mean_of
from fedglass.fl.aggregate.selection import DnC
from fedglass.recipes.maliciously_curious_client import maliciously_curious_client

LABELS = ([0, 3], [4, 1], [2, 2], [0, 1], [3, 4])
"""Of each client: no two have the same."""
UNSURE = Knows(labels=True, kept=False)


class Only:
    """A rule that keeps the clients of these positions and takes their mean."""

    def __init__(self, *kept: int) -> None:
        self.kept = kept

    def init(self, weights: Any) -> State:
        return None

    def aggregate(self, updates: Any, context: AggregationContext, state: State) -> Aggregated:
        kept = torch.zeros(len(updates), dtype=torch.bool)
        kept[list(self.kept)] = True
        return mean_of(updates, kept)


def seen_by(
    toy: Any, rule: Aggregator, knows: Knows = UNSURE, behaviour: Behaviour | None = None, clients: int = 5
) -> tuple[Observation, Truth]:
    federation = toy.federation(Training(0.3), clients=clients, examples=2, aggregator=rule)
    labelled = [replace(c, labels=torch.tensor(own)) for c, own in zip(federation.clients, LABELS, strict=False)]
    acting = [replace(labelled[0], behaviour=behaviour or Honest()), *labelled[1:]]
    return observe(replace(federation, clients=acting), PeerView(0), knows)


def reading(rule: str = "any", iterations: int = 100, **options: Any) -> BestOf[AttacksByRule]:
    attack = maliciously_curious_client(OracleLabels(), rule=rule, tv=0.0, iterations=iterations, **options)
    assert isinstance(attack, BestOf)
    return attack


@pytest.mark.parametrize(
    ("choice", "guesses"),
    [
        (AllClients(), [((0, 1, 2), True)]),
        (AllOthers(), [((0, 1, 2), False)]),
        (OneOther(), [((0,), False), ((1,), False), ((2,), False)]),
        (
            SomeOthers(),
            [
                *(((i, j), own) for i, j in ((0, 1), (0, 2), (1, 2)) for own in (True, False)),
                *(((i,), True) for i in range(3)),
            ],
        ),
    ],
    ids=repr,
)
def test_all_guesses_together_are_all_that_is_possible(choice: AcceptedClients, guesses: list[Any]) -> None:
    assert list(choice.guesses(3)) == [Accepted(*guess) for guess in guesses]


def test_no_two_choices_guess_the_same() -> None:
    made = [guess for choice in (AllClients(), AllOthers(), OneOther(), SomeOthers()) for guess in choice.guesses(4)]
    assert len(set(made)) == len(made) == 2 * (2**4 - 1)  # all but that nobody else is behind it


@pytest.mark.parametrize(
    ("kept", "rule", "guess"),
    [
        ((0, 1, 2, 3, 4), "mean", Accepted((0, 1, 2, 3), True)),
        ((1, 2, 3, 4), "mean_without_own", Accepted((0, 1, 2, 3), False)),
        ((3,), "one_client", Accepted((2,), False)),
        ((0, 2, 4), "mean_of_some", Accepted((1, 3), True)),
        ((1, 4), "mean_of_some", Accepted((0, 3), False)),
    ],
)
def test_the_lowest_energy_tells_who_got_through(toy: Any, kept: tuple[int, ...], rule: str, guess: Accepted) -> None:
    seen, truth = seen_by(toy, Only(*kept))
    attack = reading()
    found = attack.run(seen)
    assert (found.rule, found.kept) == (rule, guess)
    assert sorted(found.labels.tolist()) == sorted(truth.labels.tolist())
    assert attack.energy_of(seen, truth.images, truth.labels, found) < 1e-5
    assert attack.energy_of(seen, truth.images.flip(-1), truth.labels, found) > 1e-4


def test_a_poisoner_that_was_found_out_reads_the_others(toy: Any) -> None:
    """Divide and conquer drops the sign flip; with it in the mean nothing fits."""
    seen, truth = seen_by(toy, DnC(1, passes=1), behaviour=SignFlip(5.0))
    assert truth.own == 0
    assert len(truth.clients) == 4
    found = reading(iterations=100).run(seen)
    assert (found.rule, found.kept) == ("mean_without_own", Accepted((0, 1, 2, 3), False))
    told, _ = seen_by(toy, DnC(1, passes=1), Knows(labels=True), SignFlip(5.0))
    known = reading("mean")
    at = known.run(told)
    assert at.kept is None
    assert known.energy_of(told, truth.images, truth.labels, at) < 1e-5


def test_without_labels_others_of_the_same_size_are_all_alike(toy: Any) -> None:
    seen, _ = seen_by(toy, WeightedMean(), Knows(kept=False))
    attacks = dict(maliciously_curious_client(iterations=1).attack)  # type: ignore[attr-defined]
    one, some = attacks["one_client"], attacks["mean_of_some"]
    assert [guess.value for guess in one.guesses.options(one.attack, seen)] == [Accepted((0,), False)]
    guesses = [guess.value for guess in some.guesses.options(some.attack, seen)]
    assert {(len(guess.others), guess.own) for guess in guesses} == {
        *((n, own) for n in (2, 3) for own in (True, False)),
        (1, True),
    }


def test_what_one_client_sent_is_counted_as_one_clients(toy: Any) -> None:
    """The others are no part of it, and neither are their numbers."""
    seen, truth = seen_by(toy, Only(2), Knows(kept=False))
    found = maliciously_curious_client(rule="one_client", tv=0.0, iterations=30).run(seen)
    assert found.images.shape == truth.images.shape
    assert sorted(found.labels.tolist()) == sorted(truth.labels.tolist())


def test_the_truth_is_judged_by_who_really_got_through(toy: Any) -> None:
    """Whatever the attack supposed: a wrong guess must not make the truth look as if it did not fit."""
    seen, truth = seen_by(toy, Only(1, 2))
    attack = reading("mean_of_some", iterations=1).attack[0][1]
    like = Reconstruction(truth.images, truth.labels, 0.0, kept=Accepted((0, 1, 2), True))
    assert attack.energy_of(seen, truth.images, truth.labels, like) < 1e-5
    seen, truth = seen_by(toy, Only(0, 1, 2))  # as many images as three others have, the last ones its own
    like = replace(like, kept=Accepted((0, 1, 2), False))
    assert attack.energy_of(seen, truth.images, truth.labels, like) < 1e-5
    with pytest.raises(UsageError, match="3 images are those of no clients of the round"):
        attack.energy_of(seen, truth.images[:3], truth.labels[:3], like)


def test_who_is_told_has_nothing_to_guess(toy: Any) -> None:
    seen, _ = seen_by(toy, Median(), Knows(labels=True))
    attack = reading()
    names = {guess.value for guess in attack.guesses.options(attack.attack, seen)}
    assert names == {"mean", "median", "trimmed_mean", "soft_median", "one_client"}
    with pytest.raises(UsageError, match=r"adversary\.knows_kept = false"):
        reading("mean_without_own").run(seen)


def test_a_message_of_its_own_is_no_message_of_others(toy: Any) -> None:
    """Under Krum the adversary may be the one that is chosen: nothing is read, and nothing is said to be safe."""
    seen, _ = seen_by(toy, Only(2))
    assert seen.own is not None
    echo = replace(seen, update=seen.own.update)
    for rule in ("any", "one_client", "mean"):
        with pytest.raises(UsageError, match="adversary's own update, sent back by the rule"):
            reading(rule).run(echo)
    with pytest.raises(UsageError, match="no update of the round but that of"):
        seen_by(toy, Only(0))


def test_the_labels_of_each_client_are_told_where_they_were_found(toy: Any) -> None:
    seen, truth = seen_by(toy, Median(), Knows(kept=False))
    found = maliciously_curious_client(rule="median", iterations=2).run(seen)
    assert [len(each) for each in found.grouping] == [2, 2, 2, 2]
    assert [label for each in found.grouping for label in each] == found.labels[: len(truth.private.labels)].tolist()
    assert maliciously_curious_client(rule="mean", iterations=2).run(seen).grouping == ()


def test_what_it_sent_can_be_left_unused(toy: Any) -> None:
    """As in the paper: with poison among the updates, no images explain the message."""
    seen, truth = seen_by(toy, WeightedMean(), Knows(labels=True), SignFlip(3.0), clients=3)
    known, unknown = reading("mean"), reading("mean", own="unknown")
    assert known.energy_of(seen, truth.images, truth.labels, known.run(seen)) < 1e-5
    found = unknown.run(seen)
    assert unknown.energy_of(seen, truth.images, truth.labels, found) > 1e-2
    assert not torch.equal(found.images[-2:], truth.images[-2:])
    with pytest.raises(UsageError, match="did you mean 'unknown'"):
        maliciously_curious_client(own="unknow")


@pytest.mark.parametrize("options", [{"share": 0.0}, {"share": 2.0}, {"most": 0}])
def test_bad_input_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"kept\.share must be above 0"):
        GuessAccepted(AllClients(), **options)
