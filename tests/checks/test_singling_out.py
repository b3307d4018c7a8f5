"""The candidate game: records are named where the message holds them, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedglass.bounds.success import gdp_success
from fedglass.checks.message_scores import ScoredMessage
from fedglass.checks.singling_out import play, singling_out
from fedglass.core.errors import UsageError
from fedglass.core.optimisers import SGD, Adam
from fedglass.core.rng import stream
from fedglass.core.tensors import flatten, weights_of
from fedglass.core.types import BatchNorm, Training
from fedglass.defend.dpsgd import DPSGD
from fedglass.federation.truth import Examples
from fedglass.fl.local import schedule, train
from fedglass.models.network import Network

from .games import FEDAVG, GREY, ONE_STEP, pool_of, rows_of, sent, small_cnn, toy, with_control

Noisy = Callable[[nn.Module, Examples, float, int], tuple[ScoredMessage, float]]
ADAM = replace(FEDAVG, lr=0.002, optimiser=Adam())
DECAYED = replace(FEDAVG, optimiser=SGD(momentum=0.5, weight_decay=0.2))


# Naming


@pytest.mark.parametrize("training", [ONE_STEP, FEDAVG, ADAM, DECAYED], ids=["one step", "epochs", "Adam", "decay"])
def test_records_are_named_and_their_control_is_not(training: Training, records: Examples, public: Examples) -> None:
    model = small_cnn()
    found = with_control(sent(model, training, records), records, public)
    assert found.exposed_by == "rate"
    assert found.top1 >= 0.5
    assert found.control_high is not None
    assert found.control_high < 0.25
    assert found.control == "counterfactual"
    assert found.candidates >= 200
    assert found.low <= found.top1 <= found.high
    assert max(map(abs, (*found.scores, *found.candidate_quantiles))) <= 1
    assert json.loads(json.dumps(found.model_dump()))["rank_p"] == [*found.rank_p]


def test_batch_statistics_are_those_of_a_batch(public: Examples) -> None:
    """With the running statistics of a fresh network the gradients are others, and nobody is named."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4),
        )  # fmt: skip
    training, trained_on = replace(ONE_STEP, batch_norm=BatchNorm.BATCH), toy(16, seed=2)
    message = sent(model, training, trained_on)
    as_trained = play(message, trained_on, public)
    otherwise = play(replace(message, training=ONE_STEP), trained_on, public)
    assert as_trained.top1 >= otherwise.top1 + 0.3
    assert "low_power" not in as_trained.doubts


def test_an_aggregate_names_records_of_all_its_clients(public: Examples) -> None:
    model, clients = small_cnn(), [toy(8, seed=20 + i) for i in range(3)]
    messages = [sent(model, FEDAVG, each) for each in clients]
    mean = {name: torch.stack([m.update[name] for m in messages]).mean(0) for name in messages[0].update}
    everyone = Examples(torch.cat([c.images for c in clients]), torch.cat([c.labels for c in clients]))
    found = play(replace(messages[0], update=mean), everyone, public, held_out=toy(48, seed=30))
    assert found.exposed_by == "rate"
    assert found.control == "held_out"


def test_what_was_pruned_or_frozen_is_left_out(records: Examples, public: Examples) -> None:
    message, draws = sent(small_cnn(), ONE_STEP, records), stream(0, "pruned")
    pruned = {name: u * (torch.rand(u.shape, generator=draws) < 0.2) for name, u in message.update.items()}
    frozen = {name: u if name.startswith("5") else torch.zeros_like(u) for name, u in message.update.items()}
    for update in (pruned, frozen):
        assert play(replace(message, update=update), records, public).top1 >= 0.5


def test_records_of_a_rare_label_are_left_out(public: Examples) -> None:
    rare = (public.labels != 3) | (torch.arange(len(public.labels)) < 300)
    records, pool = toy(16, seed=2), Examples(public.images[rare], public.labels[rare])
    found = with_control(sent(small_cnn(), ONE_STEP, records), records, pool)
    assert (found.records, found.exposed_by) == (12, "rate")
    assert len(found.control_scores) == 12


def test_a_single_record_is_exposed_by_its_rank() -> None:
    model, rest, record = small_cnn(), toy(4800, seed=60), toy(1, seed=61)
    pool = Examples(rest.images[rest.labels == 0], rest.labels[rest.labels == 0])
    message = sent(model, ONE_STEP, record)
    found = with_control(message, record, pool)
    assert (found.exposed_by, found.rank_p, found.candidates) == ("rank", [1 / 1001], 1000)
    assert found.low < 0.1
    assert len(found.control_rank_p) == 8
    assert not play(message, record, pool).exposed_by
    assert not with_control(message, record, pool, messages=100).exposed_by
    assert not with_control(sent(model, ONE_STEP, toy(1, seed=62)), record, pool).exposed_by
    assert not with_control(message, record, Examples(pool.images[:600], pool.labels[:600])).exposed_by


# What decides nothing


@pytest.mark.parametrize("training", [ONE_STEP, FEDAVG, ADAM], ids=["one step", "epochs", "Adam"])
def test_records_that_were_not_trained_on_are_named_by_chance(training: Training, public: Examples) -> None:
    ranks: list[float] = []
    for seed in range(3, 7):
        strangers = toy(16, seed=10 + seed)
        found = with_control(sent(small_cnn(), training, toy(16, seed=seed)), strangers, public, seed=seed)
        assert not found.exposed_by
        ranks += found.rank_p
    assert sum(p <= 0.01 for p in ranks) <= 4  # of 64; five or more happen once in 2,000 times
    assert 0.3 < sum(ranks) / len(ranks) < 0.7


def test_without_a_control_or_from_another_source_nothing_is_exposed(records: Examples, public: Examples) -> None:
    message = sent(small_cnn(), ONE_STEP, records)
    bare = play(message, records, public)
    assert (bare.exposed_by, bare.control, bare.doubts) == ("", "", ("no_control",))
    other = with_control(message, records, public, same_source=False)
    assert (other.exposed_by, other.doubts) == ("", ("other_domain",))
    diverged = play(message, records, public, counterfactual=lambda rows: {"0.weight": torch.tensor([torch.nan])})
    assert (diverged.exposed_by, diverged.control, diverged.doubts) == ("", "", ("no_control",))
    strict = with_control(message, records, public, max_singling_out=0.99)
    assert not strict.exposed_by


def test_an_update_of_zeros_names_nobody(records: Examples, public: Examples) -> None:
    message = sent(small_cnn(), ONE_STEP, records)
    zero = {name: torch.zeros_like(u) for name, u in message.update.items()}
    found = play(replace(message, update=zero), records, public)
    assert (found.top1, min(found.rank_p)) == (0.0, 1.0)


@pytest.mark.parametrize("shade", [0.4, 1.0], ids=["dark", "bright"])
def test_candidates_unlike_the_client_expose_nobody(public: Examples, shade: float) -> None:
    """The message was made without these records; only the candidates are darker or brighter than they are."""
    pool = replace(public, images=0.4 * public.images + 0.6 * (shade == 1.0))
    found = with_control(sent(small_cnn(), FEDAVG, toy(32, seed=41)), toy(32, seed=40), pool)
    assert not found.exposed_by


def test_a_client_of_one_class_does_not_expose_records_that_it_does_not_have(public: Examples) -> None:
    for seed in range(4):
        every = toy(128, seed=80 + seed)
        alike = rows_of(every, every.labels == seed)
        message = sent(small_cnn(), FEDAVG, rows_of(alike, slice(16)))
        found = with_control(message, rows_of(alike, slice(16, 32)), public)
        assert (found.exposed_by, found.records) == ("", 16)


def test_few_candidates_give_a_doubt(public: Examples) -> None:
    records, few = toy(8, seed=2), Examples(public.images[:88], public.labels[:88])
    found = with_control(sent(small_cnn(), ONE_STEP, records), records, few)
    assert found.top1 > 0.5
    assert (found.candidates, found.exposed_by) == (22, "")
    assert {"few_candidates", "low_power"} <= {*found.doubts}


def test_near_duplicates_neither_expose_nor_hide(records: Examples, public: Examples) -> None:
    message, noise = sent(small_cnn(), ONE_STEP, records), 0.01 * torch.randn(900, 1, 8, 8, generator=stream(0, "copy"))

    def exposed(shown: torch.Tensor, labels: torch.Tensor, others: int) -> tuple[int, str]:
        images = torch.cat([public.images[:others], (shown + noise).clamp(0, 1)])
        found = with_control(message, records, Examples(images, torch.cat([public.labels[:others], labels])))
        return found.candidates, found.exposed_by

    chosen = torch.arange(900) % 16
    assert exposed(records.images[chosen], records.labels[chosen], 1600) == (400, "rate")
    assert exposed(records.images[chosen], records.labels[chosen], 100) == (25, "")
    assert exposed(records.images[:1], records.labels[:1].expand(900), 100) == (25, "")
    assert exposed(public.images[:1], public.labels[:1].expand(900), 100) == (25, "")


# Noise


def _private_step(model: nn.Module, records: Examples, multiplier: float, seed: int) -> tuple[ScoredMessage, float]:
    """One step of DP-SGD, and how far it separates a record from its absence."""
    network, before = Network(model, {}, BatchNorm.FROZEN), [*weights_of(model).values()]
    batches, rule = schedule(ONE_STEP, len(records.labels), None), DPSGD(0.5, multiplier)
    inputs, noise = GREY.whiten(records.images), stream(seed, "noise")
    after = train(network, before, inputs, records.labels, batches, ONE_STEP, rule, noise)
    update = {name: a - b for name, a, b in zip(network.names, after, before, strict=True)}
    message = ScoredMessage(model, weights_of(model), {}, update, ONE_STEP, GREY)
    return replace(message, noise_std=ONE_STEP.lr * multiplier * 0.5 / len(records.labels)), 1 / multiplier


def _noisy_update(model: nn.Module, records: Examples, multiplier: float, seed: int) -> tuple[ScoredMessage, float]:
    """A step with noise on the update, and how far that separates any record from its absence."""
    message, noise, count = sent(model, ONE_STEP, records), stream(seed, "noise"), len(records.labels)
    alone = [sent(model, ONE_STEP, rows_of(records, slice(i, i + 1))).update for i in range(count)]
    furthest = max(float(flatten(update).norm()) for update in alone) / count
    std = multiplier * furthest
    update = {name: u + std * torch.randn(u.shape, generator=noise) for name, u in message.update.items()}
    return replace(message, update=update, noise_std=std), 1 / multiplier


@pytest.mark.parametrize("noisy", [_private_step, _noisy_update], ids=["DP-SGD", "gaussian_noise"])
def test_under_noise_the_game_stays_below_the_bound_of_the_mechanism(noisy: Noisy) -> None:
    model, pool, named = small_cnn(), pool_of(480), []
    for run in range(20):
        multiplier, records = (0.1, 0.4, 1.0, 2.0)[run % 4], toy(16, seed=100 + run)
        message, separation = noisy(model, records, multiplier, run)
        found = play(message, records, pool, seed=run)
        assert (found.statistic, found.candidates) == ("likelihood", 120)
        assert found.low <= gdp_success(1 / 121, separation)
        named += [found.top1] if run % 4 == 0 else []
    assert sum(named) / 5 > 0.2


def test_under_noise_exact_products_name_more_than_sketches() -> None:
    """A sketch adds up the noise of all entries that share a place."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1000), nn.ReLU(), nn.Linear(1000, 4))
    records, pool = toy(16, seed=2), pool_of(1000)
    message, _ = _noisy_update(model, records, 0.1, 0)
    declared, unknown = play(message, records, pool), play(replace(message, noise_std=0.0), records, pool)
    assert declared.top1 >= unknown.top1 + 0.2


# The library call


def test_the_library_call_takes_weights_or_an_update(records: Examples, public: Examples) -> None:
    model = small_cnn()
    message = sent(model, FEDAVG, records)
    after = {name: w + message.update[name] for name, w in message.before.items()}
    common = {"training": FEDAVG, "records": (records.images, records.labels), "whitening": GREY}
    candidates = public.images, public.labels
    found = singling_out(model, after=after, candidates=candidates, **common)
    assert found.exposed_by == "rate"
    kept_out = toy(32, seed=70)
    beside = singling_out(model, update=message.update, candidates=candidates, held_out=kept_out, **common)
    assert (beside.control, len(beside.control_scores)) == ("held_out", 32)
    assert beside.top1 == pytest.approx(found.top1, abs=0.1)
    with pytest.raises(UsageError, match="either `after` or `update`"):
        singling_out(model, candidates=candidates, **common)
    with pytest.raises(UsageError, match="give candidates of the same shape"):
        singling_out(model, after=after, candidates=(public.images[:, :, :4], public.labels), **common)
