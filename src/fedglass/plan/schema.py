"""The plan file: what is audited, the adversary, the attacks, and the pass and fail criteria.

`read_plan` and `parse_plan` return a validated `Plan`. `in_one_sentence` turns the first problem of an invalid plan
into one sentence: the field, what was expected, what came, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Discriminator, Field, Tag, ValidationError, model_validator
from pydantic_core import ErrorDetails

from fedglass.core.errors import UsageError
from fedglass.core.files import follow_links, open_file, parse_toml
from fedglass.plan.tables import (
    MOST_CASES,
    AdviseTable,
    BundleTable,
    Client,
    Defences,
    FederationTable,
    Finite,
    Listed,
    Name,
    PartTable,
    PlanTable,
    RecordingTable,
    Repeats,
    Round,
    Seed,
    SomeClients,
    SomeRounds,
    Title,
)
from fedglass.verdict.gate import Gate

Place = Sequence[str | int]
LENGTHS = {"too_long": ("max_length", "at most"), "too_short": ("min_length", "at least")}


def in_one_sentence(error: ValidationError, schema: type[BaseModel], content: Mapping[str, Any]) -> str:
    """Describe the first problem of a plan, and count the others."""
    problems = error.errors(include_url=False)
    # An unknown key is often a misspelt one: report it before missing keys.
    problems.sort(key=lambda problem: (problem["type"] != "extra_forbidden", _is_of_another_kind(problem)))
    more = len({_field(p["loc"], content) for p in problems}) - 1
    others_note = f" ({more} more problem{'s' if more > 1 else ''} after this one.)" if more > 0 else ""
    return _sentence(problems[0], schema, content) + others_note


def _is_of_another_kind(problem: ErrorDetails) -> bool:
    """Return whether a problem is about a branch of a union that the user did not mean."""
    last = problem["loc"][-1] if problem["loc"] else 0
    mistaken = problem["type"].endswith("_type") or problem["type"] == "literal_error"
    return mistaken and isinstance(last, str) and _is_branch(last)


def _sentence(problem: ErrorDetails, schema: type[BaseModel], content: Mapping[str, Any]) -> str:
    field = _field(problem["loc"], content)
    if problem["type"] == "extra_forbidden":
        keys = _keys(schema, problem["loc"][:-1])
        near = difflib.get_close_matches(str(problem["loc"][-1]), keys, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"{field} is not a key of a plan: {hint}Known here: {', '.join(sorted(keys))}."
    if problem["type"] == "missing":
        return f"{field} is missing: {_missing(field, problem['input'])}"
    if problem["type"] == "value_error":
        text = str(problem["ctx"]["error"]) if "ctx" in problem else problem["msg"]
        return f"{field}: {text}." if field else f"{text[0].upper()}{text[1:]}."
    if problem["type"] in LENGTHS:
        limit, comparison = LENGTHS[problem["type"]]
        length = problem["ctx"]["actual_length"]
        return (
            f"{field}: expected {comparison} {problem['ctx'][limit]:,} entries, got {length:,}: correct it in the plan."
        )
    expected = problem["msg"].removeprefix("Input should be ").removeprefix("String should have ")
    expected = expected[0].lower() + expected[1:]
    return f"{field}: expected {expected}, got {_shown(problem['input'])}: correct it in the plan."


def _missing(field: str, table: Any) -> str:
    """Return the advice for a missing key."""
    if not field.endswith("recording.whitening") and not field.endswith("].whitening"):
        return "add it to the plan."
    # It cannot be guessed, and a wrong one hides a leak: the user can copy the line for no normalisation.
    shape = table.get("shape") if isinstance(table, dict) else None
    channels = shape[0] if isinstance(shape, list) and shape and shape[0] in range(1, 17) else 3
    mean, std = ([number] * channels for number in (0.0, 1.0))
    return (
        "it states how the clients normalised their pixels. Add their channel means and deviations or, if they did "
        f"not normalise, whitening = {{ mean = {mean}, std = {std} }}, with one number for each channel."
    )


def _field(place: Place, content: Mapping[str, Any]) -> str:
    """Return the place as the user wrote it: `federation.training.lr`, `attacks[1].name`."""
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
    """Return whether a step names a branch of a union, which the user did not write."""
    return any(mark in step for mark in "[(-") or step in ("int", "float", "str", "bool")


def _keys(schema: type[BaseModel], place: Place) -> list[str]:
    """Return the keys that the table at this place may have."""
    table: type[BaseModel] = schema
    for i, step in enumerate(place):
        if isinstance(step, str) and step in table.model_fields:
            table = _table(table.model_fields[step].annotation, place[i + 1 :]) or table
    return list(table.model_fields)


def _table(annotation: Any, place: Place = ()) -> type[BaseModel] | None:
    """Return the table in an annotation such as `list[Table]` or `Table | None`; of several, that tagged in `place`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    tags = [part.tag for part in get_args(annotation) if isinstance(part, Tag)]
    if tags and tags[0] not in place:
        return None
    return next((table for part in get_args(annotation) if (table := _table(part, place)) is not None), None)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


IN_FILES, IN_BUNDLE = "[files]", "[bundle]"
"""The two forms of a recording."""
LONGEST = 2**20
"""Largest plan file in bytes."""


class AdversaryTable(PlanTable):
    """The adversary: what it sees and what it knows."""

    view: Literal["server", "aggregate", "peer", "malicious_server"] = "server"
    """A server that sees each client's update, a server that sees only the aggregate, a participant, or a server that
    also crafts the model that it sends: `fedglass list views`."""
    client: Client | SomeClients | Literal["all"] = "all"
    """The client whose update the server sees, or that is the peer; "all": every client of the round. Not for
    recordings."""
    round: Round | SomeRounds = 0
    """The audited round, or a list of rounds, counted from 0. Not for recordings."""
    together: bool | Literal["also"] = False
    """Whether the rounds of that list are attacked together, as messages of the same examples; "also": one by one, and
    together where possible. Not for a peer."""
    knows_training: bool = True
    """Optimiser, learning rate, epochs and batch size."""
    knows_steps: bool = False
    """Only the number of local steps and the learning rate."""
    knows_labels: bool = False
    """ORACLE: the true labels."""
    knows_batch_labels: bool = False
    """ORACLE: the true labels of each local batch."""
    knows_lr: bool = True
    """The learning rate, if the training or the number of steps is known; if false, an attack can search for it."""
    knows_examples: bool = True
    """The numbers of examples and of clients in the message; if false, an attack can search for them."""
    knows_kept: bool = True
    """The clients whose updates the server's rule accepted; if false, a peer guesses: see
    `maliciously_curious_client`."""
    public: Name | None = None
    """Similar public data for blind guesses and the candidate game, written as `federation.data`; left out: the
    examples of `federation.data` that no client has."""

    def views(self, clients: int) -> int:
        """Return the number of views of a federation with this many clients, if all take part in every round."""
        single = len(set(self.round)) if isinstance(self.round, list) else 1
        rounds = single + (single > 1) if self.together == "also" else 1 if self.together else single
        if self.view == "aggregate" or isinstance(self.client, int):
            return rounds
        return rounds * (clients if isinstance(self.client, str) else len(set(self.client)))


class AttackTable(PartTable):
    """A published attack; all other keys are options of its recipe."""

    label: Name | None = None
    """Its name in the report."""
    labels: Name | None = None
    """The method that finds labels: `fedglass list labels`; left out: the recipe's own."""
    start: Name | None = None
    """Another attack that gives the starting images, such as `exact`; images that it cannot read start at random."""
    refine: Annotated[list[PartTable], Field(max_length=10), Listed] = []
    """Refinements of the images, one after another, after those of the recipe: `fedglass list refinements`."""


class MetricsTable(PlanTable):
    """The computed metrics."""

    names: Annotated[list[Name], Field(min_length=1, max_length=50)] = ["psnr", "ssim", "rmse", "lpips"]
    """Names of `fedglass list metrics`."""


class GateTable(PlanTable):
    """Pass and fail criteria."""

    metric: Name = "psnr"
    """The metric that decides whether an image counts as recovered."""
    threshold: Finite = 20.0
    """An image counts as recovered above this value (PSNR, SSIM) or below it (LPIPS, RMSE)."""
    max_share: float = 0.0
    """The audit fails when an attack recovers more than this share of the images."""
    inconclusive_fails: bool = True
    """Whether an inconclusive audit exits with 3; if false it exits with 0, and the report says so."""
    max_singling_out: float = 0.1
    """The audit fails when a message names its records among 1,000 candidates more often than this."""
    max_success: float = 0.05
    """An audit passes only if a certificate bounds the success of any adversary in naming a record among 1,000 by
    this."""
    trust_declared: bool = False
    """Whether a certificate may rest on declared noise that cannot be tested; the report says so."""

    def value(self) -> Gate:
        return Gate(**dict(self))


def _kind_of_recording(table: Any) -> str:
    named = "bundle" in table if isinstance(table, dict) else isinstance(table, BundleTable)
    return IN_BUNDLE if named else IN_FILES


AnyRecording = Annotated[
    Annotated[RecordingTable, Tag(IN_FILES)] | Annotated[BundleTable, Tag(IN_BUNDLE)],
    Discriminator(_kind_of_recording),
]


class Plan(PlanTable):
    """A plan file."""

    title: Title = ""
    """Title of the audit."""
    seed: Seed = 0
    """The same plan and seed give the same records."""
    repeats: Repeats = 1
    """Runs of each attack, from different starting points."""
    effort: Literal["quick", "standard", "thorough"] = "standard"
    """Time limit of searches that the audit of a recorded folder chooses itself; attacks of the plan always run."""
    federation: Annotated[list[FederationTable], Field(max_length=100), Listed] = []
    """Federations to simulate; one table or several."""
    recording: Annotated[list[AnyRecording], Field(max_length=1000), Listed] = []
    """Messages of a real federation instead of a simulation: files, or a bundle that a recorder wrote."""
    adversary: AdversaryTable = AdversaryTable()
    """The adversary."""
    defences: Defences = []
    """Defences of the clients, applied one after another."""
    attacks: Annotated[list[AttackTable], Field(max_length=100), Listed] = []
    """Searches, in addition to the exact attacks, the candidate game and the certificate of every audit."""
    metrics: MetricsTable = MetricsTable()
    """Metrics of the images."""
    gate: GateTable = GateTable()
    """Limits that decide the verdict."""
    advise: AdviseTable | None = None
    """Defences that `fedglass advise` compares; audits ignore it."""

    @model_validator(mode="after")
    def _consistent(self) -> Plan:
        if bool(self.federation) == bool(self.recording):
            raise ValueError("a plan needs either [federation] tables to simulate or [recording] tables to read")
        if self.recording and self.adversary.view == "peer":
            raise ValueError(
                'adversary.view = "peer" needs a federation to simulate: a recorded message cannot be seen by a peer'
            )
        if self.recording and self.adversary.view == "malicious_server":
            raise ValueError(
                'a recording cannot have adversary.view = "malicious_server", since its model was sent already: '
                "simulate a federation"
            )
        if self.adversary.view == "malicious_server" and self.adversary.round != 0:
            raise ValueError(
                'the view "malicious_server" crafts the model of the first round: leave adversary.round out, and give '
                "a trained model as federation.init"
            )
        if self.recording and self.defences:
            raise ValueError(
                "defences apply only to simulated federations: leave [[defences]] out, and set recording.defended"
            )
        labels = [attack.label or attack.name for attack in self.attacks]
        twice = sorted({name for name in labels if labels.count(name) > 1})
        if twice:
            raise ValueError(f"attacks need different names, but {twice[0]!r} occurs twice: give one of them a label")
        if self.cases > MOST_CASES:
            raise ValueError(
                f"the plan asks for {self.cases:,} cases (attacks x messages x repeats), expected at most "
                f"{MOST_CASES:,}: ask for fewer repeats, attacks, clients or rounds"
            )
        return self

    @property
    def cases(self) -> int:
        """The number of cases if all clients take part in every round; known before anything is built."""
        messages = len(self.recording) + sum(
            self.adversary.views(table.clients) * (1 if table.sweep is None else len(table.sweep.values))
            for table in self.federation
        )
        return messages * len(self.attacks) * self.repeats


def read_plan(path: Path) -> tuple[Plan, str]:
    """Return the plan in a file, and its text."""
    try:
        with open_file(follow_links(path)) as file:
            raw = file.read(LONGEST + 1)
    except OSError as error:
        raise UsageError(
            f"Cannot read the plan {path}: {error.strerror}; `fedglass init` writes one to start from."
        ) from error
    if len(raw) > LONGEST:
        raise UsageError(f"The plan {path} has more than {LONGEST} bytes, so it is not a plan: choose another file.")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"The plan {path} is not UTF-8 text ({error.reason} at byte {error.start}).") from error
    return parse_plan(text, str(path)), text


def parse_plan(text: str, where: str = "plan") -> Plan:
    """Return the plan in a text.

    >>> plan = parse_plan('[federation]\\ndata = "photos"\\ntraining.lr = 0.1\\n[[attacks]]\\nname = "idlg"')
    >>> plan.federation[0].model, plan.attacks[0].name
    ('lenet', 'idlg')
    """
    try:
        content = parse_toml(text)
    except ValueError as error:
        raise UsageError(f"{where} is not valid TOML: {error}.") from error
    try:
        return Plan.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{where}: {in_one_sentence(error, Plan, content)}") from error


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a plan, for editors and other programs."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_accepting_tables(Plan.model_json_schema())}


def _accepting_tables(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema that also accepts a single table instead of a list of one, such as `[federation]`."""
    for table in (schema, *schema["$defs"].values()):
        for entry in table["properties"].values():
            if entry.get("type") == "array" and {"$ref", "oneOf"} & entry["items"].keys():
                array = {
                    name: entry.pop(name) for name in list(entry) if name not in ("description", "default", "title")
                }
                entry["anyOf"] = [array, array["items"]]
    return schema
