"""Write docs/plan.md from the schema of a plan."""

from __future__ import annotations

from pathlib import Path

from fedglass.plan.reference import reference

if __name__ == "__main__":
    (Path(__file__).resolve().parents[1] / "docs" / "plan.md").write_text(reference())
