"""Measure how far lower bounds on epsilon from canaries are below the truth: docs/epsilon.md has the results.

Honest mechanisms of a known epsilon are audited in a simulation: 4 epsilons x 3 numbers of canaries x 3 seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import torch
from torch import nn

from fedglass.audit.epsilon import EpsilonAudit, simulated_epsilon
from fedglass.core.types import Training, Whitening
from fedglass.defend.dpsgd import DPSGD
from fedglass.defend.noise import Clip, GaussianNoise
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation
from fedglass.fl.release import Chain

DELTA = 1e-5
MUS = (0.5, 1.0, 2.0, 4.0)
"""Epsilons 1.99, 4.38, 10.0 and 24.4 at this delta."""
COUNTS = (200, 500, 1000)
SEEDS = (0, 1, 2)
UNITS = ("example", "update")
"""One step of DP-SGD on all examples, and a clipped update with noise: both have exactly this epsilon."""


@dataclass(frozen=True)
class Measurement:
    """One cell of the grid."""

    unit: str
    count: int
    seed: int
    audit: EpsilonAudit

    @property
    def truth(self) -> float:
        upper = self.audit.accounted.upper
        assert upper is not None, "the accountant bounds these mechanisms"
        return upper


def measure(unit: str) -> Iterator[Measurement]:
    """Yield the audits of the grid."""
    for mu in MUS:
        federation = federation_of(unit, mu)
        for count in COUNTS:
            for seed in SEEDS:
                audit = simulated_epsilon(federation, federation.clients[0], count, seed=seed, delta=DELTA)
                yield Measurement(unit, count, seed, audit)


def federation_of(unit: str, mu: float) -> Federation:
    """Return a client with 8 random pictures and a dense network of 7,690 weights."""
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(8, 3, 16, 16, generator=generator), torch.arange(8) % 10
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(768, 10))
    if unit == "example":
        client = Client("a", images, labels, gradient=DPSGD(1.0, 1 / mu))
    else:
        client = Client("a", images, labels, release=Chain((Clip(1.0), GaussianNoise(1 / mu))))
    return Federation(model, [client], Training(lr=0.1), 10, Whitening((0.5,) * 3, (0.25,) * 3))


def main() -> None:
    """Print the medians of each cell, and how many bounds are above the truth."""
    write = sys.stdout.write
    for unit in UNITS:
        measured = list(measure(unit))
        write(f"{unit}: epsilon, canaries, lower bounds by seed, ceiling\n")
        for truth in dict.fromkeys(m.truth for m in measured):
            for count in COUNTS:
                cell = [m for m in measured if m.truth == truth and m.count == count]
                bounds = ", ".join(f"{m.audit.lower:.2f}" for m in cell)
                write(f"  {truth:6.2f} {count:6,}   {bounds:24} {median(m.audit.ceiling for m in cell):6.1f}\n")
        above = [m.audit.lower / m.truth for m in measured if m.audit.lower > m.truth]
        below = median(1 - m.audit.lower / m.truth for m in measured)
        any_below = median(1 - m.audit.lower_any / m.truth for m in measured)
        write(f"  {len(above)} of {len(measured)} above the truth, by at most {max(above, default=1) - 1:.1%}; ")
        write(f"median distance below {below:.0%}, of the bound for any mechanism {any_below:.0%}\n")


if __name__ == "__main__":
    main()
