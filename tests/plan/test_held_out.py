"""Test examples and the server's examples: nobody's, of every class, whatever the order of the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from fedglass.audit.simulated import Simulated
from fedglass.audit.target import Target
from fedglass.core.rng import stream
from fedglass.data.catalogue import photos
from fedglass.data.dataset import stratified_rows
from fedglass.plan.compile import compile_plan
from fedglass.plan.schema import parse_plan
from fedglass.verdict.doubts import DoubtKind, doubt

PLAN = """
[federation]
data = "folder:pictures"
size = 8
clients = 2
examples = 12
test_examples = 12
server_examples = 6
rounds = 12
model = "mlp"
training = { lr = 0.5, epochs = 2 }
[[attacks]]
name = "inverting_gradients"
iterations = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with pictures that are read class by class: black, grey and white ones."""
    for kind, level in {"black": 10, "grey": 120, "white": 240}.items():
        (tmp_path / "pictures" / kind).mkdir(parents=True)
        for i in range(20):
            Image.new("L", (8, 8), level + i % 5).save(tmp_path / "pictures" / kind / f"{i}.png")
    return tmp_path


def simulated(folder: Path, text: str = PLAN) -> Simulated:
    source = compile_plan(parse_plan(text), folder).sources[0]
    assert isinstance(source, Simulated)
    return source


def test_data_sorted_by_class_are_tested_on_every_class(folder: Path) -> None:
    source = simulated(folder)
    assert source.test is not None
    assert source.test.labels.bincount().tolist() == [4, 4, 4]
    assert source.federation.server is not None
    assert source.federation.server.labels.bincount().tolist() == [2, 2, 2]
    assert source.public is not None
    assert source.public.images == 60 - 2 * 12
    target = source.targets(lambda done, total: None)[0]
    assert isinstance(target, Target)
    assert target.utility["test accuracy"] > 0.9
    assert DoubtKind.TEST_OF_ONE_CLASS not in {found.kind for found in target.doubts}


def test_a_test_set_with_one_class_is_a_doubt(folder: Path) -> None:
    source = simulated(folder, PLAN.replace("test_examples = 12", "test_examples = 1"))
    target = source.targets(lambda done, total: None)[0]
    assert isinstance(target, Target)
    assert doubt(DoubtKind.TEST_OF_ONE_CLASS, examples=1) in target.doubts


def test_without_held_out_examples_clients_draw_from_the_whole_set_as_ever(tmp_path: Path) -> None:
    plan = (
        PLAN.replace("folder:pictures", "photos").replace("test_examples = 12", "").replace("server_examples = 6", "")
    )
    source = simulated(tmp_path, plan.replace("examples = 12", "examples = 3"))
    data = photos().resized(8)
    rows = torch.randperm(len(data), generator=stream(0, "partition"))[:6]
    assert torch.equal(torch.cat([client.images for client in source.federation.clients]), data.images[rows])


@pytest.mark.parametrize("count", [0, 1, 2, 7, 29, 30])
def test_a_stratified_draw_has_the_wanted_number_and_each_class_within_one_of_its_proportion(count: int) -> None:
    labels = torch.tensor([0] * 17 + [3] * 9 + [4] * 4)
    rows = stratified_rows(labels, count, stream(0, "a test"))
    assert len(rows.unique()) == len(rows) == count
    for label, size in ((0, 17), (3, 9), (4, 4)):
        assert abs(int((labels[rows] == label).sum()) - size * count / 30) < 1


@pytest.mark.parametrize("shape", [(12, 3), (12, 4, 4)])
def test_targets_without_classes_are_drawn_at_random(shape: tuple[int, ...]) -> None:
    targets = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    rows = stratified_rows(targets, 5, torch.Generator().manual_seed(0))
    assert len(rows.unique()) == 5
    assert not len(stratified_rows(targets, 0, torch.Generator().manual_seed(0)))
