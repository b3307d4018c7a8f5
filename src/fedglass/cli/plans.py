"""`fedglass init` writes a plan, `check` validates it; `schema` prints its keys, `list` the names that it can use."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedglass.cli.options import (
    PATH,
    Output,
    announce,
    announce_named,
    code_arguments,
    code_option,
    importable,
    model_option,
    output_options,
    plain,
    public_option,
    width,
)
from fedglass.core.errors import UsageError, unknown_name
from fedglass.core.metric_scale import scale_of
from fedglass.core.registry import KINDS, Entry, entries, listed_name

if TYPE_CHECKING:
    from fedglass.audit.target import Section

PLAN, DEMO, PEER_DEMO = (
    (Path(__file__).with_name("templates") / f"{name}.toml").read_text(encoding="utf-8")
    for name in ("plan", "demo", "peer_demo")
)
"""The commented plan of `fedglass init`, and the two plans of `fedglass demo`."""


@click.command(short_help="Write a commented plan.")
@click.argument("path", type=PATH, default="plan.toml")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--from", "bundle", type=PATH, help="Folder of a recorded federation that the plan audits.")
@model_option
@public_option
@code_option
@output_options
@click.pass_context
def init(
    ctx: click.Context,
    path: Path,
    force: bool,
    bundle: Path | None,
    model: str | None,
    public: str | None,
    folders: tuple[Path, ...],
    output: Output,
) -> None:
    """Write a commented plan to PATH (plan.toml by default). It can be audited without changes.

    With --from the plan audits a recorded federation with the attacks that are possible there. It lists missing facts.

    \b
    Examples:
      fedglass init plan.toml && fedglass check plan.toml && fedglass audit plan.toml -o out
      fedglass init plan.toml --from recorded/
    """
    if bundle is None:
        if model is not None or public is not None or folders:
            raise UsageError("--model, --public and --code belong to a recorded federation: add --from.")
        text = PLAN
    else:
        ctx.with_resource(importable(folders))
        text = _from_bundle(bundle, path, model, public, output)
    try:
        with path.open("w" if force else "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(f"{path} already exists: choose another name, or --force to overwrite it.") from error
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}; choose another place.") from error
    output.say(f"Wrote {path}. Next: fedglass check {path}{code_arguments(folders)}")
    output.answer({"path": str(path)})


def _from_bundle(bundle: Path, plan: Path, model: str | None, public: str | None, output: Output) -> str:
    """Return the plan of a bundle, with the bundle's path relative to the plan."""
    from fedglass.plan.draft import draft

    announce_named(model, public, output)
    path = os.path.relpath(bundle.resolve(), plan.resolve().parent)
    drafted = draft(bundle, path=path, model=model, public=public)
    if drafted.problem:
        output.note(f"The plan is not ready yet: {drafted.problem}")
    return drafted.text


@click.command(short_help="Validate a plan and print its threat model.")
@click.argument("plan", type=PATH)
@click.option("--no-code", is_flag=True, help="Run none of the plan's own code, and check everything else.")
@code_option
@output_options
@click.pass_context
def check(ctx: click.Context, plan: Path, no_code: bool, folders: tuple[Path, ...], output: Output) -> None:
    """Validate PLAN with its data and its model, and print who attacks what.

    The command runs no attack and writes nothing. It estimates the time of the audit from a few timed gradients. A plan
    that contains package.module:name runs that code. fedglass prints the name before it imports the code, and looks for
    it only in installed packages and the folders of --code.
    With --no-code it imports none of this code, and lists what it could not check.

    \b
    Examples:
      fedglass check plan.toml
      fedglass check plan.toml --code .
      fedglass check unknown-plan.toml --no-code
    """
    if no_code and folders:
        raise UsageError("--no-code runs no code, so --code DIR has no effect: leave out one of them.")
    ctx.with_resource(importable(folders))
    from fedglass.advise.search import describe_search
    from fedglass.audit.audit import threat_model
    from fedglass.audit.cost import describe_time
    from fedglass.execution.fork_server import cores
    from fedglass.plan.compile import check_without_code, compile_plan
    from fedglass.plan.options import code_of
    from fedglass.plan.schema import read_plan

    (parsed, text), folder = read_plan(plan), plan.resolve().parent
    code = code_of(parsed)
    unchecked = code if no_code else ()
    if not no_code:
        announce(parsed, output)
    if unchecked:
        sections = check_without_code(parsed, folder)
    else:
        job = compile_plan(parsed, folder, text)
        search = [] if parsed.advise is None else [("Advice", describe_search(parsed))]
        time = "Time of one audit" if search else "Time"
        sections = [*search, *threat_model(job), (time, describe_time(job, cores()))]
    if output.in_words:
        show_sections(sections)
        rest = f", except for code that was not checked: {', '.join(map(str, unchecked))}" if unchecked else ""
        click.secho(plain(f"{plan} is sound{rest}."), fg="yellow" if unchecked else "green")
    output.answer(
        {
            "plan": str(plan),
            "sound": True,
            "complete": not unchecked,
            "code": list(map(asdict, code)),
            "not_checked": list(map(asdict, unchecked)),
            "sections": [{"title": title, "lines": list(lines)} for title, lines in sections],
        }
    )


def show_sections(sections: Sequence[Section]) -> None:
    """Print sections of a threat model."""
    for title, lines in sections:
        click.secho(plain(title), bold=True)
        for line in lines:
            click.echo(click.wrap_text(plain(line), width(), "  ", "    "))


@click.command(short_help="Print the JSON schema of a plan, for editors.")
def schema() -> None:
    """Print the JSON schema of plan files: every key, its type, range and meaning.

    Editors with support for TOML schemas use it to complete and check a plan.

    \b
    Example:
      fedglass schema > plan.schema.json
    """
    from fedglass.plan.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=1))


OWN_CODE = {
    "models": "a function of shape and classes, as far as it takes them, that returns a torch.nn.Module",
    "datasets": (
        "a function of split, size and path (written as package.module:name:PATH), as far as it takes them, that "
        "returns a fedglass.data.dataset.Dataset"
    ),
    "metrics": "a fedglass.Metric",
}
"""Kind -> what `package.module:name` must be; for other kinds a function or a class that makes the part."""
NAMED = tuple(name for name, kind in KINDS.items() if kind.in_plans)
CONFIGURED = ("attacks", "defences", "rules", "behaviours", "refinements")
"""Kinds with options in a plan; fedglass itself gives the other kinds all that they need."""


Listed = dict[str, str]
"""One name with its summary, and further facts by heading, as `--json` prints them."""


def _listed(name: str, summary: str, **facts: str) -> Listed:
    return {"name": name, "summary": summary, **{heading: text for heading, text in facts.items() if text}}


def registered(kind: str) -> list[Listed]:
    """Return the parts of a kind, built in or from installed packages, and how to name your own."""
    needed = OWN_CODE.get(kind, f"a function or a class that makes the {KINDS[kind].noun}")
    listed = []
    for entry in entries(kind):
        problem, facts = entry.problem, dict[str, str]()
        try:
            facts = {} if problem else _facts(entry)
        except UsageError as error:
            problem = str(error)
        facts |= {"paper": entry.paper, "from": entry.origin, "not_usable": problem}
        listed.append(_listed(entry.name if problem else listed_name(entry), entry.summary, **facts))
    return [*listed, _listed("package.module:name", f"your own: {needed}")]


def _facts(entry: Entry) -> dict[str, str]:
    from fedglass.plan.options import defaults_in_words

    if entry.kind == "metrics":
        scale = scale_of(entry.name)
        return {"unit": scale.unit, "reading": f"{'higher' if scale.higher_leaks else 'lower'} leaks more"}
    return {"options": defaults_in_words(entry.value)} if entry.kind in CONFIGURED else {}


def parts() -> list[Listed]:
    from fedglass.attack.defaults import inventory

    return [_listed(p.name, f"{p.kind}: {p.summary}", cites=p.paper, module=p.value.__module__) for p in inventory()]


PARTITIONS = [
    _listed("iid", "shuffled and split evenly"),
    _listed("dirichlet", "each class in Dirichlet(alpha) shares; small alpha: few clients hold most of it"),
    _listed("writers", "one writer per client, for datasets that name them"),
]
VIEWS = [
    _listed("server", "a curious server that sees the update of each client"),
    _listed("aggregate", "a server behind secure aggregation that sees only the aggregate of all clients"),
    _listed("peer", "a curious client that sees the global model before and after a round; it knows its own update"),
    _listed("malicious_server", "a server that crafts the model it sends, and sees the update of each client to it"),
]
UNREGISTERED: dict[str, Callable[[], list[Listed]]] = {
    "partitions": lambda: PARTITIONS,
    "views": lambda: VIEWS,
    "parts": parts,
}


def _complete_kind(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the kinds that begin with this text, for the completion of the shell."""
    return [kind for kind in (*NAMED, *UNREGISTERED) if kind.startswith(incomplete)]


@click.command(name="list", short_help="List attacks, models, datasets and other names for a plan.")
@click.argument("kind", metavar="[KIND]", required=False, shell_complete=_complete_kind)
@click.option("--long", is_flag=True, help="Also print the options, the paper and the package of each.")
@output_options
def list_known(kind: str | None, long: bool, output: Output) -> None:
    """List the names that a plan can use.

    With KIND, each name has a line: attacks, defences, losses, labels, rules, behaviours, models, datasets,
    initialisations, metrics, refinements, partitions, views, or parts (the building blocks of attacks, for your own
    recipes in Python). Without KIND, only the names of all kinds are printed. With -q, each name is on its own line.

    \b
    Examples:
      fedglass list
      fedglass list attacks
      fedglass list attacks --long
      fedglass list defences -q
    """
    kinds = [*NAMED, *UNREGISTERED]
    if kind is not None and kind not in kinds:
        raise unknown_name("kind", kind, kinds)
    chosen = [kind] if kind else kinds
    by_kind = {name: UNREGISTERED[name]() if name in UNREGISTERED else registered(name) for name in chosen}
    if output.as_json:
        output.answer(by_kind)
        return
    if output.quiet:
        click.echo("\n".join(plain(entry["name"]) for listed in by_kind.values() for entry in listed))
        return
    show = _show_entries if long else _show_lines if kind else _show_names
    for name, listed in by_kind.items():
        if not kind:
            click.secho(name.upper(), bold=True)
        show(listed)
    if not long:
        output.note(f"More: fedglass list {kind} --long" if kind else "More: fedglass list KIND")


def _show_names(listed: Sequence[Listed]) -> None:
    """Print names as a paragraph."""
    names = ", ".join(plain(entry["name"]) for entry in listed)
    click.echo(click.wrap_text(names, width(), "  ", "  "))


def _show_lines(listed: Sequence[Listed]) -> None:
    """Print names and summaries in two columns."""
    column = max(len(entry["name"]) for entry in listed) + 2
    for entry in listed:
        name, summary = plain(entry["name"]), plain(entry["summary"])
        click.echo(click.wrap_text(summary, width(), name.ljust(column), " " * column))


def _show_entries(listed: Sequence[Listed]) -> None:
    """Print each entry in a few lines: citations in a narrow column cannot be read."""
    for entry in listed:
        _, _, *facts = entry.items()
        click.secho(plain(entry["name"]), bold=True)
        click.echo(click.wrap_text(plain(entry["summary"]), width(), "    ", "    "))
        for heading, text in facts:
            line = f"{heading.replace('_', ' ')}: {plain(text)}"
            click.secho(click.wrap_text(line, width(), "    ", "    "), dim=True)
