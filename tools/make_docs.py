"""Write the pages of the reference: from the schema of a plan, the commands, the registered parts and the texts.

Pages with a text of their own are written below the line `GENERATED`. Also the examples of docs/json.md, from what the
commands print.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Formatter
from typing import Any

from click.testing import CliRunner

from fedglass.cli.main import cli
from fedglass.cli.plans import CONFIGURED
from fedglass.core.registry import Entry, built_in, listed_name
from fedglass.plan.options import defaults_in_words
from fedglass.plan.schema import Plan
from fedglass.report.glossary import TERMS
from fedglass.verdict.doubts import Question
from fedglass.verdict.texts import TABLE, Flag

DOCS = Path(__file__).resolve().parents[1] / "docs"
EXAMPLE = re.compile(r"```sh\n(?P<command>.*)\n```\n\n```json\n(?P<answer>[^`]*)```")
PLAN = re.compile(r"```toml\n(?P<plan>[^`]*)```")
GENERATED = "<!-- Below this line `python tools/make_docs.py` writes the page. -->"

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


# Commands.


def commands() -> str:
    """Return `docs/cli.md`: the help of every command."""
    lines = [
        "# Commands",
        "",
        "`fedglass COMMAND --help` prints the same. `python tools/make_docs.py` generates this page.",
        "",
    ]
    for name in ("", *cli.commands):
        lines += [f"## fedglass {name}".rstrip(), "", "```text", *_help_of(name).splitlines(), "```", ""]
    return "\n".join(lines)


def _help_of(name: str) -> str:
    arguments = [*name.split(), "--help"]
    printed = CliRunner().invoke(cli, arguments, prog_name="fedglass", terminal_width=88, catch_exceptions=False)
    return "\n".join(line.rstrip() for line in printed.stdout.strip().splitlines())


# Parts that plans name.


def parts_tables(*kinds: str) -> str:
    """Return a table of the built-in parts of each kind, then the papers in full."""
    by_kind = {kind: tuple(built_in(kind).values()) for kind in kinds}
    lines = []
    for kind, entries in by_kind.items():
        lines += [f"## {_title(kind)}", "", "| name | what it does | paper |", "|---|---|---|"]
        lines += [*map(_part_row, entries), ""]
    papers = [paper for entries in by_kind.values() for entry in entries for paper in entry.paper.split("; ")]
    lines += ["## Papers", "", *(f"- {_linked(paper)}" for paper in sorted(set(filter(None, papers)))), ""]
    return "\n".join(lines)


def _title(kind: str) -> str:
    return {"exact": "Exact methods"}.get(kind, f"All {kind}")


def _part_row(entry: Entry) -> str:
    options = defaults_in_words(entry.value) if entry.kind in CONFIGURED else ""
    shown = f"<br>Options: {', '.join(f'`{option}`' for option in options.split(', '))}" if options else ""
    papers = "; ".join(_short(paper) for paper in entry.paper.split("; ") if paper)
    cells = (f"`{listed_name(entry)}`", entry.summary + shown, papers)
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


ADDRESS = re.compile(r",? (https?://\S+)$")


def _short(paper: str) -> str:
    """Return a citation with its authors and year, linked if it has an address.

    >>> _short("Zhu, Liu, Han: Deep Leakage from Gradients, NeurIPS 2019, https://arxiv.org/abs/1906.08935")
    '[Zhu et al., 2019](https://arxiv.org/abs/1906.08935)'
    >>> _short("Flower's LocalDpMod")
    "Flower's LocalDpMod"
    """
    address, text = ADDRESS.search(paper), ADDRESS.sub("", paper)
    names, year = text.partition(":")[0].split(", "), re.findall(r"\b(?:19|20)\d\d\b", text)
    if not year or address is None:
        return text
    authors = " and ".join(names) if len(names) < 3 else f"{names[0]} et al."
    return f"[{authors}, {year[-1]}]({address[1]})"


def _linked(paper: str) -> str:
    address = ADDRESS.search(paper)
    return paper if address is None else f"[{ADDRESS.sub('', paper)}]({address[1]})"


# Texts of the verdict and the report.

SEVERITIES = {
    "serious": "Serious: as long as it stands, the audit does not say CLEAR.",
    "warning": "Warning: read the figures with care.",
    "info": "Information: it explains what an attack or a check did.",
}


def doubts() -> str:
    """Return `docs/doubts.md`: every doubt under its question, with what it means and what to do."""
    lines = [
        "# Doubts",
        "",
        "A doubt is a reason to trust a figure less. The report lists the doubts of an audit under these questions.",
        "`--json` names them by their identifier. Words in *italics* stand for figures and names of the audit.",
        "",
        *(f"- {text}" for text in SEVERITIES.values()),
        "",
        "`python tools/make_docs.py` generates this page from the texts of the report.",
        "",
    ]
    for question in Question:
        lines += [f"## {question.value}", ""]
        flags = [flag for flag in TABLE.values() if flag.question is question]
        for flag in sorted(flags, key=lambda flag: list(SEVERITIES).index(flag.severity)):
            lines += _doubt(flag)
    return "\n".join(lines)


def _doubt(flag: Flag) -> list[str]:
    """Return the section of a doubt.

    >>> from fedglass.verdict.doubts import DoubtKind
    >>> _doubt(TABLE[DoubtKind.OUT_OF_TIME])[2]
    '`out_of_time`, info. The attack was stopped after *seconds* s, because the time budget was used up.'
    """
    meaning, step = (_with_places(text) for text in (flag.text, flag.step))
    advice = [f"**What to do:** {step}", ""] if step else []
    return [f"### {flag.name}", "", f"`{flag.kind.value}`, {flag.severity}. {meaning}", "", *advice]


def _with_places(text: str) -> str:
    """Return a text with the names of its places in italics."""
    pieces = Formatter().parse(text)
    return "".join(literal if field is None else f"{literal}*{field}*" for literal, field, _, _ in pieces)


def glossary() -> str:
    """Return `docs/glossary.md`: the terms that reports explain."""
    lines = [
        "# Glossary",
        "",
        "The report explains the same terms. `python tools/make_docs.py` generates this page.",
        "",
    ]
    for term, meaning in sorted(TERMS.items(), key=lambda pair: pair[0].lower()):
        lines += [f"## {term}", "", meaning, ""]
    return "\n".join(lines)


def pages(docs: Path = DOCS) -> dict[str, str]:
    """Return every generated page by its file name; those with a text of their own keep it."""
    others = ("labels", "refinements", "behaviours", "models", "datasets", "initialisations", "metrics")
    tails = {
        "attacks": ("attacks", "exact"),
        "names": others,
        **{kind: (kind,) for kind in ("defences", "rules", "losses")},
    }
    whole = {"plan.md": reference(), "cli.md": commands(), "doubts.md": doubts(), "glossary.md": glossary()}
    return whole | {f"{name}.md": _below(docs / f"{name}.md", parts_tables(*kinds)) for name, kinds in tails.items()}


def _below(page: Path, tail: str) -> str:
    head, line, _ = page.read_text(encoding="utf-8").partition(GENERATED)
    assert line, f"{page} has the line {GENERATED}"
    return f"{head}{line}\n\n{tail}"


def write(texts: Mapping[str, str], docs: Path) -> None:
    """Write the pages, or refuse in a sentence."""
    for name, text in texts.items():
        try:
            (docs / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise SystemExit(f"Cannot write {docs / name}: {error.strerror}. Make the folder writable.") from None


# What commands print.


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
    write(pages(), DOCS)
    write({"json.md": refreshed((DOCS / "json.md").read_text(encoding="utf-8"))}, DOCS)
