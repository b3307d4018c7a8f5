"""Write docs/plan.md from the schema of a plan, and the examples of docs/json.md from what the commands print."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from pathlib import Path

from click.testing import CliRunner

from fedglass.cli.main import cli
from fedglass.plan.reference import reference

DOCS = Path(__file__).resolve().parents[1] / "docs"
EXAMPLE = re.compile(r"```sh\n(?P<command>.*)\n```\n\n```json\n(?P<answer>[^`]*)```")
PLAN = re.compile(r"```toml\n(?P<plan>[^`]*)```")


def answers(text: str) -> dict[str, str]:
    """What the commands of a page print, each after those before it, on the page's own plan."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        try:
            found = PLAN.search(text)
            assert found is not None, "the page has a plan"
            Path("plan.toml").write_text(found["plan"])
            return {match["command"]: _printed(match["command"]) for match in EXAMPLE.finditer(text)}
        finally:
            os.chdir(before)


def _printed(command: str) -> str:
    program, *arguments = shlex.split(command)
    if program == "cat":
        return Path(arguments[0]).read_text()
    # One worker, as everywhere in an example: more would only make it slower.
    more = ["--workers", "1"] if arguments[0] in ("audit", "reproduce") else []
    return CliRunner().invoke(cli, [*arguments, *more], catch_exceptions=False).stdout


def refreshed(text: str) -> str:
    """The page with what its commands print today."""
    printed = answers(text)
    return EXAMPLE.sub(lambda m: f"```sh\n{m['command']}\n```\n\n```json\n{printed[m['command']]}```", text)


if __name__ == "__main__":
    (DOCS / "plan.md").write_text(reference())
    (DOCS / "json.md").write_text(refreshed((DOCS / "json.md").read_text()))
