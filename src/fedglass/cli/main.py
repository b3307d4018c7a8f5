"""The command line. `fedglass --help` must not wait for torch: commands import what they need when they run."""

from __future__ import annotations

import difflib
import gc
import os
import sys
from typing import Any

import click

from fedglass import __version__
from fedglass.cli.advise import advise
from fedglass.cli.audit import audit, demo
from fedglass.cli.epsilon import epsilon
from fedglass.cli.options import plain
from fedglass.cli.plans import check, init, list_known, schema
from fedglass.cli.recordings import join, record_info
from fedglass.cli.report import report
from fedglass.cli.reproduce import campaign, reproduce, results_page
from fedglass.cli.train import train, train_autoencoder, train_diffusion, train_gan
from fedglass.core.errors import FedglassError, UsageError

BAD_REQUEST, NOT_COMPLETED = 2, 3


class Commands(click.Group):
    """The group of all commands, which turns every error into one message on stderr and an exit code."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Prefer a command of two words, such as `train diffusion`, to that of its first word."""
        both = " ".join(args[:2])
        if both in self.commands:
            return both, self.commands[both], args[2:]
        if not ctx.resilient_parsing:
            self._refuse_misspelt(args[0], both)
        return super().resolve_command(ctx, args)

    def _refuse_misspelt(self, first: str, both: str) -> None:
        """Refuse an unknown command, and one whose second word is nearly that of a command, not that of a file."""
        if first not in self.commands:
            near = difflib.get_close_matches(first, self.commands, n=1, cutoff=0.5)
            hint = f"Did you mean `{near[0]}`?" if near else "`fedglass --help` lists all commands."
            raise UsageError(f"There is no command `{first}`. {hint}")
        longer = [name for name in self.commands if name.startswith(f"{first} ")]
        near = difflib.get_close_matches(both, longer, n=1, cutoff=0.9)
        if near and not os.path.exists(both.removeprefix(f"{first} ")):
            raise UsageError(f"There is no command `{both}`. Did you mean `{near[0]}`?")

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FedglassError as error:
            click.echo(f"fedglass: {plain(str(error))}", err=True)
            ctx.exit(BAD_REQUEST if isinstance(error, UsageError) else NOT_COMPLETED)
        except KeyboardInterrupt:
            click.echo("\nfedglass: stopped; run the same command again to continue.", err=True)
            ctx.exit(NOT_COMPLETED)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="fedglass")
def cli() -> None:
    """Audit federated learning: what do the clients' messages reveal?

    fedglass runs published reconstruction attacks against your federation, simulated or recorded, and
    reports what each of them recovered.

    \b
    First steps:
      fedglass demo                    audit a small embedded federation, with pictures
      fedglass init plan.toml          write a commented plan
      fedglass check plan.toml         print the threat model
      fedglass audit plan.toml -o out  run it; out/report.html has the answer
      fedglass advise plan.toml        find the defence and the strength that meet the gate

    \b
    Test a declared epsilon by canaries (docs/epsilon.md):
      fedglass epsilon plan.toml

    \b
    Audit a recorded federation (docs/bundles.md):
      fedglass record-info recorded/
      fedglass audit recorded/ -o out

    \b
    In a pipeline (every command that prints has --json and -q):
      fedglass audit plan.toml -o out --json
      fedglass report out --junit junit.xml --sarif fedglass.sarif

    \b
    Exit codes:
      0  CLEAR: a certificate covers every audited record
      1  LEAK or EXPOSED: images were recovered, or records are singled out
      2  the command or the plan is wrong
      3  INCONCLUSIVE (unless inconclusive_fails = false), or the audit is incomplete
    """


audits = (demo, init, check, audit, advise, epsilon, record_info, join, report, list_known, schema)
for command in (*audits, reproduce, campaign, results_page, train, train_diffusion, train_autoencoder, train_gan):
    cli.add_command(command)


def main() -> None:
    """Run the `fedglass` command; an internal error prints a traceback and exits with 3, never like a verdict."""
    try:
        cli()
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 # no error may end like a verdict
        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(NOT_COMPLETED) from None
    finally:
        # Skip the last garbage collection, which takes most of a second after torch was used.
        gc.freeze()
