"""Every key of a plan in words, written from the schema itself, so that the two can not disagree."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fedglass.plan.schema import Plan

Schema = Mapping[str, Any]
OPEN = "its own options"
"""What beside the keys may stand in a table that names something of the registry."""


def json_schema() -> dict[str, Any]:
    """The JSON schema of a plan, for editors and other programs."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_accepting_tables(Plan.model_json_schema())}


def _accepting_tables(schema: dict[str, Any]) -> dict[str, Any]:
    """`[federation]` and its like may be written as one table in place of a list of one."""
    tables = schema["$defs"]
    places = [(schema, key) for key in ("federation", "recording", "defences", "attacks")]
    places += [
        (tables["AttackTable"], "refine"),
        (tables["GroupTable"], "behaviour"),
        (tables["FederationTable"], "group"),
    ]
    for table, key in places:
        found = table["properties"][key]
        kept = {name: found.pop(name) for name in list(found) if name not in ("description", "default", "title")}
        found["anyOf"] = [kept, kept["items"]]
    return schema


def reference() -> str:
    """`docs/plan.md`: every table and key with its type, default and meaning."""
    schema = Plan.model_json_schema()
    lines = [
        "# The keys of a plan",
        "",
        "Written by `python tools/make_docs.py` from the schema; `fedglass schema` prints the same as JSON schema.",
        "`fedglass init` writes a commented plan to start from, and `fedglass list` names what can be put in.",
        "",
    ]
    for title, table in _tables(schema):
        lines += [f"## {title}", "", table.get("description", ""), "", "| key | what it may be | default | meaning |"]
        lines += ["|---|---|---|---|", *_rows(table), ""]
    return "\n".join(lines)


def _tables(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """The plan itself, then its tables in the order in which they are met, each once."""
    yield "At the top", schema
    seen: set[str] = set()
    waiting = [(name, path) for path, value in schema["properties"].items() for name in _refs(value)]
    while waiting:
        name, path = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        table = schema["$defs"][name]
        yield f"`[{path}]`", table
        below = [(ref, f"{path}.{key}") for key, value in table["properties"].items() for ref in _refs(value)]
        waiting = below + waiting


def _rows(table: Schema) -> Iterator[str]:
    for key, value in table["properties"].items():
        needed = key in table.get("required", ())
        default = "**needed**" if needed else _default(value.get("default"))
        meaning = value.get("description", "").replace("\n", " ")
        yield f"| `{key}` | {_kind(value)} | {default} | {meaning} |"
    if table.get("additionalProperties") is True:
        yield f"| … | {OPEN} | | `fedglass list` names them |"


def _default(value: Any) -> str:
    if value is None or isinstance(value, dict) or value in ([], ""):
        return ""
    return f"`{json.dumps(value)}`"


def _kind(value: Schema) -> str:
    """A type in words.

    >>> _kind({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}), _kind({"enum": ["a", "b"]})
    ('whole number from 1', '`"a"` or `"b"`')
    """
    if "anyOf" in value or "oneOf" in value:
        kinds = [_kind(branch) for branch in value.get("anyOf", value.get("oneOf")) if branch.get("type") != "null"]
        return ", or ".join(dict.fromkeys(kinds))
    if "const" in value or "enum" in value:
        return " or ".join(f"`{json.dumps(choice)}`" for choice in value.get("enum", [value.get("const")]))
    if "$ref" in value or "allOf" in value:
        return "a table, below"
    if value.get("type") == "array":
        many = f"{value['minItems']} of: " if value.get("minItems") == value.get("maxItems", -1) else "list of: "
        return many + _kind(value.get("items", {}))
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    return words.get(value.get("type", ""), "anything") + _range(value)


def _range(value: Schema) -> str:
    marks = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    told = [f"{words} {_shown(value[mark])}" for mark, words in marks.items() if abs(value.get(mark, 2**53)) < 2**53]
    return f" {' '.join(told)}" if told else ""


def _shown(limit: float) -> str:
    return f"{limit:,.0f}" if limit == int(limit) else f"{limit:g}"


def _refs(value: Any) -> Iterator[str]:
    """The tables that a key leads to."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].rpartition("/")[2]
        for inner in value.values():
            yield from _refs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _refs(inner)
