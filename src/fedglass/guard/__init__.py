"""A client's own check of what leaves it. `fedglass.guard.flower` and `.nvflare` put it into these frameworks."""

from fedglass.guard.guard import Guard
from fedglass.guard.report import REFUSED, Counts, GuardRefusal, GuardReport, Reason

__all__ = ["REFUSED", "Counts", "Guard", "GuardRefusal", "GuardReport", "Reason"]
