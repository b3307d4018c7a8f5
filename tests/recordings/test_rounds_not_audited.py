"""A certificate covers all rounds of a recording: those that are not audited must be protected alike."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from fedglass.models.catalogue import build
from fedglass.recordings import BundleWriter
from fedglass.verdict.doubts import DoubtKind

from .federations import CLASSES, SHAPE, TERMS
from .test_plans import details, job, sources, targets, unread

DEFENCES = [{"name": "clip", "options": {"norm": 0.1}}, {"name": "gaussian_noise", "options": {"std": 0.3}}]
IN_PLAN = 'defended = [{ name = "clip", norm = 0.1 }, { name = "gaussian_noise", std = 0.3 }]'
LACKING = r"noise of standard deviation 0\.3 is declared, but \d tensor\(s\) hold less .*\(round 2\)"


def three_rounds(
    folder: Path,
    *,
    noisy: bool = True,
    drift: float = 0.0,
    told: bool = True,
    model: str = "lenet",
    sees: str = "each",
    **facts: Any,
) -> Path:
    """Three rounds with heavy noise; the second may lack it, or drift beside it, and has these facts."""
    state = dict(build(model, shape=SHAPE, classes=CLASSES).state_dict())
    writer = BundleWriter(folder / "b", facts={**TERMS, "sees": sees, "model": model})
    for index in (1, 2, 3):
        std = 0.3 if noisy or index != 2 else 1e-4
        generator = torch.Generator().manual_seed(index)
        away = drift if index == 2 else 0.0
        noise = {name: away + std * torch.randn(t.shape, generator=generator) for name, t in state.items()}
        moved = {name: 0.1 * (index == 2) for name in state if name.endswith("running_mean")}
        still = dict.fromkeys((name for name in state if name.endswith(("running_var", "tracked"))), 0)
        reply = {name: t + {**noise, **moved, **still}[name] for name, t in state.items()}
        more = facts if index == 2 else {}
        writer.round(index).sent(state)
        if sees == "each":
            writer.round(index).received("a", reply, examples=2)
        if sees == "each" and told:
            writer.training("a", index, {"defences": DEFENCES, **more}, source="declared")
        writer.round(index).aggregated(reply)
        state = reply
    return folder


def test_rounds_with_the_declared_noise_are_not_doubted(tmp_path: Path) -> None:
    assert all(not details(target, DoubtKind.NOT_AS_DECLARED) for target in targets(job(three_rounds(tmp_path))))


@pytest.mark.parametrize("keys", ["", IN_PLAN])
def test_noise_that_is_missing_in_a_round_between(tmp_path: Path, keys: str) -> None:
    made = job(three_rounds(tmp_path, noisy=False), keys)
    assert sources(made)[0].transcript.rounds.keys() == {1, 3}
    assert re.search(LACKING, details(targets(made)[0], DoubtKind.NOT_AS_DECLARED)["found"])


def test_an_update_that_was_not_clipped_in_a_round_between(tmp_path: Path) -> None:
    found = targets(job(three_rounds(tmp_path, drift=1.0, told=False), IN_PLAN))
    said = details(found[0], DoubtKind.NOT_AS_DECLARED)["found"]
    assert re.search(r"norm is .* where at most 0\.1 is declared: it was not clipped so \(round 2\)", said)


def test_running_statistics_that_moved_in_a_round_between(tmp_path: Path) -> None:
    found = targets(job(three_rounds(tmp_path, model="resnet8")))
    assert (
        "left with the update, and no noise covers it (round 2)"
        in details(found[0], DoubtKind.NOT_AS_DECLARED)["found"]
    )


def test_an_aggregate_without_its_noise_in_a_round_between(tmp_path: Path) -> None:
    made = job(three_rounds(tmp_path, noisy=False, sees="aggregate"), f"{IN_PLAN}\nexamples = 2")
    assert re.search(LACKING, details(targets(made)[0], DoubtKind.NOT_AS_DECLARED)["found"])


def test_a_payload_in_a_round_between(tmp_path: Path) -> None:
    made = job(three_rounds(tmp_path, metrics={"picture": [0.5] * 100}))
    assert all(unread(target) == ("metric picture (round 2)",) for target in targets(made))


def test_a_round_with_other_defences_is_audited_too(tmp_path: Path) -> None:
    (source,) = sources(job(three_rounds(tmp_path, noisy=False, defences=[])))
    assert source.transcript.rounds.keys() == {1, 2, 3}
    assert not source.defences
