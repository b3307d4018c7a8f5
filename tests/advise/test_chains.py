"""The chains that a plan compares, and the refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedglass.advise.page import plan_text
from fedglass.advise.search import chains_of, check_plan, with_defences
from fedglass.core.errors import UsageError
from fedglass.defend.per_example import Strength
from fedglass.plan.compile import compile_plan
from fedglass.plan.options import defences_of
from fedglass.plan.schema import parse_plan

BASE = """
title = "a \\"quoted\\" title \\u007f"
[federation]
data = "glyphs"
examples = 2
test_examples = 20
training = { lr = 0.1, batch_size = 2, loss = { name = "cross_entropy", label_smoothing = 1e-05 } }
group = { clients = [0], defences = [], training = { lr = 0.2 } }
[adversary]
client = 0
round = [0]
[[attacks]]
name = "inverting_gradients"
iterations = 3
refine = { name = "ddrm", model = "glyphs", factor = 2 }
"""


def test_the_defences_of_the_plan_are_one_chain_by_default() -> None:
    plan = parse_plan(
        BASE + '[[defences]]\nname = "clip"\nnorm = 1.0\n[[defences]]\nname = "gaussian_noise"\nstd = 3.0'
    )
    (chain,) = chains_of(plan)
    assert chain.title == "clip (norm 1.0) + gaussian_noise"
    assert chain.strength.option == "std"
    assert [(d.name, d.options) for d in chain.at(0.25)] == [("clip", {"norm": 1.0}), ("gaussian_noise", {"std": 0.25})]


def test_a_chain_may_name_what_is_varied() -> None:
    both = '[[advise.chain]]\nvaried = "clip"\ndefences = [{ name = "clip" }, { name = "gaussian_noise", std = 0.1 }]'
    (chain,) = chains_of(parse_plan(BASE + both + "\nweakest = 5.0"))
    assert chain.strength == Strength("norm", 5.0, 0.001)
    decay = '[[advise.chain]]\noption = "decay"\nweakest = 2.0\nstrongest = 0.1\ndefences = { name = "outpost" }'
    (chain,) = chains_of(parse_plan(BASE + decay))
    assert chain.strength == Strength("decay", 2.0, 0.1)


OWN = "fedglass.defend.pruning:count_of"  # a function that declares nothing


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "names no defence to compare"),
        (
            f'[[advise.chain]]\ndefences = {{ name = "{OWN}" }}',
            "declares no strength: set option, weakest and strongest",
        ),
        ('[[advise.chain]]\ndefences = { name = "dpsgd" }\nvaried = "clip"', "Unknown defence of the chain 'clip'"),
        ('[[advise.chain]]\ndefences = { name = "dpsgd" }\noption = "noise"', "has no option 'noise'"),
        (
            '[[advise.chain]]\ndefences = { name = "dpsgd" }\noption = "clip"',
            "no usual range: set weakest and strongest",
        ),
        ('[[advise.chain]]\ndefences = { name = "clip" }\n' * 2, "clip occurs twice"),
        ('[[advise.chain]]\ndefences = { name = "clip" }\nweakest = -1.0', "on one side of 0"),
        ("[[advise.chain]]\ndefences = []", "advise.chain"),
    ],
)
def test_refused_chains(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        chains_of(parse_plan(BASE + text))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("test_examples = 20", ""), "set federation.test_examples"),
        (("examples = 2\n", "examples = 2\ndefended = false\n"), "removes the defences"),
        (("[federation]", "[[federation]]\nname = 'b'\ndata = 'glyphs'\ntraining.lr = 0.1\n[[federation]]"), "got 2"),
    ],
)
def test_refused_plans(change: tuple[str, str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        check_plan(parse_plan(BASE.replace(*change, 1)))


def test_a_plan_file_says_what_the_plan_says(tmp_path: Path) -> None:
    plan = parse_plan(BASE + '[[advise.chain]]\ndefences = { name = "magnitude_pruning" }')
    (chain,) = chains_of(plan)
    advised = with_defences(plan, chain.at(0.9))
    text = plan_text(advised, tmp_path, ("Two lines\nof remarks",))
    again = parse_plan(text)
    assert text.startswith("# Two lines\n# of remarks\n")
    assert again.model_dump() == advised.model_dump()
    assert defences_of(again.defences) == defences_of(chain.at(0.9))
    assert compile_plan(again, Path("elsewhere")).digest == compile_plan(advised, tmp_path).digest


def test_paths_in_a_plan_file_hold_in_any_folder(tmp_path: Path) -> None:
    plan = parse_plan('[federation]\ndata = "npz:set.npz"\ntraining.lr = 0.1\n[adversary]\npublic = "npz:other.npz"')
    again = parse_plan(plan_text(plan, tmp_path))
    assert again.federation[0].data == f"npz:{tmp_path / 'set.npz'}"
    assert again.adversary.public == f"npz:{tmp_path / 'other.npz'}"
