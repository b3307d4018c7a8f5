"""Laws of the record file: nothing finished is lost, nothing broken is read as if it were whole."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedglass.bounds.success import Game
from fedglass.core.errors import AuditError, DataError, UsageError
from fedglass.core.files import write_atomic
from fedglass.verdict.directory import Evidence, Reconstructed, RecordFile, Strips, claim
from fedglass.verdict.doubts import DoubtKind, doubt
from fedglass.verdict.records import EXACT_PSNR, Certificate, Picture, Record


def make(key: str = "a", **fields: Any) -> Record:
    basic: dict[str, Any] = {
        "attack": "dlg",
        "attack_repr": "dlg()",
        "view": "server sees client 0's update",
        "round": 1,
        "client": "0",
        "repeat": 0,
        "seed": 0,
        "status": "done",
    }
    return Record(key=key, **{**basic, **fields})


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "records.jsonl")
    records = [
        make("a", metrics={"psnr": [20.5, None]}, doubts=[doubt(DoubtKind.NOT_REPLAYED, why="é\n<b>", names=["a", 1])]),
        make("b", pictures=[Picture(original="pictures/b/o.png", reconstruction="pictures/b/r.png")]),
        make("c", extra={"nested": [1, {"a": None}]}, utility={"test accuracy": 0.9}),
        make("d", kind="game", game=Game(records=9, candidates=1000, top1=0.5, low=0.2, high=0.8, rank_p=[0.001])),
        make("e", kind="certificate", certificate=Certificate(method="record", accounting="gaussian", success=[0.02])),
    ]
    for record in records:
        file.append(record)
    assert file.read() == records
    assert file.path.read_bytes().count(b"\n") == 5


def test_no_file_is_no_records(tmp_path: Path) -> None:
    assert RecordFile(tmp_path / "none.jsonl").read() == []


def test_non_finite_numbers_become_null_and_an_exact_copy_stays_a_leak() -> None:
    record = make(
        metrics={"psnr": [math.inf, math.nan], "rmse": [math.inf, 1.0]},
        energy=math.nan,
        trace=[1.0, math.nan, 0.5, math.inf],
        utility={"test loss": math.inf},
        extra={"a": [math.nan, {"b": -math.inf}]},
    )
    assert record.metrics == {"psnr": [EXACT_PSNR, None], "rmse": [None, 1.0]}
    assert (record.energy, record.trace, record.utility) == (None, [1.0, 0.5], {"test loss": None})
    assert record.extra == {"a": [None, {"b": None}]}
    json.loads(record.line(), parse_constant=pytest.fail)


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "failed"},
        {"error": "but done"},
        {"key": "../up"},
        {"surprise": 1},
        {"schema_version": 1},
        {"seconds": math.nan},
        {"kind": "opinion"},
        {"doubts": [{"kind": "optimiser failed"}]},
        {"flags": []},
        {"absence": None},
    ],
)
def test_refused_records(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make(**fields)


@pytest.mark.parametrize("path", ["/etc/passwd", "../x.png", "a/../../x.png", "", "a\\..\\x.png"])
def test_pictures_stay_inside(path: str) -> None:
    with pytest.raises(ValidationError, match="inside the audit directory"):
        Picture(original=path, reconstruction="r.png")
    with pytest.raises(ValidationError, match="inside the audit directory"):
        Picture(original="o.png", reconstruction="r.png", raw=path)
    with pytest.raises(ValidationError, match="inside the audit directory"):
        Picture(original="o.png", reconstruction="r.png", film=path)


def test_a_record_from_before_images_were_kept_raw_is_read(tmp_path: Path) -> None:
    record = make("a", metrics={"psnr": [20.5]}, pictures=[Picture(original="o.png", reconstruction="r.png")])
    old = json.loads(record.line())
    del old["metrics_raw"], old["energy_refined"], old["pictures"][0]["raw"]
    del old["pictures"][0]["film"], old["pictures"][0]["film_caption"], old["digest"]
    old["digest"] = hashlib.sha256(json.dumps(old, sort_keys=True).encode()).hexdigest()
    file = RecordFile(tmp_path / "records.jsonl")
    file.path.write_text(json.dumps(old) + "\n")
    assert file.read() == [record]


def test_raw_images_and_broken_refinements_are_recorded() -> None:
    record = make(metrics={"psnr": [math.nan]}, metrics_raw={"psnr": [math.inf]}, energy=0.5, energy_refined=math.nan)
    assert (record.metrics, record.metrics_raw) == ({"psnr": [None]}, {"psnr": [EXACT_PSNR]})
    assert (record.energy, record.energy_refined) == (0.5, None)


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 10_000))
def test_a_torn_tail_loses_only_itself(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever byte a kill stops at, whole records are kept and the next append lands on its own line."""
    file = RecordFile(tmp_path_factory.mktemp("torn") / "records.jsonl")
    first, second, third = make("a"), make("b", metrics={"psnr": [1.0]}), make("c")
    whole = first.line() + second.line()
    kept = len(first.line()) + cut % (len(second.line()) + 1)
    file.path.write_bytes(whole[:kept])
    expected = [first, second] if kept >= len(whole) - 1 else [first]
    assert file.read() == expected
    file.append(third)
    assert file.read() == [*expected, third]
    assert file.path.read_bytes() == b"".join(r.line() for r in [*expected, third])


def test_a_long_torn_tail_is_cut(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "records.jsonl")
    long = make("b", extra={"text": "x" * 200_000})
    file.path.write_bytes(make("a").line() + long.line()[:-9])
    file.append(make("c"))
    assert [r.key for r in file.read()] == ["a", "c"]


@pytest.mark.parametrize("broken", [b"{", b"", b"\xff\xfe", b"[1]", b'{"schema_version": 3}', b"[" * 9999])
def test_a_broken_line_is_named(tmp_path: Path, broken: bytes) -> None:
    file = RecordFile(tmp_path / "records.jsonl")
    file.path.write_bytes(make("a").line() + broken + b"\n" + make("b").line())
    with pytest.raises(DataError, match=r"line 2 is not a record .*delete that line"):
        file.read()


def test_a_changed_record_does_not_count(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "records.jsonl")
    for key in "ab":
        file.append(make(key, metrics={"psnr": [31.5]}))
    written = file.path.read_text()
    first, rest = written.split("\n", 1)
    for forged in (first.replace("31.5", "3.5"), first[: first.index(', "digest"')] + "}"):
        file.path.write_text(forged + "\n" + rest)
        assert [record.key for record in file.read()] == ["b"]
        assert [record.key for record in file.changed()] == ["a"]
    file.path.write_text(first.replace('"extra": {', '"extra": {"x": NaN') + "\n" + rest)
    assert [record.key for record in file.changed()] == ["a"], "JSON has no NaN"
    file.path.write_text(written.replace(": ", ":"))
    assert [record.key for record in file.read()] == ["a", "b"], "spaces are no content"


@pytest.mark.parametrize("pictures_of", ["reconstructed", "without truth", "strips"])
def test_a_record_counts_only_with_its_own_files(pictures_of: str, tmp_path: Path) -> None:
    array = np.zeros((1, 1, 2, 2))
    evidence: Evidence = {
        "reconstructed": Reconstructed(
            array, np.zeros(1), array, array + 0.5, ("1",), raw=array, film=array[None] + 0.2, film_captions=("",)
        ),
        "without truth": Reconstructed(array, np.zeros(1), array),
        "strips": Strips(array, array, array[None]),
    }[pictures_of]
    record, file = evidence.save(tmp_path, make("a")), RecordFile(tmp_path / "records.jsonl")
    file.append(record)
    paths = sorted(path for path in tmp_path.rglob("*") if path.is_file() and path != file.path)
    assert (file.read(), len(paths)) == ([record], {"reconstructed": 5, "without truth": 2, "strips": 3}[pictures_of])
    for path in paths:
        before = path.read_bytes()
        path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        assert (file.read(), file.changed()) == ([], [record])
        path.write_bytes(before)
        assert (file.changed(), file.missing()) == ([], [])
    for path in paths:
        path.unlink()
    assert file.read() == [record], "whoever may not keep private pictures may delete them"
    assert sorted(file.missing()) == [str(path.relative_to(tmp_path)) for path in paths]


@pytest.mark.parametrize("path", ["../other", "/etc/passwd", "a\0b", ""])
def test_a_record_names_no_file_elsewhere(path: str) -> None:
    with pytest.raises(ValidationError, match="inside the audit directory"):
        make("a", picture_files={path: "0" * 64})


def test_a_flood_of_records_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RecordFile(tmp_path / "records.jsonl")
    with file.path.open("wb") as sparse:
        sparse.truncate(2**28)
    tracemalloc.start()
    with pytest.raises(DataError, match=r"line 1 is not a record .more than 33554432 bytes.: delete that line"):
        file.read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**27
    os.truncate(file.path, 2**30)
    with pytest.raises(AuditError, match="it has 1073741824 bytes, expected at most 536870912"):
        file.read()
    file.path.write_bytes(make("a").line() * 3)
    for limit, most, says in (
        ("verdict.directory.MOST_RECORDS", 2, "more than 2 lines"),
        ("core.files.MOST_VALUES", 100, "more than 100 values"),
        ("core.files.MOST_CONTAINERS", 50, "more than 50 lists"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"fedglass.{limit}", most)
            with pytest.raises(DataError, match=says):
                file.read()
    assert len(file.history()) == 3


@pytest.mark.parametrize(
    "values",
    [
        {"metrics": {"psnr": [1.0, 2.0], "ssim": [1.0]}},
        {"metrics": {"psnr": [1.0]}, "blind": {"psnr": [1.0, 2.0]}},
        {"metrics": {"psnr": [1.0]}, "identity_preserved": [True, True]},
        {"certificate": {"method": "record", "accounting": "gaussian", "success": [0.1], "mu": ["many"]}},
    ],
)
def test_values_that_do_not_fit_each_other_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        make("a", **values)


def test_a_repeated_case_replaces_its_failure(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "records.jsonl")
    failed, other, done = make("a", status="failed", error="out of memory"), make("b"), make("a")
    for record in (failed, other):
        file.append(record)
    assert file.read() == [failed, other]
    file.append(done)
    assert file.read() == [done, other]
    assert file.history() == [failed, other, done]


def _append_many(path: Path, worker: int) -> None:
    for i in range(20):
        RecordFile(path).append(make(f"{worker}-{i}", extra={"text": "x" * 5000}))


def test_workers_share_the_file(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_append_many, args=(path, w)) for w in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert {r.key for r in RecordFile(path).read()} == {f"{w}-{i}" for w in range(4) for i in range(20)}


KILLED = """
import itertools, sys
from pathlib import Path
from fedglass.verdict.directory import RecordFile
from fedglass.verdict.records import Record
file = RecordFile(Path(sys.argv[1]))
for i in itertools.count():
    file.append(Record(key=str(i), attack="a", attack_repr="a()", view="v", round=1, client="0", repeat=0,
                       seed=0, status="done", extra={"text": "x" * 3000}))
    sys.stdout.write(f"{i}\\n"); sys.stdout.flush()
"""


def test_sigkill_loses_nothing_that_was_reported(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    time.sleep(0.1)
    os.kill(child.pid, signal.SIGKILL)
    reported = ["0", *child.stdout.read().split()]
    child.wait()
    child.stdout.close()
    keys = [r.key for r in RecordFile(path).read()]
    assert keys[: len(reported)] == reported
    assert len(keys) <= len(reported) + 1


def test_an_unwritable_file_is_an_audit_error(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"Cannot write .*continues where it stopped"):
        RecordFile(tmp_path / "missing" / "records.jsonl").append(make())


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RecordFile(tmp_path / "records.jsonl")
    file.append(make("a"))
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
    with pytest.raises(AuditError, match="no space left"):
        file.append(make("b"))
    assert file.path.read_bytes() == make("a").line()


def test_claim_is_for_one_plan(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "audit"
    claim(directory, "d1")
    claim(directory, "d1")
    with pytest.raises(UsageError, match=r"another plan's records, .* -o"):
        claim(directory, "d2")


def test_claim_refuses_records_of_unknown_origin(tmp_path: Path) -> None:
    RecordFile(tmp_path / "records.jsonl").append(make())
    with pytest.raises(UsageError, match="the plan of these records is unknown"):
        claim(tmp_path, "d1")


def old_directory(directory: Path, version: int) -> dict[str, bytes]:
    """A directory as an older version left it, and what is in it."""
    old = {**json.loads(make("a").line()), "schema_version": version, "flags": [], "absence": None}
    (directory / "records.jsonl").write_text(json.dumps(old) + "\n")
    (directory / "audit.json").write_text(json.dumps({"schema_version": version, "plan_digest": "d1"}))
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("version", [1, 2])
def test_a_directory_of_another_version_is_refused_in_one_sentence_and_stays(tmp_path: Path, version: int) -> None:
    before = old_directory(tmp_path, version)
    for look in (RecordFile(tmp_path / "records.jsonl").read, lambda: claim(tmp_path, "d1")):
        with pytest.raises(UsageError) as refusal:
            look()
        assert str(refusal.value) == (
            f"{tmp_path} was written by another version of fedglass (record schema {version}, expected 3): audit into "
            "another directory, or read it with that version; its files stay as they are."
        )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_message_of_a_record_is_its_view_in_its_round() -> None:
    assert make("a").message == make("b", attack="idlg", repeat=3).message
    assert len({make("a").message, make("a", round=2).message, make("a", view="other").message}) == 3


@pytest.mark.parametrize("content", ["", "{", "[]", '{"plan_digest": 3}', "[" * 100_000])
def test_claim_refuses_a_damaged_claim(tmp_path: Path, content: str) -> None:
    (tmp_path / "audit.json").write_text(content)
    with pytest.raises(UsageError, match="damaged"):
        claim(tmp_path, "d1")


def test_claim_needs_a_directory_it_can_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="Cannot write to the output directory"):
            claim(path, "d1")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_claim_needs_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="Permission denied"):
        claim(tmp_path, "d1")


def test_write_atomic_leaves_the_old_file_when_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "new \ud800")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_imports_no_torch() -> None:
    code = "import sys, fedglass.verdict.summary, fedglass.verdict.gate; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
