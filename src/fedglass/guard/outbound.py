"""An update on its way out of a client, with all that its owner knows of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedglass.checks.replay import Declared, Part
from fedglass.core.errors import DataError, UsageError
from fedglass.core.tensors import COUNTER, Params, Update, moved_others
from fedglass.core.types import Knowledge, Observation, Training, Whitening
from fedglass.defend.dpsgd import DPSGD
from fedglass.defend.noise import Clip as ClipAll
from fedglass.defend.noise import GaussianNoise
from fedglass.federation.transcript import unmoved_parameters
from fedglass.federation.truth import Truth
from fedglass.fl.local import GradientFn, MeanGradient
from fedglass.fl.release import Chain, Outgoing, Protection, Release
from fedglass.guard.report import Reason
from fedglass.models.fixed import can_be_fixed, with_fixed
from fedglass.models.network import Network

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
        found = [name for name in unmoved_parameters(self.weights, self.update) if name in can_be_fixed(self.model)]
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


# What may leave at all: the model's tensors with their shapes and types, and nothing else.


LOST = 0.01
"""The share of a tensor's update that may be lost in rounding."""
STRUCTURE_SLACK = 1 + 1e-5
"""Rounding of a norm that was clipped in single precision."""

Clip = float | Mapping[str, float]
"""A bound on the norm of all that leaves together, or one of each tensor's own by its name."""


def misfit(before: Params, after: Params) -> bool:
    """Whether what would leave are other tensors than those that came: by name, shape, type, or by being none.

    >>> misfit({"w": torch.zeros(2)}, {"w": torch.ones(2)}), misfit({"w": torch.zeros(2)}, {"w": torch.ones(2), "x": 1})
    (False, True)
    """
    if list(after) != list(before):
        return True
    return any(
        not isinstance(after[name], Tensor)
        or after[name].shape != came.shape
        or after[name].dtype != came.dtype
        or after[name].layout != torch.strided
        for name, came in before.items()
    )


def finer(out: Outbound, update: Params) -> bool:
    """Whether differences leave that the weights to which they are added can not hold.

    All checks play the training again in the weights' own precision: what is lost there leaves all the same.
    """
    pairs = ((out.after[n].double() - out.before[n].double(), t.double()) for n, t in update.items())
    return any(float((kept - sent).norm()) > LOST * float(sent.norm()) for kept, sent in pairs)  # NaN is told by itself


def counters_tell_more(out: Outbound) -> bool:
    """Whether a counter of batches holds anything but the number of local steps."""
    moved = {float(out.after[name] - out.before[name]) for name in out.after if name.endswith(COUNTER)}
    return not moved <= {0.0, float(out.steps)}


def unplayed_buffers(out: Outbound) -> bool:
    """Whether a buffer has moved that no training of fedglass's own moves: what was put into it nobody has checked."""
    return bool(set(moved_others(out.before, out.after)) - set(out.parameters))


def finite(params: Params) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in params.values())


def too_long_to_replay(out: Outbound, clip: Clip) -> bool:
    """Whether the message is longer than a clipping without noise lets it be; a tensor without a bound may not move."""
    if not isinstance(clip, Mapping):
        return not out.norm <= clip * STRUCTURE_SLACK
    lengths = {name: float((out.after[name] - out.before[name]).double().norm()) for name in out.leaving}
    return any(not length <= clip.get(name, 0.0) * STRUCTURE_SLACK for name, length in lengths.items())


def at_a_glance(out: Outbound) -> tuple[Reason, ...]:
    """What speaks against an update before anything is computed of it."""
    names = {name for name, _ in (*out.model.named_parameters(), *out.model.named_buffers())}
    if misfit(out.before, out.after) or not set(out.parameters) <= set(out.after) <= names:
        return (Reason.STRUCTURE,)
    shapes = {name: tensor.shape for name, tensor in (*out.model.named_parameters(), *out.model.named_buffers())}
    if any(tensor.shape != shapes[name] for name, tensor in out.after.items()):
        return (Reason.STRUCTURE,)
    if not finite(out.after):
        return (Reason.NOT_FINITE,)
    if counters_tell_more(out):
        return (Reason.STRUCTURE,)
    return (Reason.NOT_EXPLAINED,) if unplayed_buffers(out) else ()


# What is declared to protect a client's updates, and the same without its noise.


@dataclass(frozen=True)
class ClipEach:
    """Each tensor scaled down to a norm of its own."""

    norms: Mapping[str, float]

    def release(self, leaving: Outgoing) -> Update:
        sent: dict[str, Update] = {
            name: ClipAll(self.norms[name]).release(replace(leaving, update={name: tensor}))
            for name, tensor in leaving.update.items()
        }
        return {name: each[name] for name, each in sent.items()}


@dataclass(frozen=True)
class Protected:
    """Clipping and Gaussian noise of the update as it leaves, and those inside of local steps."""

    clip: Clip | None = None
    noise_multiplier: float = 0.0
    """Of the update: the noise's deviation at every entry, in units of the clipping norm."""
    dpsgd: DPSGD | None = None

    def __post_init__(self) -> None:
        bounds = self.clip.values() if isinstance(self.clip, Mapping) else [] if self.clip is None else [self.clip]
        for bound in bounds:
            ClipAll(bound)  # which refuses what is no norm
        GaussianNoise(self.noise_multiplier)
        if self.noise_multiplier > 0 and not isinstance(self.clip, int | float):
            raise UsageError(
                f"Guard.noise_multiplier is in units of one clipping norm, got clip={self.clip!r}: give a number."
            )

    @property
    def noisy(self) -> bool:
        return self.std > 0 or (self.dpsgd is not None and self.dpsgd.noise_multiplier > 0)

    @property
    def std(self) -> float:
        """Of the noise that is added to the update as it leaves."""
        return self.noise_multiplier * self.clip if isinstance(self.clip, int | float) else 0.0

    @property
    def protection(self) -> Protection:
        """As declared, to be played again."""
        parts = self._clipping() + ([GaussianNoise(self.std)] if self.std > 0 else [])
        return Protection(self.dpsgd or MeanGradient(), Chain(tuple(parts))) if parts else self._within(self.dpsgd)

    @property
    def noiseless(self) -> Protection:
        """The same clipping alone: what the noise is added to."""
        quiet = None if self.dpsgd is None else replace(self.dpsgd, noise_multiplier=0.0)
        parts = self._clipping()
        return Protection(quiet or MeanGradient(), Chain(tuple(parts))) if parts else self._within(quiet)

    @staticmethod
    def _within(gradient: GradientFn | None) -> Protection:
        return Protection() if gradient is None else Protection(gradient)

    def _clipping(self) -> list[Release]:
        if self.clip is None:
            return []
        return [ClipEach(self.clip) if isinstance(self.clip, Mapping) else ClipAll(float(self.clip))]
