"""Killed with SIGKILL in the middle, an audit loses nothing, repeats nothing and leaves no process behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

from fedglass.verdict.directory import RECORDS, RecordFile
from fedglass.verdict.records import Record

from ..processes import alive, descendants, lines, wait_for

Run = Callable[..., Result]

COMMAND = "from fedglass.cli.main import main; main()"


def killed_after(first: int, plan: Path, out: Path) -> list[int]:
    """Start the audit as a process of its own, kill it once it has that many records; what ran under it, by id."""
    command = [sys.executable, "-c", COMMAND, "audit", str(plan), "-o", str(out), "--workers", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while lines(out / RECORDS) < first and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    family = descendants(process.pid)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the audit ended before it could be killed"
    return family


def test_an_edited_record_is_run_again(fedglass: Run, write_plan: Callable[..., Path], tmp_path: Path) -> None:
    plan, out = write_plan(), tmp_path / "out"
    fedglass("audit", plan, "-o", out)
    before = RecordFile(out / RECORDS).read()
    edited = (out / RECORDS).read_text().replace('"psnr": [', '"psnr": [1', 1)
    (out / RECORDS).write_text(edited)
    assert "1 record changed after the case was run" in fedglass("report", out).output
    assert len(RecordFile(out / RECORDS).read()) == len(before) - 1
    assert "1 record changed after the case was run" in fedglass("audit", plan, "-o", out).output
    after = {record.key: timeless(record) for record in RecordFile(out / RECORDS).read()}
    assert after == {record.key: timeless(record) for record in before}
    assert "changed after" not in fedglass("audit", plan, "-o", out).output


def test_a_replaced_picture_is_made_again_and_a_deleted_one_is_named(
    fedglass: Run, write_plan: Callable[..., Path], tmp_path: Path
) -> None:
    plan, out = write_plan(), tmp_path / "out"
    fedglass("audit", plan, "-o", out)
    picture = next(out.glob("pictures/*_0.png"))
    before = picture.read_bytes()
    picture.write_bytes(next(out.glob("pictures/original_*.png")).read_bytes())
    assert "1 record changed after the case was run" in fedglass("audit", plan, "-o", out).output
    assert picture.read_bytes() == before
    picture.unlink()
    for command in (("report", out), ("audit", plan, "-o", out)):
        assert f"1 file of reconstructions or pictures deleted, such as pictures/{picture.name}" in " ".join(
            fedglass(*command).output.split()
        )
    assert not picture.exists()


def timeless(record: Record) -> dict[str, object]:
    return record.model_dump(exclude={"seconds", "peak_mib", "finished"})


def test_a_killed_audit_continues_where_it_was(fedglass: Run, write_plan: Callable[..., Path], tmp_path: Path) -> None:
    plan = write_plan(("clients = 2", "clients = 6"), ("iterations = 3", "iterations = 100"))
    out, whole = tmp_path / "out", tmp_path / "whole"
    family = killed_after(1, plan, out)
    assert len(family) >= 3, "two workers and what they were started from"
    wait_for(lambda: True if not any(map(alive, family)) else None)  # orphans would go on burning cores
    survived = RecordFile(out / RECORDS).read()
    assert 1 <= len(survived) < 6 * 4
    with (out / RECORDS).open("ab") as file:
        file.write(b'{"schema_version":3,"key":"torn')  # as if the kill had come in the middle of a line

    assert fedglass("audit", plan, "-o", out, "--workers", 1).exit_code == 0
    history = RecordFile(out / RECORDS).history()
    assert len(history) == 6 * 4, "every case ran exactly once"
    assert history[: len(survived)] == survived, "what was finished is untouched, times and all"

    fedglass("audit", plan, "-o", whole, "--workers", 1)
    undisturbed = {r.key: timeless(r) for r in RecordFile(whole / RECORDS).read()}
    assert {r.key: timeless(r) for r in history} == undisturbed
    for record in history:
        assert all((out / picture.reconstruction).is_file() for picture in record.pictures)
