"""The contents of a bundle, the facts that it lacks, and the plan that audits it with the attacks that its facts allow.

`inspect_bundle` builds no model and runs no code of others. `draft` builds the `Plan` object and the sources of its
audit from one reading of the bundle. `fedglass audit FOLDER` audits these; `fedglass init --from` writes the same plan
as TOML.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from fedglass.attack.attack import Attack
from fedglass.attack.defaults import why_not_by_default
from fedglass.attack.needs import needs_of, supplies_of
from fedglass.attack.parts import better_labels
from fedglass.audit.audit import Job
from fedglass.audit.recorded import Recorded
from fedglass.core.errors import FedglassError, UsageError
from fedglass.core.facts import Fact
from fedglass.core.registry import built_in, factory, make, takes
from fedglass.core.tensors import MEAN
from fedglass.core.types import Observation, Whitening
from fedglass.data.catalogue import located
from fedglass.federation.transcript import Participant, Terms, Transcript
from fedglass.federation.views import Knows, Together, ViewBuilder
from fedglass.plan.bundles import OpenBundle, open_bundle, recorded_bundle
from fedglass.plan.compile import compile_plan
from fedglass.plan.options import public_of
from fedglass.plan.schema import AdversaryTable, AttackTable, GateTable, Plan
from fedglass.plan.tables import BundleTable
from fedglass.recipes import recipe
from fedglass.recordings.epsilons import RecordedEpsilon, adapts_clipping, recorded_epsilons
from fedglass.recordings.format import preferred
from fedglass.recordings.observed import Contradiction, contradictions_of, update_of
from fedglass.recordings.reader import Bundle
from fedglass.recordings.selection import Selection, select_messages
from fedglass.recordings.training_facts import participant_of
from fedglass.recordings.transcript import input_problem

NEEDED = ("model", "shape", "classes", "whitening")
"""Facts that every attack needs."""
FILES = {"truth": "examples that the clients stored for scoring", "weights": "parameters that clients never send"}
"""Comments on the files that a plan names next to a bundle, by key."""

AttackSelection = tuple[dict[str, str | None], dict[str, str]]
"""Attacks with their label methods (None: their own), and those that are left out, with the reason."""


@dataclass(frozen=True, eq=False)
class Draft:
    """A plan for a bundle, and what to tell the user about it."""

    plan: Plan
    bundle: Bundle
    sources: tuple[Recorded, ...] = ()
    """Sources of the plan's audit, but for the public data; empty if the model cannot be built yet."""
    skipped_attacks: Mapping[str, str] = field(default_factory=dict)
    """Attacks that are left out, with the reason."""
    problem: str = ""
    """Why the model cannot be built, as a sentence."""

    @property
    def skipped(self) -> tuple[str, ...]:
        """The messages that are not audited, and the reasons."""
        return select_messages(self.bundle, None).skipped

    @property
    def text(self) -> str:
        """The plan as TOML, with comments for the user."""
        return "\n".join(_toml_lines(self))

    def job(self) -> Job:
        """Return the audit of the plan; paths in it are absolute."""
        public = public_of(self.plan.adversary, self.sources[0].shape, Path())
        sources = [replace(source, public=public) for source in self.sources]
        return compile_plan(self.plan, Path(), self.text, sources)


def draft(
    folder: Path,
    *,
    path: str | None = None,
    model: str | None = None,
    truth: Path | None = None,
    weights: Path | None = None,
    public: str | None = None,
) -> Draft:
    """Return the plan that audits a bundle.

    Args:
        folder: The bundle.
        path: The bundle as the plan names it; its absolute path by default.
        model: The user's name of the model.
        truth: Examples of the clients, for scoring; by default the folder next to the bundle, if there is one.
        weights: A file of parameters that clients never send.
        public: The user's name of public data.
    """
    truth_folder = folder.with_name(folder.name + "-truth") if truth is None else truth
    table = BundleTable(
        bundle=str(folder.resolve()),
        model=model,
        truth=str(truth_folder.resolve()) if truth is not None or truth_folder.is_dir() else None,
        weights=None if weights is None else str(weights.resolve()),
    )
    opened, named = open_bundle(table, Path()), table
    if path is not None:  # the bundle, and the truth next to it, under the name that the plan gives them
        truth_path = f"{path}-truth" if table.truth is not None and truth is None else table.truth
        named = table.model_copy(update={"bundle": path, "truth": truth_path})
    try:
        sources, (attacks, skipped), together = _audited(table, opened)
        return Draft(_plan(named, attacks, together, public), opened[0], sources, skipped)
    except FedglassError as error:
        return Draft(_plan(named, {"inverting_gradients": None}, False, public), opened[0], problem=str(error))


def _audited(table: BundleTable, opened: OpenBundle) -> tuple[tuple[Recorded, ...], AttackSelection, bool]:
    """Return the sources, their attacks, and whether rounds are also attacked together."""
    # Without the truth it is unknown whether a client's data stayed the same.
    adversary = AdversaryTable(together=False if table.truth is None else "also")
    sources = recorded_bundle(table, adversary, Path(), opened)
    selection = select_attacks(sources)
    scored = any(isinstance(view, Together) for source in sources if source.truths for view in source.views)
    if not scored and any(isinstance(view, Together) for source in sources for view in source.views):
        sources = recorded_bundle(table, AdversaryTable(), Path(), opened)
    return tuple(sources), selection, scored


def _plan(table: BundleTable, attacks: Mapping[str, str | None], together: bool, public: str | None) -> Plan:
    """Return the plan with these attacks, each with its label method if that is not its own."""
    adversary: dict[str, str] = {"together": "also"} if together else {}
    adversary |= {} if public is None else {"public": located(public, Path.cwd())}
    return Plan(
        title=Path(table.bundle).name[:200],
        recording=[table],
        adversary=AdversaryTable.model_validate(adversary),
        attacks=[
            AttackTable(name=name, labels=labels, start="exact" if isinstance(recipe(name), Attack) else None)
            for name, labels in attacks.items()
        ],
        gate=GateTable(metric="psnr", threshold=20.0),
    )


def select_attacks(sources: Sequence[Recorded]) -> AttackSelection:
    """Return the attacks that can run on every message of the sources, and tell more than others on one of them."""
    observations = [result.observation for source in sources for result in source.rehearse()]
    attacks: dict[str, str | None] = {}
    skipped: dict[str, str] = {}
    for entry in built_in("attacks").values():
        name, reason_to_skip = entry.name, why_not_by_default(entry.value)
        if reason_to_skip is None:
            continue
        reasons = [reason_to_skip(observation) for observation in observations]
        reason = _refusal(name, observations) or (reasons[0] if all(reasons) else "")
        if reason:
            skipped[name] = reason
        else:
            attacks[name] = _better_labels(name, observations)
    return attacks, skipped


def _better_labels(name: str, observations: Sequence[Observation]) -> str | None:
    """Return the label method that does better on a message than an attack's own, if the attack can take it."""
    if not takes(factory("attacks", name), "labels"):
        return None
    default = getattr(recipe(name), "labels", None)
    better = next(filter(None, (better_labels(default, observation) for observation in observations)), "")
    return None if not better or _refusal(name, observations, labels=make("labels", better)) else better


def _refusal(name: str, observations: Sequence[Observation], **parts: object) -> str:
    """Return why an attack with these parts cannot run on one of the messages; empty if it can."""
    attack = recipe(name, **parts)
    for observation in observations:
        try:
            attack.check(observation)
        except UsageError as error:
            return str(error)
    return ""


def _toml_lines(drafted: Draft) -> Iterator[str]:
    plan = drafted.plan
    (table,) = plan.recording
    assert isinstance(table, BundleTable), "a draft is the plan of a bundle"
    yield "# The plan of a recorded federation, written by `fedglass init --from`; all keys: docs/plan.md."
    yield f"title = {_quoted(plan.title)}"
    yield ""
    yield "[recording]"
    yield f"bundle = {_quoted(table.bundle)}"
    yield from _model_lines(drafted.bundle, table.model)
    for key, comment in FILES.items():
        if (file := getattr(table, key)) is not None:
            yield f"{key} = {_quoted(file)}  # {comment}"
    yield '# rounds = [1, 2]         # by the federation\'s own numbers, or "all"; by default some with every client'
    yield '# whose = ["name"]        # clients to audit; all by default'
    yield "# training = { lr = 0.1 } # overrides what the bundle says"
    yield ""
    yield from _adversary_lines(plan.adversary)
    yield '# view = "aggregate"      # or "server"; by default that of the federation\'s own server'
    yield ""
    if drafted.problem:
        yield f"# Not checked yet: {_one_line(drafted.problem)}"
    for attack in plan.attacks:
        yield "[[attacks]]"
        for key in ("name", "labels", "start"):
            if (value := getattr(attack, key)) is not None:
                yield f"{key} = {_quoted(value)}"
        yield ""
    for name, reason in drafted.skipped_attacks.items():
        yield f"# left out: {name}: {_one_line(reason)}"
    yield from ("", "[gate]", f"metric = {_quoted(plan.gate.metric)}", f"threshold = {plan.gate.threshold}", "")


def _adversary_lines(adversary: AdversaryTable) -> Iterator[str]:
    """Yield the adversary's table, with keys that are not used as comments."""
    used = adversary.model_fields_set
    yield "[adversary]" if used else "# [adversary]"
    mark = "" if "together" in used else "# "
    yield f"{mark}together = {_quoted('also')}       # rounds of the same data one by one, and at once"
    mark = "" if "public" in used else "# "
    yield (
        f"{mark}public = {_quoted(adversary.public or 'public/')}  # examples like the clients' that no client has, at "
        "least 200 of each class: they show whether a message names its records"
    )


def _model_lines(bundle: Bundle, model: str | None) -> Iterator[str]:
    """Yield the user's model, and the keys that the bundle cannot fill as comments to fill in."""
    facts = bundle.facts
    if model is not None:
        yield f"model = {_quoted(model)}"
    elif preferred(facts, "model") is None:
        yield '# model = "package.module:factory"  # missing: the architecture, or a name of `fedglass list models`'
    if preferred(facts, "shape") is None:
        yield "# shape = [3, 32, 32]     # missing: channels, height and width"
    if preferred(facts, "classes") is None:
        yield "# classes = 10            # missing"
    if preferred(facts, "whitening") is None:
        yield "# whitening = { mean = [0.5, 0.5, 0.5], std = [0.5, 0.5, 0.5] }  # missing: how pixels were normalised"


def _quoted(text: str) -> str:
    """Return a TOML string: JSON has the same, but for the delete character."""
    return json.dumps(text).replace("\x7f", "\\u007f")


def _one_line(text: str) -> str:
    """Return a text without line breaks, as a comment must be."""
    return "".join(c if c.isprintable() else " " for c in text)


@dataclass(frozen=True, eq=False)
class BundleInfo:
    """The contents of a bundle in plain values."""

    bundle: Bundle
    selection: Selection | None
    """The messages that an audit would take; None if there are none."""
    problem: str
    """Why there are none, or why none of them can be attacked."""
    contradictions: tuple[Contradiction, ...]
    missing: Mapping[str, tuple[Fact, ...]]
    """By attack, the facts that it needs and the bundle does not have."""
    epsilons: tuple[RecordedEpsilon, ...] = ()
    """The epsilons that the bundle declares or counts, next to the real ones."""
    adaptive: bool = False
    """Whether clipping is adaptive, of which no epsilon is computed."""

    @property
    def needed(self) -> tuple[str, ...]:
        """The facts that every attack needs and the bundle does not have."""
        return tuple(name for name in NEEDED if preferred(self.bundle.facts, name) is None)


def inspect_bundle(bundle: Bundle) -> BundleInfo:
    """Return what a bundle holds, from all of its messages."""
    selection, problem = None, ""
    try:
        selection = select_messages(bundle, None)
    except FedglassError as error:
        problem = str(error)
    problem = problem or input_problem(bundle)
    contradictions = [finding for index in bundle.rounds for finding in contradictions_of(bundle, index)]
    missing = {} if selection is None else _missing_facts(selection)
    epsilons, adaptive = tuple(recorded_epsilons(bundle)), adapts_clipping(bundle)
    return BundleInfo(bundle, selection, problem, tuple(contradictions), missing, epsilons, adaptive)


def _missing_facts(selection: Selection) -> dict[str, tuple[Fact, ...]]:
    """Return the facts that each attack lacks on at least one of the selected messages."""
    facts_by_message = list(_facts_by_message(selection))
    missing_by_attack = {}
    for name in built_in("attacks"):
        attack = recipe(name)
        # All unknowns depend on the number of examples, unless an attack searches for it.
        needed = needs_of(attack) | (set() if Fact.EXAMPLES in supplies_of(attack) else {Fact.EXAMPLES})
        missing = {fact for facts in facts_by_message for fact in needed - facts}
        missing_by_attack[name] = tuple(sorted(missing, key=list(Fact).index))
    return missing_by_attack


def _facts_by_message(selection: Selection) -> Iterator[frozenset[Fact]]:
    """Yield the facts that the adversary has next to each message of the selection."""
    bundle = selection.bundle
    terms = Terms((1, 1, 1), 2, Whitening((0.0,), (1.0,)), bundle.clients, "")
    empty = Transcript(nn.Identity(), terms, {})
    for index in selection.rounds:
        clients = selection.audited_clients(index)
        for names in [clients] if selection.view == "aggregate" else [(name,) for name in clients]:
            participants = tuple(participant_of(bundle, name, index, {}) for name in names)
            look = ViewBuilder(empty, index, participants or (Participant("", 1, counted=False),), {}, {})
            moved = any(_moved_statistics(bundle, name, index) for name in names)
            yield look.knowledge(Knows()).facts | ({Fact.STATISTICS} if moved else set())


def _moved_statistics(bundle: Bundle, client: str, index: int) -> bool:
    """Check that running statistics came with the message, and that the training moved them."""
    update = update_of(bundle, client, index) or {}
    return any(bool(tensor.any()) for name, tensor in update.items() if name.endswith(MEAN))


def info_as_json(info: BundleInfo) -> dict[str, Any]:
    """Return the same in types that JSON has."""
    bundle, selection = info.bundle, info.selection
    return {
        "bundle": str(bundle.folder),
        "format": bundle.manifest.format,
        "recorded_by": bundle.manifest.writer,
        "facts": bundle.facts,
        "clients": list(bundle.clients),
        "rounds": [
            {
                "round": index,
                "sent": round_.sent is not None,
                "aggregated": round_.aggregated is not None,
                "facts": round_.facts,
                "messages": [
                    {
                        "client": message.client,
                        "received": message.received is not None,
                        "sent_own": message.sent is not None,
                        "absent": message.absent,
                        "facts": bundle.facts_of(message.client, index),
                    }
                    for message in round_.messages
                ],
            }
            for index, round_ in bundle.rounds.items()
        ],
        "view": None if selection is None else selection.view,
        "looked_at": [] if selection is None else list(selection.rounds),
        "left_out": [] if selection is None else list(selection.skipped),
        "problem": info.problem,
        "needed": list(info.needed),
        "findings": [{"round": f.round, "client": f.client, "words": f.text} for f in info.contradictions],
        "epsilons": [{"client": e.client, **e.claim.details, "releases": e.claim.releases} for e in info.epsilons],
        "attacks": [
            {"name": name, "possible": not facts, "missing": [fact.value for fact in facts]}
            for name, facts in info.missing.items()
        ],
    }
