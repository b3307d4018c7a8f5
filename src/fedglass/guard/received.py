"""The check of a received model before a client trains it: signs of a model that a malicious server crafted.

Such a model makes the update show single examples. Each sign is one figure, compared with a threshold of
`fedglass.core.thresholds`; docs/received-models.md states what was measured. A server that knows the figures can stay
below them: no sign is a proof that a model is honest.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median_low

import scipy.special
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedglass.core.losses import is_class_labels
from fedglass.core.rng import stream
from fedglass.core.tensors import COUNTER
from fedglass.core.thresholds import (
    CLASS_BIAS,
    CLASS_ROW,
    LONE_UNITS,
    PARALLEL_ROWS,
    RARE_UNITS,
    TOLD_APART,
    UNEXPLAINED_CHANGE,
)
from fedglass.guard.report import CheckResult, GuardMemory, Policy, Reason, ReceivedFigures, ReceivedReport
from fedglass.models.init import PyTorchDefault

State = Mapping[str, Tensor]
NEIGHBOURS = 7
"""Rows that must be parallel to one: a server that reads fewer bins reads few examples."""
LEAST_UNITS = 16
"""Units of a dense layer below which their shares say nothing."""
LEAST_INPUTS = 64
"""Inputs of a dense layer below which rows are parallel by chance; an imprint measures whole images."""
LEAST_EXAMPLES = 8
"""Examples of the own batch below which units that fire for one of them say nothing."""
MOST_ROWS = 4096
"""Rows of a layer that are compared with each other: of larger layers, evenly spaced ones."""
MOST_EXAMPLES = 256
"""Own examples that are run through the networks."""
SIZES = (8, 16, 32, 64)
"""Sizes of the parts of the own examples in which units are counted: a server tunes traps for a size of its choice."""
STANDARD_ERRORS = 2.0
"""Standard errors by which a share must exceed others: in small layers and batches it varies by chance."""
LEAST_ALIVE = 0.05
"""Share of a layer's units that must fire at all."""
ALIKE = 0.5
"""Cosine from which on rows of the own update explain that a server's optimiser made rows parallel. Measured: 0.74."""
RARE = 0.1
"""Share of the own examples up to which a unit fires rarely."""
FRESH_DRAWS = 3
"""Fresh weights that the received ones are compared with."""
LUCK = 1e-3
"""Chance of a model that has learned nothing to predict the own examples as well."""
FAINT = 0.01
"""Share of the whole update that counts as a tensor's own at least: one that trains little may still be moved."""


@dataclass(frozen=True, eq=False)
class ReceivedRequest:
    """A received model and what a client compares it with: it can be sent to another process."""

    received: State
    """The tensors that came, by name."""
    policy: Policy
    memory: GuardMemory
    """The last accepted model and the own update to it."""
    model: nn.Module | None = None
    """The network that would be trained; its own weights mean nothing."""
    inputs: Tensor | None = None
    """Own examples as the network takes them.  # (n, ...)"""
    labels: Tensor | None = None
    """Their classes, if they have any: a first model that predicts them is trained, and may have lone units."""
    preliminary: bool = False
    """Whether a check with the network follows, to which parallel rows are left if the own last update has some."""

    @property
    def runs_model(self) -> bool:
        """Return whether the check passes examples through the model: that is the app's code."""
        return self.model is not None and self.inputs is not None

    def on_cpu(self) -> ReceivedRequest:
        """Return the same on the CPU, without anything of the devices on which it was made."""
        accepted, moved = (
            None if params is None else {name: t.detach().cpu() for name, t in params.items()}
            for params in (self.memory.accepted, self.memory.moved)
        )
        return replace(
            self,
            received={name: t.detach().cpu() if isinstance(t, Tensor) else t for name, t in self.received.items()},
            memory=GuardMemory(accepted=accepted, moved=moved),
            model=None if self.model is None else copy.deepcopy(self.model).cpu(),
            inputs=None if self.inputs is None else self.inputs[:MOST_EXAMPLES].detach().cpu(),
            labels=None if self.labels is None else self.labels[:MOST_EXAMPLES].detach().cpu(),
        )

    def report(self) -> ReceivedReport:
        """Check the model; never raises but an interrupt.

        Without the network and own inputs, what the layers do is not checked: names and tensors alone tell the rest.
        """
        try:
            return _checked(self.on_cpu())
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 # it fails closed, also where a network ends the process
            return ReceivedReport(self.policy, (Reason.FAULT,), fault=f"{type(error).__name__}: {error}")

    def run(self, seconds: float) -> CheckResult:
        """Return the report as a result of the guard's checks, for its runners."""
        report = self.report()
        if Reason.FAULT in report.reasons:
            return CheckResult((Reason.FAULT,), received=report, fault=report.fault)
        return CheckResult(() if report.sound else (Reason.RECEIVED,), received=report)


def _checked(request: ReceivedRequest) -> ReceivedReport:
    received, policy, memory, model = request.received, request.policy, request.memory, request.model
    tensors = list(received.values())
    if not tensors or not all(isinstance(tensor, Tensor) and tensor.layout == torch.strided for tensor in tensors):
        return ReceivedReport(policy, (Reason.STRUCTURE,))
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
        return ReceivedReport(policy, (Reason.NOT_FINITE,))
    if model is not None:  # which layer is the last one is not the server's choice
        order = {name: i for i, name in enumerate(model.state_dict())}
        received = dict(sorted(received.items(), key=lambda item: order.get(item[0], len(order))))
    last, figures = memory.accepted, signs(received, memory, model, request.inputs)
    added = last is not None and bool(_shapes(received) - _shapes(last))
    reasons = (*[Reason.ADDED_LAYERS] * added, *reasons_of(figures))
    if request.preliminary and memory.moved is not None and parallel_rows(memory.moved) > ALIKE:
        reasons = tuple(reason for reason in reasons if reason is not Reason.PARALLEL_ROWS)
    behind_others = not beyond(figures.lone_first_units, LONE_UNITS) and not beyond(figures.rare_units, RARE_UNITS)
    excusable = reasons == (Reason.LONE_UNITS,) and last is None and behind_others
    if excusable and predicts(model, received, request.inputs, request.labels):
        reasons = ()
    return ReceivedReport(policy, reasons, figures)


def predicts(model: nn.Module | None, state: State, inputs: Tensor | None, labels: Tensor | None) -> bool:
    """Return whether a model predicts own examples better than by luck.

    Units of a trained network may answer to one class alone, of which there may be one example. That excuses layers
    behind others. It does not excuse the first one: with traps in a part of it, the other units predict as before.
    # (n, ...), (n,)
    """
    if model is None or inputs is None or labels is None or not is_class_labels(labels):
        return False
    outputs, count = _outputs(copy.deepcopy(model).float().eval(), state, _single(inputs)), len(labels)
    predicted = outputs.argmax(-1)
    shares = [classes.bincount(minlength=outputs.shape[-1]).double() / count for classes in (predicted, labels)]
    by_luck, right = float(shares[0] @ shares[1]), int((predicted == labels).sum())  # were the labels shuffled
    return right > 0 and by_luck < 1 and float(scipy.special.bdtrc(right - 1, count, by_luck)) < LUCK


def reasons_of(figures: ReceivedFigures) -> tuple[Reason, ...]:
    """Return the reasons of the figures that lie beyond their thresholds; NaN lies beyond each.

    >>> reasons_of(ReceivedFigures(parallel_rows=1.0, class_bias=0.1))
    (Reason.PARALLEL_ROWS,)
    """
    limits = (
        (Reason.PARALLEL_ROWS, figures.parallel_rows, PARALLEL_ROWS),
        (Reason.LONE_UNITS, figures.lone_units, LONE_UNITS),
        (Reason.LONE_UNITS, figures.rare_units, RARE_UNITS),
        (Reason.CLASS_ROW, figures.class_row, CLASS_ROW),
        (Reason.CLASS_ROW, figures.class_bias, CLASS_BIAS),
        (Reason.UNEXPLAINED_CHANGE, figures.unexplained_change, UNEXPLAINED_CHANGE),
    )
    return tuple(dict.fromkeys(reason for reason, figure, limit in limits if beyond(figure, limit)))


def beyond(figure: float | None, limit: float) -> bool:
    """Return whether a known figure lies beyond its limit, as NaN does."""
    return figure is not None and not figure <= limit


def signs(
    received: State, memory: GuardMemory, model: nn.Module | None = None, inputs: Tensor | None = None
) -> ReceivedFigures:
    """Return the figures of a received model that can be computed."""
    last, moved = memory.accepted, memory.moved
    figures = ReceivedFigures(
        class_row=class_row(received),
        class_bias=class_bias(received),
        unexplained_change=None if last is None or moved is None else unexplained_change(received, last, moved),
    )
    if model is None or inputs is None or len(inputs) < LEAST_EXAMPLES:
        return replace(figures, parallel_rows=parallel_rows(received))
    inputs = _single(inputs[:MOST_EXAMPLES])
    fires, front = firing_units(model, received, inputs)
    fresh = [firing_units(network, network.state_dict(), inputs)[0] for network in _fresh(model)]
    known = last is not None and all(name in last and last[name].shape == t.shape for name, t in received.items())
    earlier = [firing_units(model, last, inputs)[0]] if last is not None and known else []
    lone = {name: lone_units(fires[name], [other[name] for other in (*fresh, *earlier)]) for name in fires}
    others = [torch.cat([other[front] for other in fresh], 1), *(e[front] for e in earlier)] if front in fires else []
    return replace(
        figures,
        parallel_rows=parallel_rows(received, {name: fires[name] for name in fires if name != front}),
        lone_units=max(lone.values(), default=0.0),
        lone_first_units=max(lone.get(front, 0.0), 0.0),
        rare_units=rare_units(fires[front], others) if others else None,
    )


def _shapes(state: State) -> Counter[tuple[int, ...]]:
    return Counter(tuple(tensor.shape) for tensor in state.values())


def dense_weights(state: State) -> dict[str, Tensor]:
    """Return the weights of dense layers, in the order of the message."""
    return {name: tensor.float() for name, tensor in state.items() if tensor.ndim == 2}


def parallel_rows(state: State, fires: Mapping[str, Tensor] | None = None) -> float:
    """Return the cosine to which a row and `NEIGHBOURS` others are parallel: the largest of all layers but the last.

    An imprint repeats one row; the quantiles are in the biases. A server's optimiser may make the rows of an honest
    layer parallel, too, which then tell no examples apart. Such layers are left out.

    Args:
        fires: The units that fire, by layer, for layers behind others; one that sees whole examples is not left out.
    """
    cosine = 0.0
    for name, weight in list(dense_weights(state).items())[:-1]:
        units = (fires or {}).get(name.removesuffix(".weight"))
        parallel = _parallel(weight)
        if parallel <= PARALLEL_ROWS or units is None or told_apart(weight, units) > TOLD_APART:
            cosine = max(cosine, parallel)
    return cosine


def _parallel(weight: Tensor) -> float:
    rows = _directions(weight)
    rows = rows[rows.norm(dim=1) > 0]
    if len(rows) <= NEIGHBOURS or rows.shape[1] < LEAST_INPUTS:
        return 0.0
    cosines = (rows @ rows.T).abs()
    return float(cosines.topk(NEIGHBOURS + 1, dim=1).values[:, -1].max().clamp(max=1.0))


def _directions(weight: Tensor) -> Tensor:
    """Return the rows that are compared with each other, with length one; zeros stay."""
    rows = weight[:: -(-len(weight) // MOST_ROWS)]
    lengths = rows.norm(dim=1, keepdim=True)
    return rows / torch.where(lengths > 0, lengths, 1.0)


def told_apart(weight: Tensor, fires: Tensor) -> float:
    """Return the share of examples that two parallel units tell from all others: one fires for it, the other does not.

    The difference of the updates of these units is such an example. An opposite unit fires for the other examples. The
    examples are taken in parts of several sizes.  # (units, inputs), (n, units)
    """
    rows, fires = _directions(weight), fires[:, :: -(-len(weight) // MOST_ROWS)].float()
    cosines = rows @ rows.T
    parallel, opposite = (cosines.abs() > PARALLEL_ROWS).triu(1), cosines < 0
    largest = 0.0
    for size in (size for size in SIZES if size <= len(fires)):
        parts = fires[: len(fires) // size * size].view(-1, size, fires.shape[1])
        numbers = torch.stack([torch.ones(size), torch.arange(size)])  # counts differing examples, adds their numbers
        alone = 0
        for part in parts:
            sums = numbers @ part  # (2, units)
            both = (numbers[:, :, None] * part).mT @ part
            differ = sums[:, :, None] + sums[:, None, :] - 2 * both
            count, number = torch.where(opposite, numbers.sum(1)[:, None, None] - differ, differ)
            alone += len(number[parallel & (count == 1)].unique())
        largest = max(largest, alone / (len(parts) * size))
    return largest


def lone_units(fires: Tensor, others: list[Tensor]) -> float:
    """Return by how much the share of a layer's lone units exceeds that under other weights.

    Lone units fire for exactly one example; the share is taken of the units that fire at all. The other weights are
    fresh ones of the same architecture and those of the last accepted model. The own examples are taken in parts of
    several sizes. The figure is the largest difference, less `STANDARD_ERRORS` of the share.  # (n, units)
    """
    figures = []
    for size in (size for size in SIZES if size <= len(fires)):
        share, units = _lone_share(fires, size)
        most = max(_lone_share(other, size)[0] for other in others)
        figures.append(share - most - STANDARD_ERRORS * _error(share, units))
    return max(figures)


def _lone_share(fires: Tensor, size: int) -> tuple[float, float]:
    """Return the share of lone units in parts of a size, and how many units it is taken of."""
    counts = fires[: len(fires) // size * size].view(-1, size, fires.shape[1]).sum(1)
    alive = float((counts > 0).sum())
    return float((counts == 1).sum()) / alive if alive >= LEAST_ALIVE * counts.numel() else 0.0, alive


def rare_units(fires: Tensor, others: list[Tensor]) -> float:
    """Return by how much the share of units that fire rarely exceeds that under other weights, in the first layer.

    Trap weights in a part of a layer make few units lone in any one batch. In all examples each of them fires rarely.
    The figure is the largest difference between both distributions of how often a unit fires, up to `RARE` of the
    examples, less `STANDARD_ERRORS` of the share.  # (n, units)
    """
    counts, other_counts = fires.sum(0), [other.sum(0) for other in others]
    alive = float((counts > 0).sum())
    if alive < LEAST_ALIVE * len(counts):
        return 0.0
    figures = [0.0]
    for most in range(1, int(RARE * len(fires)) + 1):
        share, *shares = (
            float(((c > 0) & (c <= most)).sum()) / max(float((c > 0).sum()), 1.0) for c in (counts, *other_counts)
        )
        figures.append(share - max(shares) - STANDARD_ERRORS * _error(share, alive))
    return max(figures)


def _error(share: float, units: float) -> float:
    """Return the standard error of a share of so many units."""
    return math.sqrt(share * (1 - share) / max(units, 1.0))


def _fresh(model: nn.Module) -> list[nn.Module]:
    """Return copies of the network with weights as its layers draw them."""
    copies = [copy.deepcopy(model).float() for _ in range(FRESH_DRAWS)]
    for draw, fresh in enumerate(copies):
        # Not by `reset_parameters`, which would need a known seed in the generator that other threads use too.
        PyTorchDefault().apply(fresh, stream(0, "fresh", draw))
    return copies


def firing_units(model: nn.Module, state: State, inputs: Tensor) -> tuple[dict[str, Tensor], str]:
    """Return which units fire for which example, by dense layer, and the name of the first layer with weights.

    The last dense layer and small ones are left out.  # (n, units)
    """
    network, order, outputs = copy.deepcopy(model).float().eval(), list[str](), dict[str, Tensor]()

    def remember(name: str, layer: nn.Module, out: Tensor) -> None:
        order.append(name)
        if isinstance(layer, nn.Linear):
            outputs[name] = out.flatten(0, -2) if out.ndim > 2 else out

    for name, layer in network.named_modules():
        weight = getattr(layer, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim > 1:  # those of normalisations keep the example
            layer.register_forward_hook(lambda module, args, out, name=name: remember(name, module, out))
    _outputs(network, state, inputs)
    dense = [name for name, _ in network.named_modules() if name in outputs]
    fires = {name: outputs[name] > 0 for name in dense[:-1] if len(outputs[name]) == len(inputs)}
    return {n: units for n, units in fires.items() if units.shape[1] >= LEAST_UNITS}, order[0] if order else ""


def _outputs(network: nn.Module, state: State, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        outputs: Tensor = functional_call(network, {n: _single(t) for n, t in state.items()}, (inputs,), strict=False)
    return outputs


def _single(tensor: Tensor) -> Tensor:
    """Return a tensor in single precision if it holds fractions."""
    return tensor.float() if tensor.is_floating_point() else tensor


def class_row(state: State) -> float:
    """Return how many times longer the longest row of the last dense layer is than the median row.

    Infinite where most rows are zero.
    """
    weights = list(dense_weights(state).values())
    if not weights or len(weights[-1]) < 2:
        return 1.0
    lengths = weights[-1].norm(dim=1)
    median, longest = float(lengths.median()), float(lengths.max())
    return longest / median if median > 0 else math.inf if longest > 0 else 1.0


def class_bias(state: State) -> float:
    """Return how far the bias of a class lies from the median of all classes, in the last layer."""
    weights = dense_weights(state)
    last = list(weights)[-1] if weights else ""
    bias = state.get(last.removesuffix("weight") + "bias") if last.endswith("weight") else None
    if bias is None or bias.shape != (len(weights[last]),):
        return 0.0
    values = bias.float()
    return float((values - values.median()).abs().max())


def unexplained_change(state: State, last: State, sent: State) -> float | None:
    """Return how many times farther than the others a tensor moved since the last accepted model.

    Distances are in units of the own update to that model. In a mean over clients no tensor moves farther than under
    the largest update. Clients with more examples, missed rounds and a server's optimiser lengthen the step of all
    tensors, so that distances beyond one are compared with that of the median tensor that the client trains. A tensor
    that no client trains does not move. None where no name fits, or where the own update is zero.
    """
    names = [n for n in sent if n in state and n in last and state[n].shape == last[n].shape == sent[n].shape]
    names = [n for n in names if sent[n].is_floating_point() and not n.endswith(COUNTER)]
    if not names:
        return None
    moves = [float((state[n].double() - last[n].double()).norm()) for n in names]
    own = [float(sent[n].double().norm()) for n in names]
    whole = math.sqrt(sum(size**2 for size in own))
    if whole == 0:
        return None
    distances = [move / (size + FAINT * whole) for move, size in zip(moves, own, strict=True)]
    usual = median_low([distance for distance, size in zip(distances, own, strict=True) if size > 0])
    return max(distances) / max(1.0, usual)
