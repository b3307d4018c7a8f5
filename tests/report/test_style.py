"""The palettes can be read: text contrasts with its ground by 4.5 to 1, as WCAG 2 asks."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

STATES = ("leak", "clear", "inconclusive", "incomplete")
PAIRS = [(ink, ground) for ink in ("ink", "muted", "accent", *STATES) for ground in ("bg", "panel")]
PAIRS += [(ink, f"{state}-bg") for state in STATES for ink in (state, "ink", "muted")]


def palettes() -> dict[str, dict[str, str]]:
    css = (files("fedglass.report") / "templates" / "style.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", css, flags=re.DOTALL)
    found = [dict(re.findall(r"--([\w-]+): (#\w+);", block)) for block in blocks]
    return dict(zip(("light", "dark", "print"), found, strict=True))


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    r, g, b = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("name", ["light", "dark", "print"])
def test_contrast(name: str) -> None:
    palette = palettes()[name]
    for ink, ground in PAIRS:
        low, high = sorted((luminance(palette[ink]), luminance(palette[ground])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, ground)
