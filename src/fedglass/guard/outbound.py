"""An update on its way out of a client: what its owner knows of it, and the checks of its structure.

Only the model's tensors may leave, with their shapes and types, and nothing else. `Protected` is what the client
declares to protect its updates, and the same without its noise.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedglass.checks.claim import UNPROTECTED, Claim, ClientClaim
from fedglass.core.errors import DataError, UpdateError, UsageError
from fedglass.core.tensors import COUNTER, Params, Update, counted_batches, moved_others
from fedglass.core.thresholds import CLIP_SLACK_GUARD, LOST_PRECISION, PIXEL_SLACK, largest_norm
from fedglass.core.types import Knowledge, Observation, Training, Whitening
from fedglass.defend.dpsgd import DPSGD
from fedglass.defend.noise import Clip as ClipAll
from fedglass.defend.noise import GaussianNoise
from fedglass.federation.transcript import unmoved_parameters
from fedglass.federation.truth import Examples, Truth
from fedglass.fl.local import MeanGradient
from fedglass.fl.release import AsIs, Chain, Outgoing, Protection, Release
from fedglass.guard.report import Reason
from fedglass.models.names import can_be_fixed, names_of, with_fixed
from fedglass.models.network import Network

CLIENT = "this client"


@dataclass(frozen=True, eq=False)
class Outbound:
    """An update that would leave, and the truth behind it. It never leaves the client's machine."""

    model: nn.Module
    before: Params
    """Parameters and buffers that came from the server."""
    after: Params
    """Parameters and buffers that would leave."""
    inputs: Tensor  # (n, c, h, w), as the network was fed
    labels: Tensor  # (n,)
    training: Training
    batches: tuple[tuple[int, ...], ...] | None = None
    """The rows of each local step in their order, where they were recorded."""
    whitening: Whitening | None = None
    """Between pixels in [0, 1] and inputs; None takes each channel's range for it."""
    others: Tensor | None = None
    """Inputs that the client did not train on, for the candidate game.  # (m, c, h, w)"""

    def without_untrained(self) -> Outbound:
        """Return the update with tensors that did not move as constants of the network, like untrained layers."""
        constants = [name for name in unmoved_parameters(self.weights, self.update) if name in can_be_fixed(self.model)]
        return replace(self, model=with_fixed(self.model, constants)) if constants else self

    def without_unused(self) -> Outbound:
        """Return the update without examples that no local step takes: they are not behind it."""
        if self.batches is None:
            return self
        rows = sorted({row for batch in self.batches for row in batch})
        if any(not 0 <= row < len(self.inputs) for row in rows):
            raise UsageError("The rows of a batch must be those of examples: correct `batches`.")
        place = {row: i for i, row in enumerate(rows)}
        batches = tuple(tuple(place[row] for row in batch) for batch in self.batches)
        return replace(self, inputs=self.inputs[rows], labels=self.labels[rows], batches=batches)

    def changed_by(self, change: Params) -> Outbound:
        """Return the update with these changes of what came in place of its own."""
        after = {name: self.before[name] + moved.to(self.before[name].dtype) for name, moved in change.items()}
        return replace(self, after={**self.after, **after})

    @property
    def parameters(self) -> list[str]:
        return [name for name, _ in self.model.named_parameters()]

    @property
    def weights(self) -> dict[str, Tensor]:
        return {name: self.before[name] for name in self.parameters}

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The buffers that came, and the model's own where none did."""
        return {name: self.before.get(name, buffer) for name, buffer in self.model.named_buffers()}

    @property
    def update(self) -> dict[str, Tensor]:
        """The difference of the parameters, after - before."""
        return {name: self.after[name] - self.before[name] for name in self.parameters}

    @property
    def steps(self) -> int:
        return self.training.local_steps(len(self.labels)) if self.batches is None else len(self.batches)

    @property
    def colours(self) -> Whitening:
        """The whitening, or one that maps the range of each channel onto [0, 1] where it is not known."""
        if self.whitening is not None:
            return self.whitening
        channels = self.inputs.transpose(0, 1).flatten(1)
        low, high = channels.amin(1), channels.amax(1)
        spread = torch.where(high > low, high - low, torch.ones_like(low))
        return Whitening(tuple((-low / spread).tolist()), tuple((1 / spread).tolist()))

    @property
    def pixels(self) -> Tensor:
        """The images, refused where the whitening does not give pixels.  # (n, c, h, w)"""
        pixels = self.colours.unwhiten(self.inputs)
        if not bool(((pixels > -PIXEL_SLACK) & (pixels < 1 + PIXEL_SLACK)).all()):  # false for NaN too
            raise DataError("The inputs are not pixels in [0, 1] under the guard's whitening: correct it.")
        return pixels.clamp(0, 1)

    def claim(self, protection: Protection) -> Claim:
        """Return what is said to have produced the message."""
        truth = Examples(self.pixels, self.labels)
        client = ClientClaim(self.training, truth, protection, order=self.batches)
        return Claim(self.model, self.weights, self.buffers, self.update, self.colours, (client,))

    def observation(self, protection: Protection = UNPROTECTED) -> Observation:
        """Return what the server would see: it knows training and filter and, marked as oracle, the labels."""
        n, labels = len(self.labels), self.labels
        knows = Knowledge(
            shape=(self.inputs.shape[1], self.inputs.shape[2], self.inputs.shape[3]),
            classes=self.classes,
            examples=n,
            whitening=self.colours,
            training=self.training,
            labels=labels,
            filter=protection.filter,
        )
        buffers = {name for name, _ in self.model.named_buffers()}
        statistics = {name: tensor for name, tensor in self.after.items() if name in buffers}
        return Observation(self.model, self.weights, self.buffers, self.update, knows, buffers_after=statistics)

    def truth(self) -> Truth:
        return Truth(self.pixels, self.labels, (CLIENT,), owners=(CLIENT,) * len(self.labels))

    @property
    def classes(self) -> int:
        """The number of classes of the network."""
        network = Network(self.model, self.buffers, self.training.batch_norm)
        weights = [self.weights[name] for name in network.names]
        with torch.no_grad():
            # Two examples at least: layers that normalise by the batch cannot take one.
            return network(weights, self.inputs[:1].expand(2, -1, -1, -1)).shape[1]

    def on_cpu(self) -> Outbound:
        """Return the same on the CPU, without anything of the devices on which it was made."""
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
        """The norm of the difference between what would leave and what came, over all tensors, scalars included."""
        square = sum(float((self.after[n].double() - self.before[n].double()).square().sum()) for n in self.leaving)
        return math.sqrt(square)

    @property
    def leaving(self) -> list[str]:
        """The names of the tensors that leave, without counters of batches, which are checked separately."""
        return [name for name in self.after if not name.endswith(COUNTER)]


Clip = float | Mapping[str, float]
"""A bound on the norm of everything that leaves, or one bound for each tensor by its name."""


def under_model_names(
    arrays: Mapping[str, Tensor], model: nn.Module, untrained: Collection[str] = ()
) -> dict[str, Tensor] | None:
    """Return the same tensors under the model's names, in the model's order; None if they are not the model's.

    Parameters that are not trained may be missing. So may counters of batches, or all buffers.

    >>> network = nn.Linear(1, 1)
    >>> weight, bias = network.state_dict().values()
    >>> list(under_model_names({"net.bias": bias, "net.weight": weight}, network))
    ['weight', 'bias']
    >>> under_model_names({"net.bias": bias}, network) is None
    True
    """
    try:
        sent = [(name, tuple(tensor.shape)) for name, tensor in arrays.items()]
        matched = names_of(sent, model, "The message", untrained).applied(arrays)
    except UpdateError:
        return None
    parameters = {name for name, _ in model.named_parameters()}
    missing = [name for name in model.state_dict() if name not in matched and name not in untrained]
    without_buffers = all(name in parameters for name in matched)
    for name in missing:
        if name in parameters or not (without_buffers or name.endswith(COUNTER)):
            return None
    return {name: matched[name] for name in model.state_dict() if name in matched}


def has_wrong_layout(before: Params, after: Params) -> bool:
    """Return whether other tensors would leave than came: by name, shape or type, or not a tensor at all.

    >>> sent = {"w": torch.zeros(2)}
    >>> has_wrong_layout(sent, {"w": torch.ones(2)}), has_wrong_layout(sent, {"w": torch.ones(2), "x": 1})
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


def loses_precision(out: Outbound, update: Params) -> bool:
    """Return whether an update is finer than the weights to which it is added can hold.

    All checks run the training again in the precision of the weights: what is lost there would leave unchecked.
    """
    pairs = ((out.after[n].double() - out.before[n].double(), t.double()) for n, t in update.items())
    return any(
        float((held - sent).norm()) > LOST_PRECISION * float(sent.norm()) for held, sent in pairs
    )  # NaN has its own reason


def has_wrong_counters(out: Outbound) -> bool:
    """Return whether a counter of batches holds anything but the number of local steps."""
    counters = [name for name in out.after if name.endswith(COUNTER)]
    counted = counted_batches({name: out.after[name] - out.before[name] for name in counters})
    return not counted <= {0.0, float(out.steps)}


def exceeds_clip(out: Outbound, clip: Clip) -> bool:
    """Return whether the message is longer than clipping without noise allows; without a bound no tensor may move."""
    if not isinstance(clip, Mapping):
        return not out.norm <= largest_norm(clip, CLIP_SLACK_GUARD)
    lengths = {name: float((out.after[name] - out.before[name]).double().norm()) for name in out.leaving}
    return any(not length <= largest_norm(clip.get(name, 0.0), CLIP_SLACK_GUARD) for name, length in lengths.items())


def static_checks(out: Outbound) -> tuple[Reason, ...]:
    """Return the reasons against an update that need no computation."""
    shapes = {name: tensor.shape for name, tensor in (*out.model.named_parameters(), *out.model.named_buffers())}
    if has_wrong_layout(out.before, out.after) or not set(out.parameters) <= set(out.after) <= set(shapes):
        return (Reason.STRUCTURE,)
    if any(tensor.shape != shapes[name] for name, tensor in out.after.items()):
        return (Reason.STRUCTURE,)
    if not all(bool(torch.isfinite(tensor).all()) for tensor in out.after.values()):
        return (Reason.NOT_FINITE,)
    if has_wrong_counters(out):
        return (Reason.STRUCTURE,)
    # A buffer that the replayed training does not move has content that is not checked.
    unexplained = set(moved_others(out.before, out.after)) - set(out.parameters)
    return (Reason.NOT_EXPLAINED,) if unexplained else ()


@dataclass(frozen=True)
class ClipEach:
    """A release that scales each tensor down to its own norm."""

    norms: Mapping[str, float]

    def release(self, leaving: Outgoing) -> Update:
        sent: dict[str, Update] = {
            name: ClipAll(self.norms[name]).release(replace(leaving, update={name: tensor}))
            for name, tensor in leaving.update.items()
        }
        return {name: update[name] for name, update in sent.items()}


@dataclass(frozen=True)
class Protected:
    """The declared protection: clipping and Gaussian noise on the update as it leaves, and inside local steps."""

    clip: Clip | None = None
    noise_multiplier: float = 0.0
    """The deviation of the noise at every entry of the update, in units of the clipping norm."""
    dpsgd: DPSGD | None = None

    def __post_init__(self) -> None:
        bounds = self.clip.values() if isinstance(self.clip, Mapping) else [] if self.clip is None else [self.clip]
        for bound in bounds:
            ClipAll(bound)  # which refuses what is not a norm
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
        """The deviation of the noise that is added to the update as it leaves."""
        return self.noise_multiplier * self.clip if isinstance(self.clip, int | float) else 0.0

    @property
    def protection(self) -> Protection:
        """The protection as declared, to be run again."""
        return self._protection(self.dpsgd, self.std)

    @property
    def noiseless(self) -> Protection:
        """The clipping alone, to which the noise is added."""
        quiet = None if self.dpsgd is None else replace(self.dpsgd, noise_multiplier=0.0)
        return self._protection(quiet, 0.0)

    def _protection(self, dpsgd: DPSGD | None, std: float) -> Protection:
        parts: list[Release] = []
        if self.clip is not None:
            parts.append(ClipEach(self.clip) if isinstance(self.clip, Mapping) else ClipAll(float(self.clip)))
        if std > 0:
            parts.append(GaussianNoise(std))
        return Protection(dpsgd or MeanGradient(), Chain(tuple(parts)) if parts else AsIs())
