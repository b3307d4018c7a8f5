"""The defences by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fedglass.core.errors import UsageError
from fedglass.core.registry import built_in, summaries
from fedglass.core.rng import stream
from fedglass.defend import defence
from fedglass.fl.local import Step
from fedglass.fl.release import Outgoing

DEFENCES = built_in("defences")


def made(name: str) -> object:
    """The defence with every option that has no default set to a half."""
    known = inspect.signature(DEFENCES[name].value).parameters
    return defence(name, **{o: 0.5 for o, p in known.items() if p.default is p.empty})


@pytest.mark.parametrize("name", DEFENCES)
def test_each_is_one_kind_of_part_and_runs(name: str, step: Step) -> None:
    part = made(name)
    if hasattr(part, "gradient"):
        found = list(part.gradient(replace(step, generator=stream(5, "noise"))))
    else:
        update = {n: w.detach() for n, w in zip(step.network.names, step.weights, strict=True)}
        found = list(part.release(Outgoing(update, stream(5, "noise"))).values())
    assert hasattr(part, "gradient") != hasattr(part, "release")
    assert [t.shape for t in found] == [w.shape for w in step.weights]
    assert all(bool(torch.isfinite(t).all()) for t in found)


def test_every_defence_has_a_summary_and_a_source() -> None:
    assert list(summaries("defences")) == list(DEFENCES)
    assert all(entry.summary and "http" in entry.paper for entry in DEFENCES.values())


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: defence("soterai"), "did you mean 'soteria'"),
        (lambda: defence("clip", nrom=1.0), "did you mean 'norm'"),
        (lambda: defence("dpsgd", clip=1.0), "needs the option 'noise_multiplier'"),
        (lambda: defence("magnitude_pruning", share="70%"), "share must be a number"),
    ],
)
def test_bad_requests_are_explained(call: Callable[[], object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call()
