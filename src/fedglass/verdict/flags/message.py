"""Flags of what was sent, and of whether that is what the attack was told."""

from __future__ import annotations

from fedglass.core.words import some
from fedglass.ledger.records import Flag
from fedglass.verdict.findings import Findings
from fedglass.verdict.gate import NO_MESSAGE

NAMED = 3
"""Tensors or clients that a flag names."""


def no_message(found: Findings) -> Flag | None:
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


def replayed(found: Findings) -> Flag | None:
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


def batch_norm(found: Findings) -> Flag | None:
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


def further(found: Findings) -> Flag | None:
    if not found.further or found.absence_here is None:
        return None
    count = f"{found.further} more round{'' if found.further == 1 else 's'}"
    text = (
        f"This message does not show the images, but the same examples, or some of them, are trained on in {count} "
        "(of a bundle, also where rounds are missing in its numbering, or by another client that has them), of which "
        "each tells more: noise averages out, and what one message leaves open another decides. Absence of leakage is "
        "shown for the rounds that are attacked together alone: list all of them in adversary.round (of a bundle: "
        "recording.rounds) and set adversary.together = true. What a peer sees, and aggregates of different clients, "
        "can not be attacked so."
    )
    return Flag(name="more rounds of the same data", severity="serious", text=text)


def overlooked(found: Findings) -> Flag | None:
    if not found.overlooked or found.absence_here is None:
        return None
    names = some([repr(name) for name in found.overlooked], NAMED)
    text = (
        f"This message does not show the images, but {names} took part too, and what they sent was not recorded "
        "so that it can be attacked: what leaks there is not known. Record it, or say with recording.whose that the "
        "audit is about the others alone."
    )
    return Flag(name="clients not looked at", severity="serious", text=text)


def unread(found: Findings) -> Flag | None:
    if not found.open or not found.unread:
        return None
    text = (
        f"More left with the message than an attack looks at ({some(found.unread, NAMED)}): whatever the "
        "weights tell, the examples may be in there. Absence of leakage is not shown. Leave it out of what clients "
        "send, or look at what it holds."
    )
    return Flag(name="more was sent than was read", severity="serious", text=text)


def miscounted(found: Findings) -> Flag | None:
    if not found.open or not found.miscounted:
        return None
    text = (
        "The truth has another number of examples than the attack was told, so that it looked for something else: "
        "absence of leakage is not shown. Correct the number that was recorded, or give the truth of those examples "
        "that were trained on in this round."
    )
    return Flag(name="number of examples is wrong", severity="serious", text=text)
