"""The page of an advice: the setting to use, two charts, the best setting of each defence, and all settings.

The recommended plan is written next to it: TOML text that `fedglass audit` reads, with paths that hold in any folder.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedglass.advise.run import Advice
from fedglass.advise.search import round_beyond
from fedglass.advise.tried import (
    TriedSetting,
    cost_in_words,
    distance_in_words,
    nearest_to_gate,
    pareto_front,
)
from fedglass.attack.defaults import locate_paths
from fedglass.core.registry import factory
from fedglass.data.catalogue import located
from fedglass.diffusion.stored import located_model
from fedglass.models.init import located as initialisation_at
from fedglass.plan.schema import AttackTable, Plan
from fedglass.report.charts import ChartPoint, front_chart
from fedglass.report.page import ChartFigure, PageTable, TableCell, render, write_page
from fedglass.verdict.records import BASE_RATE
from fedglass.verdict.texts import LIMITS, TITLES, count, percent

REPORT = "report.html"
LOWEST = BASE_RATE / 2
"""Left end of the axis of leaks; smaller ones are drawn there."""
TONES = {"exposed": "leak"}
NO_CERTIFICATE = "none"
LEGEND = (
    "A point is the mean of one setting over its seeds, a bar its 95 % interval. The thin line joins settings that no "
    "other one beats in both. The ring marks the recommended setting. Shaded: more than the gate allows. Dotted: a "
    "blind guess among 1,000 records (0.1 %), accuracy without a defence, and accuracy of naming the commonest class."
)
READING = (
    "Measured leak: the share of records that a message names among 1,000 similar examples, or the share of images "
    "that an attack recovered, whichever is larger; of several messages the worst. Of the named records it is the "
    "lower 95 % limit, so that luck does not count: 0 % means that no more were named than luck explains.",
    "Certified leak: the largest share that any adversary can name, over all planned rounds. Only a certificate leads "
    "to CLEAR, and only a setting that is CLEAR is recommended. A low measured leak alone is not a protection.",
    "A setting has learned nothing if its accuracy is above naming the commonest class by no more than luck explains. "
    "It is not recommended, however well it protects.",
    "The probes know the defence as far as they can: one of the exact attacks is made for weak noise. The candidate "
    "game reads only the entries that pruning left, and weighs them by noise that is added once. It takes a message of "
    "several noisy local steps as it is. Only the certificate bounds what other attacks reach.",
    "Exact attacks and the game ran on every setting.",
)
SEARCHES = (
    "The searches of the plan ran on the weakest and the strongest setting of each defence, and on the recommended one."
)


def write_advice(directory: Path, advice: Advice, plan_name: str) -> Path:
    """Write the page into the output directory; `plan_name` is the file of the recommended plan."""
    best = advice.recommended
    html = render(
        "advise.html",
        title=advice.title or "Which defence, at which strength?",
        state="inconclusive" if best is None else "clear",
        heading=heading_of(advice),
        lead=lead_of(advice),
        caveats=caveats_of(advice, plan_name),
        limits=() if best is None else LIMITS,
        facts=_facts(advice),
        legend=LEGEND,
        charts=[
            _chart(advice, "Accuracy against measured leak", lambda s: s.measured, advice.gate.max_singling_out),
            _chart(advice, "Accuracy against certified leak", lambda s: s.certified, advice.gate.max_success),
        ],
        best=_best_of_chains(advice),
        settings=_all_settings(advice),
        reports=[(s.folder, s.name) for chain in advice.chains for s in advice.of_chain(chain)],
        reading=[*READING, *([SEARCHES] if any(s.attacks for s in advice.tried) else []), compared(advice)],
    )
    return write_page(directory / REPORT, html)


def heading_of(advice: Advice) -> str:
    """Return the answer in a few words."""
    if advice.recommended is not None:
        return "Recommended"
    return f"No {'useful ' * any(setting.clear for setting in advice.tried)}setting meets the gate"


def lead_of(advice: Advice) -> str:
    """Return the answer in a sentence."""
    best = advice.recommended
    if best is None:
        nearest = nearest_to_gate(advice.tried)
        distance = distance_in_words(nearest, advice.gate)
        if not any(setting.clear for setting in advice.tried):
            return f"No setting meets the gate. The nearest is {nearest.name}: {distance}."
        if nearest.clear:
            return f"{nearest.name} {distance}: accuracy {nearest.accuracy}. So has every setting that was tried."
        return (
            "The settings that meet the gate have learned nothing. The nearest that has learned something is "
            f"{nearest.name}: accuracy {nearest.accuracy}; {distance}."
        )
    certified = "" if best.certified is None else f", certified leak {percent(best.certified)}"
    return f"Use {best.name}: accuracy {best.accuracy}{certified}."


def caveats_of(advice: Advice, plan_name: str) -> list[str]:
    """Return what was checked on other seeds, what to do next, and what is missing."""
    lines = []
    undefended = [accuracy for setting in advice.tried for accuracy in setting.undefended]
    if undefended and statistics.fmean(undefended) <= advice.chance:
        lines.append(
            f"Without a defence the accuracy is {percent(statistics.fmean(undefended))}, not above that of naming the "
            f"commonest class, {percent(advice.chance)}. Repair the training before you choose a defence."
        )
    if advice.recommended is not None:
        again = advice.checked[-1]
        lines += [
            f"On {advice.seeds} other seeds, which had no part in the choice, it is CLEAR, accuracy {again.accuracy}.",
            f"To audit the plan with this setting, run: fedglass audit {plan_name} -o out{advice.code}",
        ]
        if again.accuracy.low <= advice.chance:
            lines.append("Its accuracy varies so much that more seeds are needed to tell it from the commonest class.")
    elif any(setting.clear for setting in advice.tried):
        lines.append(
            "The same protection costs less accuracy with more examples for each client, fewer rounds, or a smaller "
            "network."
        )
    else:
        lines.append(
            "Only noise of known size has a certificate: compare dpsgd, or clip followed by gaussian_noise, "
            "or plan fewer rounds."
        )
    if advice.one_class:
        lines.append(
            "All test examples of a seed have the same class, so its accuracy does not show how well the model works: "
            "set federation.test_examples to at least the number of classes."
        )
    if advice.stopped:
        lines.append("The time was over before all settings were tried; run the same command again to continue.")
    if advice.recommended is not None and (cost := cost_in_words(advice.recommended)):
        lines.insert(0, cost)
    for chain, value in advice.stronger:
        option, beyond = chain.strength.option, round_beyond(chain.strength, value)
        lines.append(f"{chain.title}: {option} {value:g} would meet the gate; set strongest = {beyond:g}.")
    return lines


def compared(advice: Advice) -> str:
    """Return a sentence about the number of settings that the choice is among."""
    return (
        f"{count(len(advice.tried), 'setting')} of {count(len(advice.chains), 'defence')} "
        f"{'was' if len(advice.tried) == 1 else 'were'} compared, each on {count(advice.seeds, 'seed')}. "
        "The best of many looks better than it is, so a setting is audited again on other seeds before it is "
        "recommended. A certificate holds for any number of settings; the game's limits do not correct for it."
    )


def _facts(advice: Advice) -> list[tuple[str, str]]:
    undefended = undefended_accuracy(advice)
    return [
        ("settings", f"{len(advice.tried)} of {count(len(advice.chains), 'defence')}"),
        ("seeds", str(advice.seeds)),
        ("gate", f"at most {percent(advice.gate.max_success)} named among 1,000"),
        *([] if undefended is None else [("accuracy without a defence", percent(undefended))]),
        ("accuracy of the commonest class", percent(advice.chance)),
    ]


def undefended_accuracy(advice: Advice) -> float | None:
    """Return the mean accuracy without a defence."""
    values = [value for setting in advice.tried for value in setting.undefended]
    return statistics.fmean(values) if values else None


def _chart(advice: Advice, title: str, leak: Callable[[TriedSetting], float | None], limit: float) -> ChartFigure:
    series: dict[str, list[ChartPoint]] = {}
    for chain in advice.chains:
        for s in advice.of_chain(chain):
            if (x := leak(s)) is not None:
                mean, marked = s.accuracy, _is_recommended(advice, s)
                point = ChartPoint(max(x, LOWEST), mean.mean, mean.low, mean.high, marked)
                series.setdefault(chain.title, []).append(point)
    undefended = undefended_accuracy(advice)
    levels = {"commonest class": advice.chance, **({} if undefended is None else {"no defence": undefended})}
    front = pareto_front([(p.x, p.y) for points in series.values() for p in points])
    x_title, span = "share of records named among 1,000", (LOWEST, 1.0)
    svg = front_chart(
        title, series, front, x_title, "test accuracy", span=span, limit=limit, blind=BASE_RATE, levels=levels
    )
    missing = sum(leak(s) is None for s in advice.tried)
    return ChartFigure(title, svg, f"{missing} settings have no such figure and are left out." if missing else "")


def _is_recommended(advice: Advice, setting: TriedSetting) -> bool:
    return advice.recommended is not None and setting.name == advice.recommended.name


def _cells(setting: TriedSetting, advice: Advice) -> list[TableCell | str]:
    tone = TONES.get(setting.state, setting.state)
    recovered = f"{setting.recovered} of {setting.images} images recovered" if setting.recovered else ""
    return [
        TableCell("", badge=TITLES[setting.state], tone=tone),
        TableCell(percent(setting.accuracy.mean), setting.accuracy.interval),
        TableCell("not measured" if setting.measured is None else percent(setting.measured), recovered),
        NO_CERTIFICATE if setting.certified is None else percent(setting.certified),
        distance_in_words(setting, advice.gate),
    ]


COLUMNS = ("verdict", "accuracy", "measured leak", "certified leak", "distance to the gate")


def _best_of_chains(advice: Advice) -> PageTable:
    """Return the cheapest setting that meets the gate of each chain, or the nearest."""
    rows: list[list[TableCell | str]] = []
    for chain in advice.chains:
        settings = advice.of_chain(chain)
        if settings:
            best = max(
                (s for s in settings if s.useful), key=lambda s: s.accuracy.mean, default=nearest_to_gate(settings)
            )
            rows.append([TableCell(chain.title, f"{chain.strength.option} {best.value:g}"), *_cells(best, advice)])
    return PageTable(["defence", *COLUMNS], rows)


def _all_settings(advice: Advice) -> PageTable:
    def row(s: TriedSetting, note: str, badge: str = "") -> list[TableCell | str]:
        return [
            TableCell(f"{s.chain.strength.option} {s.value:g}", note, badge, "clear"),
            *_cells(s, advice),
        ]

    settings = [s for chain in advice.chains for s in advice.of_chain(chain)]
    rows = [row(s, s.chain.title, "recommended" if _is_recommended(advice, s) else "") for s in settings]
    rows += [row(s, f"{s.chain.title}, on other seeds") for s in advice.checked]
    return PageTable(["setting", *COLUMNS], rows)


def advice_as_json(advice: Advice) -> dict[str, object]:
    """Return an advice as JSON."""
    best = advice.recommended
    return {
        "state": "none" if best is None else "recommended",
        "exit_code": advice.exit_code,
        "sentence": lead_of(advice),
        "complete": not advice.stopped,
        "chance_accuracy": advice.chance,
        "undefended_accuracy": undefended_accuracy(advice),
        "gate": {"max_success": advice.gate.max_success, "max_singling_out": advice.gate.max_singling_out},
        "recommended": None if best is None else _setting_as_json(best),
        "checked": [_setting_as_json(setting) for setting in advice.checked],
        "settings": [_setting_as_json(setting) for setting in advice.tried],
    }


def _setting_as_json(setting: TriedSetting) -> dict[str, object]:
    accuracy, cost = setting.accuracy, setting.cost
    return {
        "defence": setting.chain.title,
        "option": setting.chain.strength.option,
        "value": setting.value,
        "folder": setting.folder,
        "verdict": setting.state,
        "learned": setting.learned,
        "accuracy": {"mean": accuracy.mean, "low": accuracy.low, "high": accuracy.high, "seeds": [*setting.accuracies]},
        "cost": None if cost is None else {"mean": cost[0], "low": cost[0] - cost[1], "high": cost[0] + cost[1]},
        "measured": setting.measured,
        "certified": setting.certified,
        "images": {"recovered": setting.recovered, "of": setting.images},
        "attacks": [*setting.attacks],
    }


def plan_text(plan: Plan, folder: Path, remarks: tuple[str, ...] = ()) -> str:
    """Return a plan as TOML after some comments; `folder` is what its paths are relative to."""
    lines = [f"# {line}" for remark in remarks for line in remark.splitlines()]
    content = _located(plan, folder.resolve()).model_dump(mode="json", exclude_unset=True, exclude_none=True)
    return "\n".join([*lines, *_lines(content, "")]) + "\n"


def _located(plan: Plan, folder: Path) -> Plan:
    """Return the plan with absolute paths."""
    tables = [
        table.model_copy(update={"data": located(table.data, folder), "init": initialisation_at(table.init, folder)})
        for table in plan.federation
    ]
    adversary = plan.adversary
    if adversary.public is not None:
        adversary = adversary.model_copy(update={"public": located(adversary.public, folder)})
    attacks = [_located_attack(table, folder) for table in plan.attacks]
    return plan.model_copy(update={"federation": tables, "adversary": adversary, "attacks": attacks})


def _located_attack(table: AttackTable, folder: Path) -> AttackTable:
    """Return an attack with absolute paths of models."""
    given = table.model_dump(exclude_unset=True)
    given |= locate_paths(factory("attacks", table.name), table.options, folder)
    for part in given.get("refine", []):
        if isinstance(model := part.get("model"), str):
            part["model"] = located_model(model, folder)
    return AttackTable.model_validate(given)


def _lines(table: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a table: its values, then a section for each table in it."""
    sections = {
        key: value
        for key, value in table.items()
        if isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], dict))
    }
    yield from (f"{key} = {_value(value)}" for key, value in table.items() if key not in sections)
    for key, value in sections.items():
        title = f"{name}.{key}" if name else key
        for inner in value if isinstance(value, list) else [value]:
            yield from ("", f"[[{title}]]" if isinstance(value, list) else f"[{title}]")
            yield from _lines(inner, title)


def _value(value: object) -> str:
    """Return a value as TOML.

    >>> _value([1.0, "a\\n", True])
    '[1.0, "a\\\\n", true]'
    """
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    # JSON's strings, numbers and booleans are TOML's, but for the control character that JSON leaves as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
