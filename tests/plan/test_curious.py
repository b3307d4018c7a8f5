"""Plans in which a participant reads its peers."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedglass.attack.refine.masked_diffusion import OracleEpoch
from fedglass.audit.audit import run
from fedglass.audit.probes import oracle_facts
from fedglass.core.errors import UsageError
from fedglass.plan.compile import compile_plan
from fedglass.plan.schema import parse_plan
from fedglass.verdict.collect_doubts import flags_of
from fedglass.verdict.gate import Gate

PLAN = """
effort = "quick"

[federation]
data = "glyphs"
clients = 3
examples = 2
model = "lenet_tanh"
training = { lr = 0.05, epochs = 2 }

[adversary]
view = "peer"
client = 0
knows_labels = LABELS

[[attacks]]
name = "ATTACK"
iterations = 3
MORE

[metrics]
names = ["psnr"]
"""


def plan(attack: str, more: str = "", labels: str = "false") -> str:
    return PLAN.replace("ATTACK", attack).replace("MORE", more).replace("LABELS", labels)


def test_simulating_each_client_is_marked_as_an_oracles(tmp_path: Path) -> None:
    text = plan("curious_client_published", "grouped = true", "true")
    (record,) = run(compile_plan(parse_plan(text), tmp_path, text), tmp_path).searches
    assert record.oracle
    (flag,) = [flag for flag in flags_of(record, Gate()) if flag.name == "oracle knowledge used"]
    assert "the true labels of each client" in flag.text


def test_simulating_each_client_needs_the_labels(tmp_path: Path) -> None:
    text = plan("curious_client_published", "grouped = true")
    with pytest.raises(UsageError, match="knows_labels"):
        compile_plan(parse_plan(text), tmp_path, text)


@pytest.mark.parametrize("attack", ["curious_client", "curious_client_published"])
def test_what_a_peer_found_is_refined(tmp_path: Path, attack: str) -> None:
    """Those of the others alone: the adversary has its own as they are."""
    text = plan(attack, 'refine = { name = "ddrm", model = "glyphs", factor = 2, steps = 2 }')
    (record,) = run(compile_plan(parse_plan(text), tmp_path, text), tmp_path).searches
    assert len(record.metrics["psnr"]) == len(record.metrics_raw["psnr"]) == 4
    assert record.metrics["psnr"] != record.metrics_raw["psnr"]
    assert record.energy_refined is not None
    assert record.controls


def test_an_epoch_that_was_chosen_by_eye_is_an_oracles() -> None:
    assert oracle_facts(OracleEpoch(3)) == {"eye"}
