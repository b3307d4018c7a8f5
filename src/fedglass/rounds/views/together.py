"""Several rounds of the same client, or of the same clients, looked at together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fedglass.core.errors import UsageError
from fedglass.rounds.transcript import Attendance, Transcript
from fedglass.rounds.truth import Truth, Truths
from fedglass.rounds.views.view import Brief, Knows, Named, Seen, View


@dataclass(frozen=True)
class Together:
    """Views of different rounds whose messages come from the same examples.

    What one message leaves open another may tell, and noise that is drawn anew in each round averages out. The
    earliest round is the one that stands for all where one must: its network has learned least.
    """

    views: tuple[View, ...]

    def __post_init__(self) -> None:
        rounds = [index for view in self.views for index in view.rounds()]
        if len(self.views) < 2 or len(set(rounds)) < len(rounds):
            raise UsageError(
                f"Rounds that are attacked together must be different ones, at least two, got {rounds}: give "
                "adversary.round a list of them, or leave adversary.together out."
            )

    @property
    def ordered(self) -> tuple[View, ...]:
        """The earliest first."""
        return tuple(sorted(self.views, key=lambda view: view.rounds()[-1]))

    def rounds(self) -> tuple[int, ...]:
        """The earliest last, as the one that stands for all."""
        return tuple(sorted((index for view in self.views for index in view.rounds()), reverse=True))

    def check(self, attendance: Attendance) -> None:
        for view in self.views:
            view.check(attendance)

    def see(self, transcript: Transcript, knows: Knows, truths: Truths | None) -> Seen:
        earliest, *later = self.ordered
        first, *rest = (view.see(transcript, knows, truths) for view in (earliest, *later))
        for view, seen in zip(later, rest, strict=True):
            _check_same(first, seen, earliest, view, truths)
        return replace(first, observation=replace(first.observation, also=tuple(s.observation for s in rest)))

    def describe(self) -> str:
        counted = ", ".join(str(index + 1) for index in reversed(self.rounds()))
        return f"{self.ordered[0].describe()}, and the same of rounds {counted} together"

    def brief(self) -> Brief:
        first = self.ordered[0]
        short = first.brief() if isinstance(first, Named) else Brief("server", first.describe())
        return Brief(short.standpoint, f"{short.name}, {len(self.views)} rounds together")


def _check_same(first: Seen, other: Seen, earliest: View, later: View, truths: Truths | None) -> None:
    """Refuse rounds behind which are other people or, as far as anybody knows, other examples."""
    if first.own is not None or first.observation.own is not None:
        raise UsageError(
            'Rounds can not be attacked together by a peer: set adversary.view = "server" or "aggregate", or leave '
            "adversary.together out."
        )
    same = first.behind == other.behind and first.observation.knows.sizes == other.observation.knows.sizes
    if same and truths is not None:
        one, two = (truths.behind(s.behind, v.rounds()[-1]) for s, v in ((first, earliest), (other, later)))
        same = _equal(one, two)
    if not same:
        raise UsageError(
            f"Rounds {earliest.rounds()[-1]} and {later.rounds()[-1]} can not be attacked together: other clients or "
            "other examples are behind them. Choose rounds in which the same client trained on the same data."
        )


def _equal(one: Truth, two: Truth) -> bool:
    if one.images.shape != two.images.shape:
        return False
    return bool(torch.equal(one.images, two.images)) and bool(torch.equal(one.labels, two.labels))
