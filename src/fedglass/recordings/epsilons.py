"""The epsilons that a bundle declares or counts, next to those that its defences give."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fedglass.bounds.success import gdp_epsilon
from fedglass.core.errors import FedglassError
from fedglass.core.registry import built_in, make
from fedglass.defend.accounting import Mechanism
from fedglass.defend.declared_epsilon import EpsilonClaim, dpsgd_claim, epsilon_claims
from fedglass.defend.dpsgd import DPSGD, PoissonDPSGD
from fedglass.defend.filters import SVTPrivacy
from fedglass.fl.release import Chain
from fedglass.recordings.facts import ACCOUNTANT, FactSheet, preferred
from fedglass.recordings.filters import BUDGETED
from fedglass.recordings.reader import Bundle

LEDGER = "x-privacy-ledger"
"""Of a client in a round: what SVTPrivacy's ledger has counted so far."""
SPENT = "x-privacy-spent"
"""Of a round: what the accountant of Flower's strategy has counted so far."""
ACCOUNTED = "FixedClipping"
"""Strategies of Flower whose accountant counts Gaussian releases of one noise multiplier, without sampling."""

ADAPTIVE = "AdaptiveClipping"
"""Part of the names of Flower's strategies that adapt the norm."""


@dataclass(frozen=True)
class RecordedEpsilon:
    """A declared or counted epsilon of a recording; that of the whole federation has an empty name."""

    client: str
    claim: EpsilonClaim


def recorded_epsilons(bundle: Bundle) -> list[RecordedEpsilon]:
    """Return the epsilons of all clients over all recorded rounds, and those of the federation's accountant."""
    found = [
        RecordedEpsilon(client, claim)
        for client in bundle.clients
        for claim in (*_of_client(bundle, client), *_of_steps(bundle, client))
    ]
    return [*found, *(RecordedEpsilon("", claim) for claim in _of_accountant(bundle))]


def _of_client(bundle: Bundle, client: str) -> Iterator[EpsilonClaim]:
    """Yield the epsilons of a client's last defences, over the rounds in which it had them."""
    of_all, messages = preferred(bundle.facts, "defences"), []
    for index in bundle.rounds:
        message, facts = bundle.message(client, index), bundle.facts_of(client, index)
        parts = preferred(facts, "defences", of_all)
        if message is not None and message.received is not None and parts:
            entries = sum(math.prod(array.shape) for array in message.received.arrays)
            messages.append((parts, entries, preferred(facts, LEDGER)))
    if not messages:
        return
    parts, entries, ledger = messages[-1]
    known = built_in("defences")
    if not all(part["name"] in known for part in parts):  # no code of others is run to read a bundle
        return
    releases = sum(same == parts for same, _, _ in messages)
    try:
        chain = Chain(tuple(make("defences", part["name"], **(part.get("options") or {})) for part in parts))
        budgeted = any(part["name"] in BUDGETED for part in parts)
        yield from epsilon_claims(chain, releases, entries) if budgeted else ()
    except (FedglassError, TypeError, ArithmeticError):
        return
    for part in chain.releases:
        if isinstance(part, SVTPrivacy) and isinstance(ledger, dict):
            yield from _of_ledger(part, ledger, releases, entries)


def _of_steps(bundle: Bundle, client: str) -> Iterator[EpsilonClaim]:
    """Yield the epsilon of a client's DP-SGD over its rounds, next to what Opacus's accountant has counted."""
    sheets = [
        bundle.facts_of(client, index)
        for index in bundle.rounds
        if (message := bundle.message(client, index)) is not None and message.received is not None
    ]
    of_all = preferred(bundle.facts, "defences")
    runs = [_noisy_steps(facts, of_all) for facts in sheets]
    known = [run for run in runs if run is not None]
    if known and len(known) == len(runs):
        with suppress(FedglassError, ArithmeticError):
            yield dpsgd_claim(known, _counted(preferred(sheets[-1], ACCOUNTANT)), len(runs))


def _noisy_steps(facts: FactSheet, of_all: Any) -> Mechanism | None:
    """Return the noisy steps that each record of a client may be in during a round; None without DP-SGD."""
    parts = preferred(facts, "defences", of_all) or ()
    part = next((part for part in parts if part["name"] in ("dpsgd", "dpsgd_poisson")), None)
    epochs, steps = preferred(facts, "epochs"), preferred(facts, "steps")
    try:
        defence = None if part is None else make("defences", part["name"], **(part.get("options") or {}))
    except (FedglassError, TypeError):
        return None
    if isinstance(defence, PoissonDPSGD):
        return Mechanism(defence.noise_multiplier, defence.sample_rate, steps) if steps else None
    count = epochs or steps  # a record is once in an epoch
    return Mechanism(defence.noise_multiplier, 1.0, count) if isinstance(defence, DPSGD) and count else None


def _counted(accountant: Any) -> list[Mechanism]:
    """Return what an accountant has counted, as a file has it; nothing if any of it cannot be so."""
    history = accountant.get("history") if isinstance(accountant, dict) else None
    try:
        return [Mechanism(noise, rate, int(float(steps))) for noise, rate, steps in history or ()]
    except (FedglassError, TypeError, ValueError, OverflowError):
        return []


def _of_ledger(part: SVTPrivacy, ledger: Mapping[str, Any], releases: int, entries: int) -> Iterator[EpsilonClaim]:
    counted, calls = _number(ledger.get("epsilon")), _number(ledger.get("releases"))
    if counted is None or calls is None:
        return
    times = max(releases, int(calls))
    why = f"one release of {entries:,} entries costs {part.spent(entries):.6g}"
    yield EpsilonClaim("the ledger of SVTPrivacy", counted, part.spent(entries) * times, 0.0, times, why)


def _of_accountant(bundle: Bundle) -> Iterator[EpsilonClaim]:
    """Yield what Flower's accountant counted after the last round that it counted."""
    claim, aggregated = None, 0
    for round_ in bundle.rounds.values():
        facts = round_.facts
        aggregated += round_.aggregated is not None
        spent, rule = preferred(facts, SPENT), preferred(facts, "rule", preferred(bundle.facts, "rule"))
        if not isinstance(spent, dict) or rule is None or ACCOUNTED not in rule["name"]:
            continue
        epsilon, delta = _number(spent.get("epsilon")), _number(spent.get("delta"))
        noise = _number((rule.get("options") or {}).get("noise_multiplier"))
        if epsilon is None or delta is None or noise is None or not 0 < delta < 1:
            continue
        releases = max(aggregated, int(_number(spent.get("num_releases")) or 0), 1)
        real = gdp_epsilon(math.sqrt(releases) / noise, delta) if noise > 0 else math.inf
        why = f"the noise multiplier {noise:g} gives at least that, by Gaussian differential privacy"
        claim = EpsilonClaim("Flower's accountant", epsilon, real, delta, releases, why)
    if claim is not None:
        yield claim


def adapts_clipping(bundle: Bundle) -> bool:
    """Return whether the norm of clipping follows the data, by a client's defence or by the rule of the server."""
    facts = [bundle.facts, *(round_.facts for round_ in bundle.rounds.values())]
    facts += [bundle.facts_of(client, index) for index in bundle.rounds for client in bundle.clients]
    parts = [part for of in facts for part in (*preferred(of, "defences", ()), preferred(of, "rule")) if part]
    return any(ADAPTIVE in part["name"] or (part.get("options") or {}).get("adaptive") is True for part in parts)


def claims_by_client(bundle: Bundle) -> dict[str, tuple[EpsilonClaim, ...]]:
    """Return the epsilons by client; those of the federation have an empty name."""
    claims: dict[str, tuple[EpsilonClaim, ...]] = {}
    for epsilon in recorded_epsilons(bundle):
        claims[epsilon.client] = (*claims.get(epsilon.client, ()), epsilon.claim)
    return claims


def svt_ledger(budget: Any, cumulative: Any) -> dict[str, float] | None:
    """Return the ledger that a message of SVTPrivacy carries, as a fact; None where it is none.

    >>> svt_ledger({"epsilon_total": 2.0, "n_upload": 3}, {"epsilon_total": 4.0, "calls": 2})
    {'epsilon': 4.0, 'releases': 2.0, 'last': 2.0}
    """
    if not isinstance(budget, Mapping) or not isinstance(cumulative, Mapping):
        return None
    values = {
        "epsilon": _number(cumulative.get("epsilon_total")),
        "releases": _number(cumulative.get("calls")),
        "last": _number(budget.get("epsilon_total")),
    }
    known = {name: value for name, value in values.items() if value is not None}
    return known if len(known) == len(values) else None


def _number(value: Any) -> float | None:
    """Return a number of a file, which may hold anything; None of what is none, negative or infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        return None
    return float(value)
