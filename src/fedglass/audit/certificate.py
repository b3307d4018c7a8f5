"""The per-record certificate of a message: how far one record moves it, in units of the noise that hides it.

By Neyman-Pearson against a fixed reference, no adversary that names a record once in 1,000 times without the message
names it more often than Phi(Phi^-1(1/1000) + mu) with it. A reference may be anything that does not depend on the
record: the client absent, or the record absent. Both are valid, so the nearer one counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from fedglass.audit.replay import Declared, Part, batches_of, message_of, too_long
from fedglass.bounds.laplace import ORDERS, Array, laplace_renyi, renyi_success
from fedglass.bounds.success import combine_mu, gdp_advantage, gdp_epsilon, gdp_success
from fedglass.core.errors import UsageError
from fedglass.core.params import buffers_of, weights_of
from fedglass.core.types import Training, Whitening
from fedglass.defend.noise_model import NoBound, NoiseModel, noise_model
from fedglass.fl.local import GradientFn
from fedglass.fl.protection import Protection
from fedglass.fl.release import Release
from fedglass.ledger.doubts import Doubt, Kind, doubt
from fedglass.ledger.records import BASE_RATE, Certificate
from fedglass.verdict.texts import flag

MOST_REPLAYS = 4000
"""Local steps of all replays without one record; beyond these only the client's absence is a reference."""
DELTA = 1e-5
"""At which epsilon is stated, as is customary."""
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

    models: tuple[NoiseModel, ...]
    """Of each private part of the first round."""
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
    doubts: tuple[Doubt, ...] = field(default=())


def bound_of(rounds: Sequence[Declared]) -> Bound | Doubt:
    """Return the bound of messages of the same records in different rounds, or why there is none."""
    found = [_of_round(each) for each in rounds]
    refused = next((each for each in found if isinstance(each, Doubt)), None)
    if refused is not None:
        return refused
    bounds = [each for each in found if isinstance(each, Bound)]
    first = bounds[0]
    limits = [each.per_round for each in bounds]
    clients = [each.client_mu for each in bounds]
    return Bound(
        first.models,
        tuple(combine_mu(mus) for mus in zip(*(each.mu for each in bounds), strict=True)),
        tuple(sum(spent, start=np.zeros(())) for spent in zip(*(each.renyi for each in bounds), strict=True)),
        None if None in clients else combine_mu([mu for mu in clients if mu is not None]),
        None if None in limits else max(limit for limit in limits if limit is not None),
        any(each.steps for each in bounds),
        len(rounds),
    )


def certificate_of(bound: Bound, further: int) -> Certificate | None:
    """Return the certificate over the rounds that were looked at and `further` more; None where those have no bound."""
    if further and bound.per_round is None:
        return None
    rounds = bound.rounds + further
    if bound.renyi:
        success = [renyi_success(BASE_RATE, spent) for spent in bound.renyi]
        return Certificate(method="record", accounting="laplacian", success=success, rounds=rounds)
    more = [] if bound.per_round is None else [bound.per_round] * further
    mus = [combine_mu([mu, *more]) for mu in bound.mu]
    worst = max(mus)
    return Certificate(
        method="accountant" if bound.steps else "record",
        accounting="composed_gaussian" if bound.steps else "gaussian",
        success=[gdp_success(BASE_RATE, mu) for mu in mus],
        mu=mus,
        rounds=rounds,
        advantage=gdp_advantage(worst),
        epsilon=gdp_epsilon(worst, DELTA) if math.isfinite(worst) else None,
        delta=DELTA,
        client_mu=None if bound.client_mu is None else combine_mu([bound.client_mu, *more]),
    )


def certify(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    training: Training,
    defences: Sequence[Release | GradientFn],
    *,
    whitening: Whitening,
    rounds: int = 1,
) -> Certificate:
    """Return the certificate of a client's message, as `fedglass audit` states it of a simulated federation.

    `model` holds the weights before the round, `images` are pixels in [0, 1], `defences` act in their order. More than
    one round needs an update that is clipped, or DP-SGD. Where nothing bounds what an adversary reads, a UsageError
    says why.
    """
    part = Part(images, labels, training, Protection.of(defences))
    bound = bound_of([Declared(model, weights_of(model), buffers_of(model), {}, whitening, (part,))])
    if isinstance(bound, Doubt):
        raise UsageError(flag(bound).whole)
    found = certificate_of(bound, rounds - 1)
    if found is None:
        raise UsageError(flag(doubt(Kind.MORE_ROUNDS, rounds=rounds - 1)).text + " Clip the update before the noise.")
    return found.model_copy(update={"assumptions": dict.fromkeys(("noise", "training"), "declared")})


def declared_bound(
    protections: Sequence[Protection], trainings: Sequence[tuple[int, Training]], rounds: int
) -> Certificate | Doubt:
    """Return what a declaration alone bounds, without the data: clipping and noise, or DP-SGD."""
    pairs = zip(protections, trainings, strict=True)
    models = [noise_model(protection, training, examples) for protection, (examples, training) in pairs]
    refused = _refusal(models)
    if refused is not None:
        return refused
    limits = [model.per_round for model in models if isinstance(model, NoiseModel)]
    if None in limits:
        return doubt(Kind.DEFENCE_NOT_BOUNDED, defence="noise without clipping", why="Only the data bound it.")
    bound = Bound((), tuple(combine_mu([limit or 0.0] * rounds) for limit in limits), steps=True, rounds=rounds)
    certificate = certificate_of(bound, 0)
    assert certificate is not None, "no further rounds are asked for"
    return certificate


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


def _of_round(declared: Declared) -> Bound | Doubt:
    """Return the bound of one round's message."""
    private = len(declared.parts) - declared.own
    models = models_of(declared.parts)[:private]
    refused = _refusal(models)
    if refused is not None and not (
        refused.kind is Kind.NO_NOISE and declared.combined_by_mean and total_std(declared)
    ):
        return refused
    # In a mean a client without noise is hidden by that of the others.
    known = [
        model if isinstance(model, NoiseModel) else NoiseModel("gaussian", 0.0, part.protection)
        for model, part in zip(models, declared.parts, strict=False)
    ]
    limits = [model.per_round for model in known]
    limit = None if None in limits else max(each for each in limits if each is not None)
    counts = [len(part.labels) for part in declared.parts[:private]]
    if any(not model.additive for model in known):
        if limit is None:
            return doubt(Kind.DEFENCE_NOT_BOUNDED, defence=repr(declared.parts[0].protection), why=WHY["steps"])
        each = [model.per_round or 0.0 for model, count in zip(known, counts, strict=True) for _ in range(count)]
        return Bound(tuple(known), tuple(each), per_round=limit, steps=True)
    if too_long(declared):
        return doubt(Kind.NOISE_NOT_TESTABLE, why="The training is too long to be run again.")
    return _measured(declared, known, limit)


def _measured(declared: Declared, models: Sequence[NoiseModel], limit: float | None) -> Bound:
    """Return how far each record moves the message, in units of its noise."""
    weights, together = shares(declared), total_std(declared) if declared.combined_by_mean else None
    mu: list[float] = []
    renyi: list[Array] = []
    clients: list[float] = []
    for i, model in enumerate(models):
        part = without_noise(declared).parts[i]
        distances = _distances(declared, part)
        # In a mean the others' noise hides this client too; what another rule makes of its message tells no more.
        std = model.std if together is None else max(model.std, together / weights[i])
        if model.law == "laplacian":
            scale = model.std / math.sqrt(2)
            renyi += [laplace_renyi(row.numpy() / scale) for row in distances[1:]]
        else:
            mu += [min(float(row.norm()) / std, model.per_round or math.inf) for row in distances[1:]]
            clients.append(float(distances[0].norm()) / std)
    if renyi and mu:  # of Gaussian noise R_a = a mu^2 / 2
        return Bound(tuple(models), (), (*renyi, *(ORDERS * each**2 / 2 for each in mu)))
    return Bound(tuple(models), tuple(mu), tuple(renyi), max(clients, default=None), limit)


def _distances(declared: Declared, part: Part) -> list[Tensor]:
    """Return u minus the client's absence, then for each record u minus the nearer reference."""
    alone = replace(declared, parts=(part,))
    whole = _flat(message_of(alone, 0))
    count = len(part.labels)
    if count * max(1, part.steps) > MOST_REPLAYS or count == 1:
        return [whole, *[whole] * count]
    order = _order(part)
    rows = [whole]
    for i in range(count):
        reduced = _without(part, order, i)
        delta = whole if reduced is None else whole - _flat(message_of(replace(declared, parts=(reduced,)), 0))
        rows.append(min(delta, whole, key=lambda row: float(row.norm())))
    return rows


def _order(part: Part) -> tuple[tuple[int, ...], ...]:
    """Return the rows of each local step: recorded, or drawn as the replay draws them."""
    if part.order is not None:
        return part.order
    rows = torch.arange(len(part.labels))
    return tuple(tuple(rows[batch.rows].tolist()) for batch in batches_of(part))


def _without(part: Part, order: Sequence[Sequence[int]], row: int) -> Part | None:
    """Return the part without one record, in the same batches; None where a batch would be empty."""
    kept = [tuple(i - (i > row) for i in batch if i != row) for batch in order]
    if not all(kept):
        return None
    others = [i for i in range(len(part.labels)) if i != row]
    return replace(part, images=part.images[others], labels=part.labels[others], order=tuple(kept))


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.double().flatten() for tensor in tensors])
