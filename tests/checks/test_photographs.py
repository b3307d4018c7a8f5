"""The candidate game on real pictures: what it names, and what it must not expose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedglass.checks.singling_out import GameResult
from fedglass.core.optimisers import Adam
from fedglass.core.rng import stream
from fedglass.core.types import Training, Whitening
from fedglass.federation.truth import Examples

from .games import FEDAVG, ONE_STEP, rows_of, sent, with_control

COLOUR = Whitening((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))
ADAM = replace(FEDAVG, lr=0.001, optimiser=Adam())
CLIENT, OTHERS, REST = slice(32), slice(32, 64), slice(64, None)


def _photographs(shared_data: Path, split: str, each: int) -> Examples:
    """So many of each class of CIFAR-10, in a random order."""
    with np.load(shared_data / "cifar10_10k.npz") as given:
        labels = torch.from_numpy(given[f"{split}_labels"])
        rows = torch.cat([(labels == label).nonzero().flatten()[:each] for label in range(10)])
        rows = rows[torch.randperm(len(rows), generator=stream(0, "order"))]
        images = torch.from_numpy(given[f"{split}_images"][rows.numpy()]).permute(0, 3, 1, 2).float() / 255
    return Examples(images, labels[rows])


@pytest.fixture(scope="module")
def photographs(shared_data: Path) -> Examples:
    return _photographs(shared_data, "train", 240)


@pytest.fixture(scope="module")
def clothes(shared_data: Path) -> Examples:
    with np.load(shared_data / "fashion_mnist_10k.npz") as given:
        rows = torch.randperm(10000, generator=stream(0, "clothes"))[:64].numpy()
        grey = F.pad(torch.from_numpy(given["train_images"][rows]).float() / 255, (2, 2, 2, 2))
        return Examples(grey[:, None].expand(-1, 3, -1, -1).contiguous(), torch.from_numpy(given["train_labels"][rows]))


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(2048, 10),
        )  # fmt: skip


@pytest.fixture(scope="module")
def trained(shared_data: Path) -> nn.Module:
    """After 400 steps on other photographs. In single precision, they would end elsewhere on other machines."""
    model, known = network().double(), _photographs(shared_data, "test", 200)
    optimiser, draws = torch.optim.SGD(model.parameters(), lr=0.05), stream(0, "steps")
    inputs = COLOUR.whiten(known.images.double())
    for _ in range(400):
        rows = torch.randint(len(known.labels), (32,), generator=draws)
        optimiser.zero_grad()
        F.cross_entropy(model(inputs[rows]), known.labels[rows]).backward()
        optimiser.step()
    return model.float()


def game(model: nn.Module, training: Training, trained_on: Examples, records: Examples, pool: Examples) -> GameResult:
    message = sent(model, training, trained_on, COLOUR)
    return with_control(message, records, Examples(pool.images, pool.labels))


@pytest.mark.parametrize(("training", "least"), [(ONE_STEP, 0.85), (FEDAVG, 0.6)], ids=["one step", "five epochs"])
def test_photographs_are_named_by_a_fresh_network(photographs: Examples, training: Training, least: float) -> None:
    records = rows_of(photographs, CLIENT)
    found = game(network(), training, records, records, rows_of(photographs, REST))
    assert found.exposed_by == "rate"
    assert found.top1 >= least
    assert found.control_top1 is not None
    assert found.control_top1 <= 1 / 32  # one of 32 among 228 happens by chance in one of eight games


def test_photographs_are_named_by_a_trained_network(photographs: Examples, trained: nn.Module) -> None:
    records = rows_of(photographs, CLIENT)
    found = game(trained, ADAM, records, records, rows_of(photographs, REST))
    assert found.exposed_by == "rate"
    assert found.top1 >= 0.75
    assert found.control_top1 is not None
    assert found.control_top1 <= 1 / 32  # one of 32 among 228 happens by chance in one of eight games


@pytest.mark.parametrize("training", [ONE_STEP, ADAM], ids=["one step", "Adam"])
def test_photographs_that_were_not_trained_on_are_not_exposed(
    photographs: Examples, trained: nn.Module, training: Training
) -> None:
    client, others = rows_of(photographs, CLIENT), rows_of(photographs, OTHERS)
    found = game(trained, training, client, others, rows_of(photographs, REST))
    assert (found.exposed_by, found.top1) == ("", 0.0)
    assert 0.3 < sum(found.rank_p) / 32 < 0.7


@pytest.mark.parametrize("whose", [CLIENT, OTHERS], ids=["trained on", "not trained on"])
def test_clothes_among_photographs_are_not_exposed(photographs: Examples, clothes: Examples, whose: slice) -> None:
    """What sets them apart is that they are clothes: those that were not trained on are named too."""
    found = game(network(), FEDAVG, rows_of(clothes, CLIENT), rows_of(clothes, whose), photographs)
    assert found.top1 > 0.1
    assert (found.exposed_by, found.same_source) == ("", False)


@pytest.mark.parametrize("light", [0.0, 0.5], ids=["dark", "bright"])
def test_photographs_among_others_of_another_light_are_not_exposed(photographs: Examples, light: float) -> None:
    rest = rows_of(photographs, REST)
    pool = Examples(0.5 * rest.images + light, rest.labels)
    found = game(network(), FEDAVG, rows_of(photographs, CLIENT), rows_of(photographs, OTHERS), pool)
    assert not found.exposed_by
