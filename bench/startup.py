"""What an audit costs beside its attacks: `fedglass audit` of eight short cases, as a command of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from subprocess import DEVNULL

from fedglass.verdict.directory import RECORDS, RecordFile

CASES = 8
BAR = "at most 5 s on a quiet machine"
PLAN = f"""
[federation]
data = "photos"
size = 32
clients = {CASES}
examples = 1
model = "lenet"
init = "uniform"
training.lr = 0.1
[adversary]
client = "all"
[[attacks]]
name = "inverting_gradients"
iterations = 400
[metrics]
names = ["psnr", "ssim"]
"""


def measure() -> list[tuple[str, str, str]]:
    return [overhead(workers, bar) for workers, bar in ((1, ""), (2, BAR))]


def overhead(workers: int, bar: str) -> tuple[str, str, str]:
    """A row: the command's time less that of its attacks, which the workers share."""
    with tempfile.TemporaryDirectory() as folder:
        plan, out = Path(folder, "plan.toml"), Path(folder, "out")
        plan.write_text(PLAN)
        command = [sys.executable, "-m", "fedglass", "audit", str(plan), "-o", str(out), "--workers", str(workers)]
        start = time.perf_counter()
        # The gate's verdict, exit code 1, is no failure here.
        subprocess.run([*command, "--device", "cpu"], stdout=DEVNULL, stderr=DEVNULL, check=False)
        wall = time.perf_counter() - start
        records = RecordFile(out / RECORDS).read()
    assert all(record.status == "done" for record in records), "every case is played"
    attacks = sum(record.seconds for record in records)
    found = f"{wall - attacks / workers:.1f} s ({wall:.1f} s less {attacks:.1f} s / {workers})"
    return f"audit of {CASES} cases, {workers} worker(s): start-up and report", found, bar
