"""SARIF has the structure that its schema 2.1.0 demands, and a finding for whatever a reader must know."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedglass.bounds.success import Game
from fedglass.report.pipelines import sarif, write_sarif
from fedglass.verdict.directory import RecordFile
from fedglass.verdict.doubts import DoubtKind, doubt
from fedglass.verdict.gate import Gate
from fedglass.verdict.outcomes import JudgedAudit, read_audit
from fedglass.verdict.records import Record
from fedglass.verdict.summary import summarise

LEVELS = {"none", "note", "warning", "error"}


def written(directory: Path) -> dict[str, Any]:
    log: dict[str, Any] = json.loads(write_sarif(read_audit(directory), directory / "audit.sarif").read_text())
    valid(log)
    return log


def valid(log: dict[str, Any]) -> None:
    """What the schema demands of those parts of a log that are used here."""
    assert set(log) == {"$schema", "version", "runs"}
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    for run in log["runs"]:
        assert set(run) <= {"tool", "invocations", "results", "columnKind"}
        assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
        driver = run["tool"]["driver"]
        assert isinstance(driver["name"], str)
        rules = driver["rules"]
        assert len({rule["id"] for rule in rules}) == len(rules)
        for rule in rules:
            assert re.fullmatch(r"[a-z0-9-]+", rule["id"])
            assert set(rule) == {"id", "shortDescription", "help", "defaultConfiguration", "properties"}
            assert rule["help"]["markdown"].startswith("**What it means.** ")
            is_message({"text": rule["help"]["text"]})
            assert {"CoSAI:FLP", "OWASP-AISVS:C11", "security"} <= set(rule["properties"]["tags"])
            assert 0 < float(rule["properties"]["security-severity"]) <= 10
            is_message(rule["shortDescription"])
            assert rule["defaultConfiguration"]["level"] in LEVELS
        for result in run["results"]:
            is_result(result, rules)
        for invocation in run["invocations"]:
            assert isinstance(invocation["executionSuccessful"], bool)
            assert isinstance(invocation["exitCode"], int)
            for notification in invocation["toolExecutionNotifications"]:
                assert notification["level"] in LEVELS
                is_message(notification["message"])


def is_message(message: dict[str, Any]) -> None:
    assert set(message) == {"text"}
    assert message["text"]
    assert not re.search(r"(?<!\{)\{[0-9]+\}(?!\})", message["text"]), "a placeholder"
    assert not re.search(r"(?<!\\)\[", message["text"]), "a link"


def is_result(result: dict[str, Any], rules: list[dict[str, Any]]) -> None:
    needed = {"ruleId", "ruleIndex", "level", "message", "locations", "partialFingerprints"}
    assert needed <= set(result) <= {*needed, "suppressions"}
    assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    assert result["level"] in LEVELS
    is_message(result["message"])
    assert all(isinstance(print_, str) for print_ in result["partialFingerprints"].values())
    for location in result["locations"]:
        physical = location["physicalLocation"]
        assert physical["artifactLocation"]["uri"] == "plan.toml"
        assert physical["region"]["startLine"] >= 1
        for logical in location["logicalLocations"]:
            assert isinstance(logical["name"], str)


def test_a_leak_and_every_doubt_is_a_finding(audit_directory: Path) -> None:
    (run,) = written(audit_directory)["runs"]
    found = {(result["ruleId"], result["level"]) for result in run["results"]}
    assert ("leak", "error") in found
    assert ("doubt-no-noise", "error") in found
    assert ("doubt-search-failed", "warning") in found
    assert ("doubt-metrics-disagree", "warning") in found
    assert ("doubt-oracle-used", "note") in found
    assert ("inconclusive", "error") not in found  # the doubt says why
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == {rule for rule, _ in found}
    (invocation,) = run["invocations"]
    assert (invocation["executionSuccessful"], invocation["exitCode"]) == (True, 1)
    prints = [result["partialFingerprints"]["fedglassCase/v1"] for result in run["results"]]
    assert len(set(prints)) == len(prints)


def test_what_the_gate_allows_is_a_warning(build_audit: Callable[..., Path], tmp_path: Path) -> None:
    (run,) = written(build_audit(tmp_path / "a", ("idlg",), Gate(max_share=0.99)))["runs"]
    levels = {result["ruleId"]: result["level"] for result in run["results"]}
    assert levels["leak-allowed"] == "warning"
    assert "leak" not in levels


def test_an_audit_that_is_not_complete_says_so(audit_directory: Path, make_case: Callable[..., Record]) -> None:
    file = RecordFile(audit_directory / "records.jsonl")
    error = "broken at /home/somebody/code/model.py"
    file.append(make_case(audit_directory, "dlg", 0, 7, status="failed", error=error, metrics={}))
    summarise(file.read(), Gate(), len(file.read()) + 1).write(audit_directory / "summary.json")
    log = written(audit_directory)
    (invocation,) = log["runs"][0]["invocations"]
    assert invocation["executionSuccessful"] is False
    said = [notification["message"]["text"] for notification in invocation["toolExecutionNotifications"]]
    assert len(said) == 2
    assert "1 planned case not run yet" in said[1]
    assert "broken at model.py" in said[0]
    assert "/home" not in json.dumps(log)


def test_no_score_without_a_doubt_is_a_finding(audit_directory: Path, make_case: Callable[..., Record]) -> None:
    bare = make_case(audit_directory, "bare", 0, 0, metrics={}, doubts=[])
    log = sarif(JudgedAudit(Path("none"), [bare], Gate()))
    valid(log)
    results = {result["ruleId"]: result["level"] for result in log["runs"][0]["results"]}
    assert results["inconclusive"] == "error"


def test_an_exposed_message_is_an_error(make_evidence: Callable[..., Record], make_game: Callable[..., Game]) -> None:
    records = [
        make_evidence("game", game=make_game()),
        make_evidence("certificate", doubts=[doubt(DoubtKind.NO_NOISE)]),
    ]
    log = sarif(JudgedAudit(Path("none"), records, Gate()))
    valid(log)
    (run,) = log["runs"]
    assert [(r["ruleId"], r["level"]) for r in run["results"]] == [("exposed", "error"), ("doubt-no-noise", "error")]
    assert run["invocations"][0]["exitCode"] == 1


def test_names_are_no_placeholders_and_no_links(audit_directory: Path, make_case: Callable[..., Record]) -> None:
    nasty = "{0} [here](https://example.org) \\ <b>"
    said = [doubt(DoubtKind.NOT_AS_DECLARED, found=nasty)]
    case = make_case(audit_directory, nasty, 0, 0, key="n", view=nasty, doubts=said)
    log = sarif(JudgedAudit(Path("none"), [case], Gate()))
    valid(log)
    assert "{{0}} \\[here\\](https://example.org) \\\\ <b>" in log["runs"][0]["results"][0]["message"]["text"]


def test_neither_form_needs_torch(audit_directory: Path) -> None:
    code = (
        "import sys, pathlib; from fedglass.report import pipelines; from fedglass.verdict.outcomes import read_audit\n"
        "place = pathlib.Path(sys.argv[1])\n"
        "audit = read_audit(place)\n"
        "pipelines.write_junit(audit, place / 'j.xml'), pipelines.write_sarif(audit, place / 's.sarif')\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(audit_directory)], check=True)


def test_a_tracker_knows_a_finding_again_after_an_update(make_evidence: Callable[..., Record]) -> None:
    """The key of a case depends on the version and the seed; the fingerprint depends on neither."""

    def prints(**changes: Any) -> list[str]:
        record = make_evidence("certificate", doubts=[doubt(DoubtKind.NO_NOISE)], **changes)
        log = sarif(JudgedAudit(Path("none"), [record], Gate()))
        valid(log)
        return [r["partialFingerprints"]["primaryLocationLineHash"] for r in log["runs"][0]["results"]]

    assert prints() == prints(key="other", seed=8)
    assert prints() != prints(round=2)


def test_findings_point_to_the_line_of_the_plan(audit_directory: Path) -> None:
    log = json.loads(
        write_sarif(read_audit(audit_directory), audit_directory / "s.sarif", plan="audits/plan.toml").read_text()
    )
    plan = (audit_directory / "plan.toml").read_text().splitlines()
    for result in log["runs"][0]["results"]:
        physical, attack = (result["locations"][0][f"{kind}"] for kind in ("physicalLocation", "logicalLocations"))
        assert physical["artifactLocation"]["uri"] == "audits/plan.toml"
        line = physical["region"]["startLine"]
        assert f'"{attack[0]["name"]}"' in plan[line - 1] or line == 1
