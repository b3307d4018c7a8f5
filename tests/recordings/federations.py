"""A small federation that trains with torch alone, and a recorder beside it: what a user's own would leave on disk."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.models.catalogue import build
from fedglass.recordings import BundleWriter

State = dict[str, Tensor]
Arrays = Mapping[str, Tensor] | Sequence[Any]
SHAPE, CLASSES = (1, 12, 12), 4
TERMS: dict[str, Any] = {
    "model": "lenet",
    "shape": SHAPE,
    "classes": CLASSES,
    "whitening": {"mean": [0.5], "std": [0.3]},
    "rule": {"name": "mean"},
    "defences": [],
}


def named(state: State) -> Arrays:
    return state


@dataclass(frozen=True)
class Real:
    """Clients of unequal size, plain SGD on all examples at once, a mean weighted by examples."""

    sizes: tuple[int, ...] = (1, 2)
    rounds: int = 2
    lr: float = 0.1
    steps: int = 1
    first: int = 1
    model: Callable[[], nn.Module] = lambda: build("lenet", shape=SHAPE, classes=CLASSES)
    sends: Callable[[State], Arrays] = named
    leaves: Callable[[State, State], State] = lambda before, after: after
    form: Literal["state", "update"] = "state"

    def record(self, folder: Path, **facts: Any) -> BundleWriter:
        writer = BundleWriter(folder, writer="server", facts={**TERMS, **facts})
        model, data = self.model(), [examples(i, n) for i, n in enumerate(self.sizes)]
        state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        for index in range(self.first, self.first + self.rounds):
            turn = writer.round(index)
            turn.sent(self.sends(state))
            sent = []
            for i, (images, labels) in enumerate(data):
                after = self.leaves(state, self._trained(model, state, images, labels))
                told = after if self.form == "state" else {k: t - state[k] for k, t in after.items()}
                turn.received(f"client {i}", self.sends(told), form=self.form, examples=len(labels))
                sizes = [len(labels)] * self.steps
                read = {"optimiser": "SGD", "lr": self.lr, "steps": self.steps, "batch_sizes": sizes}
                writer.training(f"client {i}", index, read, source="read")
                sent.append(after)
            state = mean(sent, self.sizes)
            turn.aggregated(self.sends(state))
        for i, (images, labels) in enumerate(data):
            writer.truth(f"client {i}", images, labels)
        return writer

    def _trained(self, model: nn.Module, state: State, images: Tensor, labels: Tensor) -> State:
        model.load_state_dict({name: t.to(model.state_dict()[name].dtype) for name, t in state.items()})
        own = copy.deepcopy(model).train()
        optimiser = torch.optim.SGD(own.parameters(), lr=self.lr)
        for _ in range(self.steps):
            optimiser.zero_grad()
            F.cross_entropy(own((images - 0.5) / 0.3), labels).backward()
            optimiser.step()
        return {name: tensor.detach().clone() for name, tensor in own.state_dict().items()}


def examples(seed: int, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 1, 4, 4, generator=generator)
    images = F.interpolate(coarse, size=SHAPE[1:], mode="bilinear", align_corners=False)
    return images, torch.randint(CLASSES, (count,), generator=generator)


def mean(states: Sequence[State], sizes: Sequence[int]) -> State:
    """As Flower's FedAvg: whole numbers become float64."""
    total, found = sum(sizes), {}
    for name, first in states[0].items():
        whole = not first.is_floating_point()
        tensors = [state[name].double() if whole else state[name] for state in states]
        parts = [tensor * (n / total) for tensor, n in zip(tensors, sizes, strict=True)]
        found[name] = torch.stack(parts).sum(0)
    return found
