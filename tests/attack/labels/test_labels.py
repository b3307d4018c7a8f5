"""Labels read off the message, and labels that are told."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedglass.attack.labels import counts
from fedglass.attack.labels.assigned import JointLabels
from fedglass.attack.labels.counts import (
    BiasCounts,
    CountsAfter,
    CountsBefore,
    InstanceCounts,
    InterpolatedCounts,
    LastLayerCounts,
    OwnCounts,
    raw_counts,
)
from fedglass.attack.labels.given import OracleBatchLabels, OracleLabels
from fedglass.attack.labels.targets import MinimumRule, RecoveredTargets, SignRule
from fedglass.attack.parts import Labels
from fedglass.core.errors import UsageError
from fedglass.core.optimisers import SGD, Adam, Optimiser
from fedglass.core.registry import built_in, make
from fedglass.core.rng import stream
from fedglass.core.text import TAKEN_AS_DISTINCT
from fedglass.core.types import Observation, Training
from fedglass.federation.client import Client
from fedglass.federation.federation import observe
from fedglass.federation.views import AggregateView, Knows, ServerView
from fedglass.recipes.coarse_to_fine import invg

FEDAVG = Training(0.05, epochs=3, batch_size=5)
COUNTS: list[Labels] = [CountsBefore(), CountsAfter(), InterpolatedCounts()]


def labels_of(part: Labels, seen: Observation, seed: int = 0) -> Tensor:
    bound = part.bind(seen, stream(seed, "labels"))
    return bound.decode([u.start for u in bound.unknowns])


def wrong(found: Tensor, truth: Tensor) -> int:
    """Half the L1 distance of the counts."""
    a, b = Counter(found.tolist()), Counter(truth.tolist())
    return sum(abs(a[k] - b[k]) for k in a | b) // 2


def with_labels(toy: Any, labels: list[int], training: Training, knows: Knows, model: nn.Module) -> Observation:
    client = Client("client 0", toy.images(len(labels), "labels"), torch.tensor(labels))
    federation = replace(toy.federation(training, model=model), clients=[client])
    return observe(federation, ServerView(), knows)[0]


@pytest.mark.parametrize("rule", [SignRule(), MinimumRule()], ids=repr)
@pytest.mark.parametrize("label", range(5))
@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.ReLU])
def test_the_rules_are_exact_for_one_example(toy: Any, rule: Labels, label: int, activation: type[nn.Module]) -> None:
    seen = with_labels(toy, [label], Training(0.1), Knows(training=False), toy.dense(activation))
    assert labels_of(rule, seen).tolist() == [label]


@pytest.mark.parametrize("label", range(5))
@pytest.mark.parametrize("activation", [nn.Tanh, nn.Identity])
def test_the_sign_rule_needs_no_features_of_one_sign(toy: Any, label: int, activation: type[nn.Module]) -> None:
    model = toy.dense(activation)
    with torch.no_grad():
        model[1].bias.sub_(3.0)  # most features are negative
    seen = with_labels(toy, [label], Training(0.1), Knows(training=False), model)
    assert labels_of(SignRule(), seen).tolist() == [label]


def test_the_minimum_rule_goes_by_the_smallest_entry_not_by_the_sum(toy: Any) -> None:
    seen = with_labels(toy, [0, 3], Training(0.1), Knows(), toy.dense())
    gradient = torch.ones(5, 32)
    gradient[1, 7], gradient[4, 2] = -3.0, -2.0
    gradient[2] = -1.0  # the smallest sum
    seen = replace(seen, update={**seen.update, "3.weight": -gradient})
    assert labels_of(MinimumRule(), seen).tolist() == [1, 4]
    assert labels_of(SignRule(), seen)[0] == 2


@pytest.mark.parametrize("rule", [SignRule(), MinimumRule()], ids=repr)
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("labels", [[3, 3], [2, 0, 2, 1], [4, 1, 1, 1]])
def test_the_rules_repeat_labels_where_the_message_says_so(
    toy: Any, rule: Labels, told: bool, bias: bool, labels: list[int]
) -> None:
    dense = nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 5, bias=bias)
    seen = with_labels(
        toy, labels, Training(0.1), Knows(training=told), toy.seeded(nn.Sequential(nn.Flatten(), *dense))
    )
    assert sorted(labels_of(rule, seen).tolist()) == sorted(labels)
    assert rule.bind(seen, stream(0, "labels")).notes == ()


@pytest.mark.parametrize("rule", [SignRule(), MinimumRule()], ids=repr)
def test_distinct_labels_stay_in_the_order_of_the_rule(toy: Any, rule: Labels) -> None:
    seen = with_labels(toy, [3, 0, 2], Training(0.1), Knows(), toy.dense())
    gradient = -seen.update["3.weight"]
    order = (gradient.amin(1) if rule == MinimumRule() else gradient.sum(1)).argsort()
    assert labels_of(rule, seen).tolist() == order[:3].tolist()


@pytest.mark.parametrize("rule", [SignRule(), MinimumRule()], ids=repr)
def test_labels_that_no_count_settles_are_distinct_and_noted(toy: Any, rule: Labels) -> None:
    """A last layer whose gradient a defence has drowned in noise: its counts are far from whole numbers."""
    seen = with_labels(toy, [3, 3], Training(0.1), Knows(), toy.dense())
    noise = {name: torch.randn(t.shape, generator=stream(0, name)) for name, t in seen.update.items()}
    bound = rule.bind(replace(seen, update=noise), stream(0, "labels"))
    assert len(set(bound.decode([]).tolist())) == 2
    assert bound.notes == (TAKEN_AS_DISTINCT,)


def test_a_reconstruction_carries_the_notes_of_its_labels(toy: Any) -> None:
    seen = with_labels(toy, [3, 3], Training(0.1), Knows(), toy.dense())
    noise = {name: torch.randn(t.shape, generator=stream(0, name)) for name, t in seen.update.items()}
    assert invg(iterations=1).run(replace(seen, update=noise)).notes == (TAKEN_AS_DISTINCT,)
    assert invg(iterations=1).run(seen).notes == ()


def test_counts_from_the_bias_need_a_bias(toy: Any) -> None:
    model = toy.seeded(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Sigmoid(), nn.Linear(8, 5, bias=False)))
    seen = with_labels(toy, [0, 3], Training(0.1), Knows(), model)
    with pytest.raises(UsageError, match="minimum_rule"):
        labels_of(BiasCounts(), seen)


def test_counts_from_the_bias_need_the_scale_of_the_message(toy: Any) -> None:
    seen = with_labels(toy, [0, 3], Training(0.1), Knows(training=False), toy.dense())
    with pytest.raises(UsageError, match="knows_training"):
        labels_of(BiasCounts(), seen)


def test_the_sign_rule_names_each_class_once_before_it_repeats(toy: Any) -> None:
    seen = with_labels(toy, [0, 1, 2, 3, 4, 0, 0], Training(0.1), Knows(), toy.dense())
    found = labels_of(SignRule(), seen).tolist()
    assert sorted(found[:5]) == [0, 1, 2, 3, 4]
    assert found[5:] == found[:2]


@pytest.mark.parametrize("labels", [[0], [3, 3, 3, 3], [0, 1, 2, 3, 4, 4], [2, 2, 1, 0, 2, 1, 1, 1]])
@pytest.mark.parametrize("size", [None, 2])
def test_counts_are_exact_where_the_statistics_are_the_true_ones(
    toy: Any, monkeypatch: pytest.MonkeyPatch, labels: list[int], size: int | None
) -> None:
    """One step on identical images: p and O of one of them are those of all [Dimitrov et al., 2022, Eq. 2]."""
    image = toy.images(1, "one").expand(len(labels), -1, -1, -1)
    client = Client("client 0", image, torch.tensor(labels))
    federation = replace(toy.federation(Training(0.1)), clients=[client])
    seen = observe(federation, ServerView(), Knows())[0]
    inputs = federation.whitening.whiten(image)

    def truly(observation: Observation, generator: torch.Generator, share: float) -> tuple[Tensor, Tensor]:
        hidden = seen.model[:3](inputs)  # type: ignore[index]  # a Sequential
        return seen.model(inputs).softmax(-1).mean(0).detach(), hidden.sum(1).mean().detach()

    monkeypatch.setattr(counts, "head_statistics", truly)
    raw = raw_counts(seen, stream(0, "x"), [0.0], steps=1)
    expected = torch.bincount(torch.tensor(labels), minlength=5).float()
    torch.testing.assert_close(raw, expected, rtol=1e-3, atol=1e-3)
    for part in (*COUNTS, BiasCounts()):
        assert wrong(labels_of(part, seen), client.labels) == 0


def test_interpolation_is_the_mean_over_the_way(toy: Any) -> None:
    seen = with_labels(toy, [0, 1, 1, 2, 3, 3, 3, 4], FEDAVG, Knows(), toy.dense(nn.ReLU))
    steps = FEDAVG.local_steps(8)
    found = raw_counts(seen, stream(0, "x"), [i / steps for i in range(steps)], steps)
    each = [raw_counts(seen, stream(0, "x"), [i / steps], steps) for i in range(steps)]
    torch.testing.assert_close(found, torch.stack(each).mean(0))
    p0, o0 = counts.head_statistics(seen, stream(0, "x"), 0.0)
    row = -seen.update["3.weight"].sum(1) / FEDAVG.lr
    torch.testing.assert_close(each[0], 8 * p0 - 8 * row / (steps * o0))


def test_statistics_are_those_of_random_images(toy: Any) -> None:
    seen = toy.observation(FEDAVG)
    p, o = counts.head_statistics(seen, stream(0, "x"), 1.0)
    after = {name: w + seen.update[name] for name, w in seen.before.items()}
    dummies = torch.randn(3000, 1, 8, 8, generator=stream(0, "x"))
    logits = torch.func.functional_call(seen.model, after, (dummies,))
    hidden = nn.functional.linear(dummies.flatten(1), after["1.weight"], after["1.bias"]).sigmoid()
    torch.testing.assert_close(p, logits.softmax(-1).mean(0), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(o, hidden.sum(1).mean(), rtol=1e-3, atol=1e-3)


def test_counts_need_only_steps_and_rate(toy: Any) -> None:
    labels = [0, 1, 1, 2, 3, 3, 3, 4]
    one, other = (
        with_labels(toy, labels, FEDAVG, knows, toy.dense()) for knows in (Knows(), Knows(training=False, steps=True))
    )
    assert torch.equal(labels_of(InterpolatedCounts(), one), labels_of(InterpolatedCounts(), other))


@pytest.mark.parametrize("part", COUNTS, ids=repr)
def test_counts_beat_chance_on_a_small_federation(toy: Any, part: Labels) -> None:
    """Against as many labels drawn at random, over several clients."""
    found = chance = 0
    for i in range(8):
        truth = torch.randint(5, (12,), generator=stream(i, "truth"))
        truth[:6] = i % 5  # a client with a favourite
        seen = with_labels(toy, truth.tolist(), FEDAVG, Knows(), toy.dense(nn.ReLU))
        labels = labels_of(part, seen)
        assert labels.shape == (12,)
        found += wrong(labels, truth)
        chance += wrong(torch.randint(5, (12,), generator=stream(i, "guess")), truth)
    assert found < (0.6 if part == InterpolatedCounts() else 0.8) * chance


def test_counts_of_an_aggregate_are_those_of_all_clients(toy: Any) -> None:
    federation = toy.federation(Training(0.05), clients=3, examples=6)
    seen, truth = observe(federation, AggregateView(), Knows())
    found = labels_of(InterpolatedCounts(), seen)
    assert found.shape == (18,)
    assert wrong(found, truth.labels) <= 4


def test_counts_come_in_an_order_of_their_own(toy: Any) -> None:
    seen = with_labels(toy, [0, 1, 1, 2, 3, 3, 3, 4], FEDAVG, Knows(), toy.dense())
    one, again, other = (labels_of(CountsBefore(), seen, seed) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert one.tolist() != sorted(one.tolist())


@pytest.mark.parametrize("part", COUNTS, ids=repr)
def test_counts_say_what_they_lack(toy: Any, part: Labels) -> None:
    seen = toy.observation(FEDAVG, Knows(training=False))
    with pytest.raises(UsageError, match=r"needs the size of the gradients.*knows_training"):
        labels_of(part, seen)
    with pytest.raises(UsageError, match=r"needs the size of the gradients.*knows_training"):
        labels_of(part, replace(seen, knows=replace(seen.knows, steps=3)))


@pytest.mark.parametrize("part", COUNTS, ids=repr)
def test_a_dead_last_layer_is_named(toy: Any, part: Labels) -> None:
    model = toy.dense(nn.ReLU)
    with torch.no_grad():
        model[1].bias.fill_(-100.0)
    with pytest.raises(UsageError, match="activations add up to zero"):
        labels_of(part, with_labels(toy, [0, 1], Training(0.1), Knows(), model))


def test_told_labels_are_shuffled_within_each_client(toy: Any) -> None:
    federation = toy.federation(FEDAVG, clients=2, examples=8)
    seen, truth = observe(federation, AggregateView(), Knows(labels=True))
    one, again, other = (labels_of(OracleLabels(), seen, seed) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    for mine, theirs in zip(torch.split(one, 8), torch.split(truth.labels, 8), strict=True):
        assert torch.equal(mine.sort().values, theirs.sort().values)


def test_oracles_say_what_they_lack(toy: Any) -> None:
    seen = toy.observation(FEDAVG, Knows())
    with pytest.raises(UsageError, match="knows_labels"):
        labels_of(OracleLabels(), seen)
    with pytest.raises(UsageError, match="knows_batch_labels"):
        labels_of(OracleBatchLabels(), seen)
    for told, said in [
        (torch.tensor([0, 1]), r"shape \(2,\) for 4 examples"),
        (torch.tensor([0, 1, 2, 5]), "labels from 0 to 5, expected 0 to 4"),
        (torch.tensor([0, 1, 2, -1]), "labels from -1 to 2"),
    ]:
        with pytest.raises(UsageError, match=said):
            labels_of(OracleLabels(), replace(seen, knows=replace(seen.knows, labels=told)))


def test_told_batches_are_those_of_the_client(toy: Any) -> None:
    federation = toy.federation(Training(0.1, 3, 2), examples=5)
    seen = observe(federation, ServerView(), Knows(batch_labels=True))[0]
    assert torch.equal(labels_of(OracleBatchLabels(), seen), toy.trained_on(federation).labels)
    fewer = replace(seen, knows=replace(seen.knows, training=Training(0.1, 2, 2)))
    with pytest.raises(UsageError, match="labels of 9 batches, expected 6, 2 epochs of 3"):
        labels_of(OracleBatchLabels(), fewer)


@pytest.mark.parametrize("steps", [4, 5, 7])
def test_told_batches_of_an_epoch_that_is_cut_short_are_filled_up(toy: Any, steps: int) -> None:
    federation = toy.federation(Training(0.1, batch_size=2, steps=steps), examples=5)
    seen = observe(federation, ServerView(), Knows(batch_labels=True))[0]
    found, true = labels_of(OracleBatchLabels(), seen), toy.trained_on(federation).labels
    taken = 2 * (steps % 3)
    assert torch.equal(found[:-1], true[:-1])
    assert torch.equal(found[-1, :taken], true[-1, :taken])
    assert torch.equal(found[-1].sort().values, true[0].sort().values)


def test_told_batches_that_do_not_reach_all_examples(toy: Any) -> None:
    seen = toy.observation(Training(0.1, batch_size=2, steps=1), Knows(batch_labels=True), examples=5)
    told = seen.knows.batch_labels
    assert labels_of(OracleBatchLabels(), seen).tolist() == [list(told[0])]
    whole = replace(seen.knows, examples=5, sizes=(5,))
    assert labels_of(OracleBatchLabels(), replace(seen, knows=whole)).tolist() == [[*told[0], 0, 0, 0]]
    two = replace(whole, training=Training(0.1, batch_size=2, steps=3), batch_labels=((1, 2), (3, 4), (1, 0)))
    with pytest.raises(UsageError, match="labels of batch 3, expected 1"):
        labels_of(OracleBatchLabels(), replace(seen, knows=two))
    three = replace(two, training=Training(0.1, batch_size=2, steps=4), batch_labels=((1, 2), (3, 4), (1,), (1, 0)))
    with pytest.raises(UsageError, match="other labels in epoch 2"):
        labels_of(OracleBatchLabels(), replace(seen, knows=three))


@pytest.mark.parametrize(
    "plan",
    [
        Training(0.1, label_smoothing=0.3),
        Training(0.1, optimiser=SGD(momentum=0.9)),
        Training(0.1, optimiser=SGD(0.9, nesterov=True), label_smoothing=0.1),
    ],
    ids=repr,
)
def test_counts_know_smoothing_and_momentum(toy: Any, monkeypatch: pytest.MonkeyPatch, plan: Training) -> None:
    image = toy.images(1, "one").expand(6, -1, -1, -1)
    client = Client("client 0", image, torch.tensor([2, 2, 2, 2, 0, 1]))
    federation = replace(toy.federation(plan), clients=[client])
    seen = observe(federation, ServerView(), Knows())[0]
    inputs = federation.whitening.whiten(image)

    def truly(observation: Observation, generator: torch.Generator, share: float) -> tuple[Tensor, Tensor]:
        hidden = seen.model[:3](inputs)  # type: ignore[index]  # a Sequential
        return seen.model(inputs).softmax(-1).mean(0).detach(), hidden.sum(1).mean().detach()

    monkeypatch.setattr(counts, "head_statistics", truly)
    raw = counts.unsmoothed(raw_counts(seen, stream(0, "x"), [0.0], steps=1), seen)
    torch.testing.assert_close(raw, torch.tensor([1.0, 1.0, 4.0, 0.0, 0.0]), rtol=1e-3, atol=1e-3)
    for part in (*COUNTS, BiasCounts()):
        assert wrong(labels_of(part, seen), client.labels) == 0


@pytest.mark.parametrize("part", [*COUNTS, BiasCounts()], ids=repr)
@pytest.mark.parametrize("optimiser", [Adam(), SGD(weight_decay=0.1)], ids=repr)
def test_counts_need_an_update_that_tells_sizes(toy: Any, part: Any, optimiser: Optimiser) -> None:
    seen = toy.observation(Training(0.1, optimiser=optimiser), Knows())
    with pytest.raises(UsageError, match=r'needs the size .* as Adam or clipping does.* "minimum_rule"'):
        part.check(seen)


def test_joint_labels_are_probabilities(toy: Any) -> None:
    seen = toy.observation(FEDAVG)
    (unknown,) = JointLabels(rate=0.5).bind(seen, stream(0, "x")).unknowns
    assert unknown.rate == 0.5
    found = labels_of(JointLabels(), seen)
    assert found.shape == (4, 5)
    torch.testing.assert_close(found.sum(-1), torch.ones(4))


def test_the_catalogue_makes_every_part() -> None:
    entries = built_in("labels")
    made = {name: make("labels", name) for name in entries}
    rules = {SignRule(), MinimumRule(), BiasCounts(), InstanceCounts(), OwnCounts(), LastLayerCounts(), JointLabels()}
    assert set(made.values()) == {*rules, *COUNTS, OracleLabels(), OracleBatchLabels(), RecoveredTargets()}
    assert all(entry.summary for entry in entries.values())
    assert all(("ORACLE" in entry.summary) == name.startswith("oracle") for name, entry in entries.items())
    with pytest.raises(UsageError, match="did you mean 'sign_rule'"):
        make("labels", "signrule")


@pytest.mark.parametrize("label", [-1, 5])
def test_told_labels_of_batches_must_be_classes(toy: Any, label: int) -> None:
    seen = toy.observation(Training(0.1, batch_size=2), Knows(batch_labels=True))
    assert labels_of(OracleBatchLabels(), seen).shape == (1, 4)
    wrong_one = replace(seen, knows=replace(seen.knows, batch_labels=((0, 1), (2, label))))
    with pytest.raises(UsageError, match=r"told labels from -?\d to \d, expected 0 to 4"):
        labels_of(OracleBatchLabels(), wrong_one)


@pytest.mark.parametrize("part", [*COUNTS, BiasCounts()], ids=repr)
def test_a_check_refuses_what_binding_refuses_without_its_work(
    toy: Any, part: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "RANDOM_IMAGES", None)
    monkeypatch.setattr(counts, "head_statistics", None)
    part.check(toy.observation(FEDAVG))
    for knows in (Knows(training=False), Knows(training=False, labels=True)):
        seen = toy.observation(FEDAVG, knows)
        with pytest.raises(UsageError) as said:
            part.check(seen)
        with pytest.raises(UsageError) as bound:
            labels_of(part, seen)
        assert str(said.value) == str(bound.value)


@pytest.mark.parametrize(
    ("batches", "match"),
    [
        (((1, 2), (3,), (4, 1), (2, 3, 4)), "1 labels of batch 2, expected 2"),
        (((1, 2, 3), (4,), (1, 2), (3, 4)), "3 labels of batch 1, expected 2"),
        (((1, 2, 3, 4, 1, 2, 3, 4),), "1 batches, expected 4, 2 epochs of 2"),
        (((1, 2), (3, 4), (1, 2), (3, 0)), "other labels in epoch 2"),
    ],
)
def test_told_labels_of_batches_must_fit_the_training(
    toy: Any, batches: tuple[tuple[int, ...], ...], match: str
) -> None:
    seen = toy.observation(Training(0.1, epochs=2, batch_size=2), Knows(batch_labels=True))
    with pytest.raises(UsageError, match=match):
        labels_of(OracleBatchLabels(), replace(seen, knows=replace(seen.knows, batch_labels=batches)))


def test_told_labels_must_be_whole_numbers(toy: Any) -> None:
    seen = toy.observation(Training(0.1), Knows(labels=True))
    with pytest.raises(UsageError, match="expected whole numbers"):
        labels_of(OracleLabels(), replace(seen, knows=replace(seen.knows, labels=seen.knows.labels.double())))


@pytest.mark.parametrize("part", [*COUNTS, BiasCounts()], ids=repr)
def test_clipped_gradients_tell_no_counts(toy: Any, part: Any) -> None:
    seen = toy.observation(Training(0.1, clip=0.01), Knows())
    with pytest.raises(UsageError, match=r"needs the size of the gradients.* as Adam or clipping does"):
        part.check(seen)


def test_told_labels_stay_with_clients_of_unequal_size(toy: Any) -> None:
    whole = toy.federation(Training(0.1), clients=2)
    cut = replace(whole.clients[0], images=whole.clients[0].images[:1], labels=torch.tensor([4]))
    other = replace(whole.clients[1], labels=torch.tensor([0, 1, 2, 3]))
    seen, _ = observe(replace(whole, clients=[cut, other]), AggregateView(), Knows(labels=True))
    for seed in range(5):
        found = OracleLabels().bind(seen, stream(seed, "x")).decode([])
        assert found[0] == 4
        assert sorted(found[1:].tolist()) == [0, 1, 2, 3]
