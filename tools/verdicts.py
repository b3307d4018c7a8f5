"""Audits every situation of which the true answer is known, prints what was said, and writes docs/verdicts.md."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedglass.audit.audit import Effort, Job, run
from fedglass.verdict.judge import Verdict
from fedglass.verdict.records import Record

ROOT = Path(__file__).resolve().parents[1]


def _loaded(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tests" / "verdict" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where its dataclasses look
    spec.loader.exec_module(module)
    return module


TABLE = _loaded("situations")
SITUATIONS = TABLE.SITUATIONS
HEAD = """# What the audit says where the true answer is known

Written by `make verdicts` from `tests/verdict/situations.py`; `tests/audit/test_situations.py` demands that no verdict
is false. In truth:

- *leak*: a stated formula or attack reads the data from the message. "Clear" would be false.
- *exposed*: no attack reads them, but the candidate game with its control names the records. "Clear" would be false.
- *safe*: the declared noise is in the message, and bounds the success of any adversary. "Leak" and "exposed" would be
  false.
- *open*: nobody can tell by the rules of evidence. Everything but "inconclusive" would be false.
"""


def row(situation: Any) -> tuple[str, ...]:
    """Return what was said of a situation, with why."""
    records, verdict = audited(situation)
    attacks = [record for record in records if record.kind == "attack"]
    scores = [value for record in attacks for value in record.metrics.get("psnr", ()) if value is not None]
    best = f"{max(scores):.1f} dB" if scores else "-"
    wrong = "**FALSE**" if verdict.state in situation.false else ""
    bounds = [
        f"{name} {value:.2%}" for name, value in (("at least", verdict.at_least), ("at most", verdict.at_most)) if value
    ]
    why = verdict.caveat if verdict.state in ("inconclusive", "incomplete") else ""
    return situation.name, situation.truth, verdict.state, wrong, best, ", ".join(bounds), why.replace("|", "/")


def audited(situation: Any) -> tuple[Sequence[Record], Verdict]:
    """Return the records of a situation, and the verdict.

    Where the truth is a leak, a search that comes after a demonstrated one can change nothing, and is left out.
    """
    attacks = {} if situation.attack is None else {"attack": situation.attack}
    chosen = frozenset(attacks) if situation.truth == "leak" else frozenset()
    job = Job([situation.source()], attacks, ("psnr", "ssim"), chosen=chosen, effort=Effort.STANDARD)
    with tempfile.TemporaryDirectory() as folder:
        result = run(job, Path(folder))
    return result.records, result.verdict


def main() -> int:
    """Print the table; the number of false verdicts is the exit code.

    With SEED and COUNT in the environment, random situations are audited instead and nothing is written.
    """
    torch.set_num_threads(1)
    seed, count = os.environ.get("SEED", ""), int(os.environ.get("COUNT") or 200)
    drawn = _loaded("random_situations").random_situations(int(seed), count) if seed else SITUATIONS
    rows = []
    for situation in drawn:
        started = time.perf_counter()
        rows.append(row(situation))
        print(*rows[-1], f"{time.perf_counter() - started:.1f} s", sep=" | ", flush=True)
    total = summed_up(rows)
    print(total)
    if not seed:
        lines = [
            "| situation | in truth | said | | best | success in naming a record | why |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [f"| {' | '.join(each)} |" for each in rows]
        (ROOT / "docs" / "verdicts.md").write_text("\n".join([HEAD, total, "", *lines, ""]), encoding="utf-8")
    return sum(bool(each[3]) for each in rows)


def summed_up(rows: Sequence[tuple[str, ...]]) -> str:
    """Return how many verdicts of each kind there are, and how many could not tell."""
    said = [each[2] for each in rows]
    decidable = [each for each in rows if each[1] != "open"]
    weak = sum(each[1] == "leak" and each[2] == "exposed" for each in rows)
    leaks = max(1, sum(each[1] == "leak" for each in rows))
    unsure = sum(each[2] in ("inconclusive", "incomplete") for each in decidable) / max(1, len(decidable))
    counts = ", ".join(f"{said.count(state)} {state}" for state in sorted(set(said)))
    return (
        f"{len(rows)} situations: {counts}; {sum(bool(each[3]) for each in rows)} false. Open: "
        f"{1 - len(decidable) / max(1, len(rows)):.0%}. Inconclusive of those that are not open: {unsure:.0%}. Exposed "
        f"where the truth is leak: {weak / leaks:.0%}."
    )


if __name__ == "__main__":
    raise SystemExit(main())
