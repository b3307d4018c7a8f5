"""The reference of a plan's keys is that of the schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from click.testing import CliRunner

from fedglass.cli.main import cli
from fedglass.plan.schema import json_schema

ROOT = Path(__file__).resolve().parents[2]
tool = run_path(str(ROOT / "tools" / "make_docs.py"))
reference, kind = tool["reference"], tool["_kind"]


def test_the_page_is_up_to_date() -> None:
    """`python tools/make_docs.py` writes it anew."""
    assert (ROOT / "docs" / "plan.md").read_text() == reference()


def tables(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "Plan", schema
    yield from schema["$defs"].items()


def test_every_key_says_what_it_is() -> None:
    for name, table in tables(json_schema()):
        assert table.get("description"), name
        for key, value in table["properties"].items():
            assert value.get("description", "").endswith((".", "`.")), f"{name}.{key}"


@pytest.mark.parametrize("key", ["adversary.round", "group", "rule", "behaviour", "label_smoothing", "knows_steps"])
def test_keys_are_found_on_the_page(key: str) -> None:
    assert f"`{key.rpartition('.')[2]}`" in reference()


def test_a_type_is_told_in_words() -> None:
    assert kind({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}) == "whole number from 1"
    assert kind({"enum": ["a", "b"]}) == '`"a"` or `"b"`'


def test_the_command_prints_json() -> None:
    found = CliRunner().invoke(cli, ["schema"])
    assert found.exit_code == 0
    schema = json.loads(found.output)
    assert schema["properties"]["federation"]["anyOf"][1] == {"$ref": "#/$defs/FederationTable"}
    assert schema == json_schema()
