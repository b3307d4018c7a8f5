"""Which examples a step took, told by what they hold."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor


class Examples:
    """Digests of examples, and where they are to be kept the examples themselves."""

    def __init__(self, keep: bool) -> None:
        self.keep = keep
        self.kept: dict[bytes, Tensor] = {}

    def rows_of(self, batches: Sequence[Tensor | None]) -> list[bytes]:
        """A digest of each example of a step; of two that are alike, as data sets have them, the second has its own.

        A batch that comes again is the same examples looked at twice, as L-BFGS and sharpness-aware steps do.
        """
        told: list[list[bytes]] = []
        seen: Counter[bytes] = Counter()
        rows = []
        for batch in batches:
            examples = [] if batch is None else list(batch.cpu())
            plain = [_digest(example) for example in examples]
            if plain in told:
                continue
            told.append(plain)
            for digest, example in zip(plain, examples, strict=True):
                rows.append(digest + seen[digest].to_bytes(4))
                seen[digest] += 1
                if self.keep and rows[-1] not in self.kept:
                    self.kept[rows[-1]] = example.clone()
        return rows


def _digest(example: Tensor) -> bytes:
    content = example.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(content, digest_size=16).digest()
