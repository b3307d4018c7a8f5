"""A recorder that is killed while it writes leaves a whole bundle, and another one continues it."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fedglass.recordings import read_bundle

RECORDER = """
import sys, torch
from fedglass.recordings import BundleWriter
writer = BundleWriter(sys.argv[1], resume=True)
for index in range(int(sys.argv[2]), 10**6):
    turn = writer.round(index)
    turn.sent({"w": torch.full((20_000,), float(index))})
    for client in "ab":
        turn.received(client, {"w": torch.full((20_000,), index + 1.0)}, examples=3)
        writer.training(client, index, {"optimiser": "SGD", "lr": 0.1, "steps": 1}, source="read")
    turn.aggregated({"w": torch.full((20_000,), index + 1.0)})
    print(index, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no such signal here")
def test_every_round_that_was_finished_is_there(tmp_path: Path) -> None:
    finished: list[int] = []
    for _ in range(3):
        first = finished[-1] + 2 if finished else 0  # the round that was begun stays as it was left
        finished += _killed(tmp_path / "b", first)

        bundle = read_bundle(tmp_path / "b")
        assert set(finished) <= set(bundle.rounds)
        assert max(bundle.rounds) <= finished[-1] + 1
        for index in finished:
            past = bundle.rounds[index]
            assert past.aggregated is not None
            assert torch.equal(bundle.arrays(past.aggregated)["w"], torch.full((20_000,), index + 1.0))
            assert [message.received is not None for message in past.messages] == [True, True]


def _killed(folder: Path, first: int) -> list[int]:
    """The rounds that a recorder says it has written, until it was killed at any moment."""
    with subprocess.Popen(
        [sys.executable, "-c", RECORDER, str(folder), str(first)], stdout=subprocess.PIPE, text=True
    ) as recorder:
        assert recorder.stdout is not None
        said = [recorder.stdout.readline()]
        time.sleep(random.uniform(0.0, 0.3))
        recorder.kill()
        said += recorder.stdout.readlines()
    assert recorder.returncode == -signal.SIGKILL
    return [int(line) for line in said]
