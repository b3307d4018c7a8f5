"""Accepted findings change the exit code alone, until their date, and are listed wherever the audit is reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedglass.core.errors import UsageError
from fedglass.report.audit_page import write_report
from fedglass.report.pipelines import write_junit, write_markdown, write_sarif
from fedglass.verdict.doubts import DoubtKind, doubt
from fedglass.verdict.gate import Gate
from fedglass.verdict.judge import judge
from fedglass.verdict.outcomes import (
    AcceptedFinding,
    FindingBaseline,
    outcomes_of,
    read_audit,
    read_baseline,
    records_of,
)
from fedglass.verdict.records import Certificate, Record

TODAY = date(2026, 3, 1)
REASON = "public <b>photographs</b> | ticket 12"


def record(key: str, **changes: object) -> Record:
    fields = {"attack": key.partition("-")[0], "attack_repr": "x", "view": "the server sees client 0", "round": 1}
    more = {"client": "0", "repeat": 0, "seed": 0, "status": "done"}
    return Record.model_validate({"key": key, **fields, **more, **changes})


LEAK = record("exact-0", metrics={"psnr": [40.0]}, blind={"psnr": [10.0]})
HARMLESS = record("idlg-0", metrics={"psnr": [5.0]}, blind={"psnr": [10.0]})
UNBOUNDED = record("certificate-0", kind="certificate", doubts=[doubt(DoubtKind.NO_NOISE)])
FAILED = record("dlg-0", status="failed", error="out of memory")
BOUNDED = record(
    "certificate-1",
    kind="certificate",
    certificate=Certificate(method="record", accounting="gaussian", success=[0.002]),
)
ALL = [LEAK, HARMLESS, UNBOUNDED]


def accepting(*records: Record, days: int = 30) -> FindingBaseline:
    expires = TODAY + timedelta(days)
    return FindingBaseline(tuple(AcceptedFinding(record=r.key, reason=REASON, expires=expires) for r in records), TODAY)


def code(baseline: FindingBaseline, records: list[Record], missing: int | None = 0, gate: Gate = Gate()) -> int:  # noqa: B008  # frozen
    return baseline.apply(judge(records, gate, missing), outcomes_of(records, gate), gate, missing).exit_code


def test_the_exit_code_counts_what_is_not_accepted() -> None:
    assert code(FindingBaseline(), ALL) == 1
    assert code(accepting(UNBOUNDED), ALL) == 1
    assert code(accepting(LEAK), ALL) == 3  # nothing bounds the message
    assert code(accepting(LEAK), ALL, gate=Gate(inconclusive_fails=False)) == 0
    assert code(accepting(LEAK, UNBOUNDED), ALL) == 0
    assert code(accepting(LEAK), [LEAK, BOUNDED]) == 0
    assert code(accepting(LEAK, UNBOUNDED), [*ALL, FAILED]) == 3
    assert code(accepting(LEAK, UNBOUNDED, FAILED), [*ALL, FAILED]) == 0


@pytest.mark.parametrize("missing", [None, 2])
def test_cases_that_have_not_run_cannot_be_accepted(missing: int | None) -> None:
    assert code(accepting(*ALL), ALL, missing) == 3
    assert code(accepting(LEAK), [LEAK], missing) == 3


def test_a_message_without_a_certificate_is_not_passed_over() -> None:
    assert code(accepting(LEAK), [LEAK.model_copy(update={"round": 2}), BOUNDED]) == 0
    assert code(accepting(UNBOUNDED), [UNBOUNDED, HARMLESS.model_copy(update={"round": 2})]) == 3


def test_the_verdict_stays() -> None:
    before = judge(ALL, Gate())
    after = accepting(LEAK, UNBOUNDED).apply(before, outcomes_of(ALL, Gate()), Gate(), 0)
    assert (after.state, after.lead) == (before.state, before.lead) == ("leak", after.lead)
    assert "The baseline accepts 2 findings" in after.sentence


def test_an_entry_ends_after_its_last_day() -> None:
    outcomes = outcomes_of(ALL, Gate())
    assert accepting(LEAK, days=0).accepted(outcomes)
    expired = accepting(LEAK, days=-1)
    assert not expired.accepted(outcomes)
    assert code(expired, ALL) == 1
    (remark,) = expired.remarks(outcomes)
    assert remark.startswith("The acceptance of record exact-0 expired on 2026-02-28, so it counts again.")


def test_an_entry_for_what_is_no_finding_is_named() -> None:
    (remark,) = accepting(HARMLESS).remarks(outcomes_of(ALL, Gate()))
    assert remark == "The baseline accepts record idlg-0, which is not a finding of this audit: remove the entry."


def test_every_report_lists_what_is_accepted(audit_with: Callable[[Path], Path], tmp_path: Path) -> None:
    directory = audit_with(tmp_path / "audit")
    records = records_of(directory)
    baseline = accepting(*(o.record for o in outcomes_of(records, Gate()) if o.is_finding))
    audit = read_audit(directory, baseline)
    page = write_report(directory, baseline=baseline).read_text()
    assert "public &lt;b&gt;photographs&lt;/b&gt; | ticket 12" in page
    assert "2026-03-31" in page
    markdown = write_markdown(audit, tmp_path / "s.md").read_text()
    assert r"public &lt;b&gt;photographs&lt;/b&gt; \| ticket 12" in markdown
    assert "Leak found" in markdown
    root = ElementTree.parse(write_junit(audit, tmp_path / "j.xml")).getroot()
    assert (root.attrib["failures"], root.attrib["errors"]) == ("0", "0")
    assert all(REASON in case.attrib["message"] for case in root.iter("skipped"))
    log = json.loads(write_sarif(audit, tmp_path / "s.sarif").read_text())
    assert REASON in log["runs"][0]["results"][0]["suppressions"][0]["justification"]
    assert log["runs"][0]["invocations"][0]["exitCode"] == 0


@pytest.fixture
def audit_with() -> Callable[[Path], Path]:
    """An audit directory with a leak and a message that nothing bounds."""

    def make(directory: Path) -> Path:
        from fedglass.verdict.directory import RecordFile, claim
        from fedglass.verdict.summary import summarise

        claim(directory, "digest")
        for each in ALL:
            RecordFile(directory / "records.jsonl").append(each)
        summarise(ALL, Gate(), len(ALL)).write(directory / "summary.json")
        return directory

    return make


ENTRY = '[[accepted]]\nrecord = "a"\nreason = "because"\nexpires = 2026-03-31\n'


def test_a_baseline_is_read(tmp_path: Path) -> None:
    path = tmp_path / "accepted.toml"
    path.write_text(ENTRY)
    assert read_baseline(path, TODAY).entries == (
        AcceptedFinding(record="a", reason="because", expires=date(2026, 3, 31)),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("accepted", "is not valid TOML"),
        ("", "accepted: Field required"),
        ("[[accepted]]\n", "each .* table needs record, reason and expires"),
        (ENTRY.replace('"because"', '""'), "reason"),
        (ENTRY.replace("2026-03-31", '"2026-03-31"'), "a date without quotes"),
        (ENTRY.replace('a"', 'a b"'), "record"),
        (ENTRY + "more = 1\n", "more"),
        (ENTRY + ENTRY, "accepts the record a twice"),
        (ENTRY.replace("2026-03-31", "2026-02-28"), "expired on 2026-02-28: review its findings"),
        (None, "No such file or directory; name another file"),
    ],
)
def test_a_baseline_that_is_not_sound_is_one_sentence(text: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "accepted.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=words) as refused:
        read_baseline(path, TODAY)
    assert "\n" not in str(refused.value)
