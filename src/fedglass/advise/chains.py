"""The chains of defences that a plan compares, and the audit of one of them at one strength."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedglass.core.errors import UsageError, unknown_name
from fedglass.core.registry import factory, takes
from fedglass.defend.strength import Strength
from fedglass.plan.schema import Plan
from fedglass.plan.tables import AdviseTable, ChainTable, PartTable


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
