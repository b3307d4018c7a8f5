"""Flags of what was found: pictures that a number judges wrongly, and numbers that a picture would."""

from __future__ import annotations

import math

from fedglass.core.facts import Fact
from fedglass.ledger.records import Flag
from fedglass.verdict.disagreement import contradiction, opposite_order
from fedglass.verdict.findings import Findings


def partly(found: Findings) -> Flag | None:
    partly = found.gate.partly(found.scores)
    if found.update != "sound" or not partly:
        return None
    text = (
        f"{partly} of the images are not recovered by the gate's rule, but come so near, or are recovered by "
        "another metric, that a person may recognise them: look at the pictures."
    )
    return Flag(name="partly recognisable", severity="serious", text=text)


def altered(found: Findings) -> Flag | None:
    if found.update != "sound" or not found.altered:
        return None
    text = (
        f"{found.altered} of the images are not recovered by the gate's rule, but what the attack found shows the same "
        "in another contrast, as a negative, mirrored or moved, which such a network may not tell apart: a person "
        "would recognise them. Look at the pictures."
    )
    return Flag(name="recognisable otherwise", severity="serious", text=text)


def guessed(found: Findings) -> Flag | None:
    guessed = found.gate.guessed(found.scores)
    if found.update != "sound" or not guessed:
        return None
    names = dict.fromkeys(name for name in found.scores.blind_by.get(found.gate.metric, []) if name)
    text = (
        f"{guessed} of the images lie beyond the gate's threshold, but a guess without any message "
        f"({' or '.join(names) or 'such as the best flat colour'}) does so as well: they do not count as recovered."
    )
    return Flag(name="no better than guessing", severity="serious", text=text)


def imagined(found: Findings) -> Flag | None:
    imagined = found.gate.imagined(found.scores)
    if found.update != "sound" or not imagined:
        return None
    text = (
        f"{imagined} of the refined images lie beyond the gate's threshold, but fail a control: the same model does as "
        "well from another image, or untrained, or the refined image shows something else than the raw one. They do "
        "not count as recovered; the raw images do."
    )
    return Flag(name="refined image fails its controls", severity="serious", text=text)


def unexplained(found: Findings) -> Flag | None:
    """A refined image is told from the raw one by the message: half of what that explains must be left."""
    before, after, blind = found.energy, found.energy_refined, found.energy_blind
    if after is None or not math.isfinite(before):
        return None
    limit = (before + blind) / 2 if blind is not None and blind > before else before + abs(before)
    if math.isfinite(after) and after <= limit:
        return None
    text = (
        f"The refined images no longer explain the message (energy {after:.3g}, of the raw ones {before:.3g}): what "
        "they show beyond the raw images was made up by the refinement."
    )
    return Flag(name="refinement is imagination", severity="info", text=text)


def disagree(found: Findings) -> Flag | None:
    said = contradiction(found.scores.metrics) or opposite_order(found.scores.metrics)
    if said is None or found.update != "sound":
        return None
    text = f"The metrics disagree: {said}. Look at the pictures before you trust either number."
    return Flag(name="metrics disagree", severity="warning", text=text)


def unscored(found: Findings) -> Flag | None:
    if found.truth:
        return None
    text = (
        "The true images were not given, so that nothing can be scored and the gate can not be judged. Look at "
        "the pictures, or give the plan recording.truth."
    )
    return Flag(name="no truth", severity="serious", text=text)


def oracle(found: Findings) -> Flag | None:
    if not found.oracle:
        return None
    told = " and ".join(sorted(Fact(name).words for name in found.oracle))
    text = (
        f"The attack used oracle knowledge ({told}), which a real adversary lacks: its figures bound "
        "the leak from above. Play it with labels recovered from the message to see what an adversary gets."
    )
    return Flag(name="oracle knowledge used", severity="info", text=text)
