"""When a figure may mislead its reader: each flag says what it means and what to do.

What decides them, and how absence of leakage is shown, is in `verdict.findings`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fedglass.core.facts import Fact
from fedglass.core.notes import TAKEN_AS_DISTINCT
from fedglass.core.words import some
from fedglass.ledger.records import Flag
from fedglass.verdict.disagreement import contradiction, opposite_order
from fedglass.verdict.findings import Findings
from fedglass.verdict.gate import CHOICE, NO_MESSAGE

OTHER_RUN = "recovered by another run"
NAMED = 3
"""Tensors that a flag names."""


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


def _replayed(found: Findings) -> Flag | None:
    seen = [found.replay] * (found.explained is False) + list(found.contradictions)
    if (found.truth and not found.open) or (found.explained is True and not seen):
        return None
    if not seen:
        text = (
            "Whether the declared training gives this message could not be told: absence of leakage can not be shown "
            f"by a message that nobody can explain. {found.replay}"
        )
        return Flag(name="message not explained", severity="serious", text=text.strip())
    text = (
        f"The declared training does not give this message: {'; '.join(seen)}. An attack that plays the declared one "
        "is looking for the wrong thing, so that absence of leakage is not shown. Correct the plan."
    )
    return Flag(name="training not as declared", severity="serious", text=text)


def _optimiser(found: Findings) -> Flag | None:
    if not found.open or found.hidden or found.reached:
        return None
    labels = f" Part of it: {found.label_errors} of the labels are wrong." if found.label_errors else ""
    text = (
        f"The true images have a clearly lower energy ({found.energy_truth:.3g}) than what the optimiser found "
        f"({found.energy:.3g}), and not all images were recovered: the search failed, not the leak, so that "
        f"absence of leakage is not shown.{labels} Give the attack more iterations or restarts, or play another."
    )
    return Flag(name="optimiser failed", severity="serious", text=text)


def _batch_norm(found: Findings) -> Flag | None:
    """Batch statistics are named wherever something was not read: they hamper attacks, and hide nothing for sure."""
    if not found.open or not (found.batch_statistics or (found.in_clear and found.hidden)):
        return None
    if not found.batch_statistics:
        text = (
            "The true images explain the message no better than others do, although the running statistics of the "
            "clients' BatchNorm layers leave beside it, untouched by its defences: the attack reads them and weighs "
            "them so little that noise drowns them, or they tell next to nothing. Absence of leakage is not shown. "
            "Raise the weight of the statistics, or leave them out of what clients send."
        )
        return Flag(name="batch statistics", severity="serious", text=text)
    text = (
        "The clients' BatchNorm layers took the statistics of the batch. That makes the search harder and takes the "
        "contrast of the pictures out of the gradient, but it protects nothing: the running statistics, which leave "
        "the client beside the update and untouched by its defences, tell of it, and this attack does not read "
        "them. Absence of leakage is thus not shown. Play coarse_to_fine_statistics, which does, and "
        "coarse_to_fine_batchnorm with several restarts, and look at the pictures; an audit of the same federation "
        'with batch_norm = "frozen", or of a model with another normalisation, tells more.'
    )
    return Flag(name="batch statistics", severity="serious", text=text)


def _distinct(found: Findings) -> Flag | None:
    """Of labels that are known to be right it need not be said how they were found."""
    if TAKEN_AS_DISTINCT not in found.notes or found.label_errors == 0:
        return None
    text = (
        "The attack took the labels of the batch to be all different, since the message did not tell it how often "
        "each occurs: if two examples share a class, it looked for other images. Choose labels that are counted, "
        'such as "bias_counts" or "interpolated_counts", and tell the adversary the training that these need.'
    )
    return Flag(name=TAKEN_AS_DISTINCT, severity="warning", text=text)


def _labels(found: Findings) -> Flag | None:
    """Labels are named wherever they are a plausible cause."""
    if not found.open or not found.mislabelled:
        return None
    text = (
        f"{found.label_errors} of the labels that the attack took are wrong: the true images have the energy "
        f"{found.energy_truth:.3g} under the true labels and {found.energy_labels:.3g} under those, so that it looked "
        "for other images. "
        'Choose another way to find the labels, or see with labels = "oracle" what they cost.'
    )
    return Flag(name="labels are wrong", severity="serious", text=text)


def _other_run(found: Findings) -> Flag | None:
    better = [look.words for look in found.looks if look.recovered]
    if not found.open or not better:
        return None
    text = (
        f"Another run of the same attack ({better[0]}) recovers images that this one does not: which of its runs "
        "an adversary would trust is open, that the data leak is not. Play it so."
    )
    return Flag(name=OTHER_RUN, severity="serious", text=text)


def _hides(found: Findings) -> Flag | None:
    if not found.open or not found.hidden or _other_run(found) is not None:
        return None
    fits = (
        "The true images explain the message no better than other images do (energies "
        f"{found.energy_truth:.3g} and {found.others:.3g})"
    )
    if found.covered:
        text = (
            f"{fits}, and without what protects it the same attack reads it: the protection hides the images from this "
            "attack. Another attack may see more; a longer run of this one will not."
        )
        return Flag(name="defence hides it", severity="info", text=text)
    cause = (
        "It does not model the local training (after several steps try sme or dlfa), its prior (tv) is too strong, its "
        "labels are wrong, or the training diverged; a longer run will not help."
    )
    if found.defended and found.remains:
        text = (
            f"{fits}, but the undefended message stands out from the noise of some tensors "
            f"({', '.join(found.remains[:NAMED])}): an attack that leaves the others out, or weighs them otherwise, "
            "may read it there. Protect all of them, or more strongly."
        )
    elif found.defended and found.strangers:
        text = (
            f"{fits}, but other images than these stand out from the noise ({some(found.strangers, NAMED)}): the "
            "message holds examples that the truth lacks, of which nobody has asked whether they leak. Give the truth "
            "of what was trained on in this round."
        )
    elif found.defended and found.repeats:
        text = (
            f"{fits}, but what hides them is not drawn anew each time ({some(found.repeats, NAMED)}): it cancels in "
            "differences, which may show them. Draw noise for every entry, of every tensor, client and round, from a "
            "generator that nobody else can seed."
        )
    elif found.defended:
        tried = "does not read it either" if found.read_without is False else "was not tried"
        text = (
            f"{fits}, but without what protects it the same attack {tried}: that it hides them is not shown, "
            f"the attack may be blind. {cause}"
        )
    elif found.defended is None:
        text = (
            f"{fits}. Whether a defence protects the message is not said: write recording.defended. Without one this "
            f"attack is blind. {cause}"
        )
    else:
        text = f"{fits}, although nothing protects it: this attack is blind here. {cause}"
    return Flag(name="attack is blind", severity="serious", text=text)


def _preferred(found: Findings) -> Flag | None:
    if not found.open or found.hidden or not found.reached or _other_run(found) is not None:
        return None
    same = f"(energies {found.energy:.3g} and {found.energy_truth:.3g})"
    if found.absence_here == CHOICE:
        text = (
            f"The attack found other images that explain the message as well as the true ones {same}, from "
            f"{len(found.looks) + 1} starts and priors: the message leaves a choice, and the true images are not it."
        )
        return Flag(name="message leaves a choice", severity="info", text=text)
    why = f" The run {found.missed[0].words} did not get there." if found.missed else ""
    if found.apart:
        why = (
            f" The message itself tells them apart (in {', '.join(found.apart[:NAMED])}), where this objective hardly "
            "looks."
        )
    if not found.faithful:
        why = " It does not model how the message was made, which at the true images leaves much of it unexplained."
    text = (
        f"The attack found images that its objective likes as well as the true ones {same} but that are not them: its "
        f'prior is too strong here, or the message leaves a choice.{why} Set effort = "thorough", try a smaller weight '
        "of the prior (tv), or another attack."
    )
    return Flag(name="other images fit as well", severity="serious", text=text)


def _further(found: Findings) -> Flag | None:
    if not found.further or found.absence_here is None:
        return None
    count = f"{found.further} more round{'' if found.further == 1 else 's'}"
    text = (
        f"This message does not show the images, but the same examples, or some of them, are trained on in {count} "
        "(of a bundle, also where rounds are missing in its numbering, or by another client that has them), of which "
        "each tells "
        "more: noise averages out, and what one message leaves open another decides. Absence of leakage is shown for "
        "the rounds that are attacked together alone: list all of them in adversary.round (of a bundle: "
        "recording.rounds) and set adversary.together = true. What a peer sees, and aggregates of different clients, "
        "can not be attacked so."
    )
    return Flag(name="more rounds of the same data", severity="serious", text=text)


def _overlooked(found: Findings) -> Flag | None:
    if not found.overlooked or found.absence_here is None:
        return None
    names = some([repr(name) for name in found.overlooked], NAMED)
    text = (
        f"This message does not show the images, but {names} took part too, and what they sent was not recorded "
        "so that it can be attacked: what leaks there is not known. Record it, or say with recording.whose that the "
        "audit is about the others alone."
    )
    return Flag(name="clients not looked at", severity="serious", text=text)


def _unread(found: Findings) -> Flag | None:
    if not found.open or not found.unread:
        return None
    text = (
        f"More left with the message than an attack looks at ({some(found.unread, NAMED)}): whatever the "
        "weights tell, the examples may be in there. Absence of leakage is not shown. Leave it out of what clients "
        "send, or look at what it holds."
    )
    return Flag(name="more was sent than was read", severity="serious", text=text)


def _miscounted(found: Findings) -> Flag | None:
    if not found.open or not found.miscounted:
        return None
    text = (
        "The truth has another number of examples than the attack was told, so that it looked for something else: "
        "absence of leakage is not shown. Correct the number that was recorded, or give the truth of those examples "
        "that were trained on in this round."
    )
    return Flag(name="number of examples is wrong", severity="serious", text=text)


def _partly(found: Findings) -> Flag | None:
    partly = found.gate.partly(found.scores)
    if found.update != "sound" or not partly:
        return None
    text = (
        f"{partly} of the images are not recovered by the gate's rule, but come so near, or are recovered by "
        "another metric, that a person may recognise them: look at the pictures."
    )
    return Flag(name="partly recognisable", severity="serious", text=text)


def _altered(found: Findings) -> Flag | None:
    if found.update != "sound" or not found.altered:
        return None
    text = (
        f"{found.altered} of the images are not recovered by the gate's rule, but what the attack found shows the same "
        "in another contrast, as a negative, mirrored or moved, which such a network may not tell apart: a person "
        "would recognise them. Look at the pictures."
    )
    return Flag(name="recognisable otherwise", severity="serious", text=text)


def _other_run_near(found: Findings) -> Flag | None:
    near = [look.words for look in found.looks if look.doubtful]
    if not found.open or not near or _other_run(found) is not None:
        return None
    text = (
        f"Another run of the same attack ({near[0]}) comes so near to images that this one does not show that a person "
        "may recognise them, or as near as a guess: absence of leakage is not shown. Play it so, and look at the "
        "pictures."
    )
    return Flag(name="another run comes near", severity="serious", text=text)


def _guessed(found: Findings) -> Flag | None:
    guessed = found.gate.guessed(found.scores)
    if found.update != "sound" or not guessed:
        return None
    names = dict.fromkeys(name for name in found.scores.blind_by.get(found.gate.metric, []) if name)
    text = (
        f"{guessed} of the images lie beyond the gate's threshold, but a guess without any message "
        f"({' or '.join(names) or 'such as the best flat colour'}) does so as well: they do not count as recovered."
    )
    return Flag(name="no better than guessing", severity="serious", text=text)


def _imagined(found: Findings) -> Flag | None:
    imagined = found.gate.imagined(found.scores)
    if found.update != "sound" or not imagined:
        return None
    text = (
        f"{imagined} of the refined images lie beyond the gate's threshold, but fail a control: the same model does as "
        "well from another image, or untrained, or the refined image shows something else than the raw one. They do "
        "not count as recovered; the raw images do."
    )
    return Flag(name="refined image fails its controls", severity="serious", text=text)


def _unexplained(found: Findings) -> Flag | None:
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


def _oracle(found: Findings) -> Flag | None:
    if not found.oracle:
        return None
    told = " and ".join(sorted(Fact(name).words for name in found.oracle))
    text = (
        f"The attack used oracle knowledge ({told}), which a real adversary lacks: its figures bound "
        "the leak from above. Play it with labels recovered from the message to see what an adversary gets."
    )
    return Flag(name="oracle knowledge used", severity="info", text=text)


def _disagree(found: Findings) -> Flag | None:
    said = contradiction(found.scores.metrics) or opposite_order(found.scores.metrics)
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
    _replayed,
    _stopped,
    _labels,
    _distinct,
    _batch_norm,
    _optimiser,
    _other_run,
    _hides,
    _preferred,
    _further,
    _overlooked,
    _unread,
    _miscounted,
    _partly,
    _altered,
    _other_run_near,
    _guessed,
    _imagined,
    _unexplained,
    _oracle,
    _disagree,
    _unscored,
)
