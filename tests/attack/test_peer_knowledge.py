"""Three ways of treating what is the adversary's own: all exact, and all judged alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.best_of import BestOf
from fedglass.attack.forward.unroll import EachClient, SuperClient, Unroll
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.assigned import JointLabels
from fedglass.attack.labels.given import OracleLabels
from fedglass.attack.parts import Forward
from fedglass.attack.peer_knowledge import FixOwnImages, FixOwnLabels, SubtractOwnUpdate, without_own_update
from fedglass.attack.solvers.adam import SignedAdam
from fedglass.attack.terms.distance import SquaredError
from fedglass.audit.assessment import assess
from fedglass.audit.target import Target
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Observation, Training
from fedglass.federation.federation import Federation, observe
from fedglass.federation.peer import PeerView
from fedglass.federation.truth import Truth
from fedglass.federation.views import AggregateView, Knows, ServerView
from fedglass.recipes import recipe

TOLD = Knows(labels=True)


def federation(toy: Any, training: Training = Training(0.2), sizes: tuple[int, ...] = (2, 3, 1)) -> Federation:  # noqa: B008  # frozen
    found: Federation = replace(toy.federation(training), clients=[toy.client(i, n) for i, n in enumerate(sizes)])
    return found


def ways(forward: Forward, iterations: int = 2) -> dict[str, Any]:
    solver = SignedAdam(0.1, iterations)
    along = Attack(OracleLabels(), (Stage(forward, Pixels(), SquaredError(), solver),))
    fixed = Stage(forward, FixOwnImages(Pixels()), SquaredError(), solver)
    return {
        "along": along,
        "fixed": Attack(FixOwnLabels(OracleLabels()), (fixed,)),
        "subtract": BestOf(along, SubtractOwnUpdate()),
    }


@pytest.mark.parametrize("way", ["along", "fixed", "subtract"])
@pytest.mark.parametrize("forward", [SuperClient(), EachClient()], ids=repr)
def test_the_truth_has_no_energy_whatever_is_done_with_what_is_its_own(toy: Any, way: str, forward: Forward) -> None:
    """Exactly so for one step of a super-client, and for any number where each client is simulated."""
    training = Training(0.2) if forward == SuperClient() else Training(0.2, epochs=3)
    seen, truth = observe(federation(toy, training), PeerView(0), TOLD)
    attack = ways(forward)[way]
    found = attack.run(seen)
    assert found.images.shape == truth.images.shape
    assert sorted(found.labels.tolist()) == sorted(truth.labels.tolist())
    at_truth = attack.energy_of(seen, truth.images, truth.labels, found)
    elsewhere = attack.energy_of(seen, 1 - truth.images, truth.labels, found)
    assert at_truth < 1e-8
    assert elsewhere > 1e3 * max(at_truth, 1e-12)


@pytest.mark.parametrize("way", ["fixed", "subtract"])
def test_own_images_come_back_as_they_are_and_are_not_scored(toy: Any, way: str) -> None:
    seen, truth = observe(federation(toy), PeerView(1), TOLD)
    attack = ways(SuperClient())[way]
    found = attack.run(seen)
    torch.testing.assert_close(found.images[-3:], truth.images[-3:])
    assert torch.equal(found.labels[-3:], truth.labels[-3:])
    judged = assess(attack, Target(seen, truth), found, ("psnr",), 0)
    assert len(judged.scores.metrics["psnr"]) == 3  # two of client 0, one of client 2
    assert judged.energy_truth is not None
    assert judged.energy_truth < 1e-8


def test_of_two_clients_the_others_update_is_bare(toy: Any) -> None:
    both = federation(toy, Training(0.2, epochs=4), (2, 3))
    seen, _ = observe(both, PeerView(0), TOLD)
    alone, bare = without_own_update(seen), observe(both, ServerView(1), TOLD)[0]
    for name, update in bare.update.items():
        torch.testing.assert_close(alone.update[name], update, rtol=1e-4, atol=1e-6)
    assert alone.knows.examples == bare.knows.examples == 3
    assert alone.knows.sizes == (3,)
    assert alone.knows.labels is not None
    assert bare.knows.labels is not None
    assert torch.equal(alone.knows.labels.sort().values, bare.knows.labels.sort().values)


def test_an_aggregate_is_attacked_as_it_is(toy: Any) -> None:
    seen, truth = observe(federation(toy), AggregateView(), TOLD)
    found = {way: attack.run(seen) for way, attack in ways(SuperClient()).items()}
    assert all(torch.equal(f.images, found["along"].images) for f in found.values())
    assert all(len(f.images) == len(truth.labels) for f in found.values())


def test_soft_labels_stand_beside_known_ones(toy: Any) -> None:
    seen, _ = observe(federation(toy), PeerView(0), Knows())
    bound = FixOwnLabels(JointLabels()).bind(seen, stream(0, "x"))
    labels = bound.decode([u.start for u in bound.unknowns])
    assert labels.shape == (6, 5)
    assert seen.own is not None
    assert torch.equal(labels[-2:].argmax(-1), seen.own.labels)


def test_a_rule_other_than_the_mean_leaves_the_share_unknown(toy: Any) -> None:
    seen, _ = observe(federation(toy), PeerView(0), TOLD)
    assert seen.own is not None
    assert seen.own.share == pytest.approx(2 / 6)
    blind = replace(seen, own=replace(seen.own, share=None))
    along, subtract = (ways(SuperClient())[way].run(blind) for way in ("along", "subtract"))
    assert torch.equal(along.images, subtract.images)


def test_an_update_that_did_not_get_through_is_not_subtracted(toy: Any) -> None:
    seen, _ = observe(federation(toy), PeerView(0), TOLD)
    assert seen.own is not None
    dropped = replace(seen, own=replace(seen.own, share=0.0))
    assert without_own_update(dropped) is dropped


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": torch.tensor([1, 9])}, "own labels go from 1 to 9, but the model has the classes 0 to 4"),
        ({"images": torch.rand(2, 1, 4, 4)}, r"own images have shape \(2, 1, 4, 4\) for 2 labels, expected one image"),
        ({"images": torch.rand(6, 1, 8, 8), "labels": torch.zeros(6).long()}, "only 6 stand behind the message"),
    ],
)
@pytest.mark.parametrize("way", ["fixed", "subtract"])
def test_own_examples_that_can_not_be_are_refused(toy: Any, way: str, change: dict[str, Any], said: str) -> None:
    seen, _ = observe(federation(toy), PeerView(0), TOLD)
    assert seen.own is not None
    with pytest.raises(UsageError, match=said):
        ways(SuperClient())[way].run(replace(seen, own=replace(seen.own, **change)))


def test_own_examples_that_are_not_in_the_data_are_refused(toy: Any) -> None:
    seen, _ = observe(federation(toy), PeerView(0), TOLD)
    assert seen.own is not None
    assert seen.knows.labels is not None
    absent = next(k for k in range(5) if k not in seen.knows.labels.tolist())
    stranger = replace(seen, own=replace(seen.own, labels=torch.tensor([absent, absent])))
    with pytest.raises(UsageError, match=f"own label {absent} is not among the true labels"):
        ways(SuperClient())["subtract"].run(stranger)


def peers(toy: Any) -> tuple[Observation, Truth]:
    return observe(federation(toy, Training(0.05, epochs=3), (1, 1, 1)), PeerView(0), TOLD)


@pytest.mark.parametrize("own", ["subtract", "fixed", "along"])
def test_our_recipe_reads_its_peers(toy: Any, own: str) -> None:
    """Better than a plain grey picture, by any of the three ways."""
    seen, truth = peers(toy)
    attack = recipe("curious_client", labels=OracleLabels(), own=own, iterations=60, tv=0.003)
    found = attack.run(seen)
    judged = assess(attack, Target(seen, truth), found, ("rmse",), 0)
    grey = (truth.private.images - 0.4).square().flatten(1).mean(1).sqrt()
    assert sum(judged.scores.metrics["rmse"]) < 0.7 * float(grey.sum())


def test_other_ways_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match=r"Unknown own 'subtracted': did you mean 'subtract'\?"):
        recipe("curious_client", own="subtracted")


def test_a_simulation_of_equal_clients_agrees_with_each_client(toy: Any) -> None:
    seen, truth = observe(federation(toy, Training(0.2, epochs=2), (2, 2)), AggregateView(), TOLD)
    even, each = (ways(forward)["along"] for forward in (Unroll(), EachClient()))
    found = even.run(seen)
    other = 1 - truth.images
    a, b = (attack.energy_of(seen, other, truth.labels, found) for attack in (even, each))
    assert a == pytest.approx(b, rel=1e-5)
