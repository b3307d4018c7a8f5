"""Audits every situation of which the true answer is known, prints what was said, and writes docs/verdicts.md."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from fedglass.audit.audit import Job, run
from fedglass.ledger.records import Record

ROOT = Path(__file__).resolve().parents[1]


def _situations() -> Any:
    spec = importlib.util.spec_from_file_location("situations", ROOT / "tests" / "verdict" / "situations.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where its dataclasses look
    spec.loader.exec_module(module)
    return module


TABLE = _situations()
SITUATIONS = TABLE.SITUATIONS
TRUTH = {TABLE.LEAKS: "it leaks", TABLE.SAFE: "safe", TABLE.OPEN: "open"}
HEAD = """# What the audit says where the true answer is known

Written by `make verdicts` from `tests/verdict/situations.py`; `tests/audit/test_situations.py` demands that no verdict
is false. "It leaks": the private images can be read from the message, so that "clear" would be false. "Safe": they can
not, so that "leak" would be false. "Open": nobody can tell from what is given, so that either would be false; there the
audit is to say "inconclusive", or "incomplete" where the true images are not given.
"""


def row(situation: Any) -> tuple[str, ...]:
    """What was said of a situation, with why."""
    record, state = audited(situation)
    flags = [flag.name for flag in record.flags if flag.severity == "serious"]
    why = record.absence if state == "clear" else "" if state == "leak" else ", ".join(flags)
    scores = [value for value in record.metrics.get("psnr", ()) if value is not None]
    best = f"{max(scores):.1f} dB" if scores else "-"
    wrong = "**FALSE**" if state in situation.false else ""
    return situation.name, TRUTH[situation.false], state, wrong, best, why or ""


def audited(situation: Any) -> tuple[Record, str]:
    """The record of a situation, and the verdict."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job([situation.source()], {"attack": situation.attack}, ("psnr", "ssim"))
        result = run(job, Path(folder))
    return result.records[0], result.verdict.state


def main() -> int:
    """Print the table; the number of false verdicts is the exit code."""
    torch.set_num_threads(1)
    lines = [
        "| situation | in truth | said | | best | why not told, or how absence was shown |",
        "|---|---|---|---|---|---|",
    ]
    rows = []
    for situation in SITUATIONS:
        started = time.perf_counter()
        rows.append(row(situation))
        print(*rows[-1], f"{time.perf_counter() - started:.1f} s", sep=" | ", flush=True)
        lines.append(f"| {' | '.join(rows[-1])} |")
    said = [each[2] for each in rows]
    false = sum(bool(each[3]) for each in rows)
    counts = ", ".join(f"{said.count(state)} {state}" for state in dict.fromkeys(sorted(said)))
    share = sum(each[2] == "inconclusive" for each in rows if each[1] != "open") / sum(
        each[1] != "open" for each in rows
    )
    total = f"{len(rows)} situations: {counts}; {false} false. Inconclusive of those that are not open: {share:.0%}."
    print(total)
    (ROOT / "docs" / "verdicts.md").write_text("\n".join([HEAD, total, "", *lines, ""]), encoding="utf-8")
    return false


if __name__ == "__main__":
    raise SystemExit(main())
