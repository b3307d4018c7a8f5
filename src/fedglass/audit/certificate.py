"""The per-record certificate of a message: how far one record moves it, in units of the noise that hides it.

By Neyman-Pearson against a fixed reference, no adversary that names a record once in 1,000 times without the message
names it more often than Phi(Phi^-1(1/1000) + mu) with it. A reference may be anything that does not depend on the
record: the client absent, or the record absent. Both are valid, so the nearer one counts.

Two figures are shown with a certificate and never decide: the success of the best adversary in a simulated game, and
the PSNR that is expected without a prior.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedglass.bounds.mechanisms import (
    ORDERS,
    Array,
    centred_gram,
    expected_psnr,
    laplace_renyi,
    pld_installed,
    poisson_advantage,
    poisson_epsilon,
    poisson_success,
    renyi_success,
    simulated_success,
)
from fedglass.bounds.success import combine_mu, gdp_advantage, gdp_epsilon, gdp_success
from fedglass.checks.claim import Claim, ClientClaim
from fedglass.checks.noise import (
    alike,
    candidate_label,
    distances,
    flat,
    noise_models,
    tells_nothing,
    total_std,
    with_record,
    without_noise,
)
from fedglass.checks.replay import message_of, too_long
from fedglass.core.errors import UsageError
from fedglass.core.optimisers import SGD
from fedglass.core.rng import stream
from fedglass.core.tensors import buffers_of, weights_of
from fedglass.core.text import some
from fedglass.core.types import Training, Whitening
from fedglass.defend.accounting import DELTA, Mechanism
from fedglass.defend.dpsgd import DPSGD
from fedglass.defend.filters import FlowerFixedClipping, FlowerLocalDP
from fedglass.defend.noise_model import NoBound, NoiseModel, named_parts, noise_model
from fedglass.federation.truth import Examples
from fedglass.fl.local import GradientFn
from fedglass.fl.release import Protection, Release
from fedglass.verdict.collect_doubts import flag
from fedglass.verdict.doubts import Doubt, DoubtKind, doubt
from fedglass.verdict.records import BASE_RATE, Certificate

T = TypeVar("T", float, Array)
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
    rounds: Sequence[Claim],
    clients: Sequence[ClientClaim],
    stds: Sequence[float],
    row: int,
    pool: Examples | None,
    seed: int,
) -> dict[str, float]:
    """Return how often the best adversary names the right one of 2, 10, 100 and 1,000 candidates for one record.

    `clients` are the client of each round without its noise, and `stds` the noise that hides its message. A candidate
    takes the place of the record; those with its label come first. Sizes that the pool or the time do not allow are
    left out.
    """
    if pool is None:
        return {}
    rows, _ = alike(clients[0], row, pool, stream(seed, "candidates"))
    sizes = [size for size in SIZES if size <= min(1 + len(rows), _affordable(rounds, clients))]
    if not sizes:
        return {}
    rows = rows[: sizes[-1] - 1]
    record = clients[0].images[row], clients[0].labels[row]
    others = ((pool.images[i], candidate_label(clients[0], row, pool, i)) for i in rows.tolist())
    examples = [record, *others]
    gram = torch.zeros(sizes[-1], sizes[-1], dtype=torch.float64)
    for claim, client, std in zip(rounds, clients, stds, strict=True):
        updates = _messages(claim, client, row, examples) / std
        if not bool(torch.isfinite(updates).all()):
            return {}
        gram += centred_gram(updates)
    return {
        str(size): simulated_success(gram[:size, :size], 1.0, DRAWS, stream(seed, "adversary", size)) for size in sizes
    }


def psnr_without_prior(client: ClientClaim, model: NoiseModel) -> float | None:
    """Return the expected PSNR where the message is one clipped gradient of one example; None where it is not."""
    one_gradient = len(client.labels) == 1 and client.steps == 1 and isinstance(client.training.optimiser, SGD)
    if not one_gradient or not model.additive or not model.per_round:
        return None
    images = client.images
    psnr = expected_psnr(images.numel(), float(images.double().norm()), 1 / model.per_round)
    return psnr if math.isfinite(psnr) else None


def _affordable(rounds: Sequence[Claim], clients: Sequence[ClientClaim]) -> int:
    """Return how many candidates' messages can be had in some seconds and some hundred megabytes."""
    weights = sum(tensor.numel() for tensor in rounds[0].before.values())
    sizes = (len(c.labels) if c.training.batch_size is None else c.training.batch_size for c in clients)
    examples = sum(client.steps * size for client, size in zip(clients, sizes, strict=True))
    return min(MOST_VALUES // weights, MOST_WORK // (examples * max(weights, LEAST_WEIGHTS)))


def _messages(claim: Claim, client: ClientClaim, row: int, examples: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the message with each example as the record.  # (n, d)"""
    sent = torch.empty(len(examples), sum(tensor.numel() for tensor in claim.before.values()))
    for i, (image, label) in enumerate(examples):
        other = replace(claim, clients=(with_record(client, row, image, label),))
        sent[i] = flat(message_of(other, 0)).float()
    return sent


TOO_LONG = "The training is too long to be run again."
DIVERGES = "run again on the true data, the declared training diverges"
WHY = {
    "own": "It is not one of fedglass's own defences, so its noise is not known to be independent of the data.",
    "repeats": "Its noise repeats.",
    "mixed": "What is random before the noise has no bound here.",
    "steps": "Noise in several local steps without clipping has no bound.",
    "place": "The data decide which entries it sends, so that only its own accounting bounds it.",
    "adaptive": "The server adapts its norm to the data, so epsilon is not computed.",
    "": "",
}


@dataclass(frozen=True, eq=False)
class MessageBound:
    """The bound over the rounds of one message."""

    mu: tuple[float, ...] = ()
    """The mu of each private record, over the audited rounds."""
    renyi: tuple[Array, ...] = ()
    """For Laplacian noise instead: the Rényi divergences of each record."""
    client_mu: float | None = None
    per_round: float | None = None
    """The most that any further round adds; None where nothing bounds it."""
    steps: bool = False
    """Whether the noise is in several local steps, which only the accountant bounds."""
    rounds: int = 1
    stds: tuple[tuple[float, ...], ...] = ()
    """The Gaussian noise of each round and private client; empty where there is other noise."""
    identical: bool = False
    """Whether there is no noise, and the message is the same for all records."""
    samples: Mechanism | None = None
    """The Poisson samples, where all clients draw the same kind in every round."""


def bound_of(rounds: Sequence[Claim], pool: Examples | None = None) -> MessageBound | Doubt:
    """Return the bound of messages of the same records in different rounds, or why there is none.

    `pool` are candidates: without noise a message tells nothing only if it is the same with all of them.
    """
    bounds = list[MessageBound]()
    for claim in rounds:
        bound = _of_round(claim, pool)
        if isinstance(bound, Doubt):
            return bound
        bounds.append(bound)
    if any(of_round.renyi for of_round in bounds):  # of Gaussian noise R_a = a mu^2 / 2
        spent = [of_round.renyi or tuple(ORDERS * mu**2 / 2 for mu in of_round.mu) for of_round in bounds]
        return MessageBound(renyi=tuple(np.sum(of, axis=0) for of in zip(*spent, strict=True)), rounds=len(rounds))
    limits = [of_round.per_round for of_round in bounds]
    clients = [of_round.client_mu for of_round in bounds]
    return MessageBound(
        tuple(combine_mu(mus) for mus in zip(*(of_round.mu for of_round in bounds), strict=True)),
        client_mu=None if None in clients else combine_mu([mu for mu in clients if mu is not None]),
        per_round=None if None in limits else max(limit for limit in limits if limit is not None),
        steps=any(of_round.steps for of_round in bounds),
        rounds=len(rounds),
        stds=tuple(std for of_round in bounds for std in of_round.stds)
        if all(of_round.stds for of_round in bounds)
        else (),
        identical=all(of_round.identical for of_round in bounds),
        samples=_common([of_round.samples for of_round in bounds]),
    )


def _common(samples: Sequence[Mechanism | None]) -> Mechanism | None:
    """Return the common value; None where they differ."""
    return samples[0] if len(set(samples)) == 1 else None


def certificate_of(bound: MessageBound, further: int) -> Certificate | None:
    """Return the certificate over the audited rounds and `further` more; None where those have no bound."""
    if further and bound.per_round is None:
        return None
    rounds = bound.rounds + further
    if bound.samples is not None and pld_installed():
        return _of_samples(bound.samples, rounds, len(bound.mu))
    if bound.renyi:
        success = [renyi_success(BASE_RATE, spent) for spent in bound.renyi]
        return Certificate(method="record", accounting="laplacian", success=success, rounds=rounds)
    accounting = "composed_gaussian" if bound.steps else "identical" if bound.identical else "gaussian"
    if bound.samples is not None:
        accounting = "poisson_not_counted"
    more = [] if bound.per_round is None else [bound.per_round] * further
    mus = [combine_mu([mu, *more]) for mu in bound.mu]
    worst = max(mus)
    return Certificate(
        method="accountant" if bound.steps else "record",
        accounting=accounting,
        success=[gdp_success(BASE_RATE, mu) for mu in mus],
        mu=mus,
        rounds=rounds,
        advantage=gdp_advantage(worst),
        epsilon=gdp_epsilon(worst, DELTA),
        delta=DELTA,
        client_mu=None if bound.client_mu is None else combine_mu([bound.client_mu, *more]),
    )


def _of_samples(samples: Mechanism, rounds: int, records: int) -> Certificate:
    """Return the certificate of DP-SGD on Poisson samples, by the privacy-loss distribution."""
    run = samples.sample_rate, samples.noise_multiplier, rounds * samples.steps
    return Certificate(
        method="accountant",
        accounting="pld",
        success=[poisson_success(BASE_RATE, *run)] * records,
        rounds=rounds,
        advantage=poisson_advantage(*run),
        epsilon=poisson_epsilon(*run, DELTA),
        delta=DELTA,
    )


def planned_certificate(bound: MessageBound, further: int) -> Certificate:
    """Return the certificate over the audited rounds, with its success after `further` more."""
    held = certificate_of(bound, 0)
    assert held is not None, "no further rounds are asked for"
    if not further:
        return held
    later = certificate_of(bound, further)
    planned = {"planned": bound.rounds + further, "success_planned": None if later is None else later.worst}
    return held.model_copy(update=planned)


def shown_figures(rounds: Sequence[Claim], bound: MessageBound, pool: Examples | None, seed: int) -> dict[str, object]:
    """Return the fields of a certificate that are shown and decide nothing, of the worst record."""
    if not bound.stds or len(bound.stds) != len(rounds):
        return {}
    place, row = _record(rounds[0], max(range(len(bound.mu)), key=lambda i: bound.mu[i]))
    clients = [without_noise(claim).clients[place] for claim in rounds]
    figures: dict[str, object] = {}
    stds = [std[place] for std in bound.stds]
    adversary = simulated_adversary(rounds, clients, stds, row, pool, seed)
    model = noise_models(rounds[0].clients)[place]
    if len(rounds) == len(rounds[0].clients) == 1 and isinstance(model, NoiseModel):
        figures["expected_psnr"] = psnr_without_prior(clients[0], model)
    return {**figures, "adversary": adversary}


def _record(claim: Claim, number: int) -> tuple[int, int]:
    """Return which client has a private record, and at which row."""
    for place, client in enumerate(claim.clients):
        if number < len(client.labels):
            return place, number
        number -= len(client.labels)
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

    `poisson` is for DP-SGD that draws a new batch for each local step, every record by itself with this probability,
    and divides by the expected size of a batch, as Opacus does. It needs `fedglass[pld]`. Slices of a shuffled epoch,
    as fedglass and most data loaders make them, are not such samples: leave it out.
    """
    client = ClientClaim(training, Examples(images, labels), Protection.of(defences))
    assumptions = dict.fromkeys(("noise", "training"), "declared")
    if poisson is not None:
        certificate: Certificate | None = _of_samples(_samples(client, poisson), rounds, len(labels))
        assumptions["Poisson samples"] = "declared"
    else:
        claim = Claim(model, weights_of(model), buffers_of(model), {}, whitening, (client,))
        bound = bound_of([claim])
        if isinstance(bound, Doubt):
            raise UsageError(flag(bound).advice)
        certificate = certificate_of(bound, rounds - 1)
        if certificate is not None and rounds == 1:
            certificate = certificate.model_copy(update=shown_figures([claim], bound, None, 0))
    if certificate is None:
        raise UsageError(
            flag(doubt(DoubtKind.MORE_ROUNDS, rounds=rounds - 1)).text + " Clip the update before the noise."
        )
    return certificate.model_copy(update={"assumptions": assumptions})


def _samples(client: ClientClaim, rate: float) -> Mechanism:
    """Return the Poisson samples of a client at the given rate, or refuse it."""
    gradient, refused = client.protection.gradient, _refusal(noise_models([client]))
    if type(gradient) is not DPSGD:
        raise UsageError("poisson is the sampling rate of DP-SGD: add the defence dpsgd, or leave poisson out.")
    if refused is not None:
        raise UsageError(flag(refused).advice)
    if max(client.repetitions) > 1:
        raise UsageError("poisson counts each record by itself, and some are copies of others: leave copies out.")
    return Mechanism(gradient.noise_multiplier, rate, client.steps)


def declared_bound(claim: Claim, rounds: int) -> MessageBound | Doubt:
    """Return the bound by the claim alone, without the data: clipping and noise, or DP-SGD."""
    models = [noise_model(client.protection, client.training, client.stated_count) for client in claim.clients]
    refused = _refusal(models) or _scalars_without_noise(claim)
    if refused is not None:
        return refused
    noisy = [model for model in models if isinstance(model, NoiseModel)]
    limits = [model.per_round for model in noisy]
    bounded = [limit for limit in limits if limit is not None]
    if len(bounded) < len(limits):
        return doubt(DoubtKind.DEFENCE_NOT_BOUNDED, defence="noise without clipping", why="Only the data bound it.")
    mus = tuple(combine_mu([limit] * rounds) for limit in bounded)
    samples = _common([model.samples for model in noisy])
    return MessageBound(mus, per_round=max(bounded), steps=True, rounds=rounds, samples=samples)


def _refusal(models: Sequence[NoiseModel | NoBound]) -> Doubt | None:
    """Return why a client's protection has no bound; None where all have one."""
    refused = [model for model in models if isinstance(model, NoBound)]
    unknown = next((model for model in refused if model.defence), None)
    if unknown is not None:
        return doubt(DoubtKind.DEFENCE_NOT_BOUNDED, defence=unknown.defence, why=WHY[unknown.why])
    return doubt(DoubtKind.NO_NOISE) if refused else None


def _scalars_without_noise(claim: Claim) -> Doubt | None:
    """Return that Flower's mods leave out the 0-d parameters of this network; None where it has none."""
    scalars = [name for name, tensor in claim.before.items() if tensor.dim() == 0]
    parts = (part for client in claim.private for part in named_parts(client.protection.release))
    mod = next((part for part in parts if isinstance(part, FlowerLocalDP | FlowerFixedClipping)), None)
    if mod is None or not scalars:
        return None
    missing = "clipping and noise" if isinstance(mod, FlowerLocalDP) else "clipping"
    why = f"It leaves 0-d parameters ({some(scalars)}) without {missing}."
    return doubt(DoubtKind.DEFENCE_NOT_BOUNDED, defence=repr(mod), why=why)


def _of_round(claim: Claim, pool: Examples | None) -> MessageBound | Doubt:
    """Return the bound of one round's message."""
    counts = [len(client.labels) for client in claim.private]
    models = noise_models(claim.private)
    refused = _refusal(models) or _scalars_without_noise(claim)
    if refused is not None and not (refused.kind is DoubtKind.NO_NOISE and claim.combined_by_mean and total_std(claim)):
        if refused.kind is DoubtKind.NO_NOISE and tells_nothing(claim, pool):
            return MessageBound((0.0,) * sum(counts), identical=True)
        return refused
    # In a mean a client without noise is hidden by that of the others.
    noisy = [
        model if isinstance(model, NoiseModel) else NoiseModel("gaussian", 0.0, client.protection)
        for model, client in zip(models, claim.clients, strict=False)
    ]
    by_record = [_limits(model, client) for model, client in zip(noisy, claim.private, strict=True)]
    limits = _with_copies(claim, [value for values in by_record for value in values])
    limit = max(limits) if all(map(math.isfinite, limits)) else None
    if any(not model.additive for model in noisy):
        if limit is None:
            return doubt(DoubtKind.DEFENCE_NOT_BOUNDED, defence=repr(claim.clients[0].protection), why=WHY["steps"])
        alone = all(value == 1 for client in claim.private for value in client.repetitions)
        samples = _common([model.samples for model in noisy]) if alone else None  # copies are not drawn as one
        return MessageBound(tuple(limits), per_round=limit, steps=True, samples=samples)
    if too_long(claim):
        return doubt(DoubtKind.NOISE_NOT_TESTABLE, why=TOO_LONG)
    return _measured(claim, noisy, by_record, limit)


def _limits(model: NoiseModel, client: ClientClaim) -> list[float]:
    """Return the largest distance that each record makes; a clipped update bounds all of a client's together."""
    limit = math.inf if model.per_round is None else model.per_round
    inside = isinstance(model.plain.gradient, DPSGD)
    return [limit * (times if inside else 1.0) for times in client.repetitions]


def _with_copies(claim: Claim, values: Sequence[T]) -> list[T]:
    """Return the value of each record plus those of the same picture at other clients behind the message."""
    names = [(place, picture) for place, client in enumerate(claim.private) for picture in client.pictures]
    by_client = dict(zip(names, values, strict=True))
    total: dict[bytes, T] = {}
    for (_, picture), value in by_client.items():
        total[picture] = total[picture] + value if picture in total else value
    return [total[picture] for _, picture in names]


def _measured(
    claim: Claim, models: Sequence[NoiseModel], by_record: Sequence[Sequence[float]], limit: float | None
) -> MessageBound | Doubt:
    """Return how far each record moves the message, in units of its noise; at most as far as `by_record` says."""
    shares, together = claim.shares, total_std(claim) if claim.combined_by_mean else None
    mu: list[float] = []
    renyi: list[Array] = []
    clients: list[float] = []
    stds: list[float] = []
    for i, model in enumerate(models):
        moved = distances(claim, without_noise(claim).clients[i])
        if not moved:
            return doubt(DoubtKind.NOT_AS_DECLARED, found=DIVERGES)
        # In a mean the others' noise hides this client too; another rule reveals no more than its message does.
        stds.append(model.std if together is None else max(model.std, together / shares[i]))
        if model.law == "laplacian":
            renyi += [laplace_renyi((row * math.sqrt(2) / model.std).numpy()) for row in moved[1:]]
        else:
            of_client = [
                min(float(row.norm()) / stds[-1], most) for row, most in zip(moved[1:], by_record[i], strict=True)
            ]
            mu += of_client
            renyi += [ORDERS * value**2 / 2 for value in of_client]  # of Gaussian noise R_a = a mu^2 / 2
            clients.append(float(moved[0].norm()) / stds[-1])
    if any(model.law == "laplacian" for model in models):
        return MessageBound(renyi=tuple(_with_copies(claim, renyi)))
    mu = _with_copies(claim, mu)
    return MessageBound(tuple(mu), client_mu=max(clients, default=None), per_round=limit, stds=(tuple(stds),))
