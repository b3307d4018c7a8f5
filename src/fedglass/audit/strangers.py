"""Are there other examples in a message than the truth has? Noise of the declared size hides them from a replay.

A replay with noise is as far from the message as the noise is long, whoever's examples are below it: a truth that is
another client's, or lacks some of what was trained on, passes. Where noise hides everything, no image fits the message
better than chance. That one does which is not the truth, while the truth does not, is told by images that share with
any others what gradients have in common: plain ones of each class, and the truth's own decoys, under its labels and
those that an attack found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from fedglass.audit.judgement import decoys
from fedglass.audit.remains import remains
from fedglass.audit.replay import Declared, Part, played

FAR = 7.0
"""Standard deviations, more than the truth needs: where that is all but seen, others that are like it may be."""
MOST_CLASSES = 16
"""Of which a plain image is tried: each is a training that is played again."""


def strangers(declared: Declared, labels: Tensor, classes: int) -> tuple[str, ...]:
    """The tensors of a message in which examples stand out that are none of the truth's; `labels` are the attack's."""
    found: list[str] = []
    for other in (*_others(declared, labels), *_of_each_class(declared, classes)):
        plain = played(other)
        found += () if plain is None else remains(declared.update, plain, far=FAR)
    return tuple(dict.fromkeys(found))


def _others(declared: Declared, labels: Tensor) -> Iterator[Declared]:
    relabelled = len(declared.parts) == 1 and labels.shape == declared.parts[0].labels.shape
    for told in [None, labels.detach().cpu()] if relabelled else [None]:
        parts = [part if told is None else replace(part, labels=told) for part in declared.parts]
        yield replace(declared, parts=tuple(replace(part, images=_grey(declared, part)) for part in parts))
        for others in zip(*(decoys(part.images) for part in parts), strict=False):
            pairs = zip(parts, others, strict=True)
            yield replace(declared, parts=tuple(replace(part, images=images) for part, images in pairs))


def _of_each_class(declared: Declared, classes: int) -> Iterator[Declared]:
    for label in range(min(classes, MOST_CLASSES)):
        parts = (
            replace(part, images=_grey(declared, part), labels=torch.full_like(part.labels, label))
            for part in declared.parts
        )
        yield replace(declared, parts=tuple(parts))


def _grey(declared: Declared, part: Part) -> Tensor:
    """The mean colour, and a little of the picture's mirror image: all-zero inputs move no weight of a first layer."""
    flat = declared.whitening.unwhiten(torch.zeros_like(part.images)).clamp(0, 1)
    return 0.9 * flat + 0.1 * part.images.flip(-1)
