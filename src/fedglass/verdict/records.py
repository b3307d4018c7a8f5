"""The record of one case: everything that a verdict, a summary and a report are made of.

The threat model says who sees which messages, and what each adversary knows apart from them. `fedglass check` makes it
from a plan before anything has run, and the report makes it from the records. Both render this one value.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from fedglass.bounds.success import Game
from fedglass.core.files import parse_json
from fedglass.core.text import values_by_key
from fedglass.verdict.doubts import Doubt, Frozen

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
EXACT_PSNR = 100.0
"""Decibels that stand for the infinite PSNR of an exact copy; no other infinity is a result."""

BASE_RATE = 1e-3
"""Success in naming a record among 1,000 without the message; certificates and games are compared with it."""
MOST_MU = 1e9
"""Replaces every larger mu of a certificate, also an infinite one: from 50 on the success is 1 in all digits."""
SCHEMA = 3
"""Version of records and summaries; output folders of another version are refused, and their files stay."""
DIGEST = "digest"
"""The key of a stored record with the SHA-256 of its other keys. It finds damage, and is not a signature."""
ROUNDS = "rounds"
"""The entry of `extra` with the number of rounds whose messages are attacked together, if there are several."""


def _inside(value: str) -> str:
    path = PurePosixPath(value)
    if not value or path.is_absolute() or ".." in path.parts or "\\" in value or "\0" in value:
        raise ValueError(f"a picture's path must be relative and inside the audit directory, got {value!r}")
    return value


InnerPath = Annotated[str, AfterValidator(_inside)]
"""Path of a file relative to the audit directory."""


class Picture(Frozen):
    """One original and its reconstruction."""

    original: InnerPath
    reconstruction: InnerPath
    psnr: float | None = None
    ssim: float | None = None
    label: str | None = None
    """The name or number of the true class, if there is one."""
    raw: InnerPath | None = None
    """The reconstruction before its refinement, if it was refined."""
    film: InnerPath | None = None
    """Intermediate pictures of the refinement side by side, if it has any."""
    film_caption: str = ""


class KnownFact(Frozen):
    """One fact about the training or the data, as an adversary knows it apart from the message."""

    text: str
    oracle: bool = False
    """True: no real adversary has this fact."""


def _finite(value: Any) -> Any:
    """Return the JSON value with null instead of NaN and infinity."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


FiniteMu = Annotated[float, AfterValidator(lambda mu: min(mu, MOST_MU))]
FiniteOrNone = Annotated[float | None, BeforeValidator(_finite)]
"""Numbers of a certificate, which may be infinite where JSON knows no infinity."""


class Certificate(Frozen):
    """An upper bound on the success of any adversary in naming a record, under the listed assumptions."""

    method: Literal["record", "accountant"]
    accounting: str
    """`gaussian`, `laplacian`, `composed_gaussian` (DP-SGD without a gain by sampling), `pld` (DP-SGD on Poisson
    samples), `poisson_not_counted` (the same without the package that computes the gain), or `identical` (no noise, and
    the same message for every record)."""
    success: list[float]
    """For each audited record, the success at a base rate of 1/1000 over all covered rounds."""
    mu: list[FiniteMu] = Field(default_factory=list)
    """For each record, its distance in units of the noise; empty if the noise is not Gaussian. 1e9 stands for every
    larger value."""
    rounds: int = 1
    """Covered rounds."""
    planned: int | None = None
    """All planned rounds of the same records, if these are more than the covered ones."""
    success_planned: float | None = None
    """Success for the worst record after the planned rounds; null if nothing bounds it."""
    advantage: float | None = None
    """For the worst record, true positive rate minus false positive rate of the best test."""
    epsilon: FiniteOrNone = None
    delta: float | None = None
    client_mu: FiniteMu | None = None
    """Distance in units of the noise between a message with and without all records of a client."""
    adversary: dict[str, float] = Field(default_factory=dict)
    """Success of the simulated optimal adversary among 2, 10, 100, 1,000 candidates; for information only."""
    expected_psnr: FiniteOrNone = None
    """PSNR of the best estimate without a prior, for a message that is one clipped gradient of one example. It does not
    bound an adversary that knows what such pictures look like."""
    assumptions: dict[str, str] = Field(default_factory=dict)
    """Assumption -> its basis: `construction`, `tested` or `declared`."""

    @property
    def worst(self) -> float:
        """The largest success over the audited records."""
        return max(self.success)


class Record(Frozen):
    """The result of one case: an attack, a candidate game, or the check of a message with its certificate.

    JSON has neither NaN nor infinity: they become null.
    """

    schema_version: Literal[3] = 3
    kind: Literal["attack", "game", "certificate"] = "attack"
    key: str = Field(pattern=r"^[0-9A-Za-z_-]{1,80}$")
    """Hash of the case; also the name of its files."""
    attack: str
    attack_repr: str
    view: str
    """A sentence, such as `server sees client 0's update`."""
    view_name: str = ""
    """A short name, such as `server, client 0`; empty if the view has none."""
    standpoint: str = ""
    """The adversary's place: `server`, `aggregate` (behind secure aggregation), `peer` or `malicious_server`; empty if
    unknown."""
    round: int
    client: str
    repeat: int
    seed: int
    status: Literal["done", "failed"]
    error: str | None = None
    metrics: dict[str, list[float | None]] = Field(default_factory=dict)
    """Metric -> value of each image, after matching."""
    metrics_raw: dict[str, list[float | None]] = Field(default_factory=dict)
    """The same before the refinement, matched separately; empty without a refinement."""
    controls: dict[str, dict[str, list[float | None]]] = Field(default_factory=dict)
    """Scores of the controls of a learned refinement, by name, metric and image."""
    identity_preserved: list[bool] = Field(default_factory=list)
    """For each image, whether refined and raw version are nearest to the same true image."""
    transformed_match: list[bool] = Field(default_factory=list)
    """For each image, whether a reconstruction shows it with another contrast, as a negative, mirrored or shifted."""
    blends: list[list[int]] = Field(default_factory=list)
    """For each image, the private images that the reconstruction blends; empty if it shows a single one."""
    skipped_metrics: dict[str, str] = Field(default_factory=dict)
    """Metric -> the reason why it was skipped."""
    labels_true: list[int] = Field(default_factory=list)
    labels_recovered: list[int] = Field(default_factory=list)
    label_errors: int | None = None
    energy: float | None = None
    """Energy of the images that the search found, before any refinement."""
    energy_refined: float | None = None
    """Energy of the refined images, if there are any."""
    energy_truth: float | None = None
    energy_blind: float | None = None
    trace: list[float] = Field(default_factory=list)
    """Thinned energy curve, finite values only."""
    method: str = ""
    """The exact method that read the images; empty for a search, or if nothing was read."""
    explains: bool = False
    """Whether a check confirmed that the images of an exact method explain the message."""
    game: Game | None = None
    certificate: Certificate | None = None
    doubts: list[Doubt] = Field(default_factory=list)
    knows: dict[str, KnownFact] = Field(default_factory=dict)
    """Fact -> what the adversary knows of it apart from the message."""
    oracle: bool = False
    seconds: float = 0.0
    iterations: int | None = None
    peak_mib: float | None = None
    finished: str | None = None
    """End of the case: ISO 8601, UTC."""
    utility: dict[str, float | None] = Field(default_factory=dict)
    defences: list[str] | None = None
    """The defences of the message and what they promise, as sentences; null if unknown."""
    blind: dict[str, list[float | None]] = Field(default_factory=dict)
    """Metric -> for each image, the score of the best guess without the message."""
    blind_guess: dict[str, list[str]] = Field(default_factory=dict)
    """Metric -> for each image, the name of that guess; empty if it was not stored."""
    blind_public: dict[str, list[float | None]] = Field(default_factory=dict)
    """In the record of a certificate: metric -> for each public image, the score of the best blind guess."""
    behaviours: list[str] = Field(default_factory=list)
    """Actions of dishonest participants, as sentences: poisoning is not a defence."""
    participants: list[str] = Field(default_factory=list)
    accepted: list[str] = Field(default_factory=list)
    """The clients whose updates the aggregation rule accepted in that round."""
    contributors: list[str] = Field(default_factory=list)
    """The clients whose examples are in the message, without the adversary itself; empty if unknown."""
    owners: list[str] = Field(default_factory=list)
    """`owners[i]` is the client that image i of the metrics belongs to; empty if unknown."""
    swept: dict[str, float] = Field(default_factory=dict)
    """Swept option of the plan -> its value in this case; empty without a sweep."""
    pictures: list[Picture] = Field(default_factory=list)
    """`pictures[i]` shows image i of the metrics; there may be fewer."""
    versions: dict[str, str] = Field(default_factory=dict)
    extra: dict[str, JsonValue] = Field(default_factory=dict)
    reconstructions: str = ""
    """SHA-256 of the file of reconstructions; empty if there is none."""
    picture_files: dict[InnerPath, str] = Field(default_factory=dict)
    """Picture of the case -> SHA-256 of its file."""

    @model_validator(mode="before")
    @classmethod
    def _no_infinities(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = {key: value for key, value in data.items() if key != DIGEST}
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

    @model_validator(mode="after")
    def _one_value_for_each_image(self) -> Record:
        lengths = {len(values) for values in self._values_by_image() if values}
        if len(lengths) > 1:
            raise ValueError(f"expected as many values of each metric, one for each image, got {sorted(lengths)}")
        return self

    def _values_by_image(self) -> Iterator[Sequence[object]]:
        by_metric: Sequence[Mapping[str, Sequence[object]]] = (
            self.metrics,
            self.metrics_raw,
            self.blind,
            self.blind_guess,
            *self.controls.values(),
        )
        for values in by_metric:
            yield from values.values()
        yield from (self.identity_preserved, self.transformed_match, self.blends)

    @property
    def message(self) -> tuple[str, int]:
        """The message of the audit that the record is about: the view and the round."""
        return self.view, self.round

    def line(self) -> bytes:
        """Return the record as one line of JSON, with its digest at the end."""
        content = self.model_dump(mode="json")
        return json.dumps({**content, DIGEST: _digest(content)}, allow_nan=False).encode() + b"\n"


def is_unchanged(line: bytes) -> bool:
    """Check that a line of records is as it was written. Whoever edits it on purpose can compute the digest anew."""
    try:
        content = parse_json(line)
    except ValueError:  # such as NaN, which is never written
        return False
    return isinstance(content, dict) and content.pop(DIGEST, None) == _digest(content)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the items by their key, in the order in which the keys first appear.

    >>> grouped(["a", "bc", "d"], len)
    {1: ['a', 'd'], 2: ['bc']}
    """
    return values_by_key((key(item), item) for item in items)


Facts = Mapping[str, KnownFact]
"""Fact -> what the adversary knows of it."""
UNNAMED = ("The adversary", "sees what is listed here.")
STANDPOINTS = {
    "server": ("The server", "sees the update of each client by itself."),
    "aggregate": (
        "The server behind secure aggregation",
        "sees only what the aggregation rule made of all updates of a round.",
    ),
    "peer": (
        "A peer (one of the clients)",
        "sees the global model before and after a round, and knows its own images and update.",
    ),
    "malicious_server": (
        "A malicious server",
        "crafts the model that it sends, and sees the update of each client to it.",
    ),
}
"""Standpoint -> who stands there, and what is seen from there."""


@dataclass(frozen=True)
class Sight:
    """One view of a message, and what the adversary knows when it plays one attack on it. Records state the same."""

    view: str
    standpoint: str
    knows: Facts
    attack: str = ""


@dataclass(frozen=True)
class ThreatModel:
    """All sights of an audit, grouped by standpoint and by knowledge."""

    sights: Sequence[Sight | Record]

    @property
    def attacks(self) -> list[str]:
        return list(dict.fromkeys(sight.attack for sight in self.sights))

    @property
    def views(self) -> list[str]:
        return list(dict.fromkeys(sight.view for sight in self.sights))

    @property
    def standpoints(self) -> list[str]:
        """The standpoints in order; an empty one stands for all that have no name."""
        return list(dict.fromkeys(s.standpoint if s.standpoint in STANDPOINTS else "" for s in self.sights))

    @cached_property
    def common(self) -> Facts:
        """The facts that are the same in all sights."""
        first = self.sights[0].knows if self.sights else {}
        return {name: fact for name, fact in first.items() if all(s.knows.get(name) == fact for s in self.sights)}

    @property
    def different_names(self) -> list[str]:
        """The names of the facts that are not the same in all sights."""
        return list(dict.fromkeys(name for s in self.sights for name in s.knows if name not in self.common))

    @property
    def differences(self) -> list[tuple[list[Sight | Record], Facts]]:
        """Each distinct set of the other facts, with the sights that have it; empty where all facts are common."""
        groups = grouped(self.sights, lambda s: tuple((name, s.knows.get(name)) for name in self.different_names))
        return [
            (sights, {name: fact for name, fact in facts if fact is not None})
            for facts, sights in groups.items()
            if facts
        ]
