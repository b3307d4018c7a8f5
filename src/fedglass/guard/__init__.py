"""The guard: a client's own check of every update before it leaves.

`fedglass.guard.flower` and `fedglass.guard.nvflare` put it into these frameworks.
"""

from fedglass.guard.guard import Guard
from fedglass.guard.report import REFUSED, GuardCounts, GuardRefusal, GuardReport, Reason

__all__ = ["REFUSED", "Guard", "GuardCounts", "GuardRefusal", "GuardReport", "Reason"]
