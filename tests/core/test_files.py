"""The file layer: links, pipes, sizes, modes and what killed processes leave."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fedglass.core.files
from fedglass.core.files import (
    RefusedFile,
    _machine,
    check_file,
    follow_links,
    locked,
    make_folder,
    open_file,
    read_file,
    temporary_folder,
    write_atomic,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such links, pipes and modes")


@pytest.fixture(autouse=True)
def nothing_searched_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedglass.core.files, "_swept", set())


def read(path: Path, within: Path | None = None) -> bytes:
    return read_file(path, 100, within=within)


READERS: list[Callable[[Path], object]] = [read, check_file, lambda path: open_file(path).__enter__()]


@pytest.mark.parametrize("reader", READERS)
def test_links_pipes_and_folders_are_not_read(reader: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to("secret")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name, problem in (("link", "is a link"), ("pipe", "pipe or a device"), ("zero", "is a link")):
        with pytest.raises(RefusedFile, match=problem):
            reader(tmp_path / name)
    with pytest.raises(RefusedFile, match="pipe or a device"):
        reader(Path("/dev/null"))
    with pytest.raises(IsADirectoryError):
        reader(tmp_path)
    with pytest.raises(FileNotFoundError):
        reader(tmp_path / "missing")


def test_a_link_that_the_user_names_is_followed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("text")
    (tmp_path / "link").symlink_to("data")
    (tmp_path / "loop").symlink_to("loop")
    assert read(follow_links(tmp_path / "link" / "file")) == b"text"
    assert read(tmp_path / "link" / "file") == b"text", "the folder is the user's choice"
    with pytest.raises(RefusedFile, match="is a link"):
        read(follow_links(tmp_path / "loop"))


@pytest.mark.parametrize("path", ["link/file", "../secret", "inner/../../secret", "/etc/passwd", "inner/link/file"])
def test_nothing_leads_out_of_a_folder_of_others(path: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "inner").mkdir(parents=True)
    (tmp_path / "file").write_text("secret")
    (tmp_path / "secret").write_text("secret")
    (root / "link").symlink_to(tmp_path)
    (root / "inner" / "link").symlink_to(tmp_path)
    with pytest.raises(RefusedFile):
        read(root / path, within=root)
    with pytest.raises(RefusedFile):
        write_atomic(root / path, "new", within=root)
    assert (tmp_path / "file").read_text() == (tmp_path / "secret").read_text() == "secret"


def test_large_files_are_refused_before_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_file(tmp_path / "file", 5) == b"12345"
    with pytest.raises(RefusedFile, match="has 5 bytes, expected at most 4"):
        read_file(tmp_path / "file", 4)


def test_what_is_written_is_private_and_whole(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_folder(tmp_path / "made" / "folder")
        write_atomic(tmp_path / "made" / "folder" / "a" / "b" / "file", "text", within=tmp_path / "made" / "folder")
        with locked(tmp_path / "made" / "folder" / "lock"):
            pass
    finally:
        os.umask(before)
    paths = [tmp_path / "made" / "folder", *(tmp_path / "made" / "folder").rglob("*")]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in paths}
    assert modes == {"folder": 0o700, "a": 0o700, "b": 0o700, "file": 0o600, "lock": 0o600}


def test_planted_links_are_replaced_and_never_written_through(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    victim.write_text("precious")
    folder.mkdir()
    (folder / "file").symlink_to(victim)
    (folder / f".file.{os.getpid()}.tmp").symlink_to(victim)
    (folder / "lock").symlink_to(victim)
    write_atomic(folder / "file", "new")
    assert victim.read_text() == "precious"
    assert (folder / "file").read_text() == "new"
    with pytest.raises(RefusedFile), locked(folder / "lock"):
        pass


def test_a_lock_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(RefusedFile, match="pipe"), locked(tmp_path / "lock"):
        pass


def test_a_failed_write_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("old")

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_atomic(tmp_path / "file", "new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "old"}
    write_atomic(tmp_path / "file", "a picture", durable=False)
    assert (tmp_path / "file").read_text() == "a picture", "the disk is not waited for"


KILLED = """
import os, signal, sys
from pathlib import Path
import fedglass.core.files as files
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
files.write_atomic(Path(sys.argv[1]), "half")
"""


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "file")])
    assert killed.returncode < 0
    assert len(list(tmp_path.iterdir())) == 1
    write_atomic(tmp_path / "file", "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_leftovers_stay_while_their_process_may_be_running(tmp_path: Path) -> None:
    running, ended = os.getppid(), _ended_process()
    stays = [
        f".fedglass-{_machine()}-{running}-{'0' * 16}.tmp",
        f".fedglass-{'f' * 8}-{ended}-{'0' * 16}.tmp",
        f".fedglass-{_machine()}-{ended}-short.tmp",
        ".somebody-elses.tmp",
    ]
    goes = [f".fedglass-{_machine()}-{ended}-{'1' * 16}.tmp", f".fedglass-{'f' * 8}-{ended}-{'1' * 16}.tmp"]
    for name in (*stays, goes[0]):
        (tmp_path / name).write_text("")
    (tmp_path / goes[1]).mkdir()
    (tmp_path / goes[1] / "part").write_text("")
    os.utime(tmp_path / goes[1], (time.time() - 25 * 3600,) * 2)
    write_atomic(tmp_path / "file", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["file", *stays])


def _ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_temporary_folder_is_private_and_goes_away(tmp_path: Path) -> None:
    with temporary_folder(tmp_path) as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "file").write_text("")
    assert not list(tmp_path.iterdir())
