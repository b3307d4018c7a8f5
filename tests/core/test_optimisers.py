"""The optimisers against torch's own, their adjoints against finite differences of their steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.optimisers import SGD, Adam, AdamW, Adjoint, Move, Optimiser, State
from fedglass.core.rng import stream

OPTIMISERS: list[tuple[Optimiser, type[torch.optim.Optimizer], dict[str, Any]]] = [
    (SGD(), torch.optim.SGD, {}),
    (SGD(weight_decay=0.1), torch.optim.SGD, {"weight_decay": 0.1}),
    (SGD(momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
    (SGD(0.8, dampening=0.3), torch.optim.SGD, {"momentum": 0.8, "dampening": 0.3}),
    (SGD(0.8, nesterov=True), torch.optim.SGD, {"momentum": 0.8, "nesterov": True}),
    (SGD(0.7, 0.2, False, 0.1), torch.optim.SGD, {"momentum": 0.7, "dampening": 0.2, "weight_decay": 0.1}),
    (SGD(0.7, 0.0, True, 0.1), torch.optim.SGD, {"momentum": 0.7, "nesterov": True, "weight_decay": 0.1}),
    (Adam(), torch.optim.Adam, {}),
    (Adam((0.5, 0.9), 1e-3, 0.1), torch.optim.Adam, {"betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
    (AdamW(), torch.optim.AdamW, {}),
    (AdamW((0.6, 0.8), 1e-4, 0.2), torch.optim.AdamW, {"betas": (0.6, 0.8), "eps": 1e-4, "weight_decay": 0.2}),
]
RULES = [rule for rule, _, _ in OPTIMISERS]
SHAPES = (3, 2), (4,), ()
LR = 0.05


def drawn(*name: str | int) -> list[Tensor]:
    generator = stream(0, *name)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def after(rule: Optimiser, steps: int) -> tuple[list[Tensor], State]:
    weights: list[Tensor] = drawn("weights")
    state = rule.init(weights)
    for t in range(steps):
        weights, state = rule.step(Move(weights, drawn("gradient", t), state, LR))
    return weights, state


@pytest.mark.parametrize(("rule", "theirs", "options"), OPTIMISERS, ids=lambda part: repr(part))
def test_steps_are_those_of_torch(
    rule: Optimiser, theirs: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    weights = [w.requires_grad_() for w in drawn("weights")]
    other = theirs(weights, lr=LR, **options)  # type: ignore[call-arg]  # every optimiser has a rate
    for t in range(7):
        for w, g in zip(weights, drawn("gradient", t), strict=True):
            w.grad = g
        other.step()
    for mine, w in zip(after(rule, 7)[0], weights, strict=True):
        torch.testing.assert_close(mine, w.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("taken", [0, 1, 4])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_adjoint_is_that_of_the_step(rule: Optimiser, taken: int) -> None:
    """<adjoint of the results, change of the results> is <adjoint of the arguments, change of the arguments>."""
    weights, state = after(rule, taken)
    gradient = drawn("gradient", "now")
    arguments = weights, gradient, *state.slots
    changes = [drawn("change", i) for i in range(len(arguments))]
    if len(state.slots) == 2:  # in proportion, since Adam's second moment is small and can not be negative
        changes[3] = [c * v for c, v in zip(changes[3], state.slots[1], strict=True)]
    adjoint = Adjoint(drawn("adjoint"), tuple(drawn("adjoint", i) for i in range(len(state.slots))))

    def moved(h: float) -> list[Tensor]:
        at = [[x + h * c for x, c in zip(xs, cs, strict=True)] for xs, cs in zip(arguments, changes, strict=True)]
        new, new_state = rule.step(Move(at[0], at[1], State(tuple(at[2:]), state.count), LR))
        return [*new, *(t for slot in new_state.slots for t in slot)]

    h = 1e-6
    seen = [*adjoint.weights, *(t for slot in adjoint.slots for t in slot)]
    expected = sum(float((a * (p - m)).sum()) / (2 * h) for a, p, m in zip(seen, moved(h), moved(-h), strict=True))
    before, to_gradient, scale = rule.pull_back(Move(weights, gradient, state, LR), adjoint)
    parts = [before.weights, [scale * g for g in to_gradient], *before.slots]
    found = sum(
        float((p * c).sum()) for ps, cs in zip(parts, changes, strict=True) for p, c in zip(ps, cs, strict=True)
    )
    assert found == pytest.approx(expected, rel=1e-7)


def test_plain_sgd_passes_its_adjoint_on_untouched() -> None:
    """So it costs no more than the formula a - lr H a itself."""
    adjoint = Adjoint(drawn("adjoint"))
    before, to_gradient, scale = SGD().pull_back(Move(drawn("weights"), drawn("gradient"), State(), LR), adjoint)
    assert before.weights is to_gradient is adjoint.weights
    assert scale == -LR


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_nothing_given_is_changed_and_no_graph_is_left(rule: Optimiser) -> None:
    weights, state = after(rule, 2)
    for w in weights:
        w.requires_grad_()
    gradient = [g.requires_grad_() * 1.0 for g in drawn("gradient")]
    given = [*weights, *gradient, *(t for slot in state.slots for t in slot)]
    kept = [t.detach().clone() for t in given]
    move = Move(weights, gradient, state, LR)
    new, new_state = rule.step(move)
    before, to_gradient, _ = rule.pull_back(move, Adjoint(drawn("adjoint"), state.slots))
    made = [*new, *(t for slot in new_state.slots for t in slot), *to_gradient, *before.weights]
    assert not any(t.requires_grad for t in made)
    assert all(torch.equal(a, b) for a, b in zip(kept, given, strict=True))
    assert new_state.count == state.count + 1


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 200])
@pytest.mark.parametrize("rule", [r for r in RULES if isinstance(r, SGD) and not r.weight_decay], ids=repr)
def test_travel_is_how_far_a_constant_gradient_leads(rule: Optimiser, steps: int) -> None:
    weights: list[Tensor] = [torch.zeros(1, dtype=torch.float64)]
    state = rule.init(weights)
    for _ in range(steps):
        weights, state = rule.step(Move(weights, [torch.ones(1, dtype=torch.float64)], state, LR))
    assert rule.travel(LR, steps) == pytest.approx(-weights[0].item(), rel=1e-12)


@pytest.mark.parametrize(
    "rule", [Adam(), AdamW(), AdamW(weight_decay=0.0), SGD(weight_decay=0.1), SGD(0.9, 0, True, 1)]
)
def test_no_distance_where_more_than_the_gradient_counts(rule: Optimiser) -> None:
    assert rule.travel(LR, 3) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", [Adam(), AdamW()], ids=repr)
def test_entries_that_never_had_a_gradient_stay_and_pass_nothing_on(rule: Optimiser, dtype: torch.dtype) -> None:
    weights, gradient = [torch.ones(3, dtype=dtype)], [torch.tensor([0.0, 1e-30, 2.0], dtype=dtype)]
    state = rule.init(weights)
    adjoint = Adjoint([torch.full((3,), 1e3, dtype=dtype)], rule.init(weights).slots)
    for _ in range(3):
        move = Move(weights, gradient, state, LR)
        before, to_gradient, _ = rule.pull_back(move, adjoint)
        made = [*to_gradient, *before.weights, *(t for slot in before.slots for t in slot)]
        assert all(bool(torch.isfinite(t).all()) for t in made)
        assert to_gradient[0][0] == before.slots[0][0][0] == before.slots[1][0][0] == 0
        weights, state = rule.step(move)
        assert weights[0][0] == 1 or isinstance(rule, AdamW)


def test_a_first_step_of_adam_is_differentiated_without_cancellation() -> None:
    """w' = w - lr g / (|g| + eps), whose derivative is lr eps / (|g| + eps)^2, in single precision too."""
    gradient, eps = torch.tensor([0.3, -2.0, 1e-4]), 1e-8
    weights = [torch.zeros(3)]
    state = Adam().init(weights)
    _, to_gradient, _ = Adam().pull_back(Move(weights, [gradient], state, LR), Adjoint([torch.ones(3)], state.slots))
    expected = -LR * eps / (gradient.double().abs() + eps).square()
    torch.testing.assert_close(to_gradient[0].double(), expected, rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_an_optimiser_prints_as_itself(rule: Optimiser) -> None:
    assert eval(repr(rule)) == rule
    assert hash(eval(repr(rule))) == hash(rule)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SGD(momentum=1.0), r"SGD\.momentum must be at least 0 and below 1, got 1\.0"),
        (lambda: SGD(momentum=-0.1), r"SGD\.momentum"),
        (lambda: SGD(momentum=math.nan), r"SGD\.momentum"),
        (lambda: SGD(0.9, dampening=2.0), r"SGD\.dampening must be at least 0 and below 1"),
        (lambda: SGD(dampening=0.5), r"SGD\.dampening dampens the momentum, which is 0"),
        (lambda: SGD(nesterov=True), r"SGD\.nesterov needs a momentum above 0 and no dampening, got momentum=0"),
        (lambda: SGD(0.9, 0.1, nesterov=True), r"SGD\.nesterov .* dampening=0\.1"),
        (lambda: SGD(weight_decay=-1.0), r"SGD\.weight_decay must be finite and at least 0, got -1\.0"),
        (lambda: Adam(weight_decay=math.inf), r"Adam\.weight_decay"),
        (
            lambda: Adam(betas=(0.9, 1.0)),
            r"Adam\.betas must be two numbers of at least 0 and below 1, got \(0\.9, 1\.0\)",
        ),
        (lambda: AdamW(betas=(0.9,)), r"AdamW\.betas"),  # type: ignore[arg-type]  # that is what is refused
        (lambda: AdamW(eps=0.0), r"AdamW\.eps must be positive and finite, got 0\.0"),
    ],
)
def test_bad_options_are_refused(make: Callable[[], Optimiser], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make()
