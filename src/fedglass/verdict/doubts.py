"""The doubts of a record: identifiers and numbers, never sentences.

`verdict.texts` maps each kind to its question, its severity, its text and what to do about it.
"""

from __future__ import annotations

import enum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Severity = Literal["info", "warning", "serious"]


class Question(enum.Enum):
    """The question that a doubt is about, in the order of a report."""

    MESSAGE = "Is the message what was declared?"
    COVERAGE = "Was everything audited that left the clients?"
    PROTECTION = "Is the protection as declared, and is it strong enough?"
    SINGLING_OUT = "Does the message single out its records?"
    ATTACK = "Did the attack have a fair chance?"
    PICTURES = "What do the pictures show?"
    UTILITY = "Is the accuracy of the trained model sound?"


class DoubtKind(enum.StrEnum):
    """A reason to read a figure with care, or to trust a certificate less."""

    # Question.MESSAGE
    ZERO_UPDATE = "zero_update"
    NON_FINITE_UPDATE = "non_finite_update"
    NOT_AS_DECLARED = "not_as_declared"
    NOT_REPLAYED = "not_replayed"
    WRONG_COUNT = "wrong_count"
    # Question.COVERAGE
    STATISTICS_SENT = "statistics_sent"
    MORE_ROUNDS = "more_rounds"
    CLIENTS_NOT_AUDITED = "clients_not_audited"
    EXTRA_PAYLOAD = "extra_payload"
    # Question.PROTECTION
    NO_NOISE = "no_noise"
    DEFENCE_NOT_NAMED = "defence_not_named"
    DEFENCE_NOT_BOUNDED = "defence_not_bounded"
    NOISE_REFUTED = "noise_refuted"
    NOISE_NOT_TESTABLE = "noise_not_testable"
    WEAK_CERTIFICATE = "weak_certificate"
    NOISE_THAT_SUFFICES = "noise_that_suffices"
    CERTIFICATE_REFUTED = "certificate_refuted"
    DECLARATION_TRUSTED = "declaration_trusted"
    IDLE_FILTER = "idle_filter"
    EPSILON_NOT_AS_DECLARED = "epsilon_not_as_declared"
    # Question.SINGLING_OUT
    NO_CANDIDATES = "no_candidates"
    FEW_CANDIDATES = "few_candidates"
    OTHER_DOMAIN = "other_domain"
    NO_CONTROL = "no_control"
    LOW_POWER = "low_power"
    GAME_NOT_PLAYED = "game_not_played"
    # Question.ATTACK
    NO_EXACT_METHOD = "no_exact_method"
    NON_FINITE_STOP = "non_finite_stop"
    WRONG_LABELS = "wrong_labels"
    LABELS_TAKEN_AS_DISTINCT = "labels_taken_as_distinct"
    SEARCH_FAILED = "search_failed"
    ATTACK_IS_BLIND = "attack_is_blind"
    OTHER_IMAGES_FIT = "other_images_fit"
    ORACLE_USED = "oracle_used"
    OUT_OF_TIME = "out_of_time"
    # Question.PICTURES
    PARTLY_RECOGNISABLE = "partly_recognisable"
    TRANSFORMED_MATCH = "transformed_match"
    NO_BETTER_THAN_GUESS = "no_better_than_guess"
    FAILS_CONTROLS = "fails_controls"
    REFINEMENT_UNEXPLAINED = "refinement_unexplained"
    METRICS_DISAGREE = "metrics_disagree"
    BLEND = "blend"
    LOW_THRESHOLD = "low_threshold"
    NO_TRUTH = "no_truth"
    # Question.UTILITY
    TEST_OF_ONE_CLASS = "test_of_one_class"


class Frozen(BaseModel):
    """A value of a record or a summary: it cannot change, and unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Doubt(Frozen):
    """One reason, with the numbers and names for its sentence."""

    kind: DoubtKind
    details: dict[str, JsonValue] = Field(default_factory=dict)


def doubt(kind: DoubtKind, **details: Any) -> Doubt:
    """Return a doubt with these details.

    >>> doubt(DoubtKind.WRONG_LABELS, labels=2)
    Doubt(kind=<DoubtKind.WRONG_LABELS: 'wrong_labels'>, details={'labels': 2})
    """
    return Doubt(kind=kind, details=details)
