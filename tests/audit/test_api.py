"""The few lines that the README shows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fedglass
from fedglass.api import audit_plan
from fedglass.core.errors import UsageError
from fedglass.federation.federation import Federation
from fedglass.recipes import recipe


def test_an_audit_in_three_lines(make_federation: Callable[..., Federation], tmp_path: Path) -> None:
    attacks = {"few steps": recipe("inverting_gradients", iterations=3)}
    audit = fedglass.Audit(make_federation(), attacks, metrics=["psnr"])
    result = audit.run(tmp_path / "out")
    page = audit.report(tmp_path / "page.html")
    assert result.verdict.sentence.split()[0] in page.read_text()
    assert (tmp_path / "out" / "report.html").is_file()


def test_without_a_directory_the_same_audit_finds_its_records(
    make_federation: Callable[..., Federation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    attacks = {"x": recipe("inverting_gradients", iterations=2)}
    first = fedglass.Audit(make_federation(), attacks).run()
    again = fedglass.Audit(make_federation(), attacks).run()
    assert first.directory == again.directory
    assert first.records == again.records


def test_a_report_needs_a_run(make_federation: Callable[..., Federation], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="call run"):
        fedglass.Audit(make_federation(), ["idlg"]).report(tmp_path / "x.html")


@pytest.mark.parametrize("attacks", ["idlg", [recipe("idlg")]])
def test_attacks_are_names_or_a_mapping(attacks: object, make_federation: Callable[..., Federation]) -> None:
    with pytest.raises(UsageError, match="list of names of recipes, or a mapping"):
        fedglass.Audit(make_federation(), attacks)


def test_a_plan_is_audited_from_python(tmp_path: Path) -> None:
    plan = '[federation]\ndata = "photos"\nsize = 16\nexamples = 1\ntraining.lr = 0.1\n'
    plan += '[[attacks]]\nname = "sme"\niterations = 2\n'
    (tmp_path / "plan.toml").write_text(plan)
    result = audit_plan(tmp_path / "plan.toml", tmp_path / "out")
    assert len(result.searches) == 1
    assert (tmp_path / "out" / "plan.toml").read_text() == plan


def test_every_public_name_is_there() -> None:
    for name in fedglass.__all__:
        assert getattr(fedglass, name) is not None
        assert name in dir(fedglass)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        fedglass.nonsense  # noqa: B018


def test_importing_fedglass_imports_no_torch() -> None:
    code = "import fedglass, sys; assert 'torch' not in sys.modules; fedglass.Training; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
