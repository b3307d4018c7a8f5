"""The sentences of a verdict: one flag for each kind of doubt, with its question, severity, text and next step.

Nothing else maps kinds to sentences, and nothing decides by these sentences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedglass.core.text import count as count
from fedglass.verdict.doubts import DoubtKind, Question, Severity

ALLOWED = "This is allowed by the plan (gate.max_share)."
PROTECT = (
    "Do not release such messages: add noise that hides single records (DP-SGD, or clipping and Gaussian noise), then "
    "audit again. The command fedglass advise finds out how much."
)
UNCHECKED = "No certificate was computed for {messages}."
TITLES = {
    "leak": "Leak found",
    "exposed": "Records exposed",
    "clear": "No leak: certified",
    "inconclusive": "Inconclusive",
    "incomplete": "Audit incomplete",
}
"""State of a verdict -> its title."""
STATE_AT_VALUES = {
    "leak": "recovered",
    "exposed": "not recovered, but records are singled out",
    "clear": "certified",
    "inconclusive": "not recovered, not certified",
    "incomplete": "not complete",
}
"""State of a verdict at some values of a swept option -> its text."""
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


@dataclass(frozen=True)
class Flag:
    """A doubt as text. A serious doubt about a certificate keeps the audit from CLEAR."""

    kind: DoubtKind
    question: Question
    severity: Severity
    name: str
    text: str
    step: str = ""

    @property
    def advice(self) -> str:
        """The text with the next step."""
        return f"{self.text} {self.step}".rstrip()


TEXTS: Mapping[tuple[Question, Severity], Mapping[DoubtKind, tuple[str, ...]]] = {
    (Question.MESSAGE, "serious"): {
        DoubtKind.ZERO_UPDATE: (
            "zero update",
            "The update is zero everywhere, so there is nothing to attack.",
            "Check that the client trained, that its learning rate is not lost in rounding, and that the weights "
            "before and after were not mixed up.",
        ),
        DoubtKind.NON_FINITE_UPDATE: (
            "non-finite update",
            "The update holds NaN or infinity: the client's training diverged.",
            "Lower the client's learning rate and audit again.",
        ),
        DoubtKind.NOT_AS_DECLARED: (
            "training not as declared",
            "The declared training does not produce this message: {found}.",
            "Correct the declared training, or the examples that are given as the truth.",
        ),
        DoubtKind.NOT_REPLAYED: (
            "message not explained",
            "We could not check whether the declared training produces this message. {why}",
            "Declare the training and the defences that were really used. Where the training is too long, or rounding "
            "decides it, record rounds of fewer local steps.",
        ),
        DoubtKind.WRONG_COUNT: (
            "number of examples is wrong",
            "The truth has {true} examples, but {stated} were recorded.",
            "Correct the recorded number, or give exactly the examples that were trained on in this round.",
        ),
    },
    (Question.COVERAGE, "serious"): {
        DoubtKind.STATISTICS_SENT: (
            "batch statistics",
            "The clients' BatchNorm layers used the statistics of the batch. These running statistics are sent with "
            "the update, and no defence covers them.",
            'Do not send them, set batch_norm = "frozen", or use another normalisation.',
        ),
        DoubtKind.MORE_ROUNDS: (
            "more rounds of the same data",
            "The same examples, or some of them, are trained on in {rounds} more round(s). Each round reveals more, "
            "because noise averages out.",
            "List all rounds in adversary.round (of a bundle: recording.rounds) and set adversary.together = true.",
        ),
        DoubtKind.CLIENTS_NOT_AUDITED: (
            "clients not audited",
            "{clients} also took part. Their updates were not recorded in a form that we can attack, so we do not "
            "know what they leak.",
            "Record their updates, or name the audited clients in recording.whose.",
        ),
        DoubtKind.EXTRA_PAYLOAD: (
            "extra data was sent",
            "The client sent more than the attacks look at ({names}). It may contain the examples.",
            "Do not send it, or inspect what it contains.",
        ),
    },
    (Question.PROTECTION, "serious"): {
        DoubtKind.NO_NOISE: (
            "no certificate: no noise",
            "No certificate: nothing adds noise to this message, so nothing bounds what an adversary learns.",
            "Add noise that hides single records, such as DP-SGD, or clipping and gaussian_noise.",
        ),
        DoubtKind.DEFENCE_NOT_NAMED: (
            "defence not named",
            "No certificate: the defence of this message is not known.",
            'Name the defence with its options, such as recording.defended = {{ name = "gaussian_noise", std = 0.1 }}, '
            "or set recording.defended = false.",
        ),
        DoubtKind.DEFENCE_NOT_BOUNDED: (
            "no certificate for this defence",
            "No certificate: no bound is known for {defence}. {why}",
            "Use noise that does not depend on the data, such as gaussian_noise after clip, or dpsgd.",
        ),
        DoubtKind.NOISE_REFUTED: (
            "noise not as declared",
            "No certificate: the noise of this message is not the declared one ({tests}; p = {p}).",
            "Draw independent noise for every entry, client and round from a generator with a secret seed.",
        ),
        DoubtKind.NOISE_NOT_TESTABLE: (
            "noise cannot be tested",
            "No certificate: the declared noise cannot be tested. {why}",
            "{remedy} After a review of the noise code, gate.trust_declared = true accepts the declaration.",
        ),
        DoubtKind.WEAK_CERTIFICATE: (
            "certificate too weak",
            "The certificate allows an adversary to name a record among 1,000 with a chance of {success}. The gate "
            "allows at most {allowed}.",
            "Add more noise, clip lower, or train fewer rounds.",
        ),
        DoubtKind.CERTIFICATE_REFUTED: (
            "certificate refuted",
            "The message names its records more often ({wins} of {games}) than its certificate allows ({allowed}), so "
            "the protection is not as declared.",
            "Check the code that adds the noise.",
        ),
    },
    (Question.PROTECTION, "info"): {
        DoubtKind.NOISE_THAT_SUFFICES: (
            "noise that suffices",
            "With {factor} times the noise, and all else as it is, the certificate would meet the gate ({allowed}).",
            "Multiply the noise by {factor} and audit again.",
        ),
    },
    (Question.PROTECTION, "warning"): {
        DoubtKind.DECLARATION_TRUSTED: (
            "declaration trusted",
            "The certificate rests only on the declared training and noise (gate.trust_declared = true). They were "
            "not tested.",
        ),
        DoubtKind.IDLE_FILTER: (
            "filter did nothing",
            "{filter} did nothing to this message: {why}.",
            "Do not count on it: add noise that hides single records, such as clipping and gaussian_noise.",
        ),
        DoubtKind.EPSILON_NOT_AS_DECLARED: (
            "epsilon not as declared",
            "{filter} declares epsilon {declared}, but it is {real}: {why}.",
            "Calibrate the noise to the clipping norm and to all rounds, by an accountant.",
        ),
    },
    (Question.SINGLING_OUT, "info"): {
        DoubtKind.NO_CANDIDATES: (
            "no candidates",
            "The candidate game was not played: it needs at least {least} other examples, and there are {found}.",
            "Give public examples of the same kind: --public, or adversary.public in a plan.",
        ),
        DoubtKind.FEW_CANDIDATES: (
            "few candidates",
            "Only {found} candidates have the label of a record, and a rate needs {least}, so the game decides "
            "nothing here.",
            "Give more public examples of each class: --public, or adversary.public in a plan.",
        ),
        DoubtKind.OTHER_DOMAIN: (
            "candidates of another kind",
            "The candidates are another kind of images than the records, so the game decides nothing.",
            "Give public examples of the same kind: --public, or adversary.public in a plan.",
        ),
        DoubtKind.NO_CONTROL: (
            "no control",
            "The game has no control, so it cannot distinguish training from mere similarity and decides nothing. "
            "{why}",
            "Declare the training, so that fedglass can run it without some of the records.",
        ),
        DoubtKind.LOW_POWER: (
            "weak candidate game",
            "Only {public} public gradients are available to remove what all examples have in common, so the game may "
            "miss a leak.",
            "Give at least 100 public examples: --public, or adversary.public in a plan.",
        ),
        DoubtKind.GAME_NOT_PLAYED: (
            "game not played",
            "The candidate game was not played. {why}",
        ),
    },
    (Question.ATTACK, "info"): {
        DoubtKind.NO_EXACT_METHOD: (
            "no exact method applies",
            "No exact method can read this message: {reasons}.",
        ),
        DoubtKind.ATTACK_IS_BLIND: (
            "attack is blind",
            "The true images explain the message no better than a grey image does (energies {truth} and {blind}). "
            "Either a defence hides them from this attack, or the attack does not model the training.",
            "A longer run will not help. After several local steps try sme or dlfa.",
        ),
        DoubtKind.OTHER_IMAGES_FIT: (
            "other images fit as well",
            "The attack found wrong images that fit the message as well as the true ones (energies {found} and "
            "{truth}). Either the message does not identify the images, or the prior is too strong.",
            "Try a smaller weight of the prior (tv), or another attack.",
        ),
        DoubtKind.ORACLE_USED: (
            "oracle knowledge used",
            "The attack used oracle knowledge ({facts}), which a real adversary lacks. Its figures are an upper bound "
            "of the leak and decide nothing.",
            "Run it with labels that are recovered from the message.",
        ),
        DoubtKind.OUT_OF_TIME: (
            "out of time",
            "The attack was stopped after {seconds} s, because the time budget was used up.",
            "Give it more time with --minutes, or run everything with --all.",
        ),
    },
    (Question.ATTACK, "warning"): {
        DoubtKind.NON_FINITE_STOP: (
            "non-finite stop",
            "The attack reached NaN or infinity and returned its last finite images.",
            "Give it more restarts, fewer iterations or a smaller step.",
        ),
        DoubtKind.WRONG_LABELS: (
            "labels are wrong",
            "{labels} of the labels that the attack used are wrong, so it looked for other images.",
            'Choose another way to find the labels, or measure their effect with labels = "oracle".',
        ),
        DoubtKind.LABELS_TAKEN_AS_DISTINCT: (
            "labels taken as distinct",
            "The attack assumed that all labels of the batch differ, because the message does not show how often each "
            "occurs.",
            'Choose a method that counts labels, such as "bias_counts", and let the adversary know the training.',
        ),
        DoubtKind.SEARCH_FAILED: (
            "search failed",
            "The true images explain the message better (energy {truth}) than the images that the search found "
            "({found}).",
            "Give the attack more iterations or restarts, or run another.",
        ),
    },
    (Question.PICTURES, "warning"): {
        DoubtKind.PARTLY_RECOGNISABLE: (
            "partly recognisable",
            "{images} of the images do not count as recovered, but a person may recognise them: they come near the "
            "threshold, or another metric counts them as recovered.",
            "Look at the pictures.",
        ),
        DoubtKind.TRANSFORMED_MATCH: (
            "recognisable in another form",
            "{images} of the images do not count as recovered, but the attack found the same picture with another "
            "contrast, as a negative, mirrored or shifted.",
            "Look at the pictures.",
        ),
        DoubtKind.NO_BETTER_THAN_GUESS: (
            "no better than guessing",
            "{images} of the images pass the gate's threshold, but a guess without any message ({guesses}) passes it "
            "too, so they do not count as recovered.",
        ),
        DoubtKind.FAILS_CONTROLS: (
            "refined image fails its controls",
            "{images} of the refined images pass the gate's threshold, but fail a control: the same model does as "
            "well from another image or untrained, or the refined image shows something else than the raw image. The "
            "raw images count.",
        ),
        DoubtKind.METRICS_DISAGREE: (
            "metrics disagree",
            "The metrics disagree: {how}.",
            "Look at the pictures before you trust either number.",
        ),
        DoubtKind.BLEND: (
            "blend of several images",
            "{images} of the reconstructions are nearer to the mean of several private images than to any single one. "
            "A blend counts as at most one recovered image.",
            "Look at the pictures.",
        ),
        DoubtKind.LOW_THRESHOLD: (
            "threshold too low for such data",
            "The best blind guess passes the gate's threshold for {share} of public images, so the threshold is too "
            "low for such data.",
            "Set gate.threshold = {proposed}, which a blind guess passes for at most 5 % of them.",
        ),
    },
    (Question.PICTURES, "info"): {
        DoubtKind.REFINEMENT_UNEXPLAINED: (
            "refinement is invented",
            "The refined images no longer explain the message (energy {after}, before the refinement {before}). "
            "Everything that they show beyond the raw images is invented.",
        ),
    },
    (Question.PICTURES, "serious"): {
        DoubtKind.NO_TRUTH: (
            "no truth",
            "The true examples were not given, so nothing can be scored and the candidate game is not played.",
            "Add recording.truth to the plan, or use --truth.",
        ),
    },
    (Question.UTILITY, "warning"): {
        DoubtKind.TEST_OF_ONE_CLASS: (
            "test set has one class",
            "All {examples} test examples have the same class, so the accuracy does not show how well the model works.",
            "Set federation.test_examples to at least the number of classes.",
        ),
    },
}
"""Question and severity -> for each kind of doubt its name, its text and, for most, the next step."""
TABLE: Mapping[DoubtKind, Flag] = {
    kind: Flag(kind, *section, *words) for section, texts in TEXTS.items() for kind, words in texts.items()
}
