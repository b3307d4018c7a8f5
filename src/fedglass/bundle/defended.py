"""The declared clipping and noise beside those of a message: one-sided checks that need no data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fedglass.core.statistics import RUNNING
from fedglass.core.words import some

State = Mapping[str, Tensor]
SLACK = 1e-3
"""The share by which a mean or a norm may differ: rounding, and the quantisation of secure aggregation."""
WIDTHS = 6.0
"""Standard deviations by which the size of noise may differ by chance."""
CLIPPING, NOISE = "clipping_norm", "noise_std"
"""What options of other frameworks' defences are called that mean the same as clip.norm and gaussian_noise.std."""


def without_running(moved: State) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in moved.items() if name.rpartition(".")[2] not in RUNNING}


def _options(defences: list[dict[str, Any]]) -> tuple[float | None, float]:
    """The norm that updates are clipped to, and the standard deviation of noise, as far as they are declared."""
    told = {f"{p['name']}.{name}": value for p in defences for name, value in (p.get("options") or {}).items()}
    numbers = {name: float(value) for name, value in told.items() if isinstance(value, int | float) and value > 0}
    clip = next((value for name, value in numbers.items() if name == "clip.norm" or _last(name) == CLIPPING), None)
    std = next((value for name, value in numbers.items() if name == "gaussian_noise.std" or _last(name) == NOISE), 0.0)
    return clip, std


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def defended(moved: State, defences: list[dict[str, Any]]) -> Iterator[str]:
    """The declared bound and noise beside the message's own."""
    clip, std = _options(defences)
    if clip is not None and moved:
        yield from _bounded(moved, clip, std)
    if std:
        yield from _noisy(moved, std)


def unbounded(moved: State, defences: list[dict[str, Any]]) -> Iterator[str]:
    """Running statistics that leave beside a clipped update, and are not clipped themselves."""
    clip, std = _options(defences)
    running = {name: tensor for name, tensor in moved.items() if _last(name) in RUNNING}
    loud = [
        name for name, tensor in running.items() if clip is not None and float(tensor.norm()) > _most(tensor, clip, std)
    ]
    if loud:
        yield f"running statistics leave outside the clipping to {clip:g} ({some(loud)})"


def _most(like: Tensor, clip: float, std: float) -> float:
    entries = like.numel()
    noise = std * math.sqrt(entries) * (1 + WIDTHS / math.sqrt(2 * entries)) if std else 0.0
    return (clip + noise) * (1 + SLACK)


def _bounded(moved: State, clip: float, std: float) -> Iterator[str]:
    """|u| <= C, and what is outside of it by name: a clipping that works on arrays may pass over scalars."""
    most = _most(torch.cat([tensor.reshape(-1) for tensor in moved.values()]), clip, std)
    if _norm(moved) <= most:
        return
    scalars = [name for name, tensor in moved.items() if tensor.dim() == 0]
    rest = {name: tensor for name, tensor in moved.items() if tensor.dim() > 0}
    why = "it was not clipped so"
    if scalars and rest and _norm(rest) <= most:
        why = f"0-d tensors escaped the clipping ({some(scalars)})"
    yield f"the update's norm is {_norm(moved):.4g} where at most {clip:g} is declared: {why}"


def _noisy(moved: State, std: float) -> Iterator[str]:
    """Whatever the data are, entries with independent noise are not smaller than it."""
    bare = []
    for name, tensor in moved.items():
        n = tensor.numel()
        if n == 1 and float(tensor) == round(float(tensor)):
            bare.append(name)
        elif n > 1 and 1 - WIDTHS / math.sqrt(2 * n) > 0:
            size = float(tensor.square().mean().sqrt())
            if size < std * (1 - WIDTHS / math.sqrt(2 * n)):
                bare.append(name)
    if bare:
        yield f"noise of standard deviation {std:g} is declared, and {len(bare)} tensor(s) hold less ({some(bare)})"


def _norm(tensors: State) -> float:
    return float(torch.stack([t.norm() for t in tensors.values()]).norm())
