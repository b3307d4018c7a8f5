"""Labels that are assigned to clients by how well stand-in pictures explain the message."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedglass.attack.forward.messages import Combination, SupposedMedian, SupposedTrimmedMean, Through
from fedglass.attack.labels.assigned import AssignedLabels, JointLabels, lowest_assignment, substitute_images
from fedglass.attack.labels.counts import LastLayerCounts
from fedglass.attack.peer_knowledge import KeepOwnUpdate
from fedglass.attack.terms.distance import Cosine
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Observation, Training, Whitening
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation, observe
from fedglass.federation.peer import PeerView
from fedglass.federation.views import Knows, ServerView
from fedglass.fl.aggregate.coordinates import Median, TrimmedMean
from fedglass.fl.aggregate.rule import Aggregator

LABELS = [[0, 3], [4, 1], [2, 2], [0, 1], [3, 4]]
"""Of five clients, the first of which is the adversary."""


def seen_through(toy: Any, rule: Aggregator) -> Observation:
    """What the adversary sees without its own examples, which it knows."""
    clients = [Client(f"client {i}", 0.3 * toy.images(2, i), torch.tensor(each)) for i, each in enumerate(LABELS)]
    federation: Federation = Federation(
        toy.dense(nn.Tanh), clients, Training(0.2), toy.classes, Whitening((0.0,), (1.0,)), aggregator=rule
    )
    seen, _ = observe(federation, PeerView(0), Knows())
    return KeepOwnUpdate().others(seen)


def assigned(seen: Observation, combination: Combination, **options: Any) -> list[int]:
    part = AssignedLabels(LastLayerCounts(), Through(combination, own=True), Cosine(), **options)
    found: list[int] = part.bind(seen, stream(0, "labels")).decode([]).tolist()
    return found


@pytest.mark.parametrize(
    ("combination", "rule"), [(SupposedMedian(), Median()), (SupposedTrimmedMean(1), TrimmedMean(1))], ids=repr
)
def test_clients_behind_a_rule_that_is_no_mean_get_their_labels(
    toy: Any, combination: Combination, rule: Aggregator
) -> None:
    seen = seen_through(toy, rule)
    counted = LastLayerCounts().bind(seen, stream(0, "labels")).decode([]).tolist()
    true = sorted(label for each in LABELS[1:] for label in each)
    assert sorted(counted) != true  # they suppose a mean
    found = assigned(seen, combination)
    assert sorted(sorted(found[i : i + 2]) for i in range(0, 8, 2)) == sorted(map(sorted, LABELS[1:]))


def test_one_comparison_leaves_the_counts_as_they_are(toy: Any) -> None:
    seen = seen_through(toy, Median())
    counted = LastLayerCounts().bind(seen, stream(0, "labels")).decode([]).tolist()
    assert sorted(assigned(seen, SupposedMedian(), trials=1)) == sorted(counted)


def test_labels_that_are_unknowns_are_left_alone(toy: Any) -> None:
    seen = seen_through(toy, Median())
    joint = AssignedLabels(JointLabels(), Through(SupposedMedian(), own=True), Cosine()).bind(seen, stream(0, "labels"))
    assert len(joint.unknowns) == 1


def test_labels_are_exchanged_where_no_single_change_helps() -> None:
    """The counts are right from the start, and any change of one label alone makes it worse."""
    true = (0, 1, 2, 3)

    def energy(labels: tuple[int, ...]) -> float:
        miscounted = sum(abs(labels.count(label) - true.count(label)) for label in range(4))
        return 10 * miscounted + (labels != true)

    assert lowest_assignment(energy, [(0, 2, 1, 3)], (2, 2), 4, trials=500) == true


def test_the_lowest_of_several_starts_is_taken() -> None:
    valleys = {(0, 0): 1.0, (2, 2): 0.0}

    def energy(labels: tuple[int, ...]) -> float:
        return valleys.get(labels, 5.0)

    assert lowest_assignment(energy, [(0, 0)], (1, 1), 3, trials=100) == (0, 0)
    assert lowest_assignment(energy, [(0, 0), (2, 1)], (1, 1), 3, trials=100) == (2, 2)


@pytest.mark.parametrize("trials", [1, 7, 40])
def test_no_more_are_compared_than_asked_for(trials: int) -> None:
    compared = list[tuple[int, ...]]()

    def energy(labels: tuple[int, ...]) -> float:
        compared.append(labels)
        return float(-sum(labels))

    lowest_assignment(energy, [(0,) * 6, (1,) * 6], (2, 2, 2), 10, trials)
    assert len(compared) == len(set(compared)) <= trials


def test_an_energy_that_is_no_number_wins_nothing() -> None:
    assert lowest_assignment(lambda labels: float("nan") if 1 in labels else float(labels[0]), [(2,)], (1,), 3, 50) == (
        0,
    )


def test_the_own_pictures_stand_in_or_noise(toy: Any) -> None:
    seen = seen_through(toy, Median())
    assert seen.own is not None
    mean = seen.knows.whitening.whiten(seen.own.images.mean(0))
    assert torch.equal(substitute_images(seen, stream(0, "x")), mean.expand(1, 8, *mean.shape))
    server, _ = observe(toy.federation(Training(0.2)), ServerView(), Knows())
    noise = substitute_images(server, stream(0, "x"))
    assert noise.shape == (1, 4, 1, 8, 8)
    pixels = server.knows.whitening.unwhiten(noise)
    assert 0 <= float(pixels.min()) < float(pixels.max()) <= 1.0001


@pytest.mark.parametrize("options", [{"trials": 0}, {"starts": 0}])
def test_bad_input_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="trials and starts must be at least 1"):
        AssignedLabels(LastLayerCounts(), Through(), Cosine(), **options)
