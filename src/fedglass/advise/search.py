"""The chains of defences that a plan compares, and the choice of the next strength of each.

Both ends come first, then what the accountant asks for, then bisection between leak and gate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedglass.audit.certificate import certificate_of, declared_bound
from fedglass.audit.simulated import Simulated
from fedglass.checks.claim import Claim, ClientClaim
from fedglass.core.errors import UsageError, unknown_name
from fedglass.core.registry import factory, takes
from fedglass.core.tensors import buffers_of, weights_of
from fedglass.defend.per_example import Strength
from fedglass.federation.truth import Examples
from fedglass.fl.release import Protection
from fedglass.plan.schema import Plan
from fedglass.plan.tables import AdviseTable, ChainTable, PartTable
from fedglass.verdict.doubts import Doubt
from fedglass.verdict.gate import State

HALVINGS = 12
"""Steps of the bisection over the accountant: a range of three decades is then known to 0.2 %."""
LEAKING = ("leak", "exposed", "incomplete")
BEYOND = 1000.0
"""Factor beyond the strongest value up to which the accountant is asked."""


def next_strength(
    strength: Strength, states: Mapping[float, State], formal: float | None, most: int, *, too_weak: bool = False
) -> float | None:
    """Return the next value to try, given the verdicts of those tried; None if there is nothing left to ask.

    The weakest and the strongest value come first, then `formal`, at which the accountant meets the gate. Bisection
    follows: between CLEAR and the rest if any value is CLEAR, else between leaks and the rest. If the range is
    `too_weak`, since a stronger value meets the gate, nothing follows that is not CLEAR.
    """
    ends = (strength.at(0.0), strength.at(1.0), *([] if formal is None else [formal]))
    untried = [value for value in ends if value not in states]
    if len(states) >= most:
        return None
    if untried:
        return untried[0]
    any_clear = "clear" in states.values()
    if too_weak and not any_clear:
        return None
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


def stronger_value(strength: Strength, success: Callable[[float], float | None], allowed: float) -> float | None:
    """Return the weakest value beyond the strongest one at which the accountant meets the gate; None if none does.

    >>> stronger_value(Strength("std", 1e-5, 1.0), lambda std: 0.1 / std, 0.07)
    1.43
    """
    far = BEYOND if _grows(strength) else 1 / BEYOND
    last = strength.origin + far * (strength.strongest - strength.origin)
    beyond = Strength(strength.option, strength.strongest, last, strength.origin)
    return formal_strength(beyond, success, allowed)


def round_beyond(strength: Strength, value: float) -> float:
    """Return the next value with one digit that protects at least as much.

    >>> round_beyond(Strength("std", 1e-5, 1.0), 1.43), round_beyond(Strength("norm", 10.0, 0.01), 0.0034)
    (2.0, 0.003)
    """
    distance = abs(value - strength.origin)
    unit = 10.0 ** math.floor(math.log10(distance))
    digits = (math.ceil if _grows(strength) else math.floor)(round(distance / unit, 9))
    return round(strength.origin + math.copysign(digits * unit, value - strength.origin), 12)


def _grows(strength: Strength) -> bool:
    return abs(strength.strongest - strength.origin) > abs(strength.weakest - strength.origin)


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


@dataclass(frozen=True)
class DefenceChain:
    """Defences that act one after another, the strength of one of which is varied."""

    title: str
    defences: tuple[PartTable, ...]
    varied: int
    """The position of the varied defence."""
    strength: Strength

    def at(self, value: float) -> list[PartTable]:
        """Return the defences at a value of the varied option."""
        table = self.defences[self.varied]
        changed = PartTable.model_validate({"name": table.name, **table.options, self.strength.option: value})
        return [*self.defences[: self.varied], changed, *self.defences[self.varied + 1 :]]

    def setting(self, value: float) -> str:
        """Return the name of the chain at a value, such as `dpsgd (clip 1), noise_multiplier 3.2`."""
        return f"{self.title}, {self.strength.option} {value:g}"


def settings_of(plan: Plan) -> AdviseTable:
    """Return the table `[advise]` of a plan, or its defaults."""
    return AdviseTable() if plan.advise is None else plan.advise


def chains_of(plan: Plan) -> list[DefenceChain]:
    """Return the chains of a plan: those of `[advise]`, or its `[[defences]]` as one chain."""
    tables = settings_of(plan).chain or ([ChainTable(defences=plan.defences)] if plan.defences else [])
    if not tables:
        raise UsageError(
            'The plan names no defence to compare: add [[advise.chain]] with defences = { name = "dpsgd", clip = 1.0 } '
            "or another of `fedglass list defences`."
        )
    chains = [_chain(table) for table in tables]
    titles = [(chain.title, chain.strength.option) for chain in chains]
    twice = next((title for title in titles if titles.count(title) > 1), None)
    if twice is not None:
        raise UsageError(f"advise.chain: {twice[0]} occurs twice: keep one of them.")
    return chains


def _chain(table: ChainTable) -> DefenceChain:
    names = [defence.name for defence in table.defences]
    declared = [_declared(name) for name in names]
    if table.varied is not None and names.count(table.varied) != 1:
        raise UsageError(f"advise.chain.varied: {unknown_name('defence of the chain', table.varied, names)}")
    given = table.option is not None and table.weakest is not None and table.strongest is not None
    able = [i for i, strength in enumerate(declared) if strength is not None] or ([len(names) - 1] if given else [])
    place = able[-1:] if table.varied is None else [names.index(table.varied)]
    if not place or (declared[place[0]] is None and not given):
        raise UsageError(
            f"advise.chain: {' + '.join(names)} declares no strength: set option, weakest and strongest in its "
            "[[advise.chain]]."
        )
    strength = _strength(table, names[place[0]], declared[place[0]])
    title = " + ".join(
        _described(defence, strength.option if i == place[0] else "") for i, defence in enumerate(table.defences)
    )
    return DefenceChain(title, tuple(table.defences), place[0], strength)


def _declared(name: str) -> Strength | None:
    strength = getattr(factory("defences", name), "strength", None)
    return strength if isinstance(strength, Strength) else None


def _strength(table: ChainTable, name: str, declared: Strength | None) -> Strength:
    """Return the strength of the varied defence, with what the plan says of it."""
    option = table.option or (declared.option if declared is not None else "")
    if not takes(factory("defences", name), option):
        raise UsageError(
            f"advise.chain.option: defence {name!r} has no option {option!r}: see `fedglass list defences`."
        )
    usual = declared if declared is not None and declared.option == option else None
    if usual is None and (table.weakest is None or table.strongest is None):
        raise UsageError(f"advise.chain: {name}.{option} has no usual range: set weakest and strongest.")
    ends = (
        usual.weakest if table.weakest is None and usual is not None else table.weakest,
        usual.strongest if table.strongest is None and usual is not None else table.strongest,
    )
    weakest, strongest = (float(value) for value in ends if value is not None)
    return Strength(option, weakest, strongest, 0.0 if usual is None else usual.origin)


def _described(defence: PartTable, varied: str) -> str:
    fixed = [f"{name} {value}" for name, value in defence.options.items() if name != varied]
    return defence.name + (f" ({', '.join(fixed)})" if fixed else "")


def with_defences(plan: Plan, defences: Sequence[PartTable], seeds: Sequence[int] = ()) -> Plan:
    """Return the plan with these defences, without what only advice needs; with `seeds`, a federation for each."""
    (table,) = plan.federation
    tables = [table.model_copy(update={"name": f"seed {seed}", "seed": seed, "sweep": None}) for seed in seeds]
    alone = [table.model_copy(update={"sweep": None})]
    return plan.model_copy(update={"federation": tables or alone, "defences": list(defences), "advise": None})


def describe_search(plan: Plan) -> list[str]:
    """Return what `fedglass advise` compares in this plan as sentences, or refuse the plan as it does."""
    check_plan(plan)
    chains, table = chains_of(plan), settings_of(plan)
    ranges = [(chain, chain.strength.at(0.0), chain.strength.at(1.0)) for chain in chains]
    most = table.strengths * len(chains)
    return [
        "This is a plan for fedglass advise, which compares these defences:",
        *(f"{chain.title}, {chain.strength.option} from {weak:g} to {strong:g}." for chain, weak, strong in ranges),
        f"At most {table.strengths} strengths of each, on {table.seeds} seeds: {most * table.seeds} federations.",
        "fedglass audit leaves [advise] out. What follows is such an audit of one federation.",
    ]


def check_plan(plan: Plan) -> None:
    """Refuse a plan whose federation cannot be simulated at several strengths, or has no accuracy."""
    if len(plan.federation) != 1:
        raise UsageError(
            f"fedglass advise needs one [federation] to simulate, got {len(plan.federation)}: keep one of them."
            if plan.federation
            else "fedglass advise simulates the federation at several strengths: replace [recording] by a [federation]."
        )
    (table,) = plan.federation
    if not table.test_examples:
        raise UsageError(
            "Without test examples there is no accuracy to weigh against the leak: set federation.test_examples, such "
            "as 500."
        )
    if not table.defended:
        raise UsageError("federation.defended = false removes the defences that are to be compared: leave it out.")
