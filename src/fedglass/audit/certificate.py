"""The per-record certificate of a message: how far one record moves it, in units of the noise that hides it.

By Neyman-Pearson against a fixed reference, no adversary that names a record once in 1,000 times without the message
names it more often than Phi(Phi^-1(1/1000) + mu) with it. A reference may be anything that does not depend on the
record: the client absent, or the record absent. Both are valid, so the nearer one counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from fedglass.bounds.adversaries import centred_gram, expected_psnr, simulated_success
from fedglass.bounds.mechanisms import (
    ORDERS,
    Array,
    laplace_renyi,
    pld_installed,
    poisson_advantage,
    poisson_epsilon,
    poisson_success,
    renyi_success,
)
from fedglass.bounds.success import combine_mu, gdp_advantage, gdp_epsilon, gdp_success
from fedglass.checks.distances import alike, distances, flat, tells_nothing, with_record
from fedglass.checks.replay import Declared, Part, message_of, too_long
from fedglass.core.errors import UsageError
from fedglass.core.optimisers import SGD
from fedglass.core.rng import stream
from fedglass.core.tensors import buffers_of, weights_of
from fedglass.core.types import Training, Whitening
from fedglass.defend.dpsgd import DPSGD
from fedglass.defend.noise_model import NoBound, NoiseModel, Samples, noise_model
from fedglass.federation.truth import Examples
from fedglass.fl.local import GradientFn
from fedglass.fl.release import Protection, Release
from fedglass.verdict.doubts import Doubt, Kind, doubt
from fedglass.verdict.flags import flag
from fedglass.verdict.records import BASE_RATE, Certificate

# What stands beside a certificate and never decides: the best adversary of a game, and the PSNR without a prior.


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


DELTA = 1e-5
"""At which epsilon is stated, as is customary."""
TOO_LONG = "The training is too long to be run again."
DIVERGES = "run again on the true data, the declared training diverges"
WHY = {
    "own": "It is not one of fedglass's own defences, so its noise is not known to be independent of the data.",
    "repeats": "Its noise repeats.",
    "mixed": "What is random before the noise has no bound here.",
    "steps": "Noise in several local steps without clipping has no bound.",
    "": "",
}


@dataclass(frozen=True, eq=False)
class Bound:
    """What the rounds of one message amount to."""

    mu: tuple[float, ...] = ()
    """Of each private record, over the rounds that were looked at."""
    renyi: tuple[Array, ...] = ()
    """The same of Laplacian noise: Rényi divergences of each record."""
    client_mu: float | None = None
    per_round: float | None = None
    """What any further round adds at the most; None where nothing bounds it."""
    steps: bool = False
    """Whether several noisy local steps stand behind it, which only the accountant bounds."""
    rounds: int = 1
    stds: tuple[tuple[float, ...], ...] = ()
    """Of each round and private part, the Gaussian noise that hides it; empty where that is not all that does."""
    identical: bool = False
    """Whether there is no noise, and the message is the same whatever the records are."""
    samples: Samples | None = None
    """Where all clients draw the same kind of Poisson samples in every round."""


def bound_of(rounds: Sequence[Declared], pool: Examples | None = None) -> Bound | Doubt:
    """Return the bound of messages of the same records in different rounds, or why there is none.

    `pool` are candidates: without noise a message tells nothing only if it is the same with all of them.
    """
    bounds = list[Bound]()
    for each in rounds:
        found = _of_round(each, pool)
        if isinstance(found, Doubt):
            return found
        bounds.append(found)
    if any(each.renyi for each in bounds):  # of Gaussian noise R_a = a mu^2 / 2
        spent = [each.renyi or tuple(ORDERS * mu**2 / 2 for mu in each.mu) for each in bounds]
        return Bound(renyi=tuple(np.sum(of, axis=0) for of in zip(*spent, strict=True)), rounds=len(rounds))
    limits = [each.per_round for each in bounds]
    clients = [each.client_mu for each in bounds]
    return Bound(
        tuple(combine_mu(mus) for mus in zip(*(each.mu for each in bounds), strict=True)),
        client_mu=None if None in clients else combine_mu([mu for mu in clients if mu is not None]),
        per_round=None if None in limits else max(limit for limit in limits if limit is not None),
        steps=any(each.steps for each in bounds),
        rounds=len(rounds),
        stds=tuple(std for each in bounds for std in each.stds) if all(each.stds for each in bounds) else (),
        identical=all(each.identical for each in bounds),
        samples=_common([each.samples for each in bounds]),
    )


def _common(samples: Sequence[Samples | None]) -> Samples | None:
    """Return what all have; None where they differ."""
    return samples[0] if len(set(samples)) == 1 else None


def certificate_of(bound: Bound, further: int) -> Certificate | None:
    """Return the certificate over the rounds that were looked at and `further` more; None where those have no bound."""
    if further and bound.per_round is None:
        return None
    rounds = bound.rounds + further
    if bound.samples is not None and pld_installed():
        return _of_samples(bound.samples, rounds, len(bound.mu))
    if bound.renyi:
        success = [renyi_success(BASE_RATE, spent) for spent in bound.renyi]
        return Certificate(method="record", accounting="laplacian", success=success, rounds=rounds)
    more = [] if bound.per_round is None else [bound.per_round] * further
    mus = [combine_mu([mu, *more]) for mu in bound.mu]
    worst = max(mus)
    return Certificate(
        method="accountant" if bound.steps else "record",
        accounting=_accounting(bound),
        success=[gdp_success(BASE_RATE, mu) for mu in mus],
        mu=mus,
        rounds=rounds,
        advantage=gdp_advantage(worst),
        epsilon=gdp_epsilon(worst, DELTA),
        delta=DELTA,
        client_mu=None if bound.client_mu is None else combine_mu([bound.client_mu, *more]),
    )


def _accounting(bound: Bound) -> str:
    if bound.samples is not None:
        return "poisson_not_counted"
    if bound.steps:
        return "composed_gaussian"
    return "identical" if bound.identical else "gaussian"


def _of_samples(samples: Samples, rounds: int, records: int) -> Certificate:
    """Return the certificate of DP-SGD on Poisson samples, by the privacy-loss distribution."""
    run = samples.rate, samples.noise_multiplier, rounds * samples.steps
    return Certificate(
        method="accountant",
        accounting="pld",
        success=[poisson_success(BASE_RATE, *run)] * records,
        rounds=rounds,
        advantage=poisson_advantage(*run),
        epsilon=poisson_epsilon(*run, DELTA),
        delta=DELTA,
    )


def planned_certificate(bound: Bound, further: int) -> Certificate:
    """Return the certificate over the rounds that were looked at, with what it comes to after `further` more."""
    held = certificate_of(bound, 0)
    assert held is not None, "no further rounds are asked for"
    if not further:
        return held
    later = certificate_of(bound, further)
    told = {"planned": bound.rounds + further, "success_planned": None if later is None else later.worst}
    return held.model_copy(update=told)


def beside(rounds: Sequence[Declared], bound: Bound, pool: Examples | None, seed: int) -> dict[str, object]:
    """Return the fields of a certificate that are shown and decide nothing, of the worst record."""
    if not bound.stds or len(bound.stds) != len(rounds):
        return {}
    place, row = _record(rounds[0], max(range(len(bound.mu)), key=lambda i: bound.mu[i]))
    parts = [without_noise(each).parts[place] for each in rounds]
    told: dict[str, object] = {}
    stds = [each[place] for each in bound.stds]
    found = simulated_adversary(rounds, parts, stds, row, pool, seed)
    model = models_of(rounds[0].parts)[place]
    if len(rounds) == len(rounds[0].parts) == 1 and isinstance(model, NoiseModel):
        told["expected_psnr"] = psnr_without_prior(parts[0], model)
    return {**told, "adversary": found}


def _record(declared: Declared, number: int) -> tuple[int, int]:
    """Return which part a private record is in, and at which row."""
    for place, part in enumerate(declared.parts):
        if number < len(part.labels):
            return place, number
        number -= len(part.labels)
    raise IndexError(number)


def certify(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    training: Training,
    defences: Sequence[Release | GradientFn],
    *,
    whitening: Whitening,
    rounds: int = 1,
    poisson: float | None = None,
) -> Certificate:
    """Return the certificate of a client's message, as `fedglass audit` states it of a simulated federation.

    `model` holds the weights before the round, `images` are pixels in [0, 1], `defences` act in their order. More than
    one round needs an update that is clipped, or DP-SGD. Where nothing bounds what an adversary reads, a UsageError
    says why.

    `poisson` is for DP-SGD that draws the batch of each local step anew, every record by itself with this probability,
    and divides by the expected size of a batch, as Opacus does. It needs `fedglass[pld]`. Slices of a shuffled epoch,
    as fedglass and most data loaders make them, are no such samples: leave it out.
    """
    part = Part(images, labels, training, Protection.of(defences))
    declared = dict.fromkeys(("noise", "training"), "declared")
    if poisson is not None:
        found: Certificate | None = _of_samples(_samples(part, poisson), rounds, len(labels))
        declared["Poisson samples"] = "declared"
    else:
        claim = Declared(model, weights_of(model), buffers_of(model), {}, whitening, (part,))
        bound = bound_of([claim])
        if isinstance(bound, Doubt):
            raise UsageError(flag(bound).advice)
        found = certificate_of(bound, rounds - 1)
        if found is not None and rounds == 1:
            found = found.model_copy(update=beside([claim], bound, None, 0))
    if found is None:
        raise UsageError(flag(doubt(Kind.MORE_ROUNDS, rounds=rounds - 1)).text + " Clip the update before the noise.")
    return found.model_copy(update={"assumptions": declared})


def _samples(part: Part, rate: float) -> Samples:
    """Return what the caller says of a client's samples, or refuse it."""
    gradient, refused = part.protection.gradient, _refusal(models_of([part]))
    if type(gradient) is not DPSGD:
        raise UsageError("poisson is the sampling rate of DP-SGD: add the defence dpsgd, or leave poisson out.")
    if refused is not None:
        raise UsageError(flag(refused).advice)
    return Samples(rate, gradient.noise_multiplier, part.steps)


def declared_bound(
    protections: Sequence[Protection], trainings: Sequence[tuple[int, Training]], rounds: int
) -> Bound | Doubt:
    """Return what a declaration alone bounds, without the data: clipping and noise, or DP-SGD."""
    pairs = zip(protections, trainings, strict=True)
    models = [noise_model(protection, training, examples) for protection, (examples, training) in pairs]
    refused = _refusal(models)
    if refused is not None:
        return refused
    noisy = [model for model in models if isinstance(model, NoiseModel)]
    limits = [model.per_round for model in noisy]
    known = [limit for limit in limits if limit is not None]
    if len(known) < len(limits):
        return doubt(Kind.DEFENCE_NOT_BOUNDED, defence="noise without clipping", why="Only the data bound it.")
    mus = tuple(combine_mu([limit] * rounds) for limit in known)
    samples = _common([model.samples for model in noisy])
    return Bound(mus, per_round=max(known), steps=True, rounds=rounds, samples=samples)


def _refusal(models: Sequence[NoiseModel | NoBound]) -> Doubt | None:
    """Say why some client's protection has no bound."""
    refused = [model for model in models if isinstance(model, NoBound)]
    unknown = next((model for model in refused if model.defence), None)
    if unknown is not None:
        return doubt(Kind.DEFENCE_NOT_BOUNDED, defence=unknown.defence, why=WHY[unknown.why])
    return doubt(Kind.NO_NOISE) if refused else None


def models_of(parts: Sequence[Part]) -> list[NoiseModel | NoBound]:
    """Return the noise of each part."""
    return [noise_model(part.protection, part.training, len(part.labels)) for part in parts]


def without_noise(declared: Declared) -> Declared:
    """Return the same clients, of whose protections only the deterministic part is left."""
    plain = [
        replace(part, protection=model.plain) if isinstance(model, NoiseModel) else part
        for part, model in zip(declared.parts, models_of(declared.parts), strict=True)
    ]
    return replace(declared, parts=tuple(plain))


def shares(declared: Declared) -> list[float]:
    """Return what each part weighs in the message."""
    weights = [len(part.labels) if part.weight is None else part.weight for part in declared.parts]
    return [weight / sum(weights) for weight in weights]


def total_std(declared: Declared, *, hidden: bool = True) -> float | None:
    """Return the standard deviation of the noise in the message; None where it is not one Gaussian.

    With `hidden` the adversary's own noise is left out, which it can subtract.
    """
    models = models_of(declared.parts)
    kept = models[: len(models) - declared.own] if hidden else models
    noisy = [model for model in kept if isinstance(model, NoiseModel)]
    if any(model.law != "gaussian" or not model.additive for model in noisy):
        return None
    weighed = zip(shares(declared), kept, strict=False)
    return math.hypot(*(share * model.std for share, model in weighed if isinstance(model, NoiseModel)), 0.0)


def _of_round(declared: Declared, pool: Examples | None) -> Bound | Doubt:
    """Return the bound of one round's message."""
    private = len(declared.parts) - declared.own
    counts = [len(part.labels) for part in declared.parts[:private]]
    models = models_of(declared.parts)[:private]
    refused = _refusal(models)
    if refused is not None and not (
        refused.kind is Kind.NO_NOISE and declared.combined_by_mean and total_std(declared)
    ):
        if refused.kind is Kind.NO_NOISE and tells_nothing(declared, pool):
            return Bound((0.0,) * sum(counts), identical=True)
        return refused
    # In a mean a client without noise is hidden by that of the others.
    known = [
        model if isinstance(model, NoiseModel) else NoiseModel("gaussian", 0.0, part.protection)
        for model, part in zip(models, declared.parts, strict=False)
    ]
    limits = [model.per_round for model in known]
    limit = None if None in limits else max(each for each in limits if each is not None)
    if any(not model.additive for model in known):
        if limit is None:
            return doubt(Kind.DEFENCE_NOT_BOUNDED, defence=repr(declared.parts[0].protection), why=WHY["steps"])
        each = [model.per_round or 0.0 for model, count in zip(known, counts, strict=True) for _ in range(count)]
        return Bound(tuple(each), per_round=limit, steps=True, samples=_common([model.samples for model in known]))
    if too_long(declared):
        return doubt(Kind.NOISE_NOT_TESTABLE, why=TOO_LONG)
    return _measured(declared, known, limit)


def _measured(declared: Declared, models: Sequence[NoiseModel], limit: float | None) -> Bound | Doubt:
    """Return how far each record moves the message, in units of its noise."""
    weights, together = shares(declared), total_std(declared) if declared.combined_by_mean else None
    mu: list[float] = []
    renyi: list[Array] = []
    clients: list[float] = []
    stds: list[float] = []
    for i, model in enumerate(models):
        moved = distances(declared, without_noise(declared).parts[i])
        if not moved:
            return doubt(Kind.NOT_AS_DECLARED, found=DIVERGES)
        # In a mean the others' noise hides this client too; what another rule makes of its message tells no more.
        stds.append(model.std if together is None else max(model.std, together / weights[i]))
        if model.law == "laplacian":
            renyi += [laplace_renyi((row * math.sqrt(2) / model.std).numpy()) for row in moved[1:]]
        else:
            mu += [min(float(row.norm()) / stds[-1], model.per_round or math.inf) for row in moved[1:]]
            clients.append(float(moved[0].norm()) / stds[-1])
    if renyi:  # of Gaussian noise R_a = a mu^2 / 2
        return Bound(renyi=(*renyi, *(ORDERS * each**2 / 2 for each in mu)))
    return Bound(tuple(mu), client_mu=max(clients, default=None), per_round=limit, stds=(tuple(stds),))
