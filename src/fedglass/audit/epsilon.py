"""The audit of epsilon by canaries: scores become a lower bound, next to what the accountant says and what is declared.

In DP-SGD a canary is an example, and those of one client are in one training. Where noise is added to the update that a
client sends, the protected unit is the whole update, and canary clients send random directions or nothing.

A declaration of Gaussian noise has a trade-off curve of one parameter, so that the tighter bound may refute it. Every
other declaration is refuted only by the bound that holds for any mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedglass.audit.certificate import WHY
from fedglass.bounds.mechanisms import pld_installed, poisson_epsilon
from fedglass.bounds.success import (
    gaussian_mu_ceiling,
    gaussian_mu_lower,
    gdp_epsilon,
    guessed_epsilon,
    guessed_epsilon_ceiling,
)
from fedglass.core.rng import derive, stream
from fedglass.core.tensors import Update, buffers_of, flatten, unflatten, weights_of
from fedglass.core.types import Training
from fedglass.defend.noise_model import CLIPS, SLACK, NoBound, epsilon_claims, noise_model, release_parts
from fedglass.federation.client import Client, TrainRequest, train_client
from fedglass.federation.federation import Federation
from fedglass.fl.canaries import LENGTH, UNCLIPPED_LENGTH, Canaries, WithCanaries
from fedglass.fl.local import MeanGradient
from fedglass.fl.release import AsIs, Outgoing, Protection

PROPOSED = (200, 500, 1000, 2000, 5000, 10_000, 20_000)
"""Numbers of canaries that the advice may propose."""
Progress = Callable[[int, int], None]


Finding = Literal["consistent", "not as declared", "too few canaries", "nothing declared"]
"""The result of the canaries for a declaration."""


@dataclass(frozen=True)
class CanaryScores:
    """The scores of canaries, with their coins in the same order."""

    scores: Tensor  # (m,), higher for what looks included
    coins: Tensor  # (m,)
    per_message: int = 1
    """Included canaries that share one protected unit: a message with k of them is k steps away from one with none."""


def pooled(messages: Sequence[CanaryScores]) -> CanaryScores:
    """Return the scores of several messages together; all take the smallest number per message that includes any."""
    counts = [message.per_message for message in messages]
    scores = torch.cat([message.scores for message in messages])
    return CanaryScores(scores, torch.cat([message.coins for message in messages]), min(counts))


@dataclass(frozen=True)
class Accounted:
    """The declaration of one release of a mechanism."""

    upper: float | None
    """Epsilon by the accountant; None where it has no bound."""
    declared: float | None
    """Epsilon as a defence or its owner declares it; None where only the accountant says one."""
    gaussian: bool
    """Whether it is declared as a Gaussian mechanism."""
    why: str = ""
    """Why the accountant has no bound."""

    @property
    def limit(self) -> float | None:
        """The smallest epsilon that is said of it; None without a finite one."""
        finite = [e for e in (self.declared, self.upper) if e is not None and math.isfinite(e)]
        return min(finite, default=None)


@dataclass(frozen=True)
class EpsilonAudit:
    """A lower bound on the epsilon of one release, next to the upper one."""

    name: str
    canaries: int
    included: int
    lower: float
    """The bound that decides, with 95 % confidence."""
    ceiling: float
    """What perfect guesses would show."""
    lower_any: float
    """The bound that holds for any mechanism."""
    ceiling_any: float
    accounted: Accounted
    delta: float

    @property
    def finding(self) -> Finding:
        limit = self.accounted.limit
        if limit is None:
            return "nothing declared"
        if self.lower > limit * (1 + SLACK):
            return "not as declared"
        return "consistent" if self.ceiling > limit * (1 + SLACK) else "too few canaries"

    @property
    def exit_code(self) -> int:
        return {"consistent": 0, "not as declared": 1}.get(self.finding, 3)

    @property
    def sentence(self) -> str:
        limit, lower = self.accounted.limit, shown(self.lower)
        if limit is None:
            return (
                f"Nothing to compare with: the canaries show epsilon of at least {lower}, and no finite epsilon is "
                "declared. Give the declared one with --declared."
            )
        declared = self.accounted.declared == limit
        source = f"{shown(limit)} is {'declared' if declared else 'what the accountant gives for the declared noise'}."
        if self.finding == "too few canaries":
            advice = _advice(limit, self.delta, self.accounted.gaussian)
            reach = f"{self.canaries:,} canaries show epsilon of at most {shown(self.ceiling)}"
            return f"Cannot tell: {reach}, and {source} {advice}"
        lead = "Consistent" if self.finding == "consistent" else "The mechanism is not as declared"
        return f"{lead}: the canaries show epsilon of at least {lower}, and {source}"

    def as_json(self) -> dict[str, Any]:
        """Return it in types that JSON has; an infinite epsilon is none."""
        of_mechanism = {"upper": self.accounted.upper, "declared": self.accounted.declared}
        finite = {name: e if e is not None and math.isfinite(e) else None for name, e in of_mechanism.items()}
        return {
            "name": self.name,
            "finding": self.finding,
            "sentence": self.sentence,
            "canaries": self.canaries,
            "included": self.included,
            "lower": self.lower,
            "ceiling": self.ceiling,
            "lower_any_mechanism": self.lower_any,
            "ceiling_any_mechanism": self.ceiling_any,
            **finite,
            "why_no_upper": self.accounted.why,
            "gaussian": self.accounted.gaussian,
            "delta": self.delta,
        }


def shown(epsilon: float) -> str:
    """Return an epsilon with three digits.

    >>> shown(0.0), shown(18.613), shown(213004512.0)
    ('0', '18.6', '213,000,000')
    """
    if not math.isfinite(epsilon):
        return "infinite"
    return f"{float(f'{epsilon:.3g}'):,.0f}" if epsilon >= 1000 else f"{epsilon:.3g}"


def _advice(limit: float, delta: float, gaussian: bool) -> str:
    """Return how many canaries could contradict so large an epsilon."""
    for count in PROPOSED:
        if _ceiling(count // 2, count // 2, 1, delta, gaussian) > limit * (1 + SLACK):
            return f"Use at least {count:,} canaries."
    return "No practical number of canaries could contradict so large an epsilon."


def _ceiling(included: int, excluded: int, per_message: int, delta: float, gaussian: bool) -> float:
    if not gaussian:
        return guessed_epsilon_ceiling(included + excluded, delta)
    if not included or not excluded:
        return 0.0
    return gdp_epsilon(gaussian_mu_ceiling(included, excluded) * math.sqrt(per_message), delta)


def judge_scores(name: str, scores: CanaryScores, accounted: Accounted, delta: float) -> EpsilonAudit:
    """Return the audit of one release from the scores of its canaries."""
    values, coins = scores.scores.double().numpy(), scores.coins.numpy()
    included, excluded = int(coins.sum()), int((~coins).sum())
    lower_any, ceiling_any = guessed_epsilon(values, coins, delta), guessed_epsilon_ceiling(len(coins), delta)
    lower, ceiling = lower_any, ceiling_any
    if accounted.gaussian:
        mu = gaussian_mu_lower(values[coins], values[~coins]) if included and excluded else 0.0
        lower = gdp_epsilon(mu * math.sqrt(scores.per_message), delta)
        ceiling = _ceiling(included, excluded, scores.per_message, delta, gaussian=True)
    return EpsilonAudit(name, len(coins), included, lower, ceiling, lower_any, ceiling_any, accounted, delta)


# What the accountant says.


def accounted_release(
    protection: Protection, training: Training, examples: int, entries: int, delta: float
) -> Accounted:
    """Return what the accountant and the defences say of the epsilon of one message."""
    model = noise_model(protection, training, examples)
    claims = list(epsilon_claims(protection.release, 1, entries))
    declared = min((claim.declared for claim in claims if claim.declared is not None), default=None)
    if isinstance(model, NoBound):
        known = min((claim.real for claim in claims), default=None)
        forgotten = bool(claims) and not model.why  # a Gaussian mechanism with noise of size 0
        return Accounted(known, declared, forgotten, "" if claims else WHY[model.why] or "It adds no noise.")
    if model.law != "gaussian":
        return Accounted(None, declared, False, "Noise that is not Gaussian is not accounted in epsilon here.")
    if model.per_round is None:
        return Accounted(None, declared, True, "Nothing clips what the noise is added to.")
    if model.samples is not None and pld_installed():
        run = model.samples.sample_rate, model.samples.noise_multiplier, model.samples.steps
        return Accounted(poisson_epsilon(*run, delta), declared, False)
    return Accounted(gdp_epsilon(model.per_round, delta), declared, model.samples is None)


def with_declared(accounted: Accounted, declared: float | None, gaussian: bool) -> Accounted:
    """Return the same with an epsilon that the owner declares, and perhaps that its noise is Gaussian."""
    stated = accounted if declared is None else replace(accounted, declared=declared)
    return replace(stated, gaussian=True) if gaussian else stated


# Canaries in a simulated federation.


def audited_clients(federation: Federation) -> Iterator[Client]:
    """Yield the first client of each protection and training; clients without a defence are left out."""
    different: list[tuple[object, ...]] = []
    for client in federation.clients:
        kind = client.gradient, client.release, client.training
        undefended = type(client.gradient) is MeanGradient and type(client.release) is AsIs
        if not undefended and kind not in different:
            different.append(kind)
            yield client


def simulated_epsilon(
    federation: Federation,
    client: Client,
    canaries: int,
    *,
    seed: int,
    delta: float,
    declared: float | None = None,
    gaussian: bool = False,
    name: str = "",
    progress: Progress = lambda done, total: None,
) -> EpsilonAudit:
    """Audit the epsilon of one message of a simulated client."""
    training = client.training or federation.training
    protection = Protection(client.gradient, client.release)
    entries = sum(weight.numel() for weight in weights_of(federation.model).values())
    accounted = accounted_release(protection, training, len(client.labels), entries, delta)
    key = Canaries(derive(seed, "canaries", client.name), canaries)
    in_steps = type(client.gradient) is not MeanGradient
    scores = _example_scores(federation, client, key) if in_steps else _client_scores(federation, client, key, progress)
    return judge_scores(name or client.name, scores, with_declared(accounted, declared, gaussian), delta)


def _example_scores(federation: Federation, client: Client, canaries: Canaries) -> CanaryScores:
    """Train one round with canaries among the examples, and return their inner products with the update."""
    training = client.training or federation.training
    length = LENGTH * clip if (clip := getattr(client.gradient, "clip", None)) else UNCLIPPED_LENGTH
    batches = len(training.batches(len(client.labels)))
    gradient = WithCanaries(client.gradient, canaries, length, batches)
    model = federation.model
    request = TrainRequest(
        model, weights_of(model), buffers_of(model), training, federation.whitening, canaries.seed, 0
    )
    update = train_client(replace(client, gradient=gradient), request).update
    return CanaryScores(-canaries.scores(update), canaries.coins())  # a step goes against the gradient


def _client_scores(federation: Federation, client: Client, canaries: Canaries, progress: Progress) -> CanaryScores:
    """Let canary clients send a direction of their own, or nothing, through the client's release."""
    before = weights_of(federation.model)
    coins, length, entries = canaries.coins(), release_length(client), len(flatten(before))
    scores = torch.empty(canaries.count, dtype=torch.float64)
    for i, coin in enumerate(coins.tolist()):
        direction = torch.randn(entries, generator=stream(canaries.seed, "direction", i))
        direction /= direction.norm()
        update: Update = unflatten(direction * (length if coin else 0.0), before)
        sent = client.release.release(Outgoing(update, stream(canaries.seed, "release", i), 0, before))
        scores[i] = flatten({name: sent[name] for name in before}).double() @ direction.double()
        progress(i + 1, canaries.count)
    return CanaryScores(scores, coins)


def release_length(client: Client) -> float:
    """Return how long a canary is that a client sends, which the client's own clipping shortens."""
    norms = [part.norm for part in release_parts(client.release) if isinstance(part, CLIPS)]
    return LENGTH * min(norms) if norms else UNCLIPPED_LENGTH


def describe(audit: EpsilonAudit) -> Iterator[str]:
    """Yield the lines of a text about an audit."""
    accounted = audit.accounted
    upper = "none" if accounted.upper is None else shown(accounted.upper)
    law = "for Gaussian noise" if accounted.gaussian else "for any mechanism"
    rows = [
        ("lower bound", shown(audit.lower), f"{law}, 95 % confidence"),
        ("ceiling", shown(audit.ceiling), "if every guess were right"),
        ("accountant", upper, accounted.why or "upper bound for the declared noise"),
    ]
    if accounted.gaussian:
        rows[2:2] = [("any mechanism", shown(audit.lower_any), f"at least; ceiling {shown(audit.ceiling_any)}")]
    if accounted.declared is not None:
        rows.append(("declared", shown(accounted.declared), "by the owner or the defence"))
    yield f"{audit.name}: {audit.canaries:,} canaries, {audit.included:,} of them included; delta {audit.delta:g}"
    yield from (f"  {title:<14}{figure:>12}  {remark}" for title, figure, remark in rows)
    yield audit.sentence
