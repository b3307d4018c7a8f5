"""The steps of `action.yml` and the pre-commit hook are run by bash, on a plan that takes seconds."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ACTION = (ROOT / "action.yml").read_text(encoding="utf-8")
HOOKS = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
Write = Callable[..., Path]


def steps() -> dict[str, tuple[str, dict[str, str], str]]:
    """Return identifier, environment and script of each step, by name."""
    found = {}
    for text in ACTION.partition("\n  steps:\n")[2].split("    - name: ")[1:]:
        name, _, rest = text.partition("\n")
        environment = dict(re.findall(r"^        ([A-Z_]+): (.*)$", rest, re.MULTILINE))
        block = re.search(r"^      run: (?:\|\n((?:        .*\n?)+)|(.+))", rest, re.MULTILINE)
        assert block is not None
        script = re.sub(r"^ {8}", "", block[1], flags=re.MULTILINE) if block[1] else block[2]
        identifier = re.search(r"^      id: (.+)$", rest, re.MULTILINE)
        found[name] = (identifier[1] if identifier else "", environment, script)
    return found


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A path with `fedglass`, and a `python` that only notes what it would install."""
    folder = tmp_path / "bin"
    folder.mkdir()
    python = shlex.quote(sys.executable)
    program(folder, "fedglass", f'exec {python} -m fedglass "$@"')
    program(folder, "python", f'if [ "$2" = pip ]; then echo "$@" > {folder}/pip; else exec {python} "$@"; fi')
    paths = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    files = {name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    return {**os.environ, **paths, **files}


def run_step(name: str, values: dict[str, str], environment: Mapping[str, str], folder: Path) -> int:
    """Run a step as a runner does, add its outputs to the values, and return its exit code."""
    identifier, asked, script = steps()[name]
    output = Path(environment["GITHUB_OUTPUT"])
    output.write_text("")
    given = {key: re.sub(r"\$\{\{ (.+?) \}\}", lambda m: values[m[1]], text) for key, text in asked.items()}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    done = subprocess.run(command, env={**environment, **given}, cwd=folder, check=False)
    for line in output.read_text().splitlines():
        key, _, value = line.partition("=")
        values[f"steps.{identifier}.outputs.{key}"] = value
    return done.returncode


def inputs(**given: str) -> dict[str, str]:
    """Return the inputs of the action, with the defaults of those that are not given."""
    names = re.findall(r"^  ([a-z-]+):$", ACTION.partition("inputs:")[2].partition("outputs:")[0], re.MULTILINE)
    assert names == ["plan", "out", "baseline", "fail-on"]
    return {"github.action_path": str(ROOT), **{f"inputs.{name}": given.get(name, "") for name in names}}


def test_the_action_audits_reports_and_decides(environment: dict[str, str], write_plan: Write, tmp_path: Path) -> None:
    plan = write_plan(("inconclusive_fails = false", ""), ('client = "all"', "client = 0"))
    values = inputs(plan=plan.name, out="out")
    for name in ("Install", "Audit", "Report"):
        assert run_step(name, values, environment, tmp_path) == 0
    assert (values["steps.audit.outputs.exit-code"], values["steps.report.outputs.state"]) == ("3", "inconclusive")
    for fail_on, code in (("inconclusive", 3), ("leak", 0), ("never", 0), ("nonsense", 2)):
        assert run_step("Decide", {**values, "inputs.fail-on": fail_on}, environment, tmp_path) == code
    leak = {"steps.audit.outputs.exit-code": "1", "steps.report.outputs.state": "leak"}
    broken = {"steps.audit.outputs.exit-code": "3", "steps.report.outputs.state": "incomplete"}
    for outputs, code in ((leak, 1), (broken, 3)):
        assert run_step("Decide", {**values, **outputs, "inputs.fail-on": "leak"}, environment, tmp_path) == code
    assert f"-c {ROOT}/constraints.txt {ROOT}" in (tmp_path / "bin" / "pip").read_text()
    files = {"junit.xml", "fedglass.sarif", "summary.md", "verdict.json", "report.html"}
    assert files <= set(os.listdir(tmp_path / "out"))
    assert Path(environment["GITHUB_STEP_SUMMARY"]).read_text().startswith("## fedglass: Inconclusive")
    log = json.loads((tmp_path / "out" / "fedglass.sarif").read_text())
    assert log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == plan.name


def test_a_wrong_plan_ends_the_action(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text("[federation]\n")
    assert run_step("Audit", inputs(plan="plan.toml", out="out"), environment, tmp_path) == 2


def test_the_hook_checks_plans_without_their_code(
    environment: dict[str, str], write_plan: Write, tmp_path: Path
) -> None:
    (entry,) = re.findall(r"^  entry: (.+)$", HOOKS, re.MULTILINE)
    (files,) = re.findall(r"^  files: (.+)$", HOOKS, re.MULTILINE)
    sound = write_plan(('model = "lenet"', 'model = "code_of_others:make"'))
    wrong = tmp_path / "my-plan.toml"
    wrong.write_text("[federation]\n")
    for plans, code in (([sound], 0), ([wrong, sound], 2)):
        command = [*shlex.split(entry), *map(str, plans)]
        assert subprocess.run(command, env=environment, cwd=tmp_path, check=False).returncode == code
    matched = [name for name in ("plan.toml", "a/my-plan.toml", "pyproject.toml", "plan.md") if re.search(files, name)]
    assert matched == ["plan.toml", "a/my-plan.toml"]
