"""What stands beside a certificate and never decides: the best adversary of a game, and the PSNR without a prior."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedglass.audit.distances import alike, flat, with_record
from fedglass.audit.replay import Declared, Part, message_of
from fedglass.bounds.candidates import centred_gram, simulated_success
from fedglass.bounds.corridor import expected_psnr
from fedglass.core.optimisers import SGD
from fedglass.core.rng import stream
from fedglass.defend.noise_model import NoiseModel
from fedglass.rounds.truth import Examples

SIZES = (2, 10, 100, 1000)
"""Numbers of candidates that the adversary chooses from."""
DRAWS = 2000
"""Games of each size: a success of 5 % is then known to 0.5 %."""
MOST_VALUES = 30_000_000
"""Entries of all candidates' messages of a round: 120 MB, and for 1,000 of them 60 billion products."""
MOST_WORK = 250_000_000
"""Examples of all local steps of all candidates, times the weights of the network: some 5 s on one core."""
LEAST_WEIGHTS = 25_000
"""What an example costs at least, in weights: a smaller network is no faster."""


def simulated_adversary(
    rounds: Sequence[Declared],
    parts: Sequence[Part],
    stds: Sequence[float],
    row: int,
    pool: Examples | None,
    seed: int,
) -> dict[str, float]:
    """Return how often the best adversary names the right one of 2, 10, 100 and 1,000 candidates for one record.

    `parts` are the client of each round without its noise, and `stds` what hides its message. A candidate stands in
    the place of the record; those with its label come first. Sizes that the pool or the time do not allow are left
    out.
    """
    if pool is None:
        return {}
    rows, _ = alike(parts[0], row, pool, stream(seed, "candidates"))
    sizes = [size for size in SIZES if size <= min(1 + len(rows), _affordable(rounds, parts))]
    if not sizes:
        return {}
    rows = rows[: sizes[-1] - 1]
    examples = [(parts[0].images[row], parts[0].labels[row]), *zip(pool.images[rows], pool.labels[rows], strict=True)]
    gram = torch.zeros(sizes[-1], sizes[-1], dtype=torch.float64)
    for declared, part, std in zip(rounds, parts, stds, strict=True):
        updates = _messages(declared, part, row, examples) / std
        if not bool(torch.isfinite(updates).all()):
            return {}
        gram += centred_gram(updates)
    return {
        str(size): simulated_success(gram[:size, :size], 1.0, DRAWS, stream(seed, "adversary", size)) for size in sizes
    }


def psnr_without_prior(part: Part, model: NoiseModel) -> float | None:
    """Return the expected PSNR where the message is one clipped gradient of one example; None where it is not."""
    one = len(part.labels) == 1 and part.steps == 1 and isinstance(part.training.optimiser, SGD)
    if not one or not model.additive or not model.per_round:
        return None
    found = expected_psnr(part.images.numel(), float(part.images.double().norm()), 1 / model.per_round)
    return found if math.isfinite(found) else None


def _affordable(rounds: Sequence[Declared], parts: Sequence[Part]) -> int:
    """Return how many candidates' messages can be had in some seconds and some hundred megabytes."""
    weights = sum(tensor.numel() for tensor in rounds[0].before.values())
    sizes = (len(p.labels) if p.training.batch_size is None else p.training.batch_size for p in parts)
    examples = sum(part.steps * size for part, size in zip(parts, sizes, strict=True))
    return min(MOST_VALUES // weights, MOST_WORK // (examples * max(weights, LEAST_WEIGHTS)))


def _messages(declared: Declared, part: Part, row: int, examples: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return what would be sent with each example in the place of a record.  # (n, d)"""
    sent = torch.empty(len(examples), sum(tensor.numel() for tensor in declared.before.values()))
    for i, (image, label) in enumerate(examples):
        one = replace(declared, parts=(with_record(part, row, image, label),))
        sent[i] = flat(message_of(one, 0)).float()
    return sent
