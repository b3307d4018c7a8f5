"""A federation played and looked at in one line."""

from __future__ import annotations

from fedglass.core.types import Observation
from fedglass.rounds.federation import Federation
from fedglass.rounds.truth import Truth
from fedglass.rounds.views.view import Knows, View


def observe(federation: Federation, view: View, knows: Knows) -> tuple[Observation, Truth]:
    """What the adversary sees of the rounds that its view asks for, and the truth behind it."""
    asked = view.rounds()
    view.check(federation.attendance(max(asked) + 1))
    transcript, truths = federation.run(max(asked) + 1, keep=asked), federation.truths(asked)
    seen = view.see(transcript, knows, truths)
    return seen.observation, truths.behind(seen.behind, max(asked), seen.own)
