"""A plan as a file: TOML text that `fedglass audit` reads, with paths that hold in any folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedglass.attack.defaults import locate_paths
from fedglass.core.registry import factory
from fedglass.data.catalogue import located
from fedglass.diffusion.stored import located_model
from fedglass.models.init import located as initialisation_at
from fedglass.plan.schema import AttackTable, Plan


def plan_text(plan: Plan, folder: Path, remarks: tuple[str, ...] = ()) -> str:
    """Return a plan as TOML after some comments; `folder` is what its paths are relative to."""
    lines = [f"# {line}" for remark in remarks for line in remark.splitlines()]
    content = _located(plan, folder.resolve()).model_dump(mode="json", exclude_unset=True, exclude_none=True)
    return "\n".join([*lines, *_lines(content, "")]) + "\n"


def _located(plan: Plan, folder: Path) -> Plan:
    """Return the plan with absolute paths."""
    tables = [
        table.model_copy(update={"data": located(table.data, folder), "init": initialisation_at(table.init, folder)})
        for table in plan.federation
    ]
    adversary = plan.adversary
    if adversary.public is not None:
        adversary = adversary.model_copy(update={"public": located(adversary.public, folder)})
    attacks = [_located_attack(table, folder) for table in plan.attacks]
    return plan.model_copy(update={"federation": tables, "adversary": adversary, "attacks": attacks})


def _located_attack(table: AttackTable, folder: Path) -> AttackTable:
    """Return an attack with absolute paths of models."""
    given = table.model_dump(exclude_unset=True)
    given |= locate_paths(factory("attacks", table.name), table.options, folder)
    for part in given.get("refine", []):
        if isinstance(model := part.get("model"), str):
            part["model"] = located_model(model, folder)
    return AttackTable.model_validate(given)


def _lines(table: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a table: its values, then a section for each table in it."""
    sections = {key: value for key, value in table.items() if _is_section(value)}
    yield from (f"{key} = {_value(value)}" for key, value in table.items() if key not in sections)
    for key, value in sections.items():
        title = f"{name}.{key}" if name else key
        for inner in value if isinstance(value, list) else [value]:
            yield from ("", f"[[{title}]]" if isinstance(value, list) else f"[{title}]")
            yield from _lines(inner, title)


def _is_section(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def _value(value: object) -> str:
    """Return a value as TOML.

    >>> _value([1.0, "a\\n", True])
    '[1.0, "a\\\\n", true]'
    """
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    # JSON's strings, numbers and booleans are TOML's, but for the control character that JSON leaves as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
