"""`python -m bench [call loop fedavg peer rules ...]`: what was measured, and what is demanded."""

from __future__ import annotations

import sys

import torch
from rich.console import Console
from rich.table import Table

from bench import call, classic, executors, fedavg, loop, peer, quality, rounds, rules, startup, verdicts

PARTS = {
    "call": call.measure,
    "loop": loop.measure,
    "fedavg": fedavg.measure,
    "peer": peer.measure,
    "rules": rules.measure,
    "startup": startup.measure,
    "verdicts": verdicts.measure,
    "executors": executors.measure,
    "rounds": rounds.measure,
    "quality": quality.measure,
    "classic": classic.measure,
}


def main() -> None:
    torch.set_num_threads(1)
    console = Console()
    for name in sys.argv[1:] or PARTS:
        table = Table("measured on one thread", "figure", "demanded", title=name)
        with console.status(f"measuring {name}"):
            for row in PARTS[name]():
                table.add_row(*row)
        console.print(table)


if __name__ == "__main__":
    main()
