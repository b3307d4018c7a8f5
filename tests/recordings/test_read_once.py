"""Every file of a bundle is opened, hashed and parsed once in a process, from the same bytes."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

from fedglass import api
from fedglass.core.errors import UsageError
from fedglass.core.registry import built_in
from fedglass.plan import draft as drafts
from fedglass.plan.compile import compile_plan
from fedglass.plan.draft import draft
from fedglass.plan.schema import parse_plan
from fedglass.recordings import read_bundle
from fedglass.recordings.reader import Bundle, files_of

from .federations import Real

OPENED: list[Counter[str]] = []
"""Counters of the running measurements: a hook of the interpreter cannot be taken away again."""


def _count_open(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and OPENED and isinstance(arguments[0], str | bytes | os.PathLike):
        OPENED[-1][os.path.basename(os.fsdecode(arguments[0]))] += 1


sys.addaudithook(_count_open)


@contextmanager
def opened_files() -> Iterator[Counter[str]]:
    """Count inside how often a file of each name is opened."""
    OPENED.append(Counter())
    try:
        yield OPENED[-1]
    finally:
        OPENED.pop()


def check_each_once(folder: Path, counter: Counter[str]) -> None:
    """Check by name, since files may be opened as seen from their folder: truths of several clients share a name."""
    files = Counter(path.name for path in folder.rglob("*") if path.suffix in (".json", ".safetensors"))
    assert files
    assert {name: counter[name] for name in files} == dict(files)


def test_an_audit_opens_each_file_once_before_the_first_attack(
    fedglass: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Real(sizes=(1, 2, 1), rounds=3).record(tmp_path / "b")

    def stop(*arguments: object, **options: object) -> None:
        raise UsageError("The first attack would run now.")

    monkeypatch.setattr(api, "run_and_report", stop)
    with opened_files() as counter:
        outcome = fedglass("audit", tmp_path / "b", "-o", tmp_path / "out", "--workers", 1)
    assert "The first attack would run now." in outcome.stderr
    check_each_once(tmp_path / "b", counter)
    check_each_once(tmp_path / "b-truth", counter)


def test_a_whole_audit_opens_each_file_once(
    fedglass: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Real(sizes=(1,), rounds=2).record(tmp_path / "b")
    attacks = built_in("attacks")
    monkeypatch.setattr(drafts, "built_in", lambda kind: {"idlg": attacks["idlg"]})
    with opened_files() as counter:
        outcome = fedglass("audit", tmp_path / "b", "-o", tmp_path / "out", "--workers", 1)
    assert outcome.exit_code in (0, 1, 3)
    assert (tmp_path / "out" / "report.html").is_file()
    check_each_once(tmp_path / "b", counter)


def test_tables_of_one_bundle_share_its_reading(tmp_path: Path) -> None:
    Real(sizes=(1, 2), rounds=2).record(tmp_path / "b")
    table = '[[recording]]\nname = "round {0}"\nbundle = "b"\nmodel = "lenet"\nrounds = [{0}]\n'
    plan = parse_plan("\n".join(table.format(index) for index in (1, 2)) + '[[attacks]]\nname = "idlg"\n')
    with opened_files() as counter:
        job = compile_plan(plan, tmp_path)
    assert [source.name for source in job.sources] == ["round 1", "round 2"]
    check_each_once(tmp_path / "b", counter)


def test_arrays_that_do_not_fit_the_cache_are_read_again(tmp_path: Path) -> None:
    Real(sizes=(1, 1), rounds=1).record(tmp_path / "b")
    whole = read_bundle(tmp_path / "b")
    refs = [ref for round_ in whole.rounds.values() for ref in files_of(round_)]
    bundle = Bundle(whole.folder, whole.manifest, whole.rounds, most_cached_bytes=2 * refs[0].bytes)
    with opened_files() as counter:
        arrays = [bundle.arrays(ref) for ref in (refs[0], refs[1], refs[0], refs[2], refs[0], refs[1])]
    assert [counter[ref.file] for ref in refs[:3]] == [1, 2, 1], "the second file was dropped for the third"
    assert all(torch.equal(arrays[1][name], arrays[5][name]) for name in arrays[1])


@pytest.mark.parametrize("path", [None, "../b"])
@pytest.mark.parametrize("rounds", [1, 2])
def test_the_written_plan_is_the_drafted_one(tmp_path: Path, path: str | None, rounds: int) -> None:
    Real(sizes=(1, 2), rounds=rounds).record(tmp_path / "b")
    drafted = draft(tmp_path / "b", path=path, model="lenet", public="photos")
    parsed = parse_plan(drafted.text)
    assert parsed == drafted.plan
    assert parsed.adversary.model_fields_set == drafted.plan.adversary.model_fields_set
    assert parsed.adversary.together == ("also" if rounds == 2 else False)


def test_the_written_plan_of_an_incomplete_bundle_is_the_drafted_one(tmp_path: Path) -> None:
    Real().record(tmp_path / "b", whitening=None)
    drafted = draft(tmp_path / "b")
    assert drafted.problem
    assert parse_plan(drafted.text) == drafted.plan
