"""Writes a bundle while a federation runs: after every call the folder holds a whole bundle of what was said so far.

Tensors are written first, then the round's own JSON under a new name, then the manifest that names both: each by a
temporary file and a rename, so that a crash leaves the bundle as it was before the call.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedglass import __version__
from fedglass.core.errors import FedglassError, UsageError
from fedglass.core.files import make_folder, write_atomic
from fedglass.recordings.files import Arrays, Form, as_tensors, lock_folder, read_at_most, to_safetensors
from fedglass.recordings.format import (
    INCOMPLETE,
    MANIFEST,
    OF_CLIENT,
    OF_FEDERATION,
    OF_ROUND,
    FactSheet,
    FileRef,
    Manifest,
    MessageFacts,
    RoundFacts,
    RoundRef,
    Source,
    overlay,
    sheet,
    signed,
)
from fedglass.recordings.reader import MOST_JSON_BYTES, read_index, read_tensors
from fedglass.recordings.truth_files import check_examples, write_client_truth

# Writes one round of a bundle.


@dataclass(frozen=True)
class RoundWriter:
    """One round of a bundle."""

    bundle: BundleWriter
    index: int

    def sent(self, arrays: Arrays, *, client: str | None = None) -> None:
        """The global model that the clients start from; `client` where one was sent another than the rest."""
        with self.bundle.alone():
            if client is None:
                self._check_new(self.told.sent, "the model that was sent")
                held = self.bundle.store(arrays, f"round-{self.index:05}-sent.safetensors", "state")
                self._write(sent=held)
                return
            position = self.bundle.meet(client)
            self._check_new(self.message(client).sent, f"the model that was sent to {client!r}")
            held = self.bundle.store(arrays, f"round-{self.index:05}-sent-{position:05}.safetensors", "state")
            self._write_message(client, sent=held)

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
        """What a client sent back: its whole state, or with `form="update"` what it adds to the global one.

        `examples` is the number that it trained on, a range, or "unknown"; `config` is what it was told to do.
        """
        with self.bundle.alone():
            position = self.bundle.meet(client)
            self.check_awaited(client)
            told = OF_CLIENT.told({**(facts or {}), "examples": examples, "config": config}, source)
            name = f"round-{self.index:05}-client-{position:05}.safetensors"
            held = self.bundle.store(arrays, name, form)
            self._write_message(client, received=held, facts=overlay(sheet(self.message(client).facts), told))

    def aggregated(self, arrays: Arrays, *, form: Form = "state", kept: list[str] | None = None) -> None:
        """What the rule made of the messages, and whose of them got through where it tells."""
        with self.bundle.alone():
            self._check_new(self.told.aggregated, "the aggregate")
            held = self.bundle.store(arrays, f"round-{self.index:05}-aggregated.safetensors", form)
            told = OF_ROUND.told({"kept": kept}, "read")
            self._write(aggregated=held, facts=overlay(sheet(self.told.facts), told))

    def absent(self, client: str, reason: str = "") -> None:
        """A client that was called and sent nothing, or an error."""
        with self.bundle.alone():
            self.bundle.meet(client)
            self._write_message(client, absent=str(reason)[:2000])

    def unseen(self, client: str, reason: str) -> None:
        """A client that sent something which could not be taken down: nobody can say that it tells nothing."""
        self.tell_client(client, OF_CLIENT.told({"x-unseen": reason[:2000]}, "read"))

    def facts(self, facts: Mapping[str, Any], *, source: Source = "declared") -> None:
        """Tell of this round alone: rule, kept, or a name that begins with `x-`."""
        self.tell(OF_ROUND.told(facts, source))

    def tell(self, told: FactSheet) -> None:
        """The same, with the source of each fact."""
        with self.bundle.alone():
            self._write(facts=overlay(sheet(self.told.facts), told))

    def tell_client(self, client: str, told: FactSheet) -> None:
        """Tell of a client in this round, with the source of each fact."""
        with self.bundle.alone():
            self.bundle.meet(client)
            self._write_message(client, facts=overlay(sheet(self.message(client).facts), told))

    def retell_client(self, client: str, told: FactSheet) -> None:
        """The same in place of what these sources told before, of a round that is run again: it may tell less."""
        sources = {source for values in told.values() for source in values}
        with self.bundle.alone():
            before = sheet(self.message(client).facts)
            others = {n: {s: v for s, v in values.items() if s not in sources} for n, values in before.items()}
            self.bundle.meet(client)
            self._write_message(client, facts=overlay({n: values for n, values in others.items() if values}, told))

    @property
    def told(self) -> RoundFacts:
        """What the bundle holds of this round so far."""
        return self.bundle.told_of(self.index)

    def message(self, client: str) -> MessageFacts:
        """What it holds of a client in it."""
        found = next((each for each in self.told.messages if each.client == client), None)
        return MessageFacts(client=client) if found is None else found

    def check_awaited(self, client: str) -> None:
        """Refuse a message that is there already, before somebody trains for it."""
        self._check_new(self.message(client).received, f"the message of {client!r}")

    def _write_message(self, client: str, **changed: Any) -> None:
        new = self.message(client).model_copy(update=changed)
        known = any(each.client == client for each in self.told.messages)
        kept = [new if each.client == client else each for each in self.told.messages]
        self._write(messages=kept if known else [*kept, new])

    def _write(self, **changed: Any) -> None:
        self.bundle.write_round(self.told.model_copy(update=changed))

    def _check_new(self, held: FileRef | None, what: str) -> None:
        if held is not None:
            raise UsageError(
                f"Round {self.index} has {what} already, expected each once: number the rounds as they come, or write "
                "another federation to another folder."
            )


TRUTH = "-truth"
"""What the name of the folder beside a bundle ends with that holds the private side."""


class BundleWriter:
    """One recorder's bundle.

    A server and its clients write to folders of their own, which `fedglass.recordings.join` makes one of. Where several
    writers have one folder, in threads or processes, each call waits for the others and adds to what they wrote.

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
        """`facts` are the federation's; `resume` continues a bundle that is there, as a restarted client must.

        `truth` is where the private side goes, which is no part of the bundle: by default `<folder>-truth`.
        """
        self.folder = Path(folder)
        self._truth = self.folder.with_name(self.folder.name + TRUTH) if truth is None else Path(truth)
        self._lock, self._depth, self._written = threading.RLock(), 0, b""
        self._manifest, self._rounds = Manifest(fedglass=__version__, writer=writer), dict[int, RoundFacts]()
        self._made_folder(self.folder)
        if (self.folder / MANIFEST).exists() and not resume:
            raise UsageError(
                f"{self.folder} holds a bundle already: choose another folder, or resume=True to continue it."
            )
        self.facts({} if facts is None else facts, source=source)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, nobody else writes to the folder, and all that others have written to it is known."""
        with self._lock:
            self._depth += 1
            try:
                if self._depth > 1:
                    yield
                    return
                with lock_folder(self.folder):
                    self._catch_up()
                    yield
            finally:
                self._depth -= 1

    def _catch_up(self) -> None:
        path = self.folder / MANIFEST
        if path.exists() and read_at_most(path, most=MOST_JSON_BYTES) != self._written:
            self._manifest, self._rounds = read_index(self.folder)

    def facts(self, facts: Mapping[str, Any], *, source: Source = "declared") -> None:
        """Tell of the whole federation: model, shape, classes, whitening, rule, defences, sees, ..."""
        self.tell(OF_FEDERATION.told(facts, source))

    def lost(self) -> None:
        """Tell, if that can be written, that something could not: who reads the bundle can not see what it lacks."""
        with suppress(OSError, FedglassError):
            self.facts({INCOMPLETE: True}, source="read")

    def tell(self, told: FactSheet) -> None:
        """The same, with the source of each fact."""
        with self.alone():
            facts = overlay(sheet(self._manifest.facts), told)
            # Who continues a bundle and has nothing new to tell needs no room for it.
            if facts != sheet(self._manifest.facts) or not (self.folder / MANIFEST).exists():
                self._write_manifest(facts=facts)

    def round(self, index: int) -> RoundWriter:
        """The writer of a round, by the number that the federation gives it."""
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < 10**9:
            raise UsageError(f"A round's number must be a whole number from 0 on, got {index!r}.")
        return RoundWriter(self, index)

    def training(
        self, client: str, round: int | None, facts: Mapping[str, Any], *, source: Source = "declared"
    ) -> None:
        """Tell how a client trained in a round; `None` where it holds for every round."""
        told = OF_CLIENT.told(facts, source)
        if round is not None:
            self.round(round).tell_client(client, told)
        else:
            self.tell_always(client, told)

    def tell_always(self, client: str, told: FactSheet) -> None:
        """Tell of a client what holds in every round, with the source of each fact."""
        with self.alone():
            self.meet(client)
            always = {**self._manifest.always, client: overlay(sheet(self._manifest.always.get(client, {})), told)}
            self._write_manifest(always=always)

    def truth(
        self,
        client: str,
        images: Any,
        labels: Any,
        *,
        batches: Mapping[int, Sequence[Sequence[int]]] | None = None,
    ) -> Path:
        """Keep a client's own examples, for its own audit: beside the bundle, in a folder of the client's.

        Images are (n, c, h, w), pixels in [0, 1] before any normalisation, or bytes. `batches` tells by round which of
        them each local step took, in order: with it a training can be replayed exactly. A later call replaces all.
        """
        with self.alone():
            position = self.meet(client)
            self._write_manifest()
            folder = self._truth / f"client-{position:05}"
            self._made_folder(self._truth)
            self._made_folder(folder)
            write_client_truth(folder, client, check_examples(client, images, labels), batches or {})
        return folder

    def _made_folder(self, folder: Path) -> None:
        try:
            make_folder(folder)
        except OSError as error:
            raise UsageError(f"Cannot write to {folder}: {error.strerror}; choose another folder.") from error

    @property
    def known(self) -> FactSheet:
        """What was told of the federation so far."""
        return sheet(self._manifest.facts)

    def always(self, client: str) -> FactSheet:
        """What was told of a client in every round."""
        return sheet(self._manifest.always.get(client, {}))

    def arrays(self, held: FileRef) -> dict[str, Tensor]:
        """What was written to a file."""
        return read_tensors(self.folder, held)

    def meet(self, client: str) -> int:
        """A client's position, which is in the names of its files; a new one comes last."""
        if not isinstance(client, str) or not 1 <= len(client) <= 200:
            raise UsageError(f"A client's name must be a text of 1 to 200 characters, got {client!r}.")
        if client not in self._manifest.clients:
            self._manifest = self._manifest.model_copy(update={"clients": [*self._manifest.clients, client]})
        return self._manifest.clients.index(client)

    def told_of(self, index: int) -> RoundFacts:
        """What it holds of a round so far."""
        return self._rounds.get(index, RoundFacts(index=index))

    def store(self, arrays: Arrays, file: str, form: Form) -> FileRef:
        """Write arrays to a file of that name, which the manifest does not name yet."""
        data, held = to_safetensors(as_tensors(arrays), file, form)
        self._put(file, data)
        return held

    def write_round(self, told: RoundFacts) -> None:
        """Under a name that no manifest has yet: the old one stays whole until the new one is named."""
        old = next((each for each in self._manifest.rounds if each.index == told.index), None)
        turn = 0 if old is None else int(old.file.rpartition("-")[2].removesuffix(".json")) + 1
        data = (told.model_dump_json(indent=1) + "\n").encode()
        name = f"round-{told.index:05}-{turn:04}.json"
        self._put(name, data)
        new = RoundRef(index=told.index, file=name, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
        others = [each for each in self._manifest.rounds if each.index != told.index]
        self._write_manifest(rounds=sorted([*others, new], key=lambda each: each.index))
        self._rounds[told.index] = told
        if old is not None:
            (self.folder / old.file).unlink(missing_ok=True)

    def _write_manifest(self, **changed: Any) -> None:
        self._manifest = self._manifest.model_copy(update=changed)
        data = signed(self._manifest).encode()
        self._put(MANIFEST, data)
        self._written = data

    def _put(self, name: str, content: bytes) -> None:
        try:
            write_atomic(self.folder / name, content)
        except OSError as error:
            raise UsageError(
                f"Cannot write to {self.folder}: {error.strerror}; make room, or choose another folder."
            ) from error
