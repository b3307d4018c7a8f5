"""Writes one round of a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedglass.bundle.arrays import Arrays, Form
from fedglass.bundle.facts import OF_CLIENT, OF_ROUND, FactSheet, Source, merged
from fedglass.bundle.manifest import Held, MessageFacts, RoundFacts, sheet
from fedglass.core.errors import UsageError

if TYPE_CHECKING:
    from fedglass.bundle.writer import BundleWriter


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
            self._write_message(client, received=held, facts=merged(sheet(self.message(client).facts), told))

    def aggregated(self, arrays: Arrays, *, form: Form = "state", kept: list[str] | None = None) -> None:
        """What the rule made of the messages, and whose of them got through where it tells."""
        with self.bundle.alone():
            self._check_new(self.told.aggregated, "the aggregate")
            held = self.bundle.store(arrays, f"round-{self.index:05}-aggregated.safetensors", form)
            told = OF_ROUND.told({"kept": kept}, "read")
            self._write(aggregated=held, facts=merged(sheet(self.told.facts), told))

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
            self._write(facts=merged(sheet(self.told.facts), told))

    def tell_client(self, client: str, told: FactSheet) -> None:
        """Tell of a client in this round, with the source of each fact."""
        with self.bundle.alone():
            self.bundle.meet(client)
            self._write_message(client, facts=merged(sheet(self.message(client).facts), told))

    def retell_client(self, client: str, told: FactSheet) -> None:
        """The same in place of what these sources told before, of a round that is run again: it may tell less."""
        sources = {source for values in told.values() for source in values}
        with self.bundle.alone():
            before = sheet(self.message(client).facts)
            others = {n: {s: v for s, v in values.items() if s not in sources} for n, values in before.items()}
            self.bundle.meet(client)
            self._write_message(client, facts=merged({n: values for n, values in others.items() if values}, told))

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

    def _check_new(self, held: Held | None, what: str) -> None:
        if held is not None:
            raise UsageError(
                f"Round {self.index} has {what} already, expected each once: number the rounds as they come, or write "
                "another federation to another folder."
            )
