"""An update on its way out of a client, with all that its owner knows of it."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedglass.audit.replay import Declared, Part
from fedglass.core.errors import DataError
from fedglass.core.params import Params
from fedglass.core.statistics import COUNTER
from fedglass.core.types import Knowledge, Observation, Training, Whitening
from fedglass.fl.protection import Protection
from fedglass.models.fixed import can_be_fixed, with_fixed
from fedglass.models.network import Network
from fedglass.rounds.truth import Truth
from fedglass.rounds.untrained import still

CLIENT = "this client"


@dataclass(frozen=True, eq=False)
class Outbound:
    """The message and the truth behind it. It never leaves the client's machine."""

    model: nn.Module
    before: Params
    """Parameters and buffers that came from the server."""
    after: Params
    """What would leave."""
    inputs: Tensor  # (n, c, h, w), as the network was fed
    labels: Tensor  # (n,)
    training: Training
    batches: tuple[tuple[int, ...], ...] | None = None
    """The rows of each local step in their order, where they were recorded."""
    whitening: Whitening | None = None
    """Between pixels in [0, 1] and inputs; None takes each channel's range for it."""
    others: Tensor | None = None
    """Inputs that the client did not train on, for decoys.  # (m, c, h, w)"""

    def without_untrained(self) -> Outbound:
        """The same with what did not move as constants of the network, as layers are that nobody trains."""
        found = [name for name in still(self.weights, self.update) if name in can_be_fixed(self.model)]
        return replace(self, model=with_fixed(self.model, found)) if found else self

    @property
    def parameters(self) -> list[str]:
        return [name for name, _ in self.model.named_parameters()]

    @property
    def weights(self) -> dict[str, Tensor]:
        return {name: self.before[name].detach().cpu() for name in self.parameters}

    @property
    def buffers(self) -> dict[str, Tensor]:
        """Those that came, and the model's own where none did."""
        return {name: self.before.get(name, own).detach().cpu() for name, own in self.model.named_buffers()}

    @property
    def update(self) -> dict[str, Tensor]:
        """Of the parameters, after - before."""
        return {name: (self.after[name] - self.before[name]).detach().cpu() for name in self.parameters}

    @property
    def steps(self) -> int:
        return self.training.local_steps(len(self.labels)) if self.batches is None else len(self.batches)

    @property
    def colours(self) -> Whitening:
        """The whitening, or one that maps each channel's own range onto [0, 1]: all that is known of it then."""
        if self.whitening is not None:
            return self.whitening
        channels = self.inputs.transpose(0, 1).flatten(1)
        low, high = channels.amin(1), channels.amax(1)
        spread = torch.where(high > low, high - low, torch.ones_like(low))
        return Whitening(tuple((-low / spread).tolist()), tuple((1 / spread).tolist()))

    @property
    def pixels(self) -> Tensor:
        """(n, c, h, w), refused where the whitening does not give pixels."""
        found = self.colours.unwhiten(self.inputs.detach().cpu())
        if not bool(((found > -SLACK) & (found < 1 + SLACK)).all()):  # false for NaN too
            raise DataError("The inputs are no pixels in [0, 1] under the guard's whitening: correct it.")
        return found.clamp(0, 1)

    def declared(self, protection: Protection) -> Declared:
        """What is said to have made the message."""
        part = Part(self.pixels, self.labels.detach().cpu(), self.training, protection, order=self.batches)
        return Declared(self.model, self.weights, self.buffers, self.update, self.colours, (part,))

    def seen(self) -> Observation:
        """What the server would see. It is taken to know the training and, which is marked as oracle, the labels."""
        n, labels = len(self.labels), self.labels.detach().cpu()
        knows = Knowledge(
            shape=(self.inputs.shape[1], self.inputs.shape[2], self.inputs.shape[3]),
            classes=self.classes,
            examples=n,
            whitening=self.colours,
            training=self.training,
            labels=labels,
        )
        own = {name for name, _ in self.model.named_buffers()}
        statistics = {name: tensor.detach().cpu() for name, tensor in self.after.items() if name in own}
        return Observation(self.model, self.weights, self.buffers, self.update, knows, buffers_after=statistics)

    def truth(self) -> Truth:
        return Truth(self.pixels, self.labels.detach().cpu(), (CLIENT,), owners=(CLIENT,) * len(self.labels))

    @property
    def classes(self) -> int:
        """How many the network tells apart."""
        network = Network(self.model, self.buffers, self.training.batch_norm)
        weights = [self.weights[name] for name in network.names]
        with torch.no_grad():
            # Two examples at least: layers that normalise by the batch can not bear one.
            return network(weights, self.inputs[:1].detach().cpu().expand(2, -1, -1, -1)).shape[1]

    def on_cpu(self) -> Outbound:
        """The same without anything of the devices on which it was made."""
        before, after = ({name: t.detach().cpu() for name, t in params.items()} for params in (self.before, self.after))
        return replace(
            self,
            model=copy.deepcopy(self.model).cpu(),
            before=before,
            after=after,
            inputs=self.inputs.detach().cpu(),
            labels=self.labels.detach().cpu(),
            others=None if self.others is None else self.others.detach().cpu(),
        )

    @property
    def norm(self) -> float:
        """The length of what would leave beside what came, all tensors together, those without an axis too."""
        square = sum(float((self.after[n].double() - self.before[n].double()).square().sum()) for n in self.leaving)
        return math.sqrt(square)

    @property
    def leaving(self) -> list[str]:
        """What leaves but for counters of batches, which tell the number of steps and are checked to tell no more."""
        return [name for name in self.after if not name.endswith(COUNTER)]


SLACK = 1e-3
"""Rounding of pixels on their way through a whitening."""
"""The name of BatchNorm's counters."""
