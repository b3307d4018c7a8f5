"""Parts say what they need, and an attack is refused in the name of the part that lacks something."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.best_of import AnyAttack, BestOf, GuessEpochs
from fedglass.attack.forward.gradients import ObservedResidual, OneGradient
from fedglass.attack.forward.unroll import Unroll
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.counts import CountsBefore
from fedglass.attack.labels.given import OracleLabels
from fedglass.attack.labels.targets import SignRule
from fedglass.attack.parts import Forward, Labels, check_needs, needs_of, uses_of
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.terms.distance import Cosine, SquaredError
from fedglass.attack.terms.term import Term
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.registry import built_in
from fedglass.core.types import Observation, Training
from fedglass.federation.views import Knows
from fedglass.recipes import recipe

NOTHING = Knows(training=False)
STEPS = Knows(training=False, steps=True)


def attack(forward: Forward, objective: Term, labels: Labels) -> Attack:
    return Attack(labels, (Stage(forward, Pixels(), objective, Adam(iterations=1)),))


def test_an_attack_needs_what_its_parts_do() -> None:
    whole = attack(Unroll(), 0.5 * SquaredError() + Cosine(), OracleLabels())
    assert needs_of(whole) == {Fact.TRAINING, Fact.CLIENT_SIZES, Fact.SIZE, Fact.LABELS}
    assert needs_of(attack(OneGradient(), Cosine(), SignRule())) == frozenset()
    assert uses_of(whole) == {Fact.BATCH_LABELS}
    assert uses_of(attack(OneGradient(), Cosine(), SignRule())) == frozenset()


def test_what_is_supplied_inside_need_not_be_known() -> None:
    tried = BestOf(attack(Unroll(), SquaredError(), CountsBefore()), GuessEpochs())
    assert needs_of(tried) == {Fact.STEPS, Fact.LR, Fact.CLIENT_SIZES}


@pytest.mark.parametrize(
    ("whole", "knows", "said"),
    [
        (attack(Unroll(), Cosine(), SignRule()), STEPS, r"^Unroll needs the clients' learning rate, epochs"),
        (attack(OneGradient(), Cosine() + 2 * SquaredError(), SignRule()), NOTHING, r"^SquaredError needs the size"),
        (attack(OneGradient(), SquaredError(), CountsBefore()), NOTHING, r"^CountsBefore needs the size of the"),
        (attack(OneGradient(), Cosine(), OracleLabels()), Knows(), r"^OracleLabels needs the true labels"),
        (
            BestOf(attack(Unroll(), Cosine(), SignRule()), GuessEpochs()),
            NOTHING,
            r"^GuessEpochs needs the number of local steps",
        ),
    ],
)
def test_the_part_that_lacks_a_fact_is_named(toy: Any, whole: AnyAttack, knows: Knows, said: str) -> None:
    seen = toy.observation(Training(0.1, 2, 2), knows)
    for refused in (whole.run, whole.check):
        with pytest.raises(UsageError, match=said):
            refused(seen)


def sized(toy: Any, examples: int, knows: Knows = NOTHING, model: nn.Module | None = None) -> Observation:
    found: Observation = toy.observation(Training(0.1), knows, examples=examples, model=model)
    return found


def test_a_single_example_brings_its_size_for_the_terms_of_its_stage_alone(toy: Any) -> None:
    reading, blind = (attack(forward, SquaredError(), SignRule()) for forward in (ObservedResidual(), OneGradient()))
    check_needs(reading, sized(toy, 1))
    with pytest.raises(UsageError, match="SquaredError needs the size"):
        check_needs(reading, sized(toy, 2))
    with pytest.raises(UsageError, match="SquaredError needs the size"):
        check_needs(replace(reading, stages=(*reading.stages, *blind.stages)), sized(toy, 1))
    check_needs(blind, sized(toy, 1, STEPS))


def test_without_a_bias_or_after_several_steps_there_is_no_size_to_read(toy: Any) -> None:
    reading = attack(ObservedResidual(), SquaredError(), SignRule())
    bare = toy.seeded(nn.Sequential(nn.Flatten(), nn.Linear(64, 5, bias=False)))
    with pytest.raises(UsageError, match="SquaredError needs the size"):
        check_needs(reading, sized(toy, 1, model=bare))
    seen = sized(toy, 1)
    with pytest.raises(UsageError, match="SquaredError needs the size"):
        check_needs(reading, replace(seen, knows=replace(seen.knows, steps=3)))


@pytest.mark.parametrize("name", built_in("attacks"))
def test_every_recipe_can_be_played_by_who_knows_what_it_needs(toy: Any, name: str, equipped: Any) -> None:
    whole = recipe(name)
    assert not any(fact.oracle for fact in needs_of(whole))
    check_needs(whole, equipped(whole, toy.observation(Training(0.1, 2, 2), Knows()), toy.images(2)))
    if not needs_of(whole):
        check_needs(whole, toy.observation(Training(0.1, 2, 2), NOTHING))
