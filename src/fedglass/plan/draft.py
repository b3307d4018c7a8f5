"""The plan of a bundle: the attacks that its facts allow, the reasons against others, and the facts that are missing.

`draft` builds the `Plan` object and the sources of its audit from one reading of the bundle. `fedglass audit FOLDER`
audits these; `fedglass init --from` writes the same plan as TOML.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedglass.attack.attack import Attack
from fedglass.attack.defaults import why_not_by_default
from fedglass.attack.parts import better_labels
from fedglass.audit.audit import Job
from fedglass.audit.recorded import Recorded
from fedglass.core.errors import FedglassError, UsageError
from fedglass.core.registry import built_in, factory, make, takes
from fedglass.core.types import Observation
from fedglass.data.catalogue import located
from fedglass.federation.views import Together
from fedglass.plan.bundles import OpenBundle, open_bundle, recorded_bundle
from fedglass.plan.compile import compile_plan
from fedglass.plan.options import public_of
from fedglass.plan.schema import AdversaryTable, AttackTable, GateTable, Plan
from fedglass.plan.tables import BundleTable
from fedglass.recipes import recipe
from fedglass.recordings.format import preferred
from fedglass.recordings.reader import Bundle
from fedglass.recordings.selection import select_messages

FILES = {"truth": "examples that the clients stored for scoring", "weights": "parameters that clients never send"}
"""Comments on the files that a plan names next to a bundle, by key."""


@dataclass(frozen=True, eq=False)
class AttackSelection:
    """Attacks for a recording."""

    attacks: tuple[str, ...]
    skipped: Mapping[str, str]
    """Attacks that are left out, with the reason."""
    labels: Mapping[str, str]
    """The label method of attacks for which another one than their own does better."""


@dataclass(frozen=True, eq=False)
class Draft:
    """A plan for a bundle, and what to tell the user about it."""

    plan: Plan
    bundle: Bundle
    sources: tuple[Recorded, ...] = ()
    """Sources of the plan's audit, but for the public data; empty if the model cannot be built yet."""
    selection: AttackSelection | None = None
    """None if the model cannot be built yet."""
    problem: str = ""
    """Why the model cannot be built, as a sentence."""
    contradictions: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    """What is not audited, and why."""

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
    opened = open_bundle(table, Path())
    try:
        sources, selection, together = _audited(table, opened)
        skipped = select_messages(opened[0], None).skipped
        drafted = Draft(
            _plan(_as_named(table, path, truth), selection, together, public),
            opened[0],
            sources,
            selection,
            contradictions=tuple(sources[0].contradiction_texts()),
            skipped=skipped,
        )
    except FedglassError as error:
        drafted = Draft(_plan(_as_named(table, path, truth), None, False, public), opened[0], problem=str(error))
    return drafted


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


def _as_named(table: BundleTable, path: str | None, truth: Path | None) -> BundleTable:
    """Return the table with the bundle, and the truth next to it, under the name that the plan gives them."""
    if path is None:
        return table
    truth_path = f"{path}-truth" if table.truth is not None and truth is None else table.truth
    return table.model_copy(update={"bundle": path, "truth": truth_path})


def _plan(table: BundleTable, selection: AttackSelection | None, together: bool, public: str | None) -> Plan:
    adversary: dict[str, str] = {"together": "also"} if together else {}
    adversary |= {} if public is None else {"public": located(public, Path.cwd())}
    labels = {} if selection is None else selection.labels
    attacks = [
        AttackTable(name=name, labels=labels.get(name), start="exact" if isinstance(recipe(name), Attack) else None)
        for name in (("inverting_gradients",) if selection is None else selection.attacks)
    ]
    return Plan(
        title=Path(table.bundle).name[:200],
        recording=[table],
        adversary=AdversaryTable.model_validate(adversary),
        attacks=attacks,
        gate=GateTable(metric="psnr", threshold=20.0),
    )


def select_attacks(sources: Sequence[Recorded]) -> AttackSelection:
    """Return the attacks that can run on every message of the sources, and tell more than others on one of them."""
    observations = [result.observation for source in sources for result in source.rehearse()]
    skipped: dict[str, str] = {}
    attacks = []
    for entry in built_in("attacks").values():
        name, reason_to_skip = entry.name, why_not_by_default(entry.value)
        if reason_to_skip is None:
            continue
        reasons = [reason_to_skip(observation) for observation in observations]
        reason = _refusal(name, observations) or (reasons[0] if all(reasons) else "")
        if reason:
            skipped[name] = reason
        else:
            attacks.append(name)
    labels = {name: _better_labels(name, observations) for name in attacks}
    return AttackSelection(tuple(attacks), skipped, {name: method for name, method in labels.items() if method})


def _better_labels(name: str, observations: Sequence[Observation]) -> str:
    """Return the label method that does better on a message than an attack's own, if the attack can take it."""
    if not takes(factory("attacks", name), "labels"):
        return ""
    default = getattr(recipe(name), "labels", None)
    better = next(filter(None, (better_labels(default, observation) for observation in observations)), "")
    return "" if not better or _refusal(name, observations, labels=make("labels", better)) else better


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
    for name, reason in ({} if drafted.selection is None else drafted.selection.skipped).items():
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
