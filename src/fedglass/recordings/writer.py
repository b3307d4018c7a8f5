"""Writer of bundles: after every call the folder holds a complete bundle of what was recorded so far.

Tensors are written first, then the round's own JSON under a new name, then the manifest that names both. Each file is
replaced in one step, so that a crash leaves the bundle as it was before the call.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedglass import __version__
from fedglass.core.errors import FedglassError, UsageError
from fedglass.core.files import make_folder, write_atomic
from fedglass.recordings.facts import INCOMPLETE, OF_CLIENT, OF_FEDERATION, OF_ROUND, FactSheet, Source, overlay
from fedglass.recordings.format import (
    MANIFEST,
    Arrays,
    FileRef,
    Form,
    Manifest,
    MessageFacts,
    RoundFacts,
    RoundRef,
    as_tensors,
    lock_folder,
    read_at_most,
    signed,
    tensor_file,
    writing_to,
)
from fedglass.recordings.reader import MOST_JSON_BYTES, read_index, read_tensors
from fedglass.recordings.truth_files import check_examples, write_client_truth

TRUTH = "-truth"
"""The end of the name of the folder next to a bundle that holds the clients' private examples."""


@dataclass(frozen=True)
class RoundWriter:
    """Writer of one round of a bundle."""

    bundle: BundleWriter
    index: int

    def sent(self, arrays: Arrays, *, client: str | None = None) -> None:
        """Record the global model that the clients start from; with `client`, a model that only this client got."""
        with self.bundle.exclusive():
            if client is None:
                self._check_new(self.state.sent, "the model that was sent")
                self._write(sent=self._store(arrays, "sent", "state"))
                return
            position = self.bundle.position_of(client)
            self._check_new(self.message(client).sent, f"the model that was sent to {client!r}")
            self._write_message(client, sent=self._store(arrays, f"sent-{position:05}", "state"))

    def received(
        self,
        client: str,
        arrays: Arrays,
        *,
        form: Form = "state",
        examples: int | tuple[int, int] | str | None = None,
        config: Mapping[str, Any] | None = None,
        facts: Mapping[str, Any] | None = None,
        source: Source = "read",
    ) -> None:
        """Record a client's reply: its whole state, or with `form="update"` its difference to the global model.

        Args:
            examples: The number that the client trained on, a range, or "unknown".
            config: The settings that the server sent to the client.
            facts: Further facts about the client in this round.
        """
        with self.bundle.exclusive():
            position = self.bundle.position_of(client)
            self.check_new_message(client)
            sheet_of_reply = OF_CLIENT.sheet({**(facts or {}), "examples": examples, "config": config}, source)
            ref = self._store(arrays, f"client-{position:05}", form)
            self._write_message(client, sheet_of_reply, received=ref)

    def aggregated(self, arrays: Arrays, *, form: Form = "state", kept: list[str] | None = None) -> None:
        """Record the result of the aggregation rule; `kept` are the clients that the rule accepted, if it says so."""
        with self.bundle.exclusive():
            self._check_new(self.state.aggregated, "the aggregate")
            ref = self._store(arrays, "aggregated", form)
            accepted = OF_ROUND.sheet({"kept": kept}, "read")
            self._write(aggregated=ref, facts=overlay(self.state.facts, accepted))

    def absent(self, client: str, reason: str = "") -> None:
        """Record that a client was called and sent nothing, or an error."""
        with self.bundle.exclusive():
            self._write_message(client, absent=str(reason)[:2000])

    def not_recorded(self, client: str, reason: str) -> None:
        """Record that a client sent something that could not be stored, and may leak."""
        self.add_client_facts(client, OF_CLIENT.sheet({"x-unseen": reason[:2000]}, "read"))

    def facts(self, facts: Mapping[str, Any], *, source: Source = "declared") -> None:
        """Record facts of this round: rule, kept, or a name that begins with `x-`."""
        self.add_facts(OF_ROUND.sheet(facts, source))

    def add_facts(self, facts: FactSheet) -> None:
        """Record facts of this round with their sources."""
        with self.bundle.exclusive():
            self._write(facts=overlay(self.state.facts, facts))

    def add_client_facts(self, client: str, facts: FactSheet) -> None:
        """Record facts of a client in this round with their sources."""
        with self.bundle.exclusive():
            self._write_message(client, facts)

    def replace_client_facts(self, client: str, facts: FactSheet) -> None:
        """Replace the facts of these sources about a client: a round that is run again may have fewer."""
        with self.bundle.exclusive():
            self._write_message(client, facts, without={source for values in facts.values() for source in values})

    @property
    def state(self) -> RoundFacts:
        """The round as it was recorded so far."""
        return self.bundle.rounds.get(self.index, RoundFacts(index=self.index))

    def message(self, client: str) -> MessageFacts:
        """Return the entry of a client as it was recorded so far."""
        entry = next((message for message in self.state.messages if message.client == client), None)
        return MessageFacts(client=client) if entry is None else entry

    def check_new_message(self, client: str) -> None:
        """Refuse a message that was recorded already, before a client trains for it."""
        self._check_new(self.message(client).received, f"the message of {client!r}")

    def _store(self, arrays: Arrays, name: str, form: Form) -> FileRef:
        """Write arrays to a file of the round, which the manifest does not name yet."""
        data, ref = tensor_file(as_tensors(arrays), f"round-{self.index:05}-{name}.safetensors", form)
        self.bundle.put(ref.file, data)
        return ref

    def _write_message(
        self, client: str, facts: FactSheet | None = None, *, without: Collection[Source] = (), **changed: Any
    ) -> None:
        """Change the entry of a client, and add facts to those that it has from other sources than `without`."""
        self.bundle.position_of(client)  # refuses what is not a name
        message = self.message(client)
        before = {n: {s: v for s, v in values.items() if s not in without} for n, values in message.facts.items()}
        combined = overlay({name: values for name, values in before.items() if values}, facts or {})
        entries = {message.client: message for message in self.state.messages}
        entries[client] = message.model_copy(update={"facts": combined, **changed})
        self._write(messages=list(entries.values()))

    def _write(self, **changed: Any) -> None:
        self.bundle.write_round(self.state.model_copy(update=changed))

    def _check_new(self, ref: FileRef | None, what: str) -> None:
        if ref is not None:
            raise UsageError(
                f"Round {self.index} has {what} already, expected each once: number the rounds as they come, or write "
                "another federation to another folder."
            )


class BundleWriter:
    """Writer of one recorder's bundle.

    A server and its clients write to separate folders, and `fedglass.recordings.join` makes one bundle of them. Several
    writers, in threads or processes, can share a folder: each call waits for the others and adds to what they wrote.

    >>> import tempfile, torch
    >>> folder = tempfile.mkdtemp() + "/bundle"
    >>> writer = BundleWriter(folder, writer="server", facts={"rule": {"name": "mean"}})
    >>> first = writer.round(1)
    >>> first.sent({"weight": torch.zeros(2)})
    >>> first.received("hospital-a", {"weight": torch.ones(2)}, examples=8, config={"lr": 0.1})
    >>> first.aggregated({"weight": torch.ones(2)})
    >>> writer.training("hospital-a", 1, {"optimiser": "SGD", "lr": 0.1, "steps": 1}, source="read")
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        writer: str = "recorder",
        facts: Mapping[str, Any] | None = None,
        source: Source = "declared",
        resume: bool = False,
        truth: str | Path | None = None,
    ) -> None:
        """Open a new folder, or with `resume` continue a bundle, as a client does that was restarted.

        Args:
            writer: The recorder's name, such as `server` or that of a client.
            facts: Facts of the whole federation, from this source.
            truth: The folder of private examples, which is not part of the bundle; `<folder>-truth` by default.
        """
        self.folder = Path(folder)
        self._truth = self.folder.with_name(self.folder.name + TRUTH) if truth is None else Path(truth)
        self._lock, self._depth, self._written = threading.RLock(), 0, b""
        self.manifest, self.rounds = Manifest(fedglass=__version__, writer=writer), dict[int, RoundFacts]()
        with writing_to(self.folder):
            make_folder(self.folder)
        if (self.folder / MANIFEST).exists() and not resume:
            raise UsageError(
                f"{self.folder} holds a bundle already: choose another folder, or resume=True to continue it."
            )
        self.facts({} if facts is None else facts, source=source)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the folder: inside, no other writer changes it, and everything that others wrote is known."""
        with self._lock:
            self._depth += 1
            try:
                if self._depth > 1:
                    yield
                    return
                with lock_folder(self.folder):
                    path = self.folder / MANIFEST
                    if path.exists() and read_at_most(path, most=MOST_JSON_BYTES) != self._written:
                        self.manifest, self.rounds = read_index(self.folder)
                    yield
            finally:
                self._depth -= 1

    def facts(self, facts: Mapping[str, Any], *, source: Source = "declared") -> None:
        """Record facts of the whole federation: model, shape, classes, whitening, rule, defences, sees, ..."""
        self.add_facts(OF_FEDERATION.sheet(facts, source))

    def mark_incomplete(self) -> None:
        """Record, if possible, that something could not be stored: a reader cannot see what a bundle lacks."""
        with suppress(OSError, FedglassError):
            self.facts({INCOMPLETE: True}, source="read")

    def add_facts(self, facts: FactSheet) -> None:
        """Record facts of the whole federation with their sources."""
        with self.exclusive():
            combined = overlay(self.manifest.facts, facts)
            # A writer that continues a bundle and has nothing new needs no space on the disk.
            if combined != self.manifest.facts or not (self.folder / MANIFEST).exists():
                self._write_manifest(facts=combined)

    def round(self, index: int) -> RoundWriter:
        """Return the writer of a round, by the federation's own number."""
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < 10**9:
            raise UsageError(f"A round's number must be a whole number from 0 on, got {index!r}.")
        return RoundWriter(self, index)

    def training(
        self, client: str, round: int | None, facts: Mapping[str, Any], *, source: Source = "declared"
    ) -> None:
        """Record how a client trained in a round; `None` means every round."""
        sheet_of_client = OF_CLIENT.sheet(facts, source)
        if round is not None:
            self.round(round).add_client_facts(client, sheet_of_client)
        else:
            self.add_constant_facts(client, sheet_of_client)

    def add_constant_facts(self, client: str, facts: FactSheet) -> None:
        """Record facts of a client that hold in every round, with their sources."""
        with self.exclusive():
            self.position_of(client)
            combined = overlay(self.manifest.always.get(client, {}), facts)
            self._write_manifest(always={**self.manifest.always, client: combined})

    def truth(
        self,
        client: str,
        images: Any,
        labels: Any,
        *,
        batches: Mapping[int, Sequence[Sequence[int]]] | None = None,
    ) -> Path:
        """Store a client's own examples for its own audit, next to the bundle in a folder of the client's.

        Args:
            images: (n, c, h, w), pixels in [0, 1] before any normalisation, or bytes.
            labels: (n,), whole numbers.
            batches: By round, the rows that each local step took, in order: with them a training can be run again
                exactly. A later call replaces all.
        """
        with self.exclusive():
            position = self.position_of(client)
            self._write_manifest()
            folder = self._truth / f"client-{position:05}"
            for place in (self._truth, folder):
                with writing_to(place):
                    make_folder(place)
            write_client_truth(folder, client, check_examples(client, images, labels), batches or {})
        return folder

    def arrays(self, ref: FileRef) -> dict[str, Tensor]:
        """Return the arrays of a file of this bundle."""
        return read_tensors(self.folder, ref)

    def position_of(self, client: str) -> int:
        """Return a client's position, which is in the names of its files; a new client comes last."""
        if not isinstance(client, str) or not 1 <= len(client) <= 200:
            raise UsageError(f"A client's name must be a text of 1 to 200 characters, got {client!r}.")
        if client not in self.manifest.clients:
            self.manifest = self.manifest.model_copy(update={"clients": [*self.manifest.clients, client]})
        return self.manifest.clients.index(client)

    def write_round(self, facts: RoundFacts) -> None:
        """Write a round under a name that no manifest has yet: the old file stays until the manifest names the new."""
        refs = {ref.index: ref for ref in self.manifest.rounds}
        old = refs.get(facts.index)
        version = 0 if old is None else int(old.file.rpartition("-")[2].removesuffix(".json")) + 1
        data = (facts.model_dump_json(indent=1) + "\n").encode()
        name = f"round-{facts.index:05}-{version:04}.json"
        self.put(name, data)
        digest = hashlib.sha256(data).hexdigest()
        refs[facts.index] = RoundRef(index=facts.index, file=name, sha256=digest, bytes=len(data))
        self._write_manifest(rounds=sorted(refs.values(), key=lambda ref: ref.index))
        self.rounds[facts.index] = facts
        if old is not None:
            (self.folder / old.file).unlink(missing_ok=True)

    def _write_manifest(self, **changed: Any) -> None:
        self.manifest = self.manifest.model_copy(update=changed)
        data = signed(self.manifest).encode()
        self.put(MANIFEST, data)
        self._written = data

    def put(self, name: str, content: bytes) -> None:
        """Write a file of the bundle in one step."""
        with writing_to(self.folder, "make room, or choose another folder"):
            write_atomic(self.folder / name, content)
