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
from fedglass.attack.exact.exact import ExactAttack
from fedglass.attack.malicious_server import MaliciousServer
from fedglass.attack.parts import better_labels, needs_of, supplies_of
from fedglass.audit.audit import Job
from fedglass.audit.recorded import Recorded
from fedglass.core.errors import FedglassError, UsageError
from fedglass.core.facts import Fact
from fedglass.core.losses import TargetKind, target_kind
from fedglass.core.optimisers import OPTIMISERS
from fedglass.core.registry import built_in, factory, make, takes
from fedglass.core.tensors import MEAN
from fedglass.core.types import Observation, Whitening
from fedglass.data.catalogue import located
from fedglass.federation.transcript import Participant, Terms, Transcript
from fedglass.federation.views import Knows, Together, ViewBuilder
from fedglass.plan.bundles import OpenBundle, input_problem, open_bundle, recorded_bundle
from fedglass.plan.compile import compile_plan
from fedglass.plan.options import public_of
from fedglass.plan.schema import AdversaryTable, AttackTable, GateTable, Plan
from fedglass.plan.tables import BundleTable
from fedglass.recipes import recipe
from fedglass.recordings.facts import UNKNOWN_LOSS, preferred
from fedglass.recordings.observed import contradictions_of, update_of
from fedglass.recordings.privacy import adapts_clipping, recorded_epsilons
from fedglass.recordings.reader import Bundle
from fedglass.recordings.selection import Selection, select_messages
from fedglass.recordings.transcript import participant_of, training_problems

NEEDED = ("model", "shape", "classes", "whitening")
"""Facts that every attack needs."""

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
        from jinja2 import Environment, PackageLoader, StrictUndefined

        loader = PackageLoader("fedglass.plan", "templates")
        templates = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
        templates.filters |= {"quoted": _quoted, "one_line": _one_line}
        return templates.get_template("bundle.toml").render(
            plan=self.plan,
            table=self.plan.recording[0],
            missing=_missing_keys(self.bundle),
            used=self.plan.adversary.model_fields_set,
            problem=self.problem,
            skipped_attacks=self.skipped_attacks,
        )

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
        path: The bundle as the plan names it; its absolute path by default.
        truth: Examples of the clients, for scoring; by default the folder next to the bundle, if there is one.
        weights: A file of parameters that clients never send.
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


def _missing_keys(bundle: Bundle) -> list[str]:
    """Return the facts that every attack needs and the bundle does not have."""
    return [name for name in NEEDED if preferred(bundle.facts, name) is None]


def _quoted(text: str) -> str:
    """Return a TOML string: JSON has the same, but for the delete character."""
    return json.dumps(text).replace("\x7f", "\\u007f")


def _one_line(text: str) -> str:
    """Return a text without line breaks, as a comment must be."""
    return "".join(c if c.isprintable() else " " for c in text)


def inspect_bundle(bundle: Bundle) -> dict[str, Any]:
    """Return what a bundle holds, what contradicts it and what each attack lacks, in types that JSON has."""
    selection, problem = None, ""
    try:
        selection = select_messages(bundle, None)
    except FedglassError as error:
        problem = str(error)
    contradictions = [finding for index in bundle.rounds for finding in contradictions_of(bundle, index)]
    missing = {} if selection is None else _missing_facts(selection)
    losses = [name for name in built_in("losses") if name != UNKNOWN_LOSS]
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
        "problem": problem or input_problem(bundle),
        "scope": {"inputs": "images", "optimisers": list(OPTIMISERS), "losses": losses},
        "not_simulated": [] if selection is None else list(_not_simulated(selection)),
        "needed": _missing_keys(bundle),
        "findings": [{"round": f.round, "client": f.client, "words": f.text} for f in contradictions],
        "epsilons": [
            {"client": client, "words": str(claim), **claim.details}
            for client, claims in recorded_epsilons(bundle).items()
            for claim in claims
        ],
        "adaptive_clipping": adapts_clipping(bundle),
        "attacks": [
            {"name": name, "possible": not facts, "missing": [fact.value for fact in facts]}
            for name, facts in missing.items()
        ],
    }


def _not_simulated(selection: Selection) -> Iterator[dict[str, Any]]:
    """Yield the audited messages of which the training cannot be run again, and why."""
    bundle = selection.bundle
    for index in selection.rounds:
        for client in selection.audited_clients(index):
            training = participant_of(bundle, client, index, {}).training
            if training is None or target_kind(training.loss) is TargetKind.UNKNOWN:
                why = list(training_problems(bundle.facts_of(client, index))) or ["its facts do not fit together"]
                yield {"round": index, "client": client, "why": why}


def _missing_facts(selection: Selection) -> dict[str, tuple[Fact, ...]]:
    """Return the facts that each attack lacks on at least one of the selected messages."""
    facts_by_message = list(_facts_by_message(selection))
    missing_by_attack = {}
    for name in built_in("attacks"):
        attack = recipe(name)
        if isinstance(attack, MaliciousServer):  # the model of a recording was sent already
            continue
        # All unknowns depend on the number of examples, unless an attack searches for it.
        needed = needs_of(attack) | (set() if Fact.EXAMPLES in supplies_of(attack) else {Fact.EXAMPLES})
        needed |= set() if isinstance(attack, ExactAttack) else {Fact.LOSS}
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
            updates = [update_of(bundle, name, index) or {} for name in names]
            means = (tensor for update in updates for name, tensor in update.items() if name.endswith(MEAN))
            moved = any(bool(mean.any()) for mean in means)  # running statistics that the training moved
            yield look.knowledge(Knows()).facts | ({Fact.STATISTICS} if moved else set())
