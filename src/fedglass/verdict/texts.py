"""The sentences of a verdict: one row for each kind of doubt, with its question, severity, text and next step.

Nothing else maps kinds to sentences, and nothing decides by these sentences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedglass.verdict.doubts import Kind, Question, Severity

ALLOWED = "This is allowed by the plan (gate.max_share)."
PROTECT = (
    "Do not release such messages: add noise that hides single records (DP-SGD, or clipping and Gaussian noise), then "
    "audit again."
)
WITHOUT_TRUTH = "The true examples are not needed for this."
OTHER_THAN_TRUTH = (
    "They differ from the examples that were given as the truth: the truth is wrong, or the network sees only a part "
    "of each image."
)
UNCHECKED = "No certificate was computed for {messages}."
LIMITS = (
    "It holds for one record at a time, with all others known to the adversary.",
    "It does not cover what several images of a client share, such as a face or a scanner, nor labels, nor properties "
    "of the data.",
    "It assumes that the noise is unpredictable.",
)
"""What CLEAR does not say, printed with it."""
QUESTIONS: Mapping[Question, str] = {
    Question.MESSAGE: "Is the message what was declared?",
    Question.COVERAGE: "Was everything audited that left the clients?",
    Question.PROTECTION: "Is the protection as declared, and is it strong enough?",
    Question.SINGLING_OUT: "Does the message single out its records?",
    Question.ATTACK: "Did the attack have a fair chance?",
    Question.PICTURES: "What do the pictures show?",
}


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


@dataclass(frozen=True)
class Row:
    """The sentences of one kind of doubt. A serious doubt about a certificate keeps the audit from CLEAR."""

    question: Question
    severity: Severity
    title: str
    text: str
    step: str = ""


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
        "The declared training does not produce this message: {found}.",
        "Correct the declared training, or the examples that are given as the truth.",
    ),
    Kind.NOT_REPLAYED: Row(
        _MESSAGE,
        "serious",
        "message not explained",
        "We could not check whether the declared training produces this message. {why}",
        "Declare the training and the defences that were really used.",
    ),
    Kind.WRONG_COUNT: Row(
        _MESSAGE,
        "serious",
        "number of examples is wrong",
        "The truth has {true} examples, but {stated} were recorded.",
        "Correct the recorded number, or give exactly the examples that were trained on in this round.",
    ),
    Kind.STATISTICS_SENT: Row(
        _COVERAGE,
        "serious",
        "batch statistics",
        "The clients' BatchNorm layers used the statistics of the batch. These running statistics are sent with the "
        "update, and no defence covers them.",
        'Do not send them, set batch_norm = "frozen", or use another normalisation.',
    ),
    Kind.MORE_ROUNDS: Row(
        _COVERAGE,
        "serious",
        "more rounds of the same data",
        "The same examples, or some of them, are trained on in {rounds} more round(s). Each round reveals more, "
        "because noise averages out.",
        "List all rounds in adversary.round (of a bundle: recording.rounds) and set adversary.together = true.",
    ),
    Kind.CLIENTS_NOT_AUDITED: Row(
        _COVERAGE,
        "serious",
        "clients not audited",
        "{clients} also took part. Their updates were not recorded in a form that we can attack, so we do not know "
        "what they leak.",
        "Record their updates, or name the audited clients in recording.whose.",
    ),
    Kind.EXTRA_PAYLOAD: Row(
        _COVERAGE,
        "serious",
        "extra data was sent",
        "The client sent more than the attacks look at ({names}). It may contain the examples.",
        "Do not send it, or inspect what it contains.",
    ),
    Kind.NO_NOISE: Row(
        _PROTECTION,
        "serious",
        "no certificate: no noise",
        "No certificate: nothing adds noise to this message, so nothing bounds what an adversary learns.",
        "Add noise that hides single records, such as DP-SGD, or clipping and gaussian_noise.",
    ),
    Kind.DEFENCE_NOT_NAMED: Row(
        _PROTECTION,
        "serious",
        "defence not named",
        "No certificate: the defence of this message is not known.",
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
        "noise cannot be tested",
        "No certificate: the declared noise cannot be tested. {why}",
        "Record the order of the batches, or set gate.trust_declared = true if you are sure of the noise.",
    ),
    Kind.WEAK_CERTIFICATE: Row(
        _PROTECTION,
        "serious",
        "certificate too weak",
        "The certificate allows an adversary to name a record among 1,000 with a chance of {success}. The gate allows "
        "at most {allowed}.",
        "Add more noise, clip lower, or train fewer rounds.",
    ),
    Kind.CERTIFICATE_REFUTED: Row(
        _PROTECTION,
        "serious",
        "certificate refuted",
        "The message names its records more often ({wins} of {games}) than its certificate allows ({allowed}), so the "
        "protection is not as declared.",
        "Check the code that adds the noise.",
    ),
    Kind.DECLARATION_TRUSTED: Row(
        _PROTECTION,
        "warning",
        "declaration trusted",
        "The certificate rests only on the declared training and noise (gate.trust_declared = true). They were not "
        "tested.",
    ),
    Kind.NO_CANDIDATES: Row(
        _GAME,
        "info",
        "no candidates",
        "The candidate game was not played: it needs at least {least} other examples, and there are {found}.",
        "Give public examples of the same kind: --public, or adversary.public in a plan.",
    ),
    Kind.FEW_CANDIDATES: Row(
        _GAME,
        "info",
        "few candidates",
        "Only {found} candidates have the label of a record, and a rate needs {least}, so the game decides nothing "
        "here.",
        "Give more public examples of each class: --public, or adversary.public in a plan.",
    ),
    Kind.OTHER_DOMAIN: Row(
        _GAME,
        "info",
        "candidates of another kind",
        "The candidates are another kind of images than the records, so the game decides nothing.",
        "Give public examples of the same kind: --public, or adversary.public in a plan.",
    ),
    Kind.NO_CONTROL: Row(
        _GAME,
        "info",
        "no control",
        "The game has no control, so it cannot distinguish training from mere similarity and decides nothing. {why}",
        "Declare the training, so that fedglass can run it without some of the records.",
    ),
    Kind.LOW_POWER: Row(
        _GAME,
        "info",
        "weak candidate game",
        "Only {public} public gradients are available to remove what all examples have in common, so the game may miss "
        "a leak.",
        "Give at least 100 public examples: --public, or adversary.public in a plan.",
    ),
    Kind.GAME_NOT_PLAYED: Row(_GAME, "info", "game not played", "The candidate game was not played. {why}"),
    Kind.NO_EXACT_METHOD: Row(
        _ATTACK,
        "info",
        "no exact method applies",
        "No exact method can read this message: {reasons}.",
    ),
    Kind.NON_FINITE_STOP: Row(
        _ATTACK,
        "warning",
        "non-finite stop",
        "The attack reached NaN or infinity and returned its last finite images.",
        "Give it more restarts, fewer iterations or a smaller step.",
    ),
    Kind.WRONG_LABELS: Row(
        _ATTACK,
        "warning",
        "labels are wrong",
        "{labels} of the labels that the attack used are wrong, so it looked for other images.",
        'Choose another way to find the labels, or measure their effect with labels = "oracle".',
    ),
    Kind.LABELS_TAKEN_AS_DISTINCT: Row(
        _ATTACK,
        "warning",
        "labels taken as distinct",
        "The attack assumed that all labels of the batch differ, because the message does not show how often each "
        "occurs.",
        'Choose a method that counts labels, such as "bias_counts", and let the adversary know the training.',
    ),
    Kind.SEARCH_FAILED: Row(
        _ATTACK,
        "warning",
        "search failed",
        "The true images explain the message better (energy {truth}) than the images that the search found ({found}).",
        "Give the attack more iterations or restarts, or run another.",
    ),
    Kind.ATTACK_IS_BLIND: Row(
        _ATTACK,
        "info",
        "attack is blind",
        "The true images explain the message no better than a grey image does (energies {truth} and {blind}). Either a "
        "defence hides them from this attack, or the attack does not model the training.",
        "A longer run will not help. After several local steps try sme or dlfa.",
    ),
    Kind.OTHER_IMAGES_FIT: Row(
        _ATTACK,
        "info",
        "other images fit as well",
        "The attack found wrong images that fit the message as well as the true ones (energies {found} and {truth}). "
        "Either the message does not identify the images, or the prior is too strong.",
        "Try a smaller weight of the prior (tv), or another attack.",
    ),
    Kind.ORACLE_USED: Row(
        _ATTACK,
        "info",
        "oracle knowledge used",
        "The attack used oracle knowledge ({facts}), which a real adversary lacks. Its figures are an upper bound of "
        "the leak and decide nothing.",
        "Run it with labels that are recovered from the message.",
    ),
    Kind.OUT_OF_TIME: Row(
        _ATTACK,
        "info",
        "out of time",
        "The attack was stopped after {seconds} s, because the time budget was used up.",
        "Give it more time with --minutes, or run everything with --all.",
    ),
    Kind.PARTLY_RECOGNISABLE: Row(
        _PICTURES,
        "warning",
        "partly recognisable",
        "{images} of the images do not count as recovered, but a person may recognise them: they come near the "
        "threshold, or another metric counts them as recovered.",
        "Look at the pictures.",
    ),
    Kind.TRANSFORMED_MATCH: Row(
        _PICTURES,
        "warning",
        "recognisable in another form",
        "{images} of the images do not count as recovered, but the attack found the same picture with another "
        "contrast, as a negative, mirrored or shifted.",
        "Look at the pictures.",
    ),
    Kind.NO_BETTER_THAN_GUESS: Row(
        _PICTURES,
        "warning",
        "no better than guessing",
        "{images} of the images pass the gate's threshold, but a guess without any message ({guesses}) passes it too, "
        "so they do not count as recovered.",
    ),
    Kind.FAILS_CONTROLS: Row(
        _PICTURES,
        "warning",
        "refined image fails its controls",
        "{images} of the refined images pass the gate's threshold, but fail a control: the same model does as well "
        "from another image or untrained, or the refined image shows something else than the raw image. The raw "
        "images count.",
    ),
    Kind.REFINEMENT_UNEXPLAINED: Row(
        _PICTURES,
        "info",
        "refinement is invented",
        "The refined images no longer explain the message (energy {after}, before the refinement {before}). Everything "
        "that they show beyond the raw images is invented.",
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
        "{images} of the reconstructions are nearer to the mean of several private images than to any single one. A "
        "blend counts as at most one recovered image.",
        "Look at the pictures.",
    ),
    Kind.LOW_THRESHOLD: Row(
        _PICTURES,
        "warning",
        "threshold too low for such data",
        "The best blind guess passes the gate's threshold for {share} of public images, so the threshold is too low "
        "for such data.",
        "Set gate.threshold = {proposed}, which a blind guess passes for at most 5 % of them.",
    ),
    Kind.NO_TRUTH: Row(
        _PICTURES,
        "serious",
        "no truth",
        "The true examples were not given, so nothing can be scored and the candidate game is not played.",
        "Add recording.truth to the plan, or use --truth.",
    ),
}
