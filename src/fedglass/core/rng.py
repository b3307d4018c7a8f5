"""Named random streams: every random call takes its own generator, nothing seeds globally."""

from __future__ import annotations

import hashlib

import torch


def stream(seed: int, *name: str | int) -> torch.Generator:
    """A CPU generator that depends on the seed and on the name alone.

    Two parts with different names never share random numbers, so that adding one does not move another.

    >>> torch.rand(1, generator=stream(0, "a")) == torch.rand(1, generator=stream(0, "a"))
    tensor([True])
    >>> torch.rand(1, generator=stream(0, "a")) == torch.rand(1, generator=stream(0, "b"))
    tensor([False])
    """
    return torch.Generator().manual_seed(derive(seed, *name))


def derive(seed: int, *name: str | int) -> int:
    """A seed of its own for a named part, in [0, 2^63)."""
    # Slashes of a part are marked, so that ("a/b",) and ("a", "b") are two names.
    escaped = (str(part).replace("\\", "\\\\").replace("/", "\\/") for part in name)
    text = "/".join([str(seed), *escaped])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
