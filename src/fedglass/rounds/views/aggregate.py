"""A server behind secure aggregation."""

from __future__ import annotations

from dataclasses import dataclass

from fedglass.core.errors import UsageError
from fedglass.rounds.transcript import Attendance, Transcript
from fedglass.rounds.truth import Truths
from fedglass.rounds.views.view import Brief, Knows, Look, Seen, check_one_start


@dataclass(frozen=True)
class AggregateView:
    """Sees only the aggregate of all clients of a round, behind which are those that the rule let through."""

    round: int = 0

    def rounds(self) -> tuple[int, ...]:
        return (self.round,)

    def check(self, attendance: Attendance) -> None:
        attendance.present(self.round)

    def see(self, transcript: Transcript, knows: Knows, truths: Truths | None) -> Seen:
        self.check(transcript.attendance)
        past = transcript.rounds[self.round]
        behind = tuple(p for p in past.participants if p.name in past.kept)
        if not behind:
            raise UsageError(f"No update of round {self.round} got through the rule: choose another round.")
        check_one_start(past, self.round, past.kept)
        look = Look(transcript, self.round, behind, past.step, past.buffers_after)
        return Seen(look.observation(knows, truths), tuple(p.name for p in behind))

    def describe(self) -> str:
        return f"the server sees only the clients' aggregate of round {self.round + 1} (secure aggregation)"

    def brief(self) -> Brief:
        return Brief("aggregate", "aggregate")
