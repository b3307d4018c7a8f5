"""The truths beside a bundle: one folder for each client that has kept its own."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from fedglass.bundle.truths import FACTS
from fedglass.core.errors import DataError
from fedglass.rounds.truth import Truths

MOST = 10_000


def truths_beside(folder: Path, clients: Collection[str], base: int) -> Truths:
    """All truths of a folder or of the folders in it, of these clients; `base` is the number of the first round."""
    if not folder.is_dir():
        raise DataError(
            f"{folder} is no folder, expected one of truths: let the clients write theirs, or leave it out."
        )
    try:
        # Asked one by one: a pattern would pass over what may not be read.
        within = [] if (folder / FACTS).exists() else sorted(folder.iterdir())[: MOST + 1]
        places = [place for place in within or [folder] if (place / FACTS).exists()]
    except OSError as error:
        raise DataError(
            f"Cannot read {error.filename}: {error.strerror}; only the client that kept it may, and scores its own "
            "audit: leave it out, or ask for a copy."
        ) from error
    if not places or len(places) > MOST:
        raise DataError(f"{folder} holds {len(places)} truths, expected 1 to {MOST}: name the folder of a recording.")
    found = [Truths.load(place) for place in places]
    names = [name for own in found for name in own.examples]
    odd = next((name for name in names if name not in clients or names.count(name) > 1), None)
    if odd is not None:
        raise DataError(
            f"{folder}: the truth of {odd!r} is there twice, or it is none of the recorded clients "
            f"({', '.join(sorted(clients)[:5])}): name the truths of this recording."
        )
    return Truths(
        {name: examples for own in found for name, examples in own.examples.items()},
        {(index - base, name): told for own in found for (index, name), told in own.batch_labels.items()},
        {(index - base, name): rows for own in found for (index, name), rows in own.taken.items()},
        {(index - base, name): rows for own in found for (index, name), rows in own.order.items()},
    )
