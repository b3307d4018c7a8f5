"""Sweeps of a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedglass.audit.audit import run
from fedglass.audit.simulated import Simulated
from fedglass.core.errors import UsageError
from fedglass.core.text import AFTER_ROUND
from fedglass.defend.dpsgd import DPSGD
from fedglass.plan.compile import check_without_code, compile_plan
from fedglass.plan.schema import parse_plan, read_plan
from fedglass.report.audit_page import audit_page
from fedglass.verdict.outcomes import read_audit
from fedglass.verdict.texts import percent

PLAN = """
effort = "quick"
[federation]
data = "glyphs"
clients = 2
examples = 1
training.lr = 0.1
[federation.sweep]
defence = "dpsgd"
option = "noise_multiplier"
values = [0.0, 0.1, 3]
[[defences]]
name = "dpsgd"
clip = 4.0
noise_multiplier = 9.0
[adversary]
view = "peer"
client = 0
[[attacks]]
name = "curious_client"
iterations = 2
[metrics]
names = ["rmse"]
[gate]
metric = "rmse"
threshold = 0.1
"""
EXAMPLE = Path(__file__).parents[2] / "examples" / "noise_sweep" / "plan.toml"


def test_each_value_makes_a_federation() -> None:
    plan = parse_plan(PLAN)
    assert plan.cases == 3
    sources = compile_plan(plan, Path()).sources
    assert [s.name for s in sources] == ["noise_multiplier 0", "noise_multiplier 0.1", "noise_multiplier 3"]
    for source, noise in zip(sources, (0.0, 0.1, 3.0), strict=True):
        assert isinstance(source, Simulated)
        assert source.swept == {"noise_multiplier": noise}
        assert [c.gradient for c in source.federation.clients] == [DPSGD(4.0, noise)] * 2
    assert len({source.identity() for source in sources}) == 3
    assert [title for title, _ in check_without_code(plan, Path()) if title.startswith("Federation")] == [
        f"Federation {source.name!r}" for source in sources
    ]


def test_the_report_draws_it_beside_the_blind_guess(tmp_path: Path) -> None:
    records = run(compile_plan(parse_plan(PLAN), Path()), tmp_path).searches
    assert [record.swept for record in records] == [{"noise_multiplier": n} for n in (0.0, 0.1, 3.0)]
    page = audit_page(read_audit(tmp_path, records=records))
    assert "RMSE over noise multiplier (lower = more leaked)" in page
    assert "best blind guess" in page
    assert "Recovered (RMSE below 0.1) at 0: 0 of 1 image; 0.1: 0 of 1 image; 3: 0 of 1 image." in page


def test_rounds_are_drawn_with_the_accuracy_that_the_model_had(tmp_path: Path) -> None:
    start, end = PLAN.index("[federation.sweep]"), PLAN.index("[adversary]")
    text = (PLAN[:start] + PLAN[end:]).replace("examples = 1", "examples = 1\nrounds = 3\ntest_examples = 20")
    records = run(compile_plan(parse_plan(text.replace("client = 0", "client = 0\nround = [0, 2]")), Path()), tmp_path)
    page = audit_page(read_audit(tmp_path, records=records.searches))
    assert "RMSE over round (lower = more leaked)" in page
    accuracies = [record.utility[AFTER_ROUND] for record in records.searches]
    assert accuracies[-1] == records.searches[-1].utility["test accuracy"]
    for place, accuracy in zip((1, 3), accuracies, strict=True):
        assert accuracy is not None
        assert f"{place}: 0 of 1 image (test accuracy {percent(accuracy)})" in page.replace("\xa0", " ")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('defence = "dpsgd"', 'defence = "dpsdg"'), "did you mean 'dpsgd'"),
        (('option = "noise_multiplier"', 'option = "noise"'), "noise"),
        (("values = [0.0, 0.1, 3]", "values = [0.1]"), "values"),
        (("values = [0.0, 0.1, 3]", "values = [0.1, 0.1]"), "must differ"),
        (("values = [0.0, 0.1, 3]", "values = [0.0, -1.0]"), "noise_multiplier"),
        (("examples = 1", "examples = 1\ndefended = false"), "leave one of them out"),
        (("[adversary]", '[[defences]]\nname = "dpsgd"\nclip = 1.0\nnoise_multiplier = 1.0\n[adversary]'), "keep one"),
    ],
)
def test_what_can_not_be_swept_is_refused(change: tuple[str, str], words: str) -> None:
    assert change[0] in PLAN
    with pytest.raises(UsageError, match=words):
        compile_plan(parse_plan(PLAN.replace(*change)), Path())


def test_the_example_is_sound() -> None:
    plan, _ = read_plan(EXAMPLE)
    assert len(compile_plan(plan, EXAMPLE.parent).sources) == plan.cases == 9
