"""Where metrics contradict each other about the same images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from fedglass.core.scale import Scale
from fedglass.verdict.images import Values


def _verdict(scale: Scale, value: float | None) -> bool | None:
    """Recovered, not recovered, or no say."""
    if value is None or scale.sure is None or math.isnan(value):
        return None
    no, yes = scale.sure
    if scale.beyond(value, yes):
        return True
    return None if scale.beyond(value, no) else False


def _outspoken(metrics: Iterable[str], scales: Mapping[str, Scale]) -> dict[str, Scale]:
    """The metrics that say from where on an image is recovered, and up to where it is certainly not."""
    return {name: scales[name] for name in metrics if scales[name].sure is not None}


def contradiction(metrics: Values, known: Mapping[str, Scale]) -> str | None:
    """The first image that one metric calls recovered and another certainly not."""
    scales = _outspoken(metrics, known)
    for i, values in enumerate(zip(*(metrics[name] for name in scales), strict=True)):
        said = {name: _verdict(scales[name], value) for name, value in zip(scales, values, strict=True)}
        yes = next((name for name in scales if said[name] is True), None)
        no = next((name for name in scales if said[name] is False), None)
        if yes and no:
            shown = [f"{scales[m].title} {scales[m].show(metrics[m][i])}" for m in (yes, no)]
            return f"image {i} looks recovered by {shown[0]} and not at all by {shown[1]}"
    return None


def opposite_order(metrics: Values, known: Mapping[str, Scale], least: int = 4) -> str | None:
    """A metric that ranks the images in the order opposite to the first one's; told only of `least` images or more."""
    scales = _outspoken(metrics, known)
    first, *others = scales or [""]
    for name in others:
        if min(len(metrics[first]), len(metrics[name])) >= least:
            sign = 1 if scales[name].higher_leaks == scales[first].higher_leaks else -1
            if sign * rank_correlation(metrics[first], metrics[name]) < 0:
                return f"{scales[first].title} and {scales[name].title} rank the images in opposite order"
    return None


def rank_correlation(left: Sequence[float | None], right: Sequence[float | None]) -> float:
    """Spearman's rank correlation; 0 where one side is constant.

    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 40.0, 90.0])
    1.0
    """
    known = [(x, y) for x, y in zip(left, right, strict=True) if x is not None and y is not None]
    a, b = _ranks([x for x, _ in known]), _ranks([y for _, y in known])
    mean = (len(a) - 1) / 2
    spread = math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))
    if spread == 0:
        return 0.0
    return sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True)) / spread


def _ranks(values: Sequence[float]) -> list[float]:
    """Positions in ascending order; ties share their mean position."""
    return [sum(v < x for v in values) + (sum(v == x for v in values) - 1) / 2 for x in values]
