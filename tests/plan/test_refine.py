"""Refinements of an attack in a plan: names, options, and where their models lie."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedglass.attack.attack import Attack
from fedglass.attack.refine.restoration import DDRM, MedianFilter
from fedglass.core.errors import UsageError
from fedglass.diffusion.ddrm import BlockMean
from fedglass.diffusion.stored import Stored, _folder
from fedglass.plan.compile import compile_plan
from fedglass.plan.options import code_of
from fedglass.plan.schema import Plan, parse_plan


def plan(refine: str, data: str = "glyphs") -> Plan:
    return parse_plan(
        f"""
        [federation]
        data = "{data}"
        clients = 1
        examples = 1
        training.lr = 0.1
        [[attacks]]
        name = "inverting_gradients"
        iterations = 1
        {refine}
        """
    )


def attack_in(text: str, folder: Path) -> Attack:
    (found,) = compile_plan(plan(text), folder).attacks.values()
    assert isinstance(found, Attack)
    return found


def test_one_table_or_several_after_what_the_recipe_does(tmp_path: Path) -> None:
    one = attack_in('refine = {name = "ddrm", factor = 2, sigma = 0.1, steps = 3}', tmp_path)
    (part,) = one.refine
    assert isinstance(part, DDRM)
    assert (part.degradation, part.sigma, part.chain.steps) == (BlockMean(2), 0.1, 3)
    both = attack_in('refine = [{name = "median", size = 3}, {name = "ddrm"}]', tmp_path)
    assert both.refine[0] == MedianFilter(3)
    assert isinstance(both.refine[1], DDRM)


def test_the_path_of_a_model_is_relative_to_the_plan(tmp_path: Path) -> None:
    shutil.copytree(_folder("glyphs"), tmp_path / "mine")
    (part,) = attack_in('refine = {name = "ddrm", model = "mine"}', tmp_path).refine
    assert isinstance(part, DDRM)
    assert isinstance(part.model, Stored)
    assert part.model.name == str(tmp_path / "mine")
    (embedded,) = attack_in('refine = {name = "ddrm"}', tmp_path).refine
    assert isinstance(embedded, DDRM)
    assert isinstance(embedded.model, Stored)
    assert embedded.model == Stored("glyphs", part.model.digest)


@pytest.mark.parametrize(
    ("refine", "words"),
    [
        ('{name = "ddmr"}', "Unknown refinement 'ddmr': did you mean 'ddrm'"),
        ('{name = "ddrm", factors = 2}', "refine 'ddrm': Unknown option 'factors': did you mean 'factor'"),
        ('{name = "ddrm", factor = "2"}', "refine 'ddrm': factor must be of type int"),
        ('{name = "ddrm", model = "nowhere"}', "nowhere' is not a folder"),
        ('{name = "ddrm", factor = 3}', "cannot be reduced by the factor 3"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(refine: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        attack_in(f"refine = {refine}", tmp_path)


def test_a_model_of_other_images_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"makes images of 1 x 28 x 28 .*, these are 3 x 64 x 64"):
        compile_plan(plan('refine = {name = "ddrm"}', data="photos"), tmp_path)


def test_code_of_others_in_a_refinement_is_named() -> None:
    (code,) = code_of(plan('refine = {name = "my.parts:Sharpen"}'))
    assert (code.kind, code.name) == ("refinements", "my.parts:Sharpen")
