"""Makes one bundle of those that a server and its clients have recorded, each in a folder of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from fedglass.bundle.check import read_bundle, same
from fedglass.bundle.facts import FactSheet, united
from fedglass.bundle.manifest import Held, sheet
from fedglass.bundle.reader import Bundle
from fedglass.bundle.round_writer import RoundWriter
from fedglass.bundle.writer import BundleWriter
from fedglass.core.errors import DataError, UsageError


def join(into: str | Path, folders: Sequence[str | Path], *, names: Mapping[str, str] | None = None) -> Bundle:
    """Read all folders with every check, and write what they hold together as one bundle; the truths stay apart.

    `names` gives clients their names in the new bundle, where recorders have called the same one differently. What
    two recorders have seen of the same message must be the same.
    """
    if not folders:
        raise UsageError("Name at least one folder of a bundle to join, got none.")
    called, place = {} if names is None else names, Path(into)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UsageError(f"{place} is there already: name a new folder for the joined bundle.")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        # What can not be joined to the end would be a bundle as well, of which nobody sees what it lacks.
        with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as beside:
            made = Path(beside) / "joined"
            writer = BundleWriter(made, writer="joined")
            for folder in folders:
                _take(writer, read_bundle(folder), called)
            made.replace(place)
    except OSError as error:
        raise UsageError(f"Cannot write to {place}: {error.strerror}; choose another folder.") from error
    return read_bundle(place)


def _take(writer: BundleWriter, bundle: Bundle, names: Mapping[str, str]) -> None:
    writer.tell(united(writer.known, bundle.facts))
    for client, told in bundle.manifest.always.items():
        name = names.get(client, client)
        writer.tell_always(name, united(writer.always(name), sheet(told)))
    for client in bundle.clients:
        writer.meet(names.get(client, client))
    for index, past in bundle.rounds.items():
        new = writer.round(index)
        if past.sent is not None and _new(bundle, past.sent, writer, new.told.sent):
            new.sent(bundle.arrays(past.sent))
        for message in past.messages:
            _take_message(new, bundle, index, message.client, names.get(message.client, message.client))
        if past.aggregated is not None and _new(bundle, past.aggregated, writer, new.told.aggregated):
            new.aggregated(bundle.arrays(past.aggregated), form=past.aggregated.form)
        new.tell(united(sheet(new.told.facts), _renamed(sheet(past.facts), names)))


def _take_message(new: RoundWriter, bundle: Bundle, index: int, client: str, name: str) -> None:
    message, writer = bundle.message(client, index), new.bundle
    assert message is not None, "it is one of the round's own"
    known = new.message(name)
    if message.sent is not None and _new(bundle, message.sent, writer, known.sent):
        new.sent(bundle.arrays(message.sent), client=name)
    if message.received is not None and _new(bundle, message.received, writer, known.received):
        new.received(name, bundle.arrays(message.received), form=message.received.form)
    if message.absent is not None and known.received is None:
        new.absent(name, message.absent)
    new.tell_client(name, united(sheet(new.message(name).facts), sheet(message.facts)))


def _renamed(told: FactSheet, names: Mapping[str, str]) -> FactSheet:
    """The names of those that the rule kept are clients' too."""
    kept = {source: [names.get(name, name) for name in clients] for source, clients in told.get("kept", {}).items()}
    return {**told, "kept": kept} if kept else told


def _new(bundle: Bundle, held: Held, writer: BundleWriter, known: Held | None) -> bool:
    """Whether it is not there yet; what is there and differs is refused."""
    if known is None:
        return True
    one, other = bundle.arrays(held), writer.arrays(known)
    if held.form != known.form or not _equal(one, other):
        raise DataError(
            f"{bundle.folder / held.file} differs from what another recorder saw of it: record clients where their "
            "messages leave, after every defence, or join without that folder."
        )
    return False


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
