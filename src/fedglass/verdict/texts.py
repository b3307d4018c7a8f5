"""Every sentence about a doubt: one row for each kind, with its question, its severity, its text and the next step.

Nothing else maps kinds to words, and nothing decides by these words. Sentences that a verdict always has are here too.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fedglass.core.text import some
from fedglass.verdict.doubts import Doubt, Kind

Severity = Literal["info", "warning", "serious"]
NAMED = 3
"""Names of a list that a sentence spells out."""
ALLOWED = "This is allowed by the plan (gate.max_share)."
PROTECT = (
    "Do not release such messages: add noise that hides single records (DP-SGD, or clipping and Gaussian noise), then "
    "audit again."
)
WITHOUT_TRUTH = "The true examples are not needed for this."
OTHER_THAN_TRUTH = (
    "They are not the examples that were given as the truth: the truth is wrong, or the network sees less than the "
    "whole image."
)
UNCHECKED = "No certificate was computed for {messages}."
LIMITS = (
    "It holds for one record at a time, with all others known to the adversary.",
    "It does not cover what several images of a client share, such as a face or a scanner, nor labels, nor properties "
    "of the data.",
    "It assumes that the noise is unpredictable.",
)
"""What CLEAR does not say, printed with it."""


def percent(share: float) -> str:
    """Return a share in per cent, with three significant digits.

    >>> percent(0.91), percent(0.018298), percent(0.001), percent(0.0)
    ('91 %', '1.83 %', '0.1 %', '0 %')
    """
    return f"{100 * share:.3g} %"


def count(number: int, noun: str) -> str:
    """Return a number of things.

    >>> count(1, "image"), count(3, "image")
    ('1 image', '3 images')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


class Question(enum.Enum):
    """What a doubt is about, in the order of a report."""

    MESSAGE = "Is the message what it is said to be?"
    COVERAGE = "Is everything that left in view?"
    PROTECTION = "Is the protection what it is said to be?"
    SINGLING_OUT = "Does the message single out its records?"
    ATTACK = "Did the attack have a fair chance?"
    PICTURES = "What do the pictures show?"


@dataclass(frozen=True)
class Row:
    """How one kind of doubt is told. A serious one, at a certificate, keeps the audit from saying CLEAR."""

    question: Question
    severity: Severity
    title: str
    text: str
    step: str = ""


@dataclass(frozen=True)
class Flag:
    """A doubt in words."""

    kind: Kind
    name: str
    severity: Severity
    text: str
    step: str = ""
    question: Question = Question.ATTACK

    @property
    def whole(self) -> str:
        """The text with the next step."""
        return f"{self.text} {self.step}".rstrip()


def flag(doubt: Doubt) -> Flag:
    """Return a doubt in words, filled with its details."""
    row = TABLE[doubt.kind]
    details = _Filled({name: _shown(value) for name, value in doubt.details.items()})
    return Flag(
        doubt.kind,
        row.title,
        row.severity,
        row.text.format_map(details).strip(),
        row.step.format_map(details),
        row.question,
    )


class _Filled(dict[str, str]):
    """Details of a sentence; one that an older record lacks is left out."""

    def __missing__(self, key: str) -> str:
        return ""


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return some([str(each) for each in value], NAMED)
    return f"{value:.3g}" if isinstance(value, float) else str(value)


_ATTACK, _PICTURES, _MESSAGE = Question.ATTACK, Question.PICTURES, Question.MESSAGE
_COVERAGE, _PROTECTION, _GAME = Question.COVERAGE, Question.PROTECTION, Question.SINGLING_OUT

TABLE: Mapping[Kind, Row] = {
    Kind.ZERO_UPDATE: Row(
        _MESSAGE,
        "serious",
        "zero update",
        "The update is zero everywhere, so there is nothing to attack.",
        "Check that the client trained, that its learning rate is not lost in rounding, and that the weights before "
        "and after were not mixed up.",
    ),
    Kind.NON_FINITE_UPDATE: Row(
        _MESSAGE,
        "serious",
        "non-finite update",
        "The update holds NaN or infinity: the client's training diverged.",
        "Lower the client's learning rate and audit again.",
    ),
    Kind.NOT_AS_DECLARED: Row(
        _MESSAGE,
        "serious",
        "training not as declared",
        "The declared training does not give this message: {found}.",
        "Correct the plan, or the truth.",
    ),
    Kind.NOT_REPLAYED: Row(
        _MESSAGE,
        "serious",
        "message not explained",
        "The declared training could not be compared with this message. {why}",
        "Declare the training and the defences as they were.",
    ),
    Kind.WRONG_COUNT: Row(
        _MESSAGE,
        "serious",
        "number of examples is wrong",
        "The truth has {true} examples, but {stated} were recorded.",
        "Correct the number that was recorded, or give the examples that were trained on in this round.",
    ),
    Kind.STATISTICS_SENT: Row(
        _COVERAGE,
        "serious",
        "batch statistics",
        "The clients' BatchNorm layers took the statistics of the batch. These running statistics leave the client "
        "next to the update, and no defence covers them.",
        'Leave them out of what clients send, set batch_norm = "frozen", or use another normalisation.',
    ),
    Kind.MORE_ROUNDS: Row(
        _COVERAGE,
        "serious",
        "more rounds of the same data",
        "The same examples, or some of them, are trained on in {rounds} more round(s). Each round tells more, because "
        "noise averages out.",
        "List all rounds in adversary.round (of a bundle: recording.rounds) and set adversary.together = true.",
    ),
    Kind.CLIENTS_NOT_AUDITED: Row(
        _COVERAGE,
        "serious",
        "clients not looked at",
        "{clients} also took part. Their updates were not recorded in a form that can be attacked, so nothing "
        "is known of what they leak.",
        "Record their updates, or say with recording.whose that the audit is about the others alone.",
    ),
    Kind.EXTRA_PAYLOAD: Row(
        _COVERAGE,
        "serious",
        "more was sent than was read",
        "More left with the message than an attack looks at ({names}). The examples may be in there.",
        "Leave it out of what clients send, or look at what it holds.",
    ),
    Kind.NO_NOISE: Row(
        _PROTECTION,
        "serious",
        "no certificate: no noise",
        "No certificate: nothing adds noise to this message, so nothing bounds what an adversary reads.",
        "Add noise that hides single records, such as DP-SGD, or clipping and gaussian_noise.",
    ),
    Kind.DEFENCE_NOT_NAMED: Row(
        _PROTECTION,
        "serious",
        "defence not named",
        "No certificate: what protects the message is not known.",
        'Name it with its options, such as recording.defended = {{ name = "gaussian_noise", std = 0.1 }}, or set '
        "recording.defended = false.",
    ),
    Kind.DEFENCE_NOT_BOUNDED: Row(
        _PROTECTION,
        "serious",
        "no certificate for this defence",
        "No certificate: no bound is known for {defence}. {why}",
        "Use noise that does not depend on the data, such as gaussian_noise after clip, or dpsgd.",
    ),
    Kind.NOISE_REFUTED: Row(
        _PROTECTION,
        "serious",
        "noise not as declared",
        "No certificate: the noise of this message is not the declared one ({tests}; p = {p}).",
        "Draw independent noise for every entry, client and round from a generator with a secret seed.",
    ),
    Kind.NOISE_NOT_TESTABLE: Row(
        _PROTECTION,
        "serious",
        "noise not testable",
        "No certificate: the declared noise cannot be tested. {why}",
        "Record the order of the batches, or set gate.trust_declared = true if you can vouch for the noise.",
    ),
    Kind.WEAK_CERTIFICATE: Row(
        _PROTECTION,
        "serious",
        "certificate too weak",
        "The certificate allows an adversary to name a record among 1,000 with a chance of {success}, and the gate "
        "allows {allowed}.",
        "Add more noise, clip lower, or train fewer rounds.",
    ),
    Kind.CERTIFICATE_REFUTED: Row(
        _PROTECTION,
        "serious",
        "certificate refuted",
        "The message names its records more often ({wins} of {games}) than its certificate allows ({allowed}): the "
        "protection is not as declared.",
        "Check what really adds the noise.",
    ),
    Kind.DECLARATION_TRUSTED: Row(
        _PROTECTION,
        "warning",
        "declaration trusted",
        "The certificate rests on the declared training and noise alone (gate.trust_declared = true). Nothing tested "
        "them.",
    ),
    Kind.NO_CANDIDATES: Row(
        _GAME,
        "info",
        "no candidates",
        "The candidate game was not played: there are {found} other examples, and it needs at least {least}.",
        "Give public examples of the same kind: --public, or adversary.public in a plan.",
    ),
    Kind.FEW_CANDIDATES: Row(
        _GAME,
        "info",
        "few candidates",
        "Only {found} candidates have the label of a record, where {least} are needed for a rate: the game decides "
        "nothing here.",
        "Give more public examples of each class: --public, or adversary.public in a plan.",
    ),
    Kind.OTHER_DOMAIN: Row(
        _GAME,
        "info",
        "candidates of another kind",
        "The candidates are images of another kind than the records, so the game decides nothing.",
        "Give public examples of the same kind: --public, or adversary.public in a plan.",
    ),
    Kind.NO_CONTROL: Row(
        _GAME,
        "info",
        "no control",
        "The game has no control, so it cannot tell membership from likeness and decides nothing. {why}",
        "Declare the training, so that it can be run without some of the records.",
    ),
    Kind.LOW_POWER: Row(
        _GAME,
        "info",
        "game of low power",
        "Only {public} public gradients show what is common to all examples: the game may miss what a larger set "
        "would find.",
        "Give at least 100 public examples: --public, or adversary.public in a plan.",
    ),
    Kind.GAME_NOT_PLAYED: Row(_GAME, "info", "game not played", "The candidate game was not played. {why}"),
    Kind.NO_EXACT_METHOD: Row(
        _ATTACK,
        "info",
        "no exact method applies",
        "No closed form reads this message: {reasons}.",
    ),
    Kind.NON_FINITE_STOP: Row(
        _ATTACK,
        "warning",
        "non-finite stop",
        "The attack met NaN or infinity and returned its last finite images.",
        "Give it more restarts, fewer iterations or a smaller step.",
    ),
    Kind.WRONG_LABELS: Row(
        _ATTACK,
        "warning",
        "labels are wrong",
        "{labels} of the labels that the attack took are wrong, so it looked for other images.",
        'Choose another way to find the labels, or see with labels = "oracle" what they cost.',
    ),
    Kind.LABELS_TAKEN_AS_DISTINCT: Row(
        _ATTACK,
        "warning",
        "labels taken as distinct",
        "The attack took the labels of the batch to be all different, because the message did not tell how often each "
        "occurs.",
        'Choose labels that are counted, such as "bias_counts", and tell the adversary the training.',
    ),
    Kind.SEARCH_FAILED: Row(
        _ATTACK,
        "warning",
        "optimiser failed",
        "The true images explain the message better (energy {truth}) than what the search found ({found}): the search "
        "failed.",
        "Give the attack more iterations or restarts, or run another.",
    ),
    Kind.ATTACK_IS_BLIND: Row(
        _ATTACK,
        "info",
        "attack is blind",
        "The true images explain the message no better than a grey image does (energies {truth} and {blind}): a "
        "defence hides them from this attack, or the attack does not model the training.",
        "A longer run will not help. After several local steps try sme or dlfa.",
    ),
    Kind.OTHER_IMAGES_FIT: Row(
        _ATTACK,
        "info",
        "other images fit as well",
        "The attack found wrong images that score as well as the true ones (energies {found} and {truth}): the message "
        "leaves a choice, or the prior is too strong.",
        "Try a smaller weight of the prior (tv), or another attack.",
    ),
    Kind.ORACLE_USED: Row(
        _ATTACK,
        "info",
        "oracle knowledge used",
        "The attack used oracle knowledge ({facts}), which a real adversary lacks: its figures bound the leak from "
        "above and decide nothing.",
        "Run it with labels recovered from the message.",
    ),
    Kind.OUT_OF_TIME: Row(
        _ATTACK,
        "info",
        "out of time",
        "The attack was stopped after {seconds} s, when the time budget was used up.",
        "Give it more time with --minutes, or run everything with --all.",
    ),
    Kind.PARTLY_RECOGNISABLE: Row(
        _PICTURES,
        "warning",
        "partly recognisable",
        "{images} of the images are not recovered by the gate's rule, but come so near, or are recovered by another "
        "metric, that a person may recognise them.",
        "Look at the pictures.",
    ),
    Kind.SHOWN_OTHERWISE: Row(
        _PICTURES,
        "warning",
        "recognisable otherwise",
        "{images} of the images are not recovered by the gate's rule, but the attack found the same picture in another "
        "contrast, as a negative, mirrored or moved.",
        "Look at the pictures.",
    ),
    Kind.NO_BETTER_THAN_GUESS: Row(
        _PICTURES,
        "warning",
        "no better than guessing",
        "{images} of the images lie beyond the gate's threshold, but a guess without any message ({guesses}) does so "
        "as well: they do not count as recovered.",
    ),
    Kind.FAILS_CONTROLS: Row(
        _PICTURES,
        "warning",
        "refined image fails its controls",
        "{images} of the refined images lie beyond the gate's threshold, but fail a control: the same model does as "
        "well from another image, or untrained, or shows something else than the raw image. The raw images count.",
    ),
    Kind.REFINEMENT_UNEXPLAINED: Row(
        _PICTURES,
        "info",
        "refinement is imagination",
        "The refined images no longer explain the message (energy {after}, of the raw ones {before}): the refinement "
        "made up what they show beyond the raw images.",
    ),
    Kind.METRICS_DISAGREE: Row(
        _PICTURES,
        "warning",
        "metrics disagree",
        "The metrics disagree: {how}.",
        "Look at the pictures before you trust either number.",
    ),
    Kind.BLEND: Row(
        _PICTURES,
        "warning",
        "blend of several images",
        "{images} of the reconstructions are nearer to the mean of several private images than to any single one: a "
        "blend counts as at most one recovered image.",
        "Look at the pictures.",
    ),
    Kind.LOW_THRESHOLD: Row(
        _PICTURES,
        "warning",
        "threshold too low for such data",
        "The best blind guess passes the gate's threshold for {share} of public images: the threshold is too low for "
        "such data.",
        "Set gate.threshold = {proposed}, which a blind guess passes for at most 5 % of them.",
    ),
    Kind.NO_TRUTH: Row(
        _PICTURES,
        "serious",
        "no truth",
        "The true examples were not given, so nothing can be scored and the candidate game is not played.",
        "Give the plan recording.truth.",
    ),
}
