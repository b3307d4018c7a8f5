"""JUnit XML has a test case for every record, and nothing in a name can break it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedglass.bounds.success import Game
from fedglass.report.pipelines import junit, write_junit
from fedglass.verdict.directory import RecordFile
from fedglass.verdict.doubts import Doubt, DoubtKind, doubt
from fedglass.verdict.gate import Gate
from fedglass.verdict.outcomes import outcomes_of, read_audit
from fedglass.verdict.records import Certificate, Record
from fedglass.verdict.summary import summarise

NASTY = "<b>&'\"]]> \x1b[31m\x00\ud800 é\n"


def parsed(directory: Path) -> ElementTree.Element:
    return ElementTree.parse(write_junit(read_audit(directory), directory / "junit.xml")).getroot()


def kinds(root: ElementTree.Element) -> Counter[str]:
    return Counter(child.tag for case in root.iter("testcase") for child in case if child.tag != "system-out")


def counted(suite: ElementTree.Element) -> None:
    """What a suite says of itself is what is in it."""
    cases = list(suite.iter("testcase"))
    assert int(suite.attrib["tests"]) == len(cases)
    for tag, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        assert int(suite.attrib[name]) == sum(case.find(tag) is not None for case in cases)
    assert float(suite.attrib["time"]) == pytest.approx(sum(float(case.attrib["time"]) for case in cases))


def test_every_record_is_a_test_case(audit_directory: Path) -> None:
    records = RecordFile(audit_directory / "records.jsonl").read()
    root = parsed(audit_directory)
    assert root.tag == "testsuites"
    assert [suite.attrib["name"] for suite in root] == list(dict.fromkeys(record.attack for record in records))
    names = [case.attrib["name"] for case in root.iter("testcase")]
    assert len(set(names)) == len(names) == len(records)
    for record in records:
        (case,) = (c for c in root.iter("testcase") if f"[{record.key}]" in c.attrib["name"])
        assert case.attrib["classname"] == f"fedglass.{record.attack}"
        expected = "error" if record.kind == "certificate" else None  # nothing bounds what the messages tell
        known = [value for value in record.metrics.get("psnr", []) if value is not None]
        if not record.oracle and max(known, default=0.0) > 20:
            expected = "failure"
        assert [child.tag for child in case if child.tag != "system-out"] == ([expected] if expected else [])
    for suite in (root, *root):
        counted(suite)


def test_a_failed_case_is_an_error_without_the_machines_folders(
    audit_directory: Path, make_case: Callable[..., Record]
) -> None:
    error = "no such file: /home/somebody/data/faces.npz"
    failed = make_case(audit_directory, "dlg", 0, 7, status="failed", error=error, metrics={}, doubts=[])
    RecordFile(audit_directory / "records.jsonl").append(failed)
    (found,) = (e for e in parsed(audit_directory).iter("error") if e.attrib["type"] == "failed")
    assert found.attrib["message"] == "The case failed: no such file: faces.npz"


def test_what_the_gate_allows_is_no_failure(build_audit: Callable[..., Path], tmp_path: Path) -> None:
    root = parsed(build_audit(tmp_path / "a", ("idlg",), Gate(max_share=0.99)))
    assert kinds(root) == {"error": 2}  # the certificates


def test_cases_that_have_not_run_are_an_error(audit_directory: Path) -> None:
    """A pipeline that counts failures would take them for a pass."""
    records = RecordFile(audit_directory / "records.jsonl").read()
    before = kinds(parsed(audit_directory))["error"]
    summarise(records, Gate(), len(records) + 3).write(audit_directory / "summary.json")
    root = parsed(audit_directory)
    assert kinds(root)["error"] == before + 1
    (incomplete,) = (e for e in root.iter("error") if e.attrib["type"] == "incomplete")
    assert "3 planned cases not run yet" in incomplete.attrib["message"]
    counted(root)
    (audit_directory / "summary.json").unlink()
    (stopped,) = (e for e in parsed(audit_directory).iter("error") if e.attrib["type"] == "incomplete")
    assert "stopped before its end" in stopped.attrib["message"]


def test_no_score_is_an_error_and_no_pass(audit_directory: Path, make_case: Callable[..., Record]) -> None:
    bare = make_case(audit_directory, "bare", 0, 0, metrics={}, skipped_metrics={"psnr": "no truth"}, doubts=[])
    RecordFile(audit_directory / "records.jsonl").append(bare)
    (suite,) = (s for s in parsed(audit_directory) if s.attrib["name"] == "bare")
    (said,) = suite.iter("error")
    assert said.attrib["type"] == "inconclusive"
    assert "Not all images have a score of PSNR. no truth" in said.attrib["message"]


def test_nothing_in_a_name_breaks_the_document(audit_directory: Path, make_case: Callable[..., Record]) -> None:
    nasty = make_case(audit_directory, "dlg", 0, 9, key="nasty", view="v")
    said = Doubt(kind=DoubtKind.NOT_AS_DECLARED, details={"found": NASTY})
    changed = nasty.model_copy(update={"attack": NASTY, "view": NASTY, "doubts": [said]})
    root = ElementTree.fromstring(junit(outcomes_of([changed], Gate()), Gate()).encode())
    (case,) = root.iter("testcase")
    assert case.attrib["classname"] == "fedglass.<b>&'\"]]> ?[31m?? é\n"
    assert "<b>&'\"]]>" in ElementTree.tostring(case, encoding="unicode", method="text")


def test_games_and_certificates_are_cases_and_exposed_records_a_failure(
    tmp_path: Path,
    make_evidence: Callable[..., Record],
    make_game: Callable[..., Game],
    make_certificate: Callable[..., Certificate],
    build_evidence_audit: Callable[..., Path],
) -> None:
    records = {
        "exposed": make_evidence("game", 0, game=make_game()),
        "harmless": make_evidence("game", 1, game=make_game(0.0)),
        "unplayed": make_evidence("game", 2, doubts=[doubt(DoubtKind.NO_CANDIDATES, found=1, least=200)]),
        "bounded": make_evidence("certificate", 1, certificate=make_certificate()),
        "weak": make_evidence("certificate", 2, certificate=make_certificate(success=[0.3])),
        "none": make_evidence("certificate", 3, doubts=[doubt(DoubtKind.NO_NOISE)]),
        "refuted": make_evidence("certificate", 0, certificate=make_certificate(success_planned=None)),
    }
    root = parsed(build_evidence_audit(tmp_path / "a", *records.values()))
    found = {case.attrib["name"].rpartition("[")[2].rstrip("]"): case for case in root.iter("testcase")}
    tags = {name: [child.tag for child in found[record.key]] for name, record in records.items()}
    assert tags == {
        "exposed": ["failure"],
        "harmless": [],
        "unplayed": ["system-out"],
        "bounded": [],
        "weak": ["error"],
        "none": ["error"],
        "refuted": ["error"],
    }
    (failure,) = root.iter("failure")
    assert failure.attrib["type"] == "exposed"
    assert failure.attrib["message"] == "The message names 29 of 32 records among 1,000 candidates."
    assert "names its records more often (29 of 32)" in found[records["refuted"].key][0].attrib["message"]


def test_what_an_exact_attack_reads_without_truth_is_a_failure(
    audit_directory: Path, make_case: Callable[..., Record]
) -> None:
    told = {"metrics": {}, "pictures": [], "doubts": [doubt(DoubtKind.NO_TRUTH)], "method": "division"}
    for explains, kind in ((True, "leak"), (False, "inconclusive")):
        (outcome,) = outcomes_of([make_case(audit_directory, "exact", 0, 0, explains=explains, **told)], Gate())
        assert outcome.kind == kind
    nothing = [doubt(DoubtKind.NO_EXACT_METHOD, reasons="division: no dense layer")]
    unread = make_case(audit_directory, "exact", 0, 0, metrics={}, pictures=[], doubts=nothing)
    (outcome,) = outcomes_of([unread], Gate())
    assert outcome.kind == "none"
    assert "division: no dense layer" in outcome.sentence


def test_an_oracle_attack_is_no_failure_and_not_said_to_be_allowed(
    audit_directory: Path, make_case: Callable[..., Record]
) -> None:
    (outcome,) = outcomes_of([make_case(audit_directory, "inverting_gradients", 0, 0)], Gate())
    assert outcome.kind == "none"
    assert outcome.sentence.endswith("It used oracle knowledge, so this decides nothing.")


def test_an_inconclusive_case_fails_unless_the_plan_chose_otherwise(
    make_evidence: Callable[..., Record],
) -> None:
    outcomes = outcomes_of([make_evidence("certificate", doubts=[doubt(DoubtKind.NO_NOISE)])], Gate())
    for fails, tag in ((True, "error"), (False, "skipped")):
        root = ElementTree.fromstring(junit(outcomes, Gate(inconclusive_fails=fails)).encode())
        assert [child.attrib["type"] for child in root.iter(tag)] == ["inconclusive"]
        counted(root)
