"""The reading of a metric's figures: their unit, and which end of them means that more was recovered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedglass.core.errors import UsageError
from fedglass.core.registry import find


@dataclass(frozen=True)
class Scale:
    """A metric's title, unit and digits, the end at which an image counts as recovered, and the range.

    A metric registers its scale; an audit writes the scales of its metrics into its summary, so that a report can show
    them without the package that the metric comes from.
    """

    title: str
    unit: str = ""
    digits: int = 3
    higher_leaks: bool = True
    range: tuple[float | None, float | None] = (None, None)
    """The lowest and the highest value; None where there is no such end."""
    sure: tuple[float, float] | None = None
    """Certainly not recovered, certainly recovered: between the two, or without them, the metric has no say."""
    exact: float | None = None
    """The value of images that are the same for all purposes, which is shown as `at least` it."""

    def beyond(self, value: float, threshold: float) -> bool:
        """Return whether the value lies strictly on the leaking side of the threshold."""
        return value > threshold if self.higher_leaks else value < threshold

    def best(self, values: Iterable[float]) -> float:
        """The value of the image that leaked most."""
        return max(values) if self.higher_leaks else min(values)

    def can_be_crossed(self, threshold: float) -> bool:
        """Return whether the threshold lies in the range, and some value beyond it."""
        low, high = self.range
        inside = (low is None or low <= threshold) and (high is None or threshold <= high)
        return inside and threshold != (high if self.higher_leaks else low)

    def measure(self, number: str) -> str:
        """A number with its unit."""
        return f"{number} {self.unit}" if self.unit else number

    def show(self, value: float | None) -> str:
        """The value in words, with its unit.

        >>> decibels = Scale("PSNR", "dB", 1, exact=100.0)
        >>> decibels.show(31.24), decibels.show(100.0), decibels.show(None), Scale("SSIM", digits=2).show(0.5)
        ('31.2 dB', 'at least 100 dB', 'n/a', '0.50')
        """
        if value is None:
            return "n/a"
        if self.exact is not None and (value == self.exact or self.beyond(value, self.exact)):
            return f"at {'least' if self.higher_leaks else 'most'} {self.measure(f'{self.exact:g}')}"
        return self.measure(f"{value:.{self.digits}f}")

    def range_in_words(self) -> str:
        """The range as an error message says it.

        >>> Scale("SSIM", range=(-1.0, 1.0)).range_in_words(), Scale("RMSE", range=(0.0, None)).range_in_words()
        ('lie between -1 and 1', 'be at least 0')
        """
        low, high = self.range
        if low is not None and high is not None:
            return f"lie between {low:g} and {high:g}"
        if low is not None:
            return f"be at least {low:g}"
        return "be a number" if high is None else f"be at most {high:g}"


def scale_of(metric: str) -> Scale:
    """The scale of the metric of that name, which is imported for it.

    >>> scale_of("lpips").higher_leaks
    False
    """
    entry = find("metrics", metric)
    scale = getattr(entry.value, "scale", None)
    if not isinstance(scale, Scale):
        raise not_a_metric(metric, entry.value)
    return scale


def not_a_metric(name: str, value: object) -> UsageError:
    """Return the error for a name that leads to something else."""
    return UsageError(
        f"The metric {name!r} is {type(value).__name__}, expected a fedglass.Metric: wrap the function "
        "in one, with its scale."
    )
