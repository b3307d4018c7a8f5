"""Defences by name.

A defence is either a `Release` (what is done to the update as it leaves) or a `GradientFn` (how the gradient
inside a local step is taken). `fl.release.Chain` puts releases one after another.
"""

from __future__ import annotations

from fedglass.core.registry import make, summaries
from fedglass.fl.local import GradientFn
from fedglass.fl.release import Release


def defence(name: str, **options: object) -> Release | GradientFn:
    """The defence of that name with the given options.

    >>> defence("magnitude_pruning", share=0.7)
    MagnitudePruning(share=0.7)
    """
    part: Release | GradientFn = make("defences", name, **options)
    return part


def names() -> dict[str, str]:
    """Name and one-line summary of every defence.

    >>> names()["clip"]
    'the update scaled down to a maximal L2 norm'
    """
    return summaries("defences")
