"""The server that sees every client's update."""

from __future__ import annotations

from dataclasses import dataclass

from fedglass.core.errors import UsageError
from fedglass.rounds.transcript import Attendance, Transcript
from fedglass.rounds.truth import Truths
from fedglass.rounds.views.view import Brief, Knows, Look, Seen


@dataclass(frozen=True)
class ServerView:
    """The server, which sees the update of one client (by its position among the clients)."""

    client: int = 0
    round: int = 0

    def rounds(self) -> tuple[int, ...]:
        return (self.round,)

    def check(self, attendance: Attendance) -> None:
        attendance.participant(self.client, self.round)

    def see(self, transcript: Transcript, knows: Knows, truths: Truths | None) -> Seen:
        self.check(transcript.attendance)
        past, name = transcript.rounds[self.round], transcript.terms.clients[self.client]
        message = past.message(name)
        if message is None:
            raise UsageError(
                f"Round {self.round} was recorded as an aggregate only, without the update of client {self.client} "
                f'({name}): set adversary.view = "aggregate" or "peer".'
            )
        behind = tuple(p for p in past.participants if p.name == name)
        look = Look(transcript, self.round, behind, message.update, message.buffers, start=message.own)
        return Seen(look.observation(knows, truths), (name,))

    def describe(self) -> str:
        return f"the server sees the update of client {self.client} in round {self.round + 1}"

    def brief(self) -> Brief:
        return Brief("server", f"server, client {self.client}")
