"""A bundle that is opened, and what must be known of it before its model can be built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fedglass.bundle.check import read_bundle
from fedglass.bundle.facts import best
from fedglass.bundle.reader import Bundle
from fedglass.core.errors import DataError, UsageError
from fedglass.core.registry import BUILT_IN, origin_of
from fedglass.core.types import Whitening
from fedglass.models.catalogue import build
from fedglass.plan.bundle_table import BundleTable
from fedglass.plan.bundle_told import base_of, no_images
from fedglass.rounds.private import truths_beside
from fedglass.rounds.truth import Truths


@dataclass(frozen=True, eq=False)
class Settled:
    """What must be known of a bundle before its model can be built."""

    model: str
    shape: tuple[int, int, int]
    classes: int
    whitening: Whitening

    def built(self) -> nn.Module:
        return build(self.model, shape=self.shape, classes=self.classes)


def opened(table: BundleTable, folder: Path) -> tuple[Bundle, Truths | None]:
    """The bundle of a table, every file of it checked, and the truths that the table names."""
    bundle = read_bundle(folder / Path(table.bundle).expanduser())
    if not bundle.rounds:
        raise DataError(f"{bundle.folder} holds no round yet: record one first.")
    if table.truth is None:
        return bundle, None
    return bundle, truths_beside(folder / Path(table.truth).expanduser(), bundle.clients, base_of(bundle))


def settled_facts(table: BundleTable, bundle: Bundle, truths: Truths | None) -> Settled:
    """What the plan says, or else what the bundle tells; what neither does is asked for by its key."""
    facts, own = bundle.facts, next(iter(truths.examples.values()), None) if truths is not None else None
    shape = table.shape or best(facts, "shape") or (None if own is None else list(own.images.shape[1:]))
    told = best(facts, "whitening")
    whitening = table.whitening.value() if table.whitening is not None else _whitening(told)
    classes = table.classes or best(facts, "classes")
    missing = [
        key for key, value in {"shape": shape, "classes": classes, "whitening": whitening}.items() if value is None
    ]
    if missing:
        raise UsageError(("shape" in missing and no_images(bundle)) or _asked_for(bundle, missing))
    assert shape is not None, "it was asked for"
    assert classes is not None, "it was asked for"
    assert whitening is not None, "it was asked for"
    channels, height, width = shape
    if len(whitening.mean) not in (1, channels):
        raise UsageError(f"{bundle.folder}: the whitening must have one mean for each of the {channels} channels.")
    for client, kept in ({} if truths is None else truths.examples).items():
        if tuple(kept.images.shape[1:]) != (channels, height, width):
            raise DataError(
                f"recording.truth has images of shape {tuple(kept.images.shape[1:])} of {client!r}, expected "
                f"{(channels, height, width)} as {bundle.folder} tells: correct one of them."
            )
        if not (len(kept.labels) and int(kept.labels.min()) >= 0 and int(kept.labels.max()) < classes):
            raise DataError(
                f"recording.truth has labels of {client!r} that are none of the {classes} classes which "
                f"{bundle.folder} tells (0 is the first): correct one of them."
            )
    return Settled(model_of(table, bundle), (channels, height, width), classes, whitening)


def _asked_for(bundle: Bundle, missing: Sequence[str]) -> str:
    """Where what a bundle does not tell may come from: a server does not know how its clients see their images."""
    apart = bundle.manifest.writer == "server" and "shape" in missing
    return (
        f"{bundle.folder} does not tell its {', '.join(missing)}, expected in the bundle or the plan: "
        + ("put the clients' own recordings beside it with `fedglass join`, or " if apart else "")
        + f"add {', '.join(f'recording.{key}' for key in missing)} to a plan, which `fedglass init --from "
        f"{bundle.folder}` writes."
    )


def model_of(table: BundleTable, bundle: Bundle) -> str:
    """The model that the plan names, or a built-in one that the bundle names: no data file may run code."""
    if table.model is not None:
        return table.model
    told = best(bundle.facts, "model")
    if told is None:
        raise UsageError(f"{bundle.folder} does not name its model: say which with --model or recording.model.")
    if origin_of("models", told) != BUILT_IN:
        raise UsageError(
            f"{bundle.folder} names the model {told!r}, which is code that is not part of fedglass: if you trust it, "
            f"say so with --model {told}, and --code DIR for the folder that it is in, or recording.model."
        )
    return str(told)


def _whitening(told: dict[str, Any] | None) -> Whitening | None:
    return None if told is None else Whitening(tuple(told["mean"]), tuple(told["std"]))
