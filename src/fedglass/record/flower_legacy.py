"""Flower's older API: results of clients as lists of bytes, which secure aggregation still uses."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np


def arrays_of(parameters: Any) -> dict[str, Any]:
    """The arrays of a model, which have no names but their numbers; no pickle is read."""
    return {str(i): np.load(BytesIO(data), allow_pickle=False) for i, data in enumerate(parameters.tensors)}


def same_parameters(one: Any, other: Any) -> bool:
    return bool(one.tensors == other.tensors)


def aggregated_securely(results: Sequence[tuple[Any, Any]]) -> bool:
    """Whether the replies were summed up before anybody saw them: Flower then gives each client the sum as its own."""
    return len(results) > 1 and all(result.parameters is results[0][1].parameters for _, result in results)


def config_of(told: Any) -> dict[str, Any]:
    return dict(told.config or {})


def metrics_of(result: Any) -> dict[str, Any]:
    return dict(result.metrics or {})
