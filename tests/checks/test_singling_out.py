"""The candidate game: records are named where the message holds them, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.checks.candidates import SAME_AS_PRIVATE, SAME_IN_POOL, Pool, draw_candidates, is_first, shows_one_of
from fedglass.checks.example_sketches import PLACES, Reader
from fedglass.checks.message_scores import Kept, Message
from fedglass.checks.rates import Game, clopper_pearson, limits
from fedglass.checks.singling_out import GameResult, play, replayed, singling_out
from fedglass.core.errors import UsageError
from fedglass.core.optimisers import Adam
from fedglass.core.params import Params, buffers_of, flatten, weights_of
from fedglass.core.rng import stream
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.defend.example_gradients import example_gradients
from fedglass.fl.local import Step
from fedglass.models.network import Network
from fedglass.rounds.truth import Examples

GREY = Whitening((0.5,), (0.25,))
COLOUR = Whitening((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))
ONE_STEP = Training(lr=0.05)
FEDAVG = Training(lr=0.05, epochs=5, batch_size=8)


def toy(count: int, seed: int, classes: int = 4, side: int = 8) -> Examples:
    """Blurred noise around a picture of each class, the same in every set."""
    labels = torch.arange(count) % classes
    shared = torch.rand(classes, 1, side, side, generator=stream(0, "classes"))
    own = F.avg_pool2d(torch.rand(count, 1, side + 2, side + 2, generator=stream(seed, "own")), 3, 1)
    return Examples((0.4 * shared[labels] + 1.6 * (own - 0.5) + 0.3).clamp(0, 1), labels)


def small_cnn(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(128, 4),
        )  # fmt: skip


def sent(model: nn.Module, training: Training, trained_on: Examples, whitening: Whitening = GREY) -> Message:
    bare = Message(model, weights_of(model), buffers_of(model), {}, training, whitening)
    return replace(bare, update=replayed(bare, trained_on, seed=11))


def rows_of(examples: Examples, rows: Tensor | slice) -> Examples:
    return Examples(examples.images[rows], examples.labels[rows])


def halves(message: Message, records: Examples):
    return lambda rows: replayed(message, rows_of(records, rows), seed=5)


def with_control(message: Message, records: Examples, pool: Pool, **options) -> GameResult:
    return play(message, records, pool, counterfactual=halves(message, records), **options)


@pytest.fixture(scope="module")
def public() -> Pool:
    rest = toy(1600, seed=1)
    return Pool(rest.images, rest.labels)


@pytest.fixture(scope="module")
def records() -> Examples:
    return toy(16, seed=2)


# Gradients


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False), nn.BatchNorm2d(4)
        self.group, self.layer = nn.GroupNorm(2, 4), nn.LayerNorm(8)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.first(inputs))
        hidden += inputs
        return self.layer(self.group(F.relu(hidden, inplace=True)))


class _Scaled(nn.Module):
    """A parameter outside of any known layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8, 8))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.scale


def _mixed(*more: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        stem = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(inplace=True), _Residual()
        model = nn.Sequential(*stem, *more, nn.Flatten(), nn.Linear(256, 6), nn.Tanh(), nn.Linear(6, 4))
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape)
    return model


def _gradients(network: Network, weights: Params, examples: Examples) -> Tensor:
    step = Step(network, [*weights.values()], GREY.whiten(examples.images), examples.labels)
    return torch.cat([torch.cat([g.flatten(1) for g in chunk], dim=1) for chunk in example_gradients(step)])


@pytest.mark.parametrize("more", [(), (_Scaled(),)], ids=["known layers", "a parameter of its own"])
def test_gradients_that_are_read_are_those_of_each_example(more: Sequence[nn.Module], records: Examples) -> None:
    model = _mixed(*more)
    network = Network(model, buffers_of(model), BatchNorm.FROZEN)
    found, along = Reader(network, weights_of(model)).read(
        GREY.whiten(records.images), records.labels, [[*weights_of(model).values()]]
    )
    true = _gradients(network, weights_of(model), records)
    assert found.shape[1] == true.shape[1] < PLACES
    torch.testing.assert_close(found @ found.T, true @ true.T, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(along[:, 0].float(), true @ flatten(weights_of(model)), rtol=1e-4, atol=1e-5)


def test_in_batch_mode_the_parts_of_a_batch_add_up_to_its_gradient(records: Examples) -> None:
    model = _mixed()
    message = sent(model, replace(ONE_STEP, batch_norm=BatchNorm.BATCH), records)
    reader = Reader(Network(model, buffers_of(model), BatchNorm.BATCH), message.before)
    found, _ = reader.read(GREY.whiten(records.images), records.labels)
    torch.testing.assert_close(-0.05 * found.mean(0), reader.sketch(message.update), rtol=1e-3, atol=1e-6)


def test_sketches_of_large_layers_are_linear_and_keep_products(records: Examples) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 700), nn.ReLU(), nn.Linear(700, 4))
    network = Network(model, {}, BatchNorm.FROZEN)
    reader, weights = Reader(network, weights_of(model)), weights_of(model)
    found, _ = reader.read(GREY.whiten(records.images), records.labels)
    true = _gradients(network, weights, records)
    assert found.shape[1] == PLACES < true.shape[1]
    update = sent(model, ONE_STEP, records).update
    torch.testing.assert_close(reader.sketch(update), -0.05 * found.mean(0), rtol=1e-3, atol=1e-6)
    sizes = true.norm(dim=1)
    error = (found @ found.T - true @ true.T) / (sizes[:, None] * sizes)
    assert error.square().mean().sqrt() < 2 / PLACES**0.5
    shares = torch.rand(len(sizes), generator=stream(0, "shares"))
    whole = reader.weighted_sum(GREY.whiten(records.images), records.labels, shares)
    torch.testing.assert_close(torch.cat([t.flatten() for t in whole]), shares @ true, rtol=1e-3, atol=1e-5)


# Naming


@pytest.mark.parametrize("training", [ONE_STEP, FEDAVG, replace(FEDAVG, lr=0.002, optimiser=Adam())], ids=repr)
def test_records_are_named_and_their_control_is_not(training: Training, records: Examples, public: Pool) -> None:
    model = small_cnn()
    found = with_control(sent(model, training, records), records, public)
    assert found.exposed_by == "rate"
    assert found.top1 >= 0.5
    assert found.control_high < 0.25
    assert found.control == "counterfactual"
    assert found.candidates >= 200
    assert found.low <= found.top1 <= found.high
    assert json.loads(json.dumps(asdict(found)))["rank_p"] == [*found.rank_p]


@pytest.mark.parametrize("training", [ONE_STEP, FEDAVG], ids=repr)
def test_records_that_were_not_trained_on_are_named_by_chance(training: Training, public: Pool) -> None:
    model = small_cnn()
    ranks: list[float] = []
    for seed in range(3, 7):
        strangers = toy(16, seed=10 + seed)
        found = with_control(sent(model, training, toy(16, seed=seed)), strangers, public, seed=seed)
        assert not found.exposed_by
        ranks += found.rank_p
    assert sum(p <= 0.01 for p in ranks) <= 4  # of 64; five or more happen once in 2,000 times
    assert 0.3 < sum(ranks) / len(ranks) < 0.7


def test_batch_statistics_are_those_of_a_batch(public: Pool) -> None:
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
    assert not as_trained.low_power


def test_an_aggregate_names_records_of_all_its_clients(public: Pool) -> None:
    model, clients = small_cnn(), [toy(8, seed=20 + i) for i in range(3)]
    messages = [sent(model, FEDAVG, each) for each in clients]
    mean = {name: sum(m.update[name] for m in messages) / 3 for name in messages[0].update}
    everyone = Examples(torch.cat([c.images for c in clients]), torch.cat([c.labels for c in clients]))
    found = play(replace(messages[0], update=mean), everyone, public, held_out=toy(48, seed=30))
    assert found.exposed_by == "rate"
    assert found.control == "held_out"


def test_messages_of_a_round_share_the_gradients_of_the_pool(records: Examples, public: Pool) -> None:
    model, kept = small_cnn(), Kept()
    for seed in (2, 3):
        message = sent(model, ONE_STEP, toy(16, seed=seed))
        alone, shared = play(message, toy(16, seed=seed), public), play(message, toy(16, seed=seed), public, kept=kept)
        assert alone.scores == pytest.approx(shared.scores, abs=2e-3)
        assert alone.candidate_quantiles == pytest.approx(shared.candidate_quantiles, abs=2e-3)
    later = sent(small_cnn(seed=1), ONE_STEP, records)
    assert play(later, records, public, kept=kept).scores == pytest.approx(
        play(later, records, public).scores, abs=2e-3
    )


# What decides nothing


def test_without_a_control_or_from_another_source_nothing_is_exposed(records: Examples, public: Pool) -> None:
    message = sent(small_cnn(), ONE_STEP, records)
    bare = play(message, records, public)
    assert (bare.exposed_by, bare.control, bare.control_missing, bare.doubts) == ("", "", "not_given", ("no_control",))
    other = with_control(message, records, replace(public, same_source=False))
    assert (other.exposed_by, other.doubts) == ("", ("other_domain",))
    diverged = play(message, records, public, counterfactual=lambda rows: {"0.weight": torch.tensor([torch.nan])})
    assert (diverged.exposed_by, diverged.control_missing) == ("", "not_replayed")
    strict = with_control(message, records, public, max_singling_out=0.99)
    assert not strict.exposed_by


def test_an_update_of_zeros_names_nobody(records: Examples, public: Pool) -> None:
    message = sent(small_cnn(), ONE_STEP, records)
    zero = {name: torch.zeros_like(u) for name, u in message.update.items()}
    found = play(replace(message, update=zero), records, public)
    assert (found.top1, min(found.rank_p)) == (0.0, 1.0)


def test_candidates_unlike_the_client_expose_nobody(public: Pool) -> None:
    """The message was made without these records; only the candidates are darker than they are."""
    dark, model, strangers = replace(public, images=public.images * 0.4), small_cnn(), toy(32, seed=40)
    found = with_control(sent(model, FEDAVG, toy(32, seed=41)), strangers, dark)
    assert not found.exposed_by


# Near-duplicates


def test_near_duplicates_are_found(records: Examples) -> None:
    noisy = (records.images + 0.02 * torch.randn(records.images.shape, generator=stream(0, "noise"))).clamp(0, 1)
    assert shows_one_of(noisy, records.images, SAME_AS_PRIVATE).all()
    assert shows_one_of(0.5 * records.images + 0.3, records.images, SAME_AS_PRIVATE).all()
    assert not shows_one_of(toy(200, seed=50).images, records.images, SAME_AS_PRIVATE).any()
    flat = torch.full((2, 1, 8, 8), 0.5)
    assert is_first(torch.cat([flat, flat + 0.2, records.images, noisy]), SAME_IN_POOL).tolist() == (
        [True, False, True, False] + [True] * 16 + [False] * 16
    )


def test_near_duplicates_neither_expose_nor_hide(records: Examples, public: Pool) -> None:
    message, draws = sent(small_cnn(), ONE_STEP, records), stream(0, "copies")
    chosen = torch.arange(900) % 16
    noise = 0.01 * torch.randn(900, 1, 8, 8, generator=draws)
    copies = Pool((records.images[chosen] + noise).clamp(0, 1), records.labels[chosen])
    both = Pool(torch.cat([public.images, copies.images]), torch.cat([public.labels, copies.labels]))
    assert with_control(message, records, both).exposed_by == "rate"
    hundred = Pool(torch.cat([public.images[:100], copies.images]), torch.cat([public.labels[:100], copies.labels]))
    left = with_control(message, records, hundred)
    assert (left.candidates, left.exposed_by) == (25, "")
    same = (public.images[:1] + noise).clamp(0, 1)
    repeated = Pool(torch.cat([public.images[:100], same]), torch.cat([public.labels[:100], torch.zeros(900).long()]))
    assert with_control(message, records, repeated).candidates == 25


def test_every_record_has_a_draw_of_its_own_without_public_examples(records: Examples, public: Pool) -> None:
    draw = draw_candidates(records, public, candidates=220)
    assert draw.fewest == 220
    drawn = [draw.of_label[int(records.labels[i])][own] for i, own in zip(draw.records, draw.own, strict=True)]
    for rows, i in zip(drawn, draw.records.tolist(), strict=True):
        assert (public.labels[rows] == records.labels[i]).all()
        assert not torch.isin(rows, draw.public).any()
        assert len(rows.unique()) == 220
    assert set(drawn[0].tolist()) != set(drawn[4].tolist())
    assert len(draw.public) == 400


# Few records


def test_a_single_record_is_exposed_by_its_rank() -> None:
    model, rest = small_cnn(), toy(4800, seed=60)
    record, pool = toy(1, seed=61), Pool(rest.images, rest.labels)
    message = sent(model, ONE_STEP, record)
    found = with_control(message, record, pool)
    assert (found.exposed_by, found.rank_p, found.candidates) == ("rank", (1 / 1001,), 1000)
    assert found.low < 0.1
    assert len(found.control_rank_p) == 8
    assert not play(message, record, pool).exposed_by
    assert not with_control(message, record, pool, messages=100).exposed_by
    assert not with_control(sent(model, ONE_STEP, toy(1, seed=62)), record, pool).exposed_by
    fewer = Pool(rest.images[:2400], rest.labels[:2400])
    assert not with_control(message, record, fewer).exposed_by


# Limits


def _drawn(random: np.random.Generator, shift: float, records: int) -> Game:
    scores, pool = random.normal(shift, 1, records), random.normal(size=1000)
    better = np.array([(pool >= score).sum() for score in scores])
    return Game(scores, np.zeros(records, int), [pool], np.full(records, 1000), better)


def test_limits_cover_where_all_records_meet_the_same_best_candidate() -> None:
    random = np.random.default_rng(0)
    shift, trials = 3.2, 60
    fresh = random.normal(shift, 1, 4000)[:, None] > random.normal(size=(4000, 1000)).max(1, keepdims=True)
    true, outside, outside_independent = fresh.mean(), 0, 0
    for seed in range(trials):
        game = _drawn(random, shift, 100)
        low, high = limits(game, 1, seed)
        outside += not low <= true <= high
        low, high = clopper_pearson(int((game.better == 0).sum()), 100, 0.05)
        outside_independent += not low <= true <= high
    assert outside <= 6
    assert outside_independent >= 12


def test_limits_are_wider_over_many_messages() -> None:
    game = _drawn(np.random.default_rng(1), 3.5, 32)
    one, many = limits(game, 1, 0), limits(game, 200, 0)
    assert many[0] < one[0] < game.rate < one[1] < many[1]


# Noise


def test_under_noise_the_likelihood_names_more_than_the_projection(records: Examples, public: Pool) -> None:
    message = sent(small_cnn(), ONE_STEP, records)
    size = flatten(message.update)
    std = float(size.norm() / len(size) ** 0.5)
    noise = stream(0, "noise")
    noisy = {name: u + std * torch.randn(u.shape, generator=noise) for name, u in message.update.items()}
    with_noise = play(replace(message, update=noisy, noise_std=std), records, public)
    without = play(replace(message, update=noisy), records, public)
    assert with_noise.top1 > without.top1


# The library call


def test_the_library_call_takes_weights_or_an_update(records: Examples, public: Pool) -> None:
    model = small_cnn()
    message = sent(model, FEDAVG, records)
    after = {name: w + message.update[name] for name, w in message.before.items()}
    common = {"training": FEDAVG, "records": (records.images, records.labels), "whitening": GREY}
    candidates = public.images, public.labels
    found = singling_out(model, after=after, candidates=candidates, **common)
    assert found.exposed_by == "rate"
    same = singling_out(model, update=message.update, candidates=candidates, **common)
    assert same.top1 == found.top1
    kept_out = toy(32, seed=70)
    beside = singling_out(model, update=message.update, candidates=candidates, held_out=kept_out, **common)
    assert (beside.control, len(beside.control_scores)) == ("held_out", 32)
    with pytest.raises(UsageError, match="either `after` or `update`"):
        singling_out(model, candidates=candidates, **common)


# Photographs


@pytest.fixture(scope="module")
def photographs(shared_data: Path) -> Examples:
    """300 of each class of CIFAR-10, in a random order."""
    given = np.load(shared_data / "cifar10_10k.npz")
    labels = torch.from_numpy(given["train_labels"])
    rows = torch.cat([(labels == label).nonzero().flatten()[:300] for label in range(10)])
    rows = rows[torch.randperm(len(rows), generator=stream(0, "order"))]
    images = torch.from_numpy(given["train_images"][rows.numpy()]).permute(0, 3, 1, 2).float() / 255
    return Examples(images, labels[rows])


def photograph_cnn() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(2048, 10),
        )  # fmt: skip


@pytest.mark.parametrize(("training", "least"), [(ONE_STEP, 0.85), (FEDAVG, 0.6)], ids=["one step", "five epochs"])
def test_photographs_are_named_by_a_fresh_network(photographs: Examples, training: Training, least: float) -> None:
    records, rest = rows_of(photographs, slice(32)), rows_of(photographs, slice(32, None))
    message = sent(photograph_cnn(), training, records, COLOUR)
    found = with_control(message, records, Pool(rest.images, rest.labels))
    assert found.exposed_by == "rate"
    assert found.top1 >= least
    assert found.control_top1 <= 0.1


def test_clothes_among_photographs_are_not_exposed(photographs: Examples, shared_data: Path) -> None:
    """What sets them apart is that they are clothes: those that were not trained on are named too."""
    given = np.load(shared_data / "fashion_mnist_10k.npz")
    rows = torch.randperm(10000, generator=stream(0, "clothes"))[:64].numpy()
    grey = F.pad(torch.from_numpy(given["train_images"][rows]).float() / 255, (2, 2, 2, 2))
    clothes = Examples(grey[:, None].expand(-1, 3, -1, -1).contiguous(), torch.from_numpy(given["train_labels"][rows]))
    model, pool = photograph_cnn(), Pool(photographs.images, photographs.labels)
    strangers = with_control(
        sent(model, FEDAVG, rows_of(clothes, slice(32)), COLOUR), rows_of(clothes, slice(32, 64)), pool
    )
    assert strangers.top1 > 0.1
    assert not strangers.exposed_by
