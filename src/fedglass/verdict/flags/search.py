"""Flags of an attack that did not find the images: whether the message hides them, or the search missed them."""

from __future__ import annotations

from fedglass.core.notes import TAKEN_AS_DISTINCT
from fedglass.core.words import some
from fedglass.ledger.records import Flag
from fedglass.verdict.findings import Findings
from fedglass.verdict.gate import CHOICE

OTHER_RUN = "recovered by another run"
NAMED = 3
"""Tensors that a flag names."""


def stopped(found: Findings) -> Flag | None:
    if "non-finite" not in found.notes:
        return None
    text = (
        "The attack met NaN or infinity on its way and returned its last finite images. More restarts, fewer "
        "iterations or a smaller step may carry it further."
    )
    return Flag(name="non-finite stop", severity="info" if found.all_recovered else "serious", text=text)


def optimiser(found: Findings) -> Flag | None:
    if not found.open or found.hidden or found.reached:
        return None
    labels = f" Part of it: {found.label_errors} of the labels are wrong." if found.label_errors else ""
    text = (
        f"The true images have a clearly lower energy ({found.energy_truth:.3g}) than what the optimiser found "
        f"({found.energy:.3g}), and not all images were recovered: the search failed, not the leak, so that "
        f"absence of leakage is not shown.{labels} Give the attack more iterations or restarts, or play another."
    )
    return Flag(name="optimiser failed", severity="serious", text=text)


def labels(found: Findings) -> Flag | None:
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


def distinct(found: Findings) -> Flag | None:
    """Of labels that are known to be right it need not be said how they were found."""
    if TAKEN_AS_DISTINCT not in found.notes or found.label_errors == 0:
        return None
    text = (
        "The attack took the labels of the batch to be all different, since the message did not tell it how often "
        "each occurs: if two examples share a class, it looked for other images. Choose labels that are counted, "
        'such as "bias_counts" or "interpolated_counts", and tell the adversary the training that these need.'
    )
    return Flag(name=TAKEN_AS_DISTINCT, severity="warning", text=text)


def other_run(found: Findings) -> Flag | None:
    better = [look.words for look in found.looks if look.recovered]
    if not found.open or not better:
        return None
    text = (
        f"Another run of the same attack ({better[0]}) recovers images that this one does not: which of its runs "
        "an adversary would trust is open, that the data leak is not. Play it so."
    )
    return Flag(name=OTHER_RUN, severity="serious", text=text)


def other_run_near(found: Findings) -> Flag | None:
    near = [look.words for look in found.looks if look.doubtful]
    if not found.open or not near or other_run(found) is not None:
        return None
    text = (
        f"Another run of the same attack ({near[0]}) comes so near to images that this one does not show that a person "
        "may recognise them, or as near as a guess: absence of leakage is not shown. Play it so, and look at the "
        "pictures."
    )
    return Flag(name="another run comes near", severity="serious", text=text)


def hides(found: Findings) -> Flag | None:
    if not found.open or not found.hidden or other_run(found) is not None:
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


def preferred(found: Findings) -> Flag | None:
    if not found.open or found.hidden or not found.reached or other_run(found) is not None:
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
