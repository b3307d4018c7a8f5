"""What is said before Ray is asked for anything. tests/integration/ray has the rest, which needs it."""

from __future__ import annotations

import importlib.util
import socket
import stat
from pathlib import Path

import pytest

from fedglass.core.errors import AuditError, UsageError
from fedglass.execution.ray import OnRay, joined_cluster


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a user who has no token."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def join(address: str) -> None:
    with joined_cluster(address, 0, 0, patience=2.0):
        raise AssertionError("there is no cluster")


@pytest.mark.parametrize("address", ["head", "head:", ":6379", "head:port", "head:99999", "ray://head:10001", "auto"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(UsageError, match=r"must be HOST:PORT, such as 10\.0\.0\.5:6379, got"):
        join(address)


def test_a_missing_token_is_said_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="needs its token, and none is set here: set RAY_AUTH_TOKEN"):
        join("127.0.0.1:6379")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(home / "no-such-file"))
    with pytest.raises(UsageError, match="no-such-file"):
        join("127.0.0.1:6379")


def test_a_cluster_that_is_not_there_is_said_and_the_token_is_closed_to_others(home: Path) -> None:
    token = home / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("secret")
    token.chmod(0o644)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listened on
        with pytest.raises(AuditError, match=r"No Ray cluster can be reached at 127\.0\.0\.1:\d+ \(.*refused.*\)"):
            join(f"127.0.0.1:{taken.getsockname()[1]}")
    assert stat.S_IMODE(token.stat().st_mode) == 0o600


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"not installed: pip install fedglass\[ray\]"):
        OnRay()
