"""The plan file: what is audited, against whom, by which attacks, and where the limit lies."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Discriminator, Field, Tag, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from fedglass.core.errors import UsageError
from fedglass.core.files import follow_links, open_file
from fedglass.plan.recording_tables import BundleTable, RecordingTable
from fedglass.plan.tables import (
    MOST_CASES,
    Client,
    Defences,
    FederationTable,
    Finite,
    Name,
    Named,
    Repeats,
    Round,
    Seed,
    SomeClients,
    SomeRounds,
    Table,
    Title,
    listed,
)
from fedglass.verdict.gate import Gate

# What is wrong with a plan, in one sentence: the field, what was expected, what came, what to do.


Place = Sequence[str | int]
LENGTHS = {"too_long": ("max_length", "at most"), "too_short": ("min_length", "at least")}


def in_one_sentence(error: ValidationError, schema: type[BaseModel], content: Mapping[str, Any]) -> str:
    """The first problem in words, and how many more there are."""
    problems = error.errors(include_url=False)
    # A key that is not there is often just misspelt: name the misspelling first.
    problems.sort(key=lambda problem: (problem["type"] != "extra_forbidden", _is_of_another_kind(problem)))
    more = len({_field(p["loc"], content) for p in problems}) - 1
    rest = f" ({more} more problem{'s' if more > 1 else ''} after this one.)" if more > 0 else ""
    return _sentence(problems[0], schema, content) + rest


def _is_of_another_kind(problem: ErrorDetails) -> bool:
    """Whether a branch of a union was not meant at all: what is wrong inside the one that was says more."""
    last = problem["loc"][-1] if problem["loc"] else 0
    mistaken = problem["type"].endswith("_type") or problem["type"] == "literal_error"
    return mistaken and isinstance(last, str) and _is_branch(last)


def _sentence(problem: ErrorDetails, schema: type[BaseModel], content: Mapping[str, Any]) -> str:
    field = _field(problem["loc"], content)
    if problem["type"] == "extra_forbidden":
        return _unknown_key(problem["loc"], schema, field)
    if problem["type"] == "missing":
        return f"{field} is missing: {_missing(field, problem['input'])}"
    if problem["type"] == "value_error":
        said = str(problem["ctx"]["error"]) if "ctx" in problem else problem["msg"]
        return f"{field}: {said}." if field else f"{said[0].upper()}{said[1:]}."
    if problem["type"] in LENGTHS:
        limit, words = LENGTHS[problem["type"]]
        length = problem["ctx"]["actual_length"]
        return f"{field}: expected {words} {problem['ctx'][limit]:,} entries, got {length:,}: correct it in the plan."
    expected = problem["msg"].removeprefix("Input should be ").removeprefix("String should have ")
    expected = expected[0].lower() + expected[1:]
    return f"{field}: expected {expected}, got {_shown(problem['input'])}: correct it in the plan."


def _missing(field: str, table: Any) -> str:
    """What to do about a key that is not there."""
    if not field.endswith("recording.whitening") and not field.endswith("].whitening"):
        return "add it to the plan."
    # It can not be guessed, and a wrong one hides a leak: the line for none is there to be copied.
    shape = table.get("shape") if isinstance(table, dict) else None
    channels = shape[0] if isinstance(shape, list) and shape and shape[0] in range(1, 17) else 3
    mean, std = ([number] * channels for number in (0.0, 1.0))
    return (
        "it says how the clients normalised their pixels. Add their channel means and deviations or, where they did "
        f"not normalise, whitening = {{ mean = {mean}, std = {std} }}, with one number for each channel."
    )


def _unknown_key(place: Place, schema: type[BaseModel], field: str) -> str:
    known = _keys(schema, place[:-1])
    near = difflib.get_close_matches(str(place[-1]), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{field} is not a key of a plan: {hint}Known here: {', '.join(sorted(known))}."


def _field(place: Place, content: Mapping[str, Any]) -> str:
    """The place as the user wrote it: `federation.training.lr`, `attacks[1].name`."""
    text = ""
    for i, step in enumerate(place):
        if isinstance(step, int):
            # A single [federation] table is read as a list of one: it has no index in the file.
            written_as_table = i == 1 and isinstance(content.get(str(place[0])), dict)
            text += "" if written_as_table else f"[{step}]"
        elif not _is_branch(step):
            text += f".{step}" if text else step
    return text


def _is_branch(step: str) -> bool:
    """Whether a step names a branch of a union, which the user never wrote."""
    return any(mark in step for mark in "[(-") or step in ("int", "float", "str", "bool")


def _keys(schema: type[BaseModel], place: Place) -> list[str]:
    """The keys that the table at that place may have."""
    table: type[BaseModel] = schema
    for i, step in enumerate(place):
        if isinstance(step, str) and step in table.model_fields:
            table = _table(table.model_fields[step].annotation, place[i + 1 :]) or table
    return list(table.model_fields)


def _table(annotation: Any, place: Place = ()) -> type[BaseModel] | None:
    """The table inside an annotation such as `list[Table]` or `Table | None`; of several, the one that `place` tags."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    tags = [part.tag for part in get_args(annotation) if isinstance(part, Tag)]
    if tags and tags[0] not in place:
        return None
    return next((found for part in get_args(annotation) if (found := _table(part, place)) is not None), None)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


IN_FILES, IN_BUNDLE = "[files]", "[bundle]"
"""The two ways in which a message can have been recorded."""
LONGEST = 2**20
"""Bytes of a plan file."""


class AdversaryTable(Table):
    """Who attacks, what it sees and what it knows."""

    view: Literal["server", "aggregate", "peer"] = "server"
    """A server that sees a client's update, or the aggregate alone, or a participant: `fedglass list views`."""
    client: Client | SomeClients | Literal["all"] = "all"
    """Whose update the server sees, or which client the peer is; all are those of the round. Not for recordings."""
    round: Round | SomeRounds = 0
    """Which round it looks at, or a list of them, counted from 0. Not for recordings."""
    together: bool | Literal["also"] = False
    """Whether the rounds of that list are explained by the same examples at once; "also": one by one too, and at once
    where that can be. Not for a peer."""
    knows_training: bool = True
    """Optimiser, learning rate, epochs and batch size."""
    knows_steps: bool = False
    """The number of local steps and the learning rate alone."""
    knows_labels: bool = False
    """ORACLE: the true labels."""
    knows_batch_labels: bool = False
    """ORACLE: the true labels of each local batch."""
    knows_lr: bool = True
    """The learning rate, where the training or the number of steps is known; else it can be searched for."""
    knows_examples: bool = True
    """How many examples stand behind the message, and of how many clients; else it can be searched for."""
    knows_kept: bool = True
    """Whose updates got through the server's rule; else a peer guesses, see `maliciously_curious_client`."""
    public: Name | None = None
    """Such data that it has, for blind guesses and the candidate game: as `federation.data`; else what no client has of
    these."""

    def views(self, clients: int) -> int:
        """How many it has of a federation of so many clients, if all take part in every round."""
        each = len(set(self.round)) if isinstance(self.round, list) else 1
        rounds = each + (each > 1) if self.together == "also" else 1 if self.together else each
        if self.view == "aggregate" or isinstance(self.client, int):
            return rounds
        return rounds * (clients if isinstance(self.client, str) else len(set(self.client)))


class RefineTable(Named):
    """A refinement of found images: `fedglass list refinements`; keys beside its name are its options."""


class AttackTable(Named):
    """A published attack; keys that are not named here are options of its recipe."""

    label: Name | None = None
    """Its name in the report."""
    labels: Name | None = None
    """How labels are found: `fedglass list labels`; the recipe's own way where it is left out."""
    start: Name | None = None
    """An attack whose images it begins with, such as `exact`; what that cannot read begins at random."""
    refine: Annotated[list[RefineTable], Field(max_length=10)] = []
    """What is done to the images that it finds, one after another, after what the recipe does itself."""

    @field_validator("refine", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return listed(value)


class MetricsTable(Table):
    """Which figures are computed."""

    names: Annotated[list[Name], Field(min_length=1, max_length=50)] = ["psnr", "ssim", "rmse", "lpips"]
    """Of `fedglass list metrics`."""


class GateTable(Table):
    """Pass and fail criteria."""

    metric: Name = "psnr"
    """By which an image counts as recovered."""
    threshold: Finite = 20.0
    """An image counts as recovered above this value (PSNR, SSIM) or below it (LPIPS, RMSE)."""
    max_share: float = 0.0
    """The audit fails when an attack recovers more than this share of the images."""
    inconclusive_fails: bool = True
    """Whether an audit that cannot tell exits with 3; if false it exits with 0, and the report says so."""
    max_singling_out: float = 0.1
    """The audit fails when a message names its records among 1,000 candidates more often than this."""
    max_success: float = 0.05
    """An audit passes only if a certificate bounds the success of any adversary in naming a record among 1,000 by
    this."""
    trust_declared: bool = False
    """Whether a certificate may rest on declared noise that nothing can test; the report says so."""

    def value(self) -> Gate:
        return Gate(**dict(self))


def _kind_of_recording(table: Any) -> str:
    named = "bundle" in table if isinstance(table, dict) else isinstance(table, BundleTable)
    return IN_BUNDLE if named else IN_FILES


AnyRecording = Annotated[
    Annotated[RecordingTable, Tag(IN_FILES)] | Annotated[BundleTable, Tag(IN_BUNDLE)],
    Discriminator(_kind_of_recording),
]


class Plan(Table):
    """A whole plan file."""

    title: Title = ""
    """Of the audit."""
    seed: Seed = 0
    """The same plan and seed give the same records."""
    repeats: Repeats = 1
    """How often each attack is played, from different starts."""
    effort: Literal["quick", "standard", "thorough"] = "standard"
    """How long searches may take that the audit of a recorded folder chooses itself; attacks named here always run."""
    federation: Annotated[list[FederationTable], Field(max_length=100)] = []
    """What is simulated; one table or several."""
    recording: Annotated[list[AnyRecording], Field(max_length=1000)] = []
    """Messages of a real federation, in place of a simulation: files, or a bundle that a recorder wrote."""
    adversary: AdversaryTable = AdversaryTable()
    """Who attacks."""
    defences: Defences = []
    """What protects the clients, one after another."""
    attacks: Annotated[list[AttackTable], Field(max_length=100)] = []
    """Searches that are run, beside the exact attacks, the candidate game and the certificate of every audit."""
    metrics: MetricsTable = MetricsTable()
    """What is measured."""
    gate: GateTable = GateTable()
    """What counts as recovered, and how much of it is too much."""

    @field_validator("federation", "recording", "defences", "attacks", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return listed(value)

    @model_validator(mode="after")
    def _consistent(self) -> Plan:
        if bool(self.federation) == bool(self.recording):
            raise ValueError("a plan has either [federation] tables to simulate or [recording] tables to read")
        if self.recording and self.adversary.view == "peer":
            raise ValueError(
                'adversary.view = "peer" needs a federation to simulate: a recorded message is one of others'
            )
        if self.recording and self.defences:
            raise ValueError("defences are applied to simulated federations only; a recorded update has passed its own")
        labels = [attack.label or attack.name for attack in self.attacks]
        twice = sorted({name for name in labels if labels.count(name) > 1})
        if twice:
            raise ValueError(f"attacks need different names, {twice[0]!r} comes twice: give one a label of its own")
        if self.cases > MOST_CASES:
            raise ValueError(
                f"the plan asks for {self.cases:,} cases (attacks x messages x repeats), expected at most "
                f"{MOST_CASES:,}: ask for fewer repeats, attacks, clients or rounds"
            )
        return self

    @property
    def cases(self) -> int:
        """How many there are if all clients take part in every round: known before anything is built."""
        messages = len(self.recording) + sum(
            self.adversary.views(table.clients) * (1 if table.sweep is None else len(table.sweep.values))
            for table in self.federation
        )
        return messages * len(self.attacks) * self.repeats


def read_plan(path: Path) -> tuple[Plan, str]:
    """The plan in a file, and its text."""
    try:
        with open_file(follow_links(path)) as file:
            raw = file.read(LONGEST + 1)
    except OSError as error:
        raise UsageError(
            f"Cannot read the plan {path}: {error.strerror}; `fedglass init` writes one to start from."
        ) from error
    if len(raw) > LONGEST:
        raise UsageError(f"The plan {path} is longer than {LONGEST} bytes: it is another file.")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"The plan {path} is not UTF-8 text ({error.reason} at byte {error.start}).") from error
    return parse_plan(text, str(path)), text


def parse_plan(text: str, where: str = "plan") -> Plan:
    """The plan in a text.

    >>> plan = parse_plan('[federation]\\ndata = "photos"\\ntraining.lr = 0.1\\n[[attacks]]\\nname = "idlg"')
    >>> plan.federation[0].model, plan.attacks[0].name
    ('lenet', 'idlg')
    """
    try:
        content = tomllib.loads(text)
    # Not every ValueError of the parser is its own: a number may have too many digits.
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not valid TOML: {error}.") from error
    try:
        return Plan.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{where}: {in_one_sentence(error, Plan, content)}") from error
