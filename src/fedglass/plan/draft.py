"""The plan of a bundle: the attacks that its facts allow, why others are left out, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedglass.attack.attack import Attack
from fedglass.attack.defaults import why_not_by_default
from fedglass.attack.parts import better_labels
from fedglass.audit.recorded import Recorded
from fedglass.core.errors import FedglassError, UsageError
from fedglass.core.registry import built_in, factory, make, takes
from fedglass.core.types import Observation
from fedglass.data.catalogue import located
from fedglass.federation.views import Together
from fedglass.plan.bundles import opened, recorded_bundle
from fedglass.plan.recording_tables import BundleTable
from fedglass.plan.schema import AdversaryTable
from fedglass.plan.selection import chosen
from fedglass.recipes import recipe
from fedglass.recordings.format import best
from fedglass.recordings.reader import Bundle

FILES = {"truth": "what the clients have kept of their own", "weights": "what of the model never travels"}
"""Beside a bundle, by the key of the plan."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """Attacks for a recording."""

    attacks: tuple[str, ...]
    left: Mapping[str, str]
    """Those that are left out, with the reason."""
    labels: Mapping[str, str]
    """Of those that are told to find labels in another way than their own: which."""


@dataclass(frozen=True, eq=False)
class Draft:
    """A plan's text, and what is to be told with it."""

    text: str
    chosen: Chosen | None
    """None where the model can not be built yet."""
    problem: str = ""
    """Why it can not, as a sentence."""
    doubts: tuple[str, ...] = ()
    """What is not as it was said."""
    unseen: tuple[str, ...] = ()
    """What is not looked at, and why."""


def draft(
    folder: Path,
    *,
    path: str | None = None,
    model: str | None = None,
    truth: Path | None = None,
    weights: Path | None = None,
    public: str | None = None,
) -> Draft:
    """The plan that audits a bundle; `path` is how it names the folder, `model` and `public` are the user's words."""
    beside = folder.with_name(folder.name + "-truth") if truth is None else truth
    public = None if public is None else located(public, Path.cwd())
    table = BundleTable(
        bundle=str(folder.resolve()),
        model=model,
        truth=str(beside.resolve()) if truth is not None or beside.is_dir() else None,
        weights=None if weights is None else str(weights.resolve()),
    )
    bundle, _ = opened(table, Path())
    allowed, problem, doubts, unseen, together = None, "", tuple[str, ...](), tuple[str, ...](), False
    try:
        # Without the truth nobody knows whether a client's data stayed the same.
        wanted = AdversaryTable(together=False if table.truth is None else "also")
        sources = recorded_bundle(table, wanted, Path())
        together = any(isinstance(view, Together) for source in sources if source.truths for view in source.views)
        allowed, doubts = attacks_for(sources), tuple(sources[0].doubted())
        unseen = chosen(bundle, None).left
    except FedglassError as error:
        problem = str(error)
    told = path or table.bundle
    named = None if table.truth is None else f"{told}-truth" if path is not None and truth is None else table.truth
    files = {"truth": named, "weights": table.weights}
    text = _text(bundle, told, model, files, allowed, problem, _adversary(together, public))
    return Draft(text, allowed, problem, doubts, unseen)


def attacks_for(sources: Sequence[Recorded]) -> Chosen:
    """The attacks that can be played on every message of the sources, and say more than others on one of them."""
    seen = [found.observation for source in sources for found in source.rehearse()]
    found = ((entry.name, why_not_by_default(entry.value)) for entry in built_in("attacks").values())
    left: dict[str, str] = {}
    attacks = []
    for name, why_not in found:
        if why_not is None:
            continue
        needless = [why_not(observation) for observation in seen]
        reason = _refused(name, seen) or (needless[0] if all(needless) else "")
        if reason:
            left[name] = reason
        else:
            attacks.append(name)
    others = {name: _labels(name, seen) for name in attacks}
    return Chosen(tuple(attacks), left, {name: found for name, found in others.items() if found})


def _labels(name: str, seen: Sequence[Observation]) -> str:
    """The labels that do better on a message than an attack's own, where it takes others and they can be had."""
    if not takes(factory("attacks", name), "labels"):
        return ""
    own = getattr(recipe(name), "labels", None)
    better = next(filter(None, (better_labels(own, observation) for observation in seen)), "")
    return "" if not better or _refused(name, seen, labels=make("labels", better)) else better


def _refused(name: str, seen: Sequence[Observation], **parts: object) -> str:
    """Why an attack, with other parts of its own, can not be played on one of the messages."""
    attack = recipe(name, **parts)
    for observation in seen:
        try:
            attack.check(observation)
        except UsageError as error:
            return str(error)
    return ""


def _text(
    bundle: Bundle,
    path: str,
    model: str | None,
    files: Mapping[str, str | None],
    allowed: Chosen | None,
    problem: str,
    adversary: Sequence[str],
) -> str:
    lines = [
        "# The plan of a recorded federation, written by `fedglass init --from`; all keys: docs/plan.md.",
        f"title = {_quoted(Path(path).name[:200])}",
        "",
        "[recording]",
        f"bundle = {_quoted(path)}",
        *_missing(bundle, model),
        *(f"{key} = {_quoted(file)}  # {FILES[key]}" for key, file in files.items() if file is not None),
        '# rounds = [1, 2]         # by the federation\'s own numbers, or "all"; some that show everybody if left out',
        '# whose = ["name"]        # whose messages; everybody\'s if left out',
        "# training = { lr = 0.1 } # in place of what the bundle tells",
        "",
        *adversary,
        '# view = "aggregate"      # or "server"; as the federation\'s own server saw it if left out',
        "",
    ]
    if problem:
        lines += [f"# Not checked yet: {_line(problem)}"]
    names = ("inverting_gradients",) if allowed is None else allowed.attacks
    for name in names:
        other = "" if allowed is None else allowed.labels.get(name, "")
        lines += ["[[attacks]]", f"name = {_quoted(name)}", *([f"labels = {_quoted(other)}"] if other else [])]
        lines += [*(['start = "exact"'] if isinstance(recipe(name), Attack) else []), ""]
    for name, reason in (allowed.left if allowed is not None else {}).items():
        lines += [f"# left out: {name}: {_line(reason)}"]
    lines += ["", "[gate]", 'metric = "psnr"', "threshold = 20.0", ""]
    return "\n".join(lines)


def _adversary(together: bool, public: str | None) -> list[str]:
    """The adversary's table, in which what is not asked for is a comment."""
    keys = {
        f"together = {_quoted('also')}       # rounds of the same data one by one, and at once": together,
        f"public = {_quoted(public or 'public/')}  # such examples that no client has, at least 200 of each class: by "
        "them the audit tells whether a message names its records": public is not None,
    }
    lines = {"[adversary]": any(keys.values()), **keys}
    return [line if used else f"# {line}" for line, used in lines.items()]


def _missing(bundle: Bundle, model: str | None) -> Iterator[str]:
    """The keys that the bundle can not fill, ready to be filled in."""
    facts = bundle.facts
    if model is not None:
        yield f"model = {_quoted(model)}"
    elif best(facts, "model") is None:
        yield '# model = "package.module:factory"  # missing: the architecture, or a name of `fedglass list models`'
    if best(facts, "shape") is None:
        yield "# shape = [3, 32, 32]     # missing: channels, height and width"
    if best(facts, "classes") is None:
        yield "# classes = 10            # missing"
    if best(facts, "whitening") is None:
        yield "# whitening = { mean = [0.5, 0.5, 0.5], std = [0.5, 0.5, 0.5] }  # missing: how pixels were normalised"


def _quoted(text: str) -> str:
    """A text of JSON is one of TOML, but for the delete character."""
    return json.dumps(text).replace("\x7f", "\\u007f")


def _line(text: str) -> str:
    """On one line, as a comment must be."""
    return "".join(c if c.isprintable() else " " for c in text)
