"""Defences by name.

A defence is either a `Release`, which changes the update as it leaves, or a `GradientFn`, which computes the gradient
inside a local step. `fl.release.Chain` applies releases one after another.
"""

from __future__ import annotations

from fedglass.core.registry import make
from fedglass.fl.local import GradientFn
from fedglass.fl.release import Release


def defence(name: str, **options: object) -> Release | GradientFn:
    """Return the defence of that name with the given options.

    >>> defence("magnitude_pruning", share=0.7)
    MagnitudePruning(share=0.7)
    """
    part: Release | GradientFn = make("defences", name, **options)
    return part
