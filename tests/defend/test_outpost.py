"""OUTPOST against a slow oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Training
from fedglass.defend.outpost import Outpost, OutputMean, SquaredGradient, risk
from fedglass.fl.local import MeanGradient, Step, schedule, train


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def slow_outpost(step: Step, part: Outpost, noise: torch.Generator) -> list[Tensor]:
    """Entry by entry from the definition, with the noise in the same order."""
    torch.rand((), generator=noise)
    gradient = [g.detach().numpy() for g in MeanGradient().gradient(step)]
    fisher = [g**2 if isinstance(part.fisher, SquaredGradient) else (g**2).mean(0) for g in gradient]
    ranked = sorted((float(v) for f in fisher for v in np.ravel(f)), reverse=True)
    least = ranked[round(part.perturbed * len(ranked)) - 1]
    out = []
    for g, f, w in zip(gradient, fisher, step.weights, strict=True):
        variance = min(1.0, float(np.var(w.detach().numpy(), ddof=1)))
        gone = set(np.argsort(np.abs(g), axis=None)[: round(part.pruned * g.size)].tolist())
        draws = torch.randn(g.shape, generator=noise).numpy()
        spread = np.broadcast_to(f, g.shape)
        new = np.zeros_like(g)
        for place, index in enumerate(np.ndindex(g.shape)):
            new[index] = 0.0 if place in gone else g[index]
            if spread[index] >= least:
                new[index] += part.noise * variance * draws[index]
        out.append(torch.from_numpy(new))
    return out


@pytest.mark.parametrize("fisher", [SquaredGradient(), OutputMean()])
@pytest.mark.parametrize(("pruned", "perturbed"), [(0.8, 0.4), (0.0, 1.0), (0.5, 0.1)])
def test_it_is_the_definition(
    step: Step, fisher: SquaredGradient | OutputMean, pruned: float, perturbed: float
) -> None:
    part = Outpost(noise=0.8, pruned=pruned, perturbed=perturbed, decay=0.0, fisher=fisher)
    found = part.gradient(replace(step, generator=stream(3, "noise")))
    torch.testing.assert_close(list(found), slow_outpost(step, part, stream(3, "noise")))


def test_zero_strength_is_plain_sgd(step: Step) -> None:
    found = Outpost(noise=0.0, pruned=0.0).gradient(step)
    assert torch.equal(flat(list(found)), flat(list(MeanGradient().gradient(step))))


@pytest.mark.parametrize(("index", "probability"), [(0, 1 / 1.5), (5, 1 / 4)])
def test_it_fades_with_the_local_steps(step: Step, index: int, probability: float) -> None:
    plain = flat(list(MeanGradient().gradient(step)))
    later = replace(step, index=index)
    defended = [not torch.equal(flat(list(Outpost(decay=0.5).gradient(later))), plain) for _ in range(300)]
    assert np.mean(defended) == pytest.approx(probability, abs=0.1)


@pytest.mark.skipif("index" not in {f.name for f in fields(Step)}, reason="steps are not numbered")
def test_local_training_numbers_its_steps(step: Step) -> None:
    plan = schedule(Training(lr=0.1, epochs=3, batch_size=2), 4, None)
    seen: list[tuple[int, int]] = []

    class Watch:
        def gradient(self, step: Step) -> Sequence[Tensor]:
            seen.append((step.index, step.place))
            return MeanGradient().gradient(step)

    train(step.network, step.weights, step.inputs, step.targets, plan, Training(lr=0.1), Watch(), stream(0, "noise"))
    assert seen == [(0, 0), (1, 1), (2, 0), (3, 1), (4, 0), (5, 1)]


def test_without_decay_it_is_in_every_step(step: Step) -> None:
    plain = flat(list(MeanGradient().gradient(step)))
    later = replace(step, index=10**6)
    assert all(not torch.equal(flat(list(Outpost(decay=0.0).gradient(later))), plain) for _ in range(20))


def test_the_risk_is_the_variance_of_the_weights() -> None:
    assert float(risk(torch.tensor([1.0, 2.0, 4.0]))) == 1.0  # at most
    assert float(risk(torch.tensor([0.1, 0.2, 0.4]))) == pytest.approx(np.var([0.1, 0.2, 0.4], ddof=1))
    assert float(risk(torch.tensor([5.0]))) == 0.0


@pytest.mark.parametrize("part", [Outpost(), Outpost(noise=0.1, pruned=0.2, fisher=OutputMean())], ids=repr)
def test_repr_and_determinism(step: Step, part: Outpost) -> None:
    assert eval(repr(part)) == part
    first, again = (flat(list(part.gradient(replace(step, generator=stream(1, "noise"))))) for _ in range(2))
    assert torch.equal(first, again)


def test_the_order_of_the_examples_does_not_matter(step: Step) -> None:
    order = torch.tensor([2, 0, 3, 1])
    shuffled = replace(step, inputs=step.inputs[order], targets=step.targets[order], generator=stream(0, "noise"))
    part = Outpost(decay=0.0)
    torch.testing.assert_close(list(part.gradient(step)), list(part.gradient(shuffled)))


@pytest.mark.parametrize(
    "bad", [{"noise": -1.0}, {"pruned": 1.0}, {"perturbed": 1.1}, {"perturbed": -0.1}, {"decay": -0.1}], ids=str
)
def test_bad_strengths_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=f"Outpost.{next(iter(bad))} must be"):
        Outpost(**bad)
