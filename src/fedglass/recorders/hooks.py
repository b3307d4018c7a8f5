"""How a client trains, read off torch while it does: no line of its own code is touched or asked.

torch tells of every optimiser's step, of every module that is called and, through a function mode, of every loss. Only
forward passes through which a gradient came back belong to a step: validation on the way is none of it.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.jit._trace import is_tracing
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from fedglass.recorders.passes import (
    LOSSES,
    ForwardPasses,
    FunctionListener,
    has_weight_penalty,
    listening_backward,
    listening_losses,
    on_accumulated,
    on_gradient,
)
from fedglass.recorders.steps import ForwardPass, LossCall, ObservedStep

# Which examples a step took, told by what they hold.


class ExampleLog:
    """Digests of examples, and where they are to be kept the examples themselves."""

    def __init__(self, keep: bool) -> None:
        self.keep = keep
        self.kept: dict[bytes, Tensor] = {}

    def rows_of(self, batches: Sequence[Tensor | None]) -> list[bytes]:
        """A digest of each example of a step; of two that are alike, as data sets have them, the second has its own.

        A batch that comes again is the same examples looked at twice, as L-BFGS and sharpness-aware steps do.
        """
        told: list[list[bytes]] = []
        seen: Counter[bytes] = Counter()
        rows = []
        for batch in batches:
            examples = [] if batch is None else list(batch.cpu())
            plain = [_digest(example) for example in examples]
            if plain in told:
                continue
            told.append(plain)
            for digest, example in zip(plain, examples, strict=True):
                rows.append(digest + seen[digest].to_bytes(4))
                seen[digest] += 1
                if self.keep and rows[-1] not in self.kept:
                    self.kept[rows[-1]] = example.clone()
        return rows


def _digest(example: Tensor) -> bytes:
    content = example.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(content, digest_size=16).digest()


log = logging.getLogger("fedglass")


class TrainingReader:
    """Listens to everything that is trained within its `with` block, by the thread that entered it.

    With `any_thread` it listens to the whole process: for frameworks that train elsewhere than where they call. Losses
    are then seen only where they are called by way of `torch.nn.functional`, as torch's own modules do.

    With `keep_examples` the inputs are kept as the model was given them; without it only their digests, which tell how
    many different ones there were and in which order they came.

    >>> from torch.nn import functional as F
    >>> model = nn.Linear(2, 3)
    >>> optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> with TrainingReader() as reader:
    ...     F.cross_entropy(model(torch.ones(4, 2)), torch.zeros(4, dtype=torch.long)).backward()
    ...     optimiser.step()
    >>> step, = reader.steps
    >>> step.optimiser, step.options[0]["momentum"], step.examples, step.losses[0].name
    ('SGD', 0.9, 4, 'cross_entropy')
    """

    def __init__(self, *, keep_examples: bool = False, any_thread: bool = False) -> None:
        self.any_thread = any_thread
        self.steps: list[ObservedStep] = []
        self.fault = ""
        """Why it stopped listening: what came before is then not all of the training. Empty where it did not."""
        self._thread: int | None = None
        self._open = ExitStack()
        self._examples = ExampleLog(keep_examples)
        self._passes = ForwardPasses(self._begun, self._ended)
        self._losses: list[LossCall] = []
        self._penalty = False
        self._watched: dict[int, RemovableHandle] = {}
        self._norms: dict[int, Tensor] = {}
        self._versions: dict[int, tuple[Tensor, int]] = {}
        """Of each parameter, how often it had been written to when it was last seen to be as training left it."""
        self._before: dict[str, Any] = {}

    @property
    def inputs(self) -> dict[bytes, Tensor]:
        """The examples by their digests, in the order in which they were first seen; empty where none are kept."""
        return self._examples.kept

    def __enter__(self) -> Self:
        self._thread = threading.get_ident()
        handles = (
            register_module_forward_pre_hook(self._harmless(self._entered)),
            register_module_forward_hook(self._harmless(self._left), always_call=True),
            register_optimizer_step_pre_hook(self._harmless(self._stepping)),
            register_optimizer_step_post_hook(self._harmless(self._stepped)),
        )
        for handle in handles:
            self._open.callback(handle.remove)
        self._open.callback(self._unwatch)
        called = self._harmless(self.called)
        self._open.enter_context(listening_losses(called) if self.any_thread else FunctionListener(called))
        self._open.enter_context(listening_backward(self._harmless(self._minimised)))
        return self

    def __exit__(self, *raised: object) -> None:
        self._open.close()
        trained = frozenset[int]().union(*(step.weights for step in self.steps))
        if any(_written(*seen) for weight, seen in self._versions.items() if weight in trained):
            self.steps[-1] = replace(self.steps[-1], by_hand=True)
        self._versions.clear()

    def _unwatch(self) -> None:
        for handle in self._watched.values():
            handle.remove()
        self._watched.clear()

    def _harmless(self, listen: Callable[..., None]) -> Callable[..., None]:
        """The same, without ever getting in the way of a training that is not what it expects."""

        def heard(*given: Any) -> None:
            # What is being compiled or traced is not to have this in it: of such a network the outermost call is heard.
            if torch.compiler.is_compiling() or is_tracing() or self.fault:  # type: ignore[no-untyped-call] # of torch
                return
            try:
                listen(*given)
            except Exception as error:  # noqa: BLE001 # whatever it is, the training is not to end by being listened to
                self.fault = type(error).__name__
                log.warning("fedglass can not follow this training, which goes on (%s).", self.fault)

        return heard

    def _here(self) -> bool:
        return self.any_thread or threading.get_ident() == self._thread

    def _mine(self) -> bool:
        return torch.is_grad_enabled() and self._here()

    # Modules

    def _entered(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._mine():
            self._passes.entered(module, inputs)

    def _left(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self._mine():
            self._passes.left(module, output)

    def _begun(self, module: nn.Module) -> None:
        for parameter in module.parameters():
            if not parameter.requires_grad:
                continue
            self._versions.setdefault(id(parameter), (parameter, parameter._version))
            if id(parameter) not in self._watched:
                self._watched[id(parameter)] = on_accumulated(parameter, self._harmless(self._accumulated))

    def _ended(self, begun: ForwardPass, outputs: list[Tensor]) -> None:
        for tensor in outputs:
            on_gradient(tensor, self._harmless(begun.reached))

    def _accumulated(self, parameter: Tensor) -> None:
        if parameter.grad is not None and not parameter.grad.is_sparse:
            self._norms[id(parameter)] = parameter.grad.detach().norm()

    # Functions

    def called(self, function: Any, given: tuple[Any, ...], options: Mapping[str, Any], result: Any) -> None:
        """A function of torch, outside of its own work."""
        if not isinstance(result, Tensor) or not result.requires_grad or not self._mine():
            return
        if function in LOSSES:
            loss = LossCall.of(LOSSES[function], given, options)
            on_gradient(result, self._harmless(loss.reached))
            self._losses.append(loss)

    def _minimised(self, root: Tensor) -> None:
        """Weights on another way than through a network are a penalty, as FedProx has one."""
        self._penalty = self._penalty or (self._here() and has_weight_penalty(root))

    # Steps

    def _stepping(self, optimiser: Optimizer, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        if not self._here():
            return
        closure = len(given) > 1 or options.get("closure") is not None
        groups = optimiser.param_groups
        weights = [parameter for group in groups for parameter in group["params"]]
        self._before = {
            "optimiser": _class_of(optimiser),
            "options": [{k: v for k, v in group.items() if k != "params"} for group in groups],
            "carried": bool(optimiser.state) and not self.steps,
            # With a closure the gradients are yet to come; otherwise a parameter without one stays as it is.
            "weights": frozenset(id(p) for p in weights if closure or p.grad is not None),
            "gradient": None if closure else self._changed(weights),
            "by_hand": any(_written(*self._versions[id(p)]) for p in weights if id(p) in self._versions),
        }

    def _changed(self, parameters: Iterable[Tensor]) -> tuple[float, float, bool] | None:
        """The gradient's norm as backward left it and as it is used, and whether only its length was changed."""
        pairs = [(self._norms[id(p)], p.grad.norm()) for p in parameters if id(p) in self._norms and p.grad is not None]
        if not pairs:
            return None
        was, used = (torch.stack([pair[i].double().cpu() for pair in pairs]) for i in (0, 1))
        whole = float(was.norm()), float(used.norm())
        scaled = was * (whole[1] / whole[0]) if whole[0] else was
        return (*whole, bool(torch.allclose(scaled, used, rtol=1e-3, atol=1e-6 * max(whole[1], 1e-30))))

    def _stepped(self, optimiser: Optimizer, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        if not self._here():
            return
        if not self._before["weights"]:
            return  # without a gradient nothing is stepped
        passes = [each for each in self._passes.since if each.used]
        losses = [each for each in self._losses if each.used]
        rows = self._examples.rows_of([each.inputs for each in passes])
        self.steps.append(ObservedStep.of(self._before, passes, losses, rows, penalty=self._penalty))
        self._losses, self._penalty = [], False
        self._passes.since.clear()
        self._norms.clear()
        weights = (parameter for group in optimiser.param_groups for parameter in group["params"])
        self._versions |= {id(weight): (weight, weight._version) for weight in weights}


def _written(weight: Tensor, version: int) -> bool:
    """Whether a weight was written to since; torch counts that, but for what goes by way of `.data`."""
    return weight._version != version


def _class_of(optimiser: Optimizer) -> str:
    """Its name in torch, or with its module: somebody's own SGD may do anything."""
    kind = type(optimiser)
    own = not kind.__module__.startswith("torch.optim.")
    return f"{kind.__module__}.{kind.__name__}"[-200:] if own else kind.__name__
