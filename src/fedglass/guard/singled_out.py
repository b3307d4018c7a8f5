"""Does the message point at the true examples among others? That needs no attack to succeed.

Messages of decoys are computed as the declared training would have made them, under the true labels, and compared with
the message that was sent. If it told nothing of the images, the true ones would be as likely as any to fit it best:
the rank of the true ones is then uniform, and the share of false alarms is what the guard is told.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from fedglass.attack.decoys import decoy_images
from fedglass.audit.replay import Declared, message_of
from fedglass.core.rng import derive
from fedglass.guard.clock import Clock
from fedglass.guard.outbound import Outbound
from fedglass.guard.protected import Protected


def decoys_for(false_alarms: float) -> int:
    """How many are needed for a rank to be that rare.

    >>> decoys_for(0.05), decoys_for(0.01)
    (19, 99)
    """
    return math.ceil(1 / false_alarms - 1e-9) - 1


def p_value(out: Outbound, declared: Declared, protected: Protected, decoys: int, seed: int, clock: Clock) -> float:
    """The chance of so good a rank if the message told nothing of the images, labels given."""
    quiet = replace(declared, parts=tuple(replace(p, protection=protected.noiseless) for p in declared.parts))
    messages = [_message(quiet)]
    for images in decoys_of(out, decoys, seed):
        clock.check()
        messages.append(_message(replace(quiet, parts=tuple(replace(part, images=images) for part in quiet.parts))))
    sent = torch.cat([declared.update[name].double().flatten() for name in declared.before])
    return rank_of_first(sent, torch.stack(messages))


def decoys_of(out: Outbound, count: int, seed: int) -> Iterator[Tensor]:
    """Different sets of images, none of them the true one: from others of the client's own, or made up.

    Where there are few others a set would come up again, and a rank among fewer would pass for one among many.
    # (n, c, h, w) each
    """
    knows, true = out.seen().knows, {_bytes(image) for image in out.inputs}
    given = [] if out.others is None else [image for image in out.others if _bytes(image) not in true]
    others = out.colours.unwhiten(torch.stack(given)).clamp(0, 1) if given else None
    known = set[bytes]()
    for i in range(count):
        own = derive(seed, "singled out", i)
        images = decoy_images(knows, others, own)
        if _bytes(images) in known:
            images = decoy_images(knows, None, own)
        known.add(_bytes(images))
        yield images


def rank_of_first(sent: Tensor, messages: Tensor) -> float:
    """The rank of the first message by how far the one that was sent lies towards it, as a share of all.

    What all candidates have in common is taken out, and directions are of length 1: neither that the network is far
    from its goal nor that one candidate's message is longer than another's says which of them it was. Under noise
    alone each of these projections has the same distribution.  # (d,), (m, d)

    >>> rank_of_first(torch.tensor([0.0, 2.0]), torch.tensor([[0.0, 1.0], [1.0, 0.0], [-1.0, 0.0], [0.0, -1.0]]))
    0.25
    """
    sound = torch.isfinite(messages).all(dim=1)
    middle = messages[sound].mean(0)
    apart = messages - middle
    lengths = apart.norm(dim=1).clamp(min=torch.finfo(messages.dtype).tiny)
    # A decoy on which the training diverges fits nothing.
    along = torch.where(sound, apart @ (sent - middle) / lengths, -math.inf)
    return float((along >= along[0]).sum()) / len(messages)


def _message(declared: Declared) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in message_of(declared, 0)])


def _bytes(image: Tensor) -> bytes:
    return image.detach().cpu().contiguous().numpy().tobytes()
