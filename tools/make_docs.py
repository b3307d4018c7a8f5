"""Write docs/plan.md from the schema of a plan, and the examples of docs/json.md from what the commands print."""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from fedglass.cli.main import cli
from fedglass.plan.schema import Plan

DOCS = Path(__file__).resolve().parents[1] / "docs"
EXAMPLE = re.compile(r"```sh\n(?P<command>.*)\n```\n\n```json\n(?P<answer>[^`]*)```")
PLAN = re.compile(r"```toml\n(?P<plan>[^`]*)```")

Schema = Mapping[str, Any]
OPEN = "its own options"
"""Further keys of a table that names a registered part."""


def reference() -> str:
    """Return `docs/plan.md`: every table and key with its type, default and meaning."""
    schema = Plan.model_json_schema()
    lines = [
        "# The keys of a plan",
        "",
        "`python tools/make_docs.py` generates this page from the schema; `fedglass schema` prints the same as JSON "
        "schema.",
        "`fedglass init` writes a commented plan, and `fedglass list` prints the names that a plan can use.",
        "",
    ]
    for title, table in _tables(schema):
        lines += [f"## {title}", "", table.get("description", ""), "", "| key | what it may be | default | meaning |"]
        lines += ["|---|---|---|---|", *_rows(table), ""]
    return "\n".join(lines)


def _tables(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Yield the plan itself, then each of its tables once with all of its places, in the order of the schema."""
    yield "At the top", schema
    places: dict[str, list[str]] = {}
    waiting = [(name, path) for path, value in schema["properties"].items() for name in _refs(value)]
    while waiting:
        name, path = waiting.pop(0)
        if name not in places:
            fields = schema["$defs"][name]["properties"]
            waiting = [(ref, f"{path}.{key}") for key, value in fields.items() for ref in _refs(value)] + waiting
        places.setdefault(name, []).append(f"`[{path}]`")
    for name, paths in places.items():
        yield ", ".join(dict.fromkeys(paths)), schema["$defs"][name]


def _rows(table: Schema) -> Iterator[str]:
    for key, value in table["properties"].items():
        needed = key in table.get("required", ())
        default = "**required**" if needed else _default(value.get("default"))
        meaning = value.get("description", "").replace("\n", " ")
        yield f"| `{key}` | {_kind(value)} | {default} | {meaning} |"
    if table.get("additionalProperties") is True:
        yield f"| … | {OPEN} | | `fedglass list` shows them |"


def _default(value: Any) -> str:
    if value is None or isinstance(value, dict) or value in ([], ""):
        return ""
    return f"`{json.dumps(value)}`"


def _kind(value: Schema) -> str:
    """Return a type as text.

    >>> _kind({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}), _kind({"enum": ["a", "b"]})
    ('whole number from 1', '`"a"` or `"b"`')
    """
    if "anyOf" in value or "oneOf" in value:
        kinds = [_kind(branch) for branch in value.get("anyOf", value.get("oneOf")) if branch.get("type") != "null"]
        return ", or ".join(dict.fromkeys(kinds))
    if "const" in value or "enum" in value:
        return " or ".join(f"`{json.dumps(choice)}`" for choice in value.get("enum", [value.get("const")]))
    if "$ref" in value or "allOf" in value:
        return "a table"
    if value.get("type") == "array":
        many = f"{value['minItems']} of: " if value.get("minItems") == value.get("maxItems", -1) else "list of: "
        return many + _kind(value.get("items", {}))
    names = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    return names.get(value.get("type", ""), "anything") + _range(value)


def _range(value: Schema) -> str:
    marks = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    texts = [f"{word} {_shown(value[mark])}" for mark, word in marks.items() if abs(value.get(mark, 2**53)) < 2**53]
    return f" {' '.join(texts)}" if texts else ""


def _shown(limit: float) -> str:
    return f"{limit:,.0f}" if limit == int(limit) else f"{limit:g}"


def _refs(value: Any) -> Iterator[str]:
    """Yield the tables that a key refers to."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].rpartition("/")[2]
        for inner in value.values():
            yield from _refs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _refs(inner)


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
