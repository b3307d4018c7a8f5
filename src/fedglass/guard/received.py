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
            return _checked(self)
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
    behind_others = (figures.lone_first_units or 0.0) <= LONE_UNITS
    excusable = reasons == (Reason.LONE_UNITS,) and last is None and behind_others
    if excusable and predicts(model, received, request.inputs, request.labels):
        reasons = ()
    return ReceivedReport(policy, reasons, figures)


def predicts(model: nn.Module | None, state: State, inputs: Tensor | None, labels: Tensor | None) -> bool:
    """Return whether a model predicts own examples better than by luck.

    Units of a trained network may answer to one class alone, of which there may be one example. That excuses layers
    behind others. In the first one honest networks have no lone units, however well the other units predict.
    # (n, ...), (n,)
    """
    if model is None or inputs is None or labels is None or not is_class_labels(labels):
        return False
    network = copy.deepcopy(model).cpu().float().eval()
    with torch.no_grad():
        outputs = functional_call(network, {n: _single(t) for n, t in state.items()}, (_single(inputs),), strict=False)
    found, true, count = outputs.argmax(-1), labels.cpu(), len(labels)
    shares = [classes.bincount(minlength=outputs.shape[-1]).double() / count for classes in (found, true)]
    by_luck, right = float(shares[0] @ shares[1]), int((found == true).sum())  # were the labels shuffled
    return right > 0 and by_luck < 1 and float(scipy.special.bdtrc(right - 1, count, by_luck)) < LUCK


def reasons_of(figures: ReceivedFigures) -> tuple[Reason, ...]:
    """Return the reasons of the figures that lie beyond their thresholds; NaN lies beyond each.

    >>> reasons_of(ReceivedFigures(parallel_rows=1.0, class_bias=0.1))
    (Reason.PARALLEL_ROWS,)
    """
    limits = (
        (Reason.PARALLEL_ROWS, figures.parallel_rows, PARALLEL_ROWS),
        (Reason.LONE_UNITS, figures.lone_units, LONE_UNITS),
        (Reason.CLASS_ROW, figures.class_row, CLASS_ROW),
        (Reason.CLASS_ROW, figures.class_bias, CLASS_BIAS),
        (Reason.UNEXPLAINED_CHANGE, figures.unexplained_change, UNEXPLAINED_CHANGE),
    )
    beyond = (reason for reason, figure, limit in limits if figure is not None and not figure <= limit)
    return tuple(dict.fromkeys(beyond))


def signs(
    received: State, memory: GuardMemory, model: nn.Module | None = None, inputs: Tensor | None = None
) -> ReceivedFigures:
    """Return the figures of a received model that can be computed."""
    last, moved = memory.accepted, memory.moved
    lone = None if model is None or inputs is None else lone_units(model, received, inputs, last)
    everywhere, in_front = lone or (None, None)
    return ReceivedFigures(
        parallel_rows(received),
        everywhere,
        in_front,
        class_row(received),
        class_bias(received),
        None if last is None or moved is None else unexplained_change(received, last, moved),
    )


def _shapes(state: State) -> Counter[tuple[int, ...]]:
    return Counter(tuple(tensor.shape) for tensor in state.values())


def dense_weights(state: State) -> dict[str, Tensor]:
    """Return the weights of dense layers, in the order of the message."""
    return {name: tensor.detach().cpu().float() for name, tensor in state.items() if tensor.ndim == 2}


def parallel_rows(state: State) -> float:
    """Return the cosine to which a row and `NEIGHBOURS` others are parallel: the largest of all layers but the last.

    An imprint repeats one row; the quantiles are in the biases.
    """
    weights = list(dense_weights(state).values())[:-1]
    return max((_parallel(weight) for weight in weights), default=0.0)


def _parallel(weight: Tensor) -> float:
    rows = weight[:: -(-len(weight) // MOST_ROWS)]
    lengths = rows.norm(dim=1)
    rows = rows[lengths > 0] / lengths[lengths > 0, None]
    if len(rows) <= NEIGHBOURS or rows.shape[1] < LEAST_INPUTS:
        return 0.0
    cosines = (rows @ rows.T).abs()
    return float(cosines.topk(NEIGHBOURS + 1, dim=1).values[:, -1].max().clamp(max=1.0))


def lone_units(model: nn.Module, state: State, inputs: Tensor, last: State | None = None) -> tuple[float, float] | None:
    """Return by how much the share of lone units exceeds that under other weights: of all layers, and of the first one.

    Lone units fire for exactly one example; the share is taken of the units that fire at all. The other weights are
    fresh ones of the same architecture and those of the last accepted model. The own examples are taken in parts of
    several sizes. The figures are the largest difference of all dense layers but the last, less `STANDARD_ERRORS` of
    the share, and the same of a dense layer that sees whole examples, behind no other. None for too few examples.
    # inputs (n, ...)
    """
    inputs = _single(inputs[:MOST_EXAMPLES])
    if len(inputs) < LEAST_EXAMPLES:
        return None
    received = _lone_shares(model, state, inputs)
    others = [_lone_shares(fresh, fresh.state_dict(), inputs) for fresh in _fresh(model)]
    if last is not None and all(name in last and last[name].shape == t.shape for name, t in state.items()):
        others.append(_lone_shares(model, last, inputs))
    beyond = {}
    for key, (share, units) in received.items():
        error = math.sqrt(share * (1 - share) / max(units, 1.0))
        beyond[key] = share - max(other[key][0] for other in others) - STANDARD_ERRORS * error
    in_front = [value for (layer, _), value in beyond.items() if layer == first_layer(model, state, inputs)]
    return max(beyond.values(), default=0.0), max(in_front, default=0.0)


def first_layer(model: nn.Module, state: State, inputs: Tensor) -> str:
    """Return the name of the layer with weights that runs first; empty where there is none."""
    network, order = copy.deepcopy(model).cpu().float().eval(), list[str]()
    for name, layer in network.named_modules():
        weight = getattr(layer, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim > 1:  # those of normalisations keep the example
            layer.register_forward_hook(lambda module, args, out, name=name: order.append(name))
    with torch.no_grad():
        functional_call(network, {name: _single(t) for name, t in state.items()}, (inputs[:2],), strict=False)
    return order[0] if order else ""


def _fresh(model: nn.Module) -> list[nn.Module]:
    """Return copies of the network with weights as its layers draw them."""
    copies = [copy.deepcopy(model).cpu().float() for _ in range(FRESH_DRAWS)]
    for draw, fresh in enumerate(copies):
        # Not by `reset_parameters`, which would need a known seed in the generator that other threads use too.
        PyTorchDefault().apply(fresh, stream(0, "fresh", draw))
    return copies


def _lone_shares(model: nn.Module, state: State, inputs: Tensor) -> dict[tuple[str, int], tuple[float, float]]:
    """Return the share of lone units, and how many it is taken of, by dense layer and number of examples."""
    network, outputs = copy.deepcopy(model).cpu().float().eval(), dict[str, Tensor]()
    dense = [(name, layer) for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    for name, layer in dense[:-1]:
        layer.register_forward_hook(lambda module, args, out, name=name: outputs.update({name: out.detach()}))
    with torch.no_grad():
        functional_call(network, {name: _single(t) for name, t in state.items()}, (inputs,), strict=False)
    shares = {}
    for name, out in outputs.items():
        fires = out.flatten(0, -2) > 0 if out.ndim > 2 else out > 0
        if len(fires) != len(inputs) or fires.shape[1] < LEAST_UNITS:
            continue
        for size in (size for size in SIZES if size <= len(fires)):
            counts = fires[: len(fires) // size * size].view(-1, size, fires.shape[1]).sum(1)
            alive = float((counts > 0).sum())
            enough = alive >= LEAST_ALIVE * counts.numel()
            shares[name, size] = float((counts == 1).sum()) / alive if enough else 0.0, alive
    return shares


def _single(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU, in single precision if it holds fractions."""
    tensor = tensor.detach().cpu()
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
    values = bias.detach().cpu().float()
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
    moves = [float((state[n].detach().cpu().double() - last[n].detach().cpu().double()).norm()) for n in names]
    own = [float(sent[n].detach().cpu().double().norm()) for n in names]
    whole = math.sqrt(sum(size**2 for size in own))
    if whole == 0:
        return None
    distances = [move / (size + FAINT * whole) for move, size in zip(moves, own, strict=True)]
    usual = median_low([distance for distance, size in zip(distances, own, strict=True) if size > 0])
    return max(distances) / max(1.0, usual)
