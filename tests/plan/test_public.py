"""The data that an adversary has beside the message: what no client has, or a set that the plan names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedglass.audit.simulated import Simulated
from fedglass.core.errors import DataError
from fedglass.data.catalogue import photos
from fedglass.plan.compile import check_without_code, compile_plan
from fedglass.plan.options import code_of
from fedglass.plan.schema import Plan, parse_plan

PLAN = """
[federation]
data = "photos"
size = 12
clients = 2
examples = 2
test_examples = 3
training.lr = 0.1
[adversary]
client = 0
[[attacks]]
name = "inverting_gradients"
iterations = 3
"""


def plan(old: str = "", new: str = "") -> Plan:
    assert old in PLAN
    return parse_plan(PLAN.replace(old, new))


def simulated(told: Plan, folder: Path) -> Simulated:
    source = compile_plan(told, folder).sources[0]
    assert isinstance(source, Simulated)
    return source


@pytest.mark.parametrize("partition", ["", 'partition = "dirichlet"\nalpha = 100.0\n'])
def test_a_simulation_leaves_what_no_client_has(partition: str, tmp_path: Path) -> None:
    source = simulated(plan("training.lr", f"{partition}training.lr"), tmp_path)
    everything = photos().resized(12).images
    private = torch.cat([client.images for client in source.federation.clients])
    kept = [image for image in everything if not any(torch.equal(image, own) for own in private)]
    assert source.public is not None
    assert source.public.images == len(kept) == len(everything) - len(private)
    torch.testing.assert_close(source.public.mean, torch.stack(kept).mean(0))
    assert any("that no client has" in line for _, lines in source.threat() for line in lines)


def test_a_set_that_the_plan_names_takes_its_place_and_decides_the_key(tmp_path: Path) -> None:
    images = np.full((2, 12, 12, 3), 51, dtype=np.uint8)
    np.savez(tmp_path / "such.npz", images=images, labels=np.array([4, 5]))
    named = plan("client = 0", 'client = 0\npublic = "npz:such.npz"')
    public = simulated(named, tmp_path).public
    assert public is not None
    torch.testing.assert_close(public.mean, torch.full((3, 12, 12), 0.2))
    assert set(public.of_class) == {4, 5}
    assert compile_plan(named, tmp_path).cases[0].key != compile_plan(plan(), tmp_path).cases[0].key


def test_a_set_of_another_size_is_brought_to_that_of_the_images_and_one_of_other_channels_refused(
    tmp_path: Path,
) -> None:
    public = simulated(plan("client = 0", 'client = 0\npublic = "photos"'), tmp_path).public
    assert public is not None
    assert public.mean.shape == (3, 12, 12)
    with pytest.raises(DataError, match=r"adversary\.public: expected images of 3 channel"):
        simulated(plan("client = 0", 'client = 0\npublic = "glyphs"'), tmp_path)


def test_a_set_made_by_code_of_others_is_named_and_not_made_by_a_check_without_code(tmp_path: Path) -> None:
    named = plan("client = 0", 'client = 0\npublic = "nobodys.module:pictures"')
    assert [code.name for code in code_of(named)] == ["nobodys.module:pictures"]
    check_without_code(named, tmp_path)
