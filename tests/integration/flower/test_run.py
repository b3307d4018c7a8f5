"""Real runs of Flower's simulation engine, as short as they can be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from fedglass.federation.truth import Truths
from fedglass.recordings.facts import preferred
from fedglass.recordings.join import join
from fedglass.recordings.observed import contradictions_of
from fedglass.recordings.reader import read_bundle

SCRIPT = Path(__file__).with_name("simulations.py")
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else a single node listens on all interfaces
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}


def run(kind: str, folder: Path) -> None:
    # Ray's sockets need a short path, and a folder of its own: what another cluster left behind makes it hang.
    with TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as ray:
        done = subprocess.run(
            [sys.executable, str(SCRIPT), kind, str(folder)],
            env={**os.environ, **QUIET, "RAY_TMPDIR": ray},
            capture_output=True,
            text=True,
            timeout=600,
            cwd=folder,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    run("plain", folder)
    return folder


def test_a_real_run_is_a_whole_bundle(plain: Path) -> None:
    bundle = read_bundle(plain / "bundle")

    assert sorted(bundle.rounds) == [1, 2]
    assert sorted(bundle.clients) == ["client-0", "client-1", "client-2"]
    for index in bundle.rounds:
        assert [finding.text for finding in contradictions_of(bundle, index)] == []
        for client in bundle.clients:
            told = bundle.facts_of(client, index)
            assert [preferred(told, name) for name in ("optimiser", "lr", "steps", "examples")] == ["SGD", 0.1, 1, 4]
            assert preferred(told, "config") == {"lr": 0.1, "server-round": index}


def test_the_truth_of_each_client_stays_with_it(plain: Path) -> None:
    for i in range(3):
        own = Truths.load(plain / "bundle-truth" / f"client-{i}").examples[f"client-{i}"]
        expected = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(i))
        assert torch.equal(own.images, expected)


def test_secure_aggregation_shows_the_aggregate_alone(tmp_path: Path) -> None:
    run("secure", tmp_path)

    clients = sorted((tmp_path / "clients").iterdir())
    bundle = join(tmp_path / "joined", [tmp_path / "bundle", *clients])

    assert preferred(bundle.facts, "sees") == "aggregate"
    past = bundle.rounds[1]
    assert sorted(bundle.clients) == ["client-0", "client-1", "client-2"]
    assert [message.received for message in past.messages] == [None] * 3
    assert past.sent is not None
    assert past.aggregated is not None
    before, after = bundle.arrays(past.sent), bundle.arrays(past.aggregated)
    assert list(after) == ["0", "1", "2", "3"]
    assert all(not torch.equal(before[name], after[name]) for name in after)
    for client in bundle.clients:
        assert preferred(bundle.facts_of(client, 1), "examples") == 4
        assert preferred(bundle.facts_of(client, 1), "optimiser") == "SGD"
