"""`fedglass schema`: the JSON schema of a plan."""

from __future__ import annotations

import json

import click


@click.command(short_help="Print the JSON schema of a plan, for editors.")
def schema() -> None:
    """Print the JSON schema of plan files: every key, its type, range and meaning.

    Editors that know TOML schemas complete and check a plan with it as it is written.

    \b
    Example:
      fedglass schema > plan.schema.json
    """
    from fedglass.plan.reference import json_schema

    click.echo(json.dumps(json_schema(), indent=1))
