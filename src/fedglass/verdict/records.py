"""The record of one case: everything that a verdict, a summary and a report are made of."""

from __future__ import annotations

import json
import math
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    field_validator,
    model_validator,
)

from fedglass.verdict.doubts import Doubt

EXACT_PSNR = 100.0
"""Decibels that stand for the infinite PSNR of an exact copy, the one infinity that is a result."""

BASE_RATE = 1e-3
"""Success in naming a record among 1,000 without the message: certificates and games are stated beside it."""
MOST_MU = 1e9
"""Stands for every larger mu of a certificate, an infinite one too: the success is 1 to the last digit from 50 on."""
SCHEMA = 2
"""Of records and summaries: output folders of another version are refused, and their files stay."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Picture(_Frozen):
    """One original beside its reconstruction, as paths relative to the audit directory."""

    original: str
    reconstruction: str
    psnr: float | None = None
    ssim: float | None = None
    label: str | None = None
    """The true class in words or digits, where there is one."""
    raw: str | None = None
    """The reconstruction before it was refined, where it was."""
    film: str | None = None
    """Pictures on the way of the refinement, side by side, where it shows them."""
    film_caption: str = ""

    @field_validator("original", "reconstruction", "raw", "film")
    @classmethod
    def _inside(cls, value: str | None) -> str | None:
        if value is None:
            return None
        path = PurePosixPath(value)
        if not value or path.is_absolute() or ".." in path.parts or "\\" in value:
            raise ValueError(f"a picture's path must be relative and inside the audit directory, got {value!r}")
        return value


class Game(_Frozen):
    """The candidate game: how often the message names the record that was trained on among others."""

    records: int
    candidates: int
    """That each record was compared with."""
    messages: int = 1
    """Messages of the audit, over which limits and ranks are corrected."""
    top1: float
    low: float
    high: float
    """Limits of the rate, corrected over the messages of the audit."""
    control: str = ""
    """How records were had that were not trained on: `held_out` or `counterfactual`; empty where none could be."""
    control_top1: float | None = None
    control_low: float | None = None
    control_high: float | None = None
    rank_p: list[float] = Field(default_factory=list)
    """Of each record, (1 + candidates that score higher) / (1 + candidates)."""
    control_rank_p: list[float] = Field(default_factory=list)
    same_source: bool = True
    """False: the candidates are images of another kind, so that the game decides nothing."""
    statistic: str = ""
    directions: int = 0
    """Principal directions of public gradients that were projected out."""
    public: int = 0
    """Public gradients that these directions come from."""
    scores: list[float] = Field(default_factory=list)
    control_scores: list[float] = Field(default_factory=list)
    candidate_quantiles: list[float] = Field(default_factory=list)


class Certificate(_Frozen):
    """An upper bound on the success of any adversary in naming a record, under assumptions that are listed."""

    method: Literal["record", "accountant"]
    accounting: str
    """`gaussian`, `laplacian`, `composed_gaussian` (DP-SGD without a gain by sampling), `pld` (DP-SGD on Poisson
    samples), `poisson_not_counted` (the same without the package that counts the gain), or `identical` (no noise, and
    the same message whatever the record is)."""
    success: list[float]
    """Of each audited record, at a base rate of 1/1000, over all rounds that are covered."""
    mu: list[float] = Field(default_factory=list)
    """Of each record, its distance in units of the noise; empty where the noise is not Gaussian. 1e9 stands for all
    beyond it."""
    rounds: int = 1
    """Rounds that are covered."""
    planned: int | None = None
    """Rounds of the same records in all, where these are more than those covered."""
    success_planned: float | None = None
    """Of the worst record after the planned rounds; null where nothing bounds it."""
    advantage: float | None = None
    """Of the worst record: true positive rate minus false positive rate of the best test."""
    epsilon: float | None = None
    delta: float | None = None
    client_mu: float | None = None
    """The same distance where all records of a client are absent at once."""
    adversary: dict[str, float] = Field(default_factory=dict)
    """Success of the simulated optimal adversary among 2, 10, 100, 1,000 candidates: shown, never deciding."""
    expected_psnr: float | None = None
    """Of the best estimate without a prior, where the message is one clipped gradient of one example. It does not
    bound an adversary that knows what pictures look like."""
    assumptions: dict[str, str] = Field(default_factory=dict)
    """Assumption -> how it is known: `construction`, `tested` or `declared`."""

    @field_validator("mu", "client_mu", mode="before")
    @classmethod
    def _bounded(cls, value: Any) -> Any:
        """JSON knows no infinity."""
        if isinstance(value, list | tuple):
            return [min(each, MOST_MU) for each in value]
        return None if value is None else min(value, MOST_MU)

    @field_validator("epsilon", "expected_psnr", mode="before")
    @classmethod
    def _finite_or_none(cls, value: Any) -> Any:
        return _finite(value)

    @property
    def worst(self) -> float:
        """The largest success over the audited records."""
        return max(self.success)


class Record(_Frozen):
    """What came of one case: an attack, a candidate game, or the check of a message with its certificate.

    JSON knows no NaN and no infinity: they become null.
    """

    schema_version: Literal[2] = 2
    kind: Literal["attack", "game", "certificate"] = "attack"
    key: str = Field(pattern=r"^[0-9A-Za-z_-]{1,80}$")
    """Hash of the case; also the name of its files."""
    attack: str
    attack_repr: str
    view: str
    """In plain words, such as `server sees client 0's update`."""
    view_name: str = ""
    """The same in short, such as `server, client 0`; empty where the view has no short name."""
    standpoint: str = ""
    """Where the adversary stands: `server`, `aggregate` (behind secure aggregation) or `peer`; empty where not told."""
    round: int
    client: str
    repeat: int
    seed: int
    status: Literal["done", "failed"]
    error: str | None = None
    metrics: dict[str, list[float | None]] = Field(default_factory=dict)
    """Per image, after matching."""
    metrics_raw: dict[str, list[float | None]] = Field(default_factory=dict)
    """The same before the images were refined, matched on their own; empty where nothing was refined."""
    controls: dict[str, dict[str, list[float | None]]] = Field(default_factory=dict)
    """Of images that a learned model refined: what its controls reach, by name, metric and image."""
    identity_kept: list[bool] = Field(default_factory=list)
    """Per image, whether the refined one is still nearest to the true image that the raw one was nearest to."""
    shown_otherwise: list[bool] = Field(default_factory=list)
    """Per image, whether some reconstruction shows it in another contrast, as a negative, mirrored or moved."""
    blends: list[list[int]] = Field(default_factory=list)
    """Per image, the private images whose mean the reconstruction shows; empty where it shows one alone."""
    skipped_metrics: dict[str, str] = Field(default_factory=dict)
    """Metric -> why it was left out."""
    labels_true: list[int] = Field(default_factory=list)
    labels_recovered: list[int] = Field(default_factory=list)
    label_errors: int | None = None
    energy: float | None = None
    """Of the images as the search left them, before any refinement."""
    energy_refined: float | None = None
    """Of the refined images, where some were refined."""
    energy_truth: float | None = None
    energy_blind: float | None = None
    trace: list[float] = Field(default_factory=list)
    """Thinned energy curve, finite values only."""
    method: str = ""
    """The exact method that read the images; empty where a search found them, or nothing was read."""
    explains: bool = False
    """Whether the images of an exact method were verified to explain the message."""
    game: Game | None = None
    certificate: Certificate | None = None
    doubts: list[Doubt] = Field(default_factory=list)
    knows: dict[str, str] = Field(default_factory=dict)
    """Knowledge in plain words; a fact that no real adversary has says `oracle`."""
    oracle: bool = False
    seconds: float = 0.0
    iterations: int | None = None
    peak_mib: float | None = None
    finished: str | None = None
    """When the case ended: ISO 8601, UTC; null in older records."""
    utility: dict[str, float | None] = Field(default_factory=dict)
    defences: list[str] | None = None
    """What protects the message and what that promises, in words; null where nobody knows."""
    blind: dict[str, list[float | None]] = Field(default_factory=dict)
    """Per image and metric, what the best of several guesses without the message reaches."""
    blind_by: dict[str, list[str]] = Field(default_factory=dict)
    """Per image and metric, which guess that is; empty where nobody kept it."""
    blind_public: dict[str, list[float | None]] = Field(default_factory=dict)
    """With a certificate: per metric and public image, what the best guess without a message reaches."""
    behaviours: list[str] = Field(default_factory=list)
    """What participants do that are not honest, in words: poison is no defence."""
    participants: list[str] = Field(default_factory=list)
    kept: list[str] = Field(default_factory=list)
    """Whose updates got through the aggregation rule in that round."""
    behind: list[str] = Field(default_factory=list)
    """Whose examples are in the message, the adversary's own left out; empty where not told."""
    owners: list[str] = Field(default_factory=list)
    """Whose image i of the metrics is; empty where not told."""
    swept: dict[str, float] = Field(default_factory=dict)
    """What a sweep of the plan changes, and its value in this case; empty without a sweep."""
    pictures: list[Picture] = Field(default_factory=list)
    """`pictures[i]` shows image i of the metrics; there may be fewer."""
    versions: dict[str, str] = Field(default_factory=dict)
    extra: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _no_infinities(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for field in ("metrics", "metrics_raw"):
            if isinstance(metrics := data.get(field), dict) and isinstance(metrics.get("psnr"), list | tuple):
                psnr = [EXACT_PSNR if v == math.inf else v for v in metrics["psnr"]]
                data[field] = {**metrics, "psnr": psnr}
        if isinstance(trace := data.get("trace"), list | tuple):
            data["trace"] = [v for v in trace if _finite(v) is not None]
        return _finite(data)

    @model_validator(mode="after")
    def _failed_says_why(self) -> Record:
        if (self.status == "failed") != (self.error is not None):
            raise ValueError(f"a failed record has an error and a done one has none, got {self.status!r}")
        return self

    @property
    def message(self) -> tuple[str, int]:
        """Which message of the audit the record is about: the view and the round."""
        return self.view, self.round

    def line(self) -> bytes:
        """The record as one line of JSON."""
        return json.dumps(self.model_dump(mode="json"), allow_nan=False).encode() + b"\n"


def _finite(value: Any) -> Any:
    """The same JSON value with null in place of NaN and infinity."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
