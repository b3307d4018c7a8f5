"""The data that a plan gives the adversary beside the message."""

from __future__ import annotations

from pathlib import Path

from fedglass.audit.public import Public
from fedglass.core.errors import DataError
from fedglass.data.catalogue import load, located
from fedglass.plan.schema import AdversaryTable


def public_of(adversary: AdversaryTable, shape: tuple[int, int, int], folder: Path) -> Public | None:
    """The set that `adversary.public` names, in the shape of the private images; None where it names none."""
    if adversary.public is None:
        return None
    channels, height, width = shape
    data = load(located(adversary.public, folder))
    if data.shape[0] != channels:
        raise DataError(
            f"adversary.public: expected images of {channels} channel(s) as the private ones have, got {data.shape[0]} "
            f"in {data.name}: choose another set, or leave it out."
        )
    if data.shape != shape:
        data = data.resized((height, width))
    return Public.given(data.images, data.labels)
