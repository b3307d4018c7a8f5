"""The choice of the next strength: both ends, what the accountant asks for, then bisection between leak and gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedglass.audit.certificate import certificate_of, declared_bound
from fedglass.audit.simulated import Simulated
from fedglass.checks.claim import Claim, ClientClaim
from fedglass.core.tensors import buffers_of, weights_of
from fedglass.defend.strength import Strength
from fedglass.federation.truth import Examples
from fedglass.fl.release import Protection
from fedglass.verdict.doubts import Doubt
from fedglass.verdict.gate import State

HALVINGS = 12
"""Steps of the bisection over the accountant: a range of three decades is then known to 0.2 %."""
LEAKING = ("leak", "exposed", "incomplete")


def next_strength(strength: Strength, states: Mapping[float, State], formal: float | None, most: int) -> float | None:
    """Return the next value to try, given the verdicts of those tried; None if there is nothing left to ask.

    The weakest and the strongest value come first, then `formal`, at which the accountant meets the gate. Bisection
    follows: between CLEAR and the rest if any value is CLEAR, else between leaks and the rest.
    """
    ends = (strength.at(0.0), strength.at(1.0), *([] if formal is None else [formal]))
    untried = [value for value in ends if value not in states]
    if len(states) >= most:
        return None
    if untried:
        return untried[0]
    any_clear = "clear" in states.values()
    enough = [v for v, state in states.items() if (state == "clear" if any_clear else state not in LEAKING)]
    strong = min((strength.position(value) for value in enough), default=1.0)
    weaker = [p for value in states if value not in enough and (p := strength.position(value)) < strong]
    if not weaker:
        return None
    middle = strength.at((max(weaker) + strong) / 2)
    return None if middle in states else middle


def formal_strength(strength: Strength, success: Callable[[float], float | None], allowed: float) -> float | None:
    """Return the weakest value at which the accountant allows no more than the gate; None if it bounds none."""

    def meets(position: float) -> bool:
        bound = success(strength.at(position))
        return bound is not None and bound <= allowed

    if not meets(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return strength.at(high)


def declared_success(source: Simulated, protection: Protection) -> float | None:
    """Return the success that the accountant allows over all rounds, before any training; None without a bound."""
    federation = source.federation
    clients = tuple(
        ClientClaim(client.training or federation.training, Examples(client.images, client.labels), protection)
        for client in federation.clients
    )
    model = federation.model
    claim = Claim(model, weights_of(model), buffers_of(model), {}, federation.whitening, clients)
    bound = declared_bound(claim, source.rounds)
    certificate = None if isinstance(bound, Doubt) else certificate_of(bound, 0)
    return None if certificate is None else certificate.worst
