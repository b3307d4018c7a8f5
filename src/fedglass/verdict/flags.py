"""When a figure may mislead its reader: each flag says what it means and what to do.

Only the audit may compare the energy of a reconstruction with that of the true data. True data clearly lower:
the optimiser failed, and absence of leakage is not shown. True data not lower than other data: the defence hides
them from this attack or, where there is no defence, the attack is blind and absence of leakage is not shown either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fedglass.core.scale import Scale, scale_of
from fedglass.ledger.records import Flag
from fedglass.verdict.gate import NO_MESSAGE, Gate, leaked_most

State = Literal["sound", "zero", "non-finite"]

CLEARLY = 0.1
"""By which share the true data's energy must undercut the reconstruction's for the optimiser to have failed."""
DISTINCT = 0.01
"""By which share it must undercut that of every decoy for the message to point at the true data."""


@dataclass(frozen=True)
class Findings:
    """All that the flags of one record are decided by."""

    gate: Gate
    update: State = "sound"
    metrics: Mapping[str, Sequence[float]] = field(default_factory=dict)
    metrics_raw: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The same before the images were refined; empty where nothing was."""
    energy: float = math.nan
    energy_truth: float | None = None
    energy_decoys: Sequence[float] = ()
    """Energies of images that are as smooth as the true ones but show something else."""
    label_errors: int | None = None
    oracle: frozenset[str] = frozenset()
    notes: Sequence[str] = ()
    truth: bool = True
    undefended: bool = False
    """Whether it is known that nothing protects the message."""

    @property
    def all_recovered(self) -> bool:
        name = self.gate.metric
        values = leaked_most(self.gate.scale, self.metrics.get(name, []), self.metrics_raw.get(name, []))
        return bool(values) and all(value is not None and self.gate.recovered(value) for value in values)

    @property
    def hidden(self) -> bool:
        """Whether the true data fit the message no better than other data do."""
        known = [e for e in self.energy_decoys if math.isfinite(e)]
        if self.energy_truth is None or not math.isfinite(self.energy_truth) or not known:
            return False
        return not _undercuts(self.energy_truth, min(known), DISTINCT)


def flags_of(found: Findings) -> list[Flag]:
    """The flags of one record, in the order of the table below."""
    return [flag for rule in RULES if (flag := rule(found)) is not None]


def _no_message(found: Findings) -> Flag | None:
    if found.update == "sound":
        return None
    scored = "The attack was not played; the scores are those of a plain grey image."
    if found.update == "zero":
        text = (
            f"The update is zero everywhere, so that there is nothing to invert. {scored} Check that the client "
            "trained, that its learning rate is not so small that its steps are lost in rounding, and that the weights "
            "before and after were not mixed up."
        )
        return Flag(name=NO_MESSAGE[0], severity="serious", text=text)
    text = (
        f"The update holds NaN or infinity: the client's training diverged. {scored} Lower the client's learning "
        "rate and audit again."
    )
    return Flag(name=NO_MESSAGE[1], severity="serious", text=text)


def _stopped(found: Findings) -> Flag | None:
    if "non-finite" not in found.notes:
        return None
    text = (
        "The attack met NaN or infinity on its way and returned its last finite images. More restarts, fewer "
        "iterations or a smaller step may carry it further."
    )
    return Flag(name="non-finite stop", severity="info" if found.all_recovered else "serious", text=text)


def _optimiser(found: Findings) -> Flag | None:
    truth = found.energy_truth
    if found.update != "sound" or truth is None or found.all_recovered or found.hidden:
        return None
    if math.isfinite(found.energy) and not _undercuts(truth, found.energy, CLEARLY):
        return None
    labels = f" Part of it: {found.label_errors} of the labels are wrong." if found.label_errors else ""
    text = (
        f"The true images have a clearly lower energy ({truth:.3g}) than what the optimiser found "
        f"({found.energy:.3g}), and not all images were recovered: the search failed, not the leak, so that "
        f"absence of leakage is not shown.{labels} Give the attack more iterations or restarts, or play another."
    )
    return Flag(name="optimiser failed", severity="serious", text=text)


def _hides(found: Findings) -> Flag | None:
    if found.update != "sound" or found.all_recovered or not found.hidden:
        return None
    fits = (
        "The true images explain the message no better than other images do (energies "
        f"{found.energy_truth:.3g} and {min(found.energy_decoys):.3g})"
    )
    if found.undefended:
        text = (
            f"{fits}, although nothing protects it: this attack is blind here, so that absence of leakage is not "
            "shown. It does not model the local training (after several steps try sme or dlfa), its prior (tv) is "
            "too strong, or the training diverged; a longer run will not help."
        )
        return Flag(name="attack is blind", severity="serious", text=text)
    text = (
        f"{fits}: the defence hides them from this attack, or the attack does not model the local training. "
        "Another attack may see more; a longer run of this one will not."
    )
    return Flag(name="defence hides it", severity="warning", text=text)


def _preferred(found: Findings) -> Flag | None:
    truth = found.energy_truth
    if found.update != "sound" or truth is None or found.all_recovered or found.hidden:
        return None
    if not math.isfinite(found.energy) or _undercuts(truth, found.energy, CLEARLY):
        return None
    text = (
        f"The attack found images that its objective likes as well as the true ones (energies {found.energy:.3g} "
        f"and {truth:.3g}) but that are not them: its prior is too strong here, or the message leaves a choice. "
        "Try a smaller weight of the prior (tv), or another attack."
    )
    return Flag(name="other images fit as well", severity="warning", text=text)


def _oracle(found: Findings) -> Flag | None:
    if not found.oracle:
        return None
    told = " and ".join(sorted(name.replace("_", " ") for name in found.oracle))
    text = (
        f"The attack used oracle knowledge (the true {told}), which a real adversary lacks: its figures bound "
        "the leak from above. Play it with labels recovered from the message to see what an adversary gets."
    )
    return Flag(name="oracle knowledge used", severity="info", text=text)


def _disagree(found: Findings) -> Flag | None:
    said = _contradiction(found.metrics) or _opposite_order(found.metrics)
    if said is None or found.update != "sound":
        return None
    text = f"The metrics disagree: {said}. Look at the pictures before you trust either number."
    return Flag(name="metrics disagree", severity="warning", text=text)


def _unscored(found: Findings) -> Flag | None:
    if found.truth:
        return None
    text = (
        "The true images were not given, so that nothing can be scored and the gate can not be judged. Look at "
        "the pictures, or give the plan recording.truth."
    )
    return Flag(name="no truth", severity="serious", text=text)


RULES: Sequence[Callable[[Findings], Flag | None]] = (
    _no_message,
    _stopped,
    _optimiser,
    _hides,
    _preferred,
    _oracle,
    _disagree,
    _unscored,
)


def _undercuts(lower: float, other: float, share: float) -> bool:
    """Whether one energy lies below another by more than a share of it."""
    return other - lower > share * abs(other)


def _verdict(scale: Scale, value: float) -> bool | None:
    """Recovered, not recovered, or no say."""
    if scale.sure is None or math.isnan(value):
        return None
    no, yes = scale.sure
    if scale.beyond(value, yes):
        return True
    return None if scale.beyond(value, no) else False


def _outspoken(metrics: Iterable[str]) -> dict[str, Scale]:
    """The metrics that say from where on an image is recovered, and up to where it is certainly not."""
    scales = {name: scale_of(name) for name in metrics}
    return {name: scale for name, scale in scales.items() if scale.sure is not None}


def _contradiction(metrics: Mapping[str, Sequence[float]]) -> str | None:
    """The first image that one metric calls recovered and another certainly not."""
    scales = _outspoken(metrics)
    for i, values in enumerate(zip(*(metrics[name] for name in scales), strict=True)):
        said = {name: _verdict(scales[name], value) for name, value in zip(scales, values, strict=True)}
        yes = next((name for name in scales if said[name] is True), None)
        no = next((name for name in scales if said[name] is False), None)
        if yes and no:
            shown = [f"{scales[m].title} {scales[m].show(metrics[m][i])}" for m in (yes, no)]
            return f"image {i} looks recovered by {shown[0]} and not at all by {shown[1]}"
    return None


def _opposite_order(metrics: Mapping[str, Sequence[float]], least: int = 4) -> str | None:
    """A metric that ranks the images in the order opposite to the first one's; told only of `least` images or more."""
    scales = _outspoken(metrics)
    first, *others = scales or [""]
    for name in others:
        if min(len(metrics[first]), len(metrics[name])) >= least:
            sign = 1 if scales[name].higher_leaks == scales[first].higher_leaks else -1
            if sign * rank_correlation(metrics[first], metrics[name]) < 0:
                return f"{scales[first].title} and {scales[name].title} rank the images in opposite order"
    return None


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Spearman's rank correlation; 0 where one side is constant.

    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 40.0, 90.0])
    1.0
    """
    a, b = _ranks(left), _ranks(right)
    mean = (len(a) - 1) / 2
    spread = math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))
    if spread == 0:
        return 0.0
    return sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True)) / spread


def _ranks(values: Sequence[float]) -> list[float]:
    """Positions in ascending order; ties share their mean position."""
    return [sum(v < x for v in values) + (sum(v == x for v in values) - 1) / 2 for x in values]
