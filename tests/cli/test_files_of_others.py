"""Links and pipes that others have planted: no command reads or writes through a link, and none waits for a pipe."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedglass.cli.main import cli
from fedglass.core.errors import FedglassError
from fedglass.data.catalogue import load
from fedglass.models.catalogue import build
from fedglass.models.init import by_name

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such links and pipes")
SMALL = """
[federation]
data = "photos"
size = 16
clients = 2
examples = 1
training.lr = 0.1
[[attacks]]
name = "inverting_gradients"
iterations = 3
"""
SECRET = "the user's password"


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """Waiting for a pipe ends as an error."""

    def stop(*_: object) -> None:
        raise TimeoutError("waited for a pipe")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def audited_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited")
    (folder / "plan.toml").write_text(SMALL)
    CliRunner().invoke(cli, ["audit", str(folder / "plan.toml"), "-o", str(folder / "out")], catch_exceptions=False)
    return folder


@pytest.fixture
def audited(audited_once: Path, tmp_path: Path) -> Path:
    """An audit folder, next to its plan."""
    shutil.copytree(audited_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "out"


def pipe(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def test_a_report_does_not_show_the_file_behind_a_linked_plan(
    fedglass: Callable[..., Result], audited: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(SECRET)
    (audited / "plan.toml").unlink()
    (audited / "plan.toml").symlink_to(tmp_path / "secret")
    assert fedglass("report", str(audited)).exit_code == 0
    assert SECRET not in (audited / "report.html").read_text()


@pytest.mark.parametrize("name", ["audit.json", "summary.json", "records.jsonl", "plan.toml", ".lock"])
def test_no_command_waits_for_a_pipe_in_an_audit_folder(
    fedglass: Callable[..., Result], audited: Path, tmp_path: Path, name: str
) -> None:
    pipe(audited / name)
    for command in (("report", str(audited)), ("audit", str(tmp_path / "plan.toml"), "-o", str(audited))):
        result = fedglass(*command)
        assert result.exit_code in (0, 1, 2, 3)
        assert "Traceback" not in result.output
        assert not isinstance(result.exception, TimeoutError)


@pytest.mark.parametrize("name", ["pictures", "reconstructions"])
def test_an_audit_does_not_write_through_a_linked_folder(
    fedglass: Callable[..., Result], write_plan: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(tmp_path / "elsewhere")
    result = fedglass("audit", str(write_plan()), "-o", str(tmp_path / "out"))
    assert result.exit_code == 3
    assert f"{name} is a link, which is not followed" in result.output
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("name", ["plan.toml", "audit.json", "summary.json", "report.html", "records.jsonl", ".lock"])
def test_an_audit_does_not_write_through_a_linked_file(
    fedglass: Callable[..., Result], write_plan: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(tmp_path / "secret")
    fedglass("audit", str(write_plan()), "-o", str(tmp_path / "out"))
    assert (tmp_path / "secret").read_text() == SECRET


def test_an_audit_folder_is_for_its_owner_alone(audited: Path) -> None:
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in (audited, *audited.rglob("*"))}
    assert {path.name for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)} == set()


@pytest.mark.parametrize("source", ["npz:{}", "leaf:{}", "cifar10:{}", "cifar100:{}", "idx:{}", "{}"])
def test_no_reader_of_data_waits_for_a_pipe(source: str, tmp_path: Path) -> None:
    with pytest.raises(FedglassError):
        load(source.format(pipe(tmp_path / "pipe")))


def test_no_folder_of_pictures_waits_for_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "pictures" / "cat").mkdir(parents=True)
    pipe(tmp_path / "pictures" / "cat" / "a.png")
    with pytest.raises(FedglassError, match="pipe or a device"):
        load(f"folder:{tmp_path / 'pictures'}")


@pytest.mark.parametrize("init", ["file", "transfer"])
def test_no_initialisation_waits_for_a_pipe(init: str, tmp_path: Path) -> None:
    with pytest.raises(FedglassError):
        build("lenet", shape=(3, 16, 16), classes=2, init=by_name(f"{init}:{pipe(tmp_path / 'pipe')}"))


def test_no_plan_is_awaited_from_a_pipe(fedglass: Callable[..., Result], tmp_path: Path) -> None:
    result = fedglass("check", str(pipe(tmp_path / "plan.toml")))
    assert result.exit_code == 2
    assert "pipe or a device" in result.output


def test_links_that_the_user_names_are_followed(
    fedglass: Callable[..., Result], write_plan: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    (tmp_path / "named.toml").symlink_to(write_plan())
    result = fedglass("audit", str(tmp_path / "named.toml"), "-o", str(tmp_path / "link"))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "disk" / "report.html").is_file()
