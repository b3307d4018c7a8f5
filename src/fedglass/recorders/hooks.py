"""Observes how a client trains by hooks of torch: none of the client's code is changed or called.

torch reports every optimiser step, every call of a module and, through a function mode, every loss. Only forward passes
through which a gradient came back belong to a step: validation in between does not.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.jit._trace import is_tracing
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter

from fedglass.core.errors import UsageError
from fedglass.models.network import FunctionListener, OnCall
from fedglass.recorders.defences import class_name, private_step, rate_of_step, sample_rate_of
from fedglass.recorders.steps import (
    ForwardPass,
    ForwardPasses,
    Gradient,
    LossCall,
    ObservedStep,
    has_weight_penalty,
    tensors_in,
)

log = logging.getLogger("fedglass")

LOSSES: Mapping[Any, str] = {
    getattr(F, name): name
    for name in (
        *("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div"),
        *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
        *("multi_margin_loss", "cosine_embedding_loss", "triplet_margin_loss"),
    )
}
"""Loss functions by name; torch's modules call them too."""


TORCH_FUNC = "Per-example gradients by torch.func are not read: use Opacus or torch.autograd.grad."


@functools.cache
def warn_once(error: str) -> None:
    """Log what ended an observation; every client and round of a loop ends in the same way."""
    log.warning("fedglass cannot observe this training. The training continues. %s", error)


@contextmanager
def replaced(module: Any, functions: Mapping[str, Any]) -> Iterator[None]:
    """Put other functions in a module or a class, in all threads."""
    plain = {name: getattr(module, name) for name in functions}
    for name, function in functions.items():
        setattr(module, name, function)
    try:
        yield
    finally:
        for name, function in plain.items():
            setattr(module, name, function)


def listening(module: Any, functions: Iterable[Any], on_call: OnCall) -> AbstractContextManager[None]:
    """Tell a listener of calls of a module's or a class's functions, with their results."""

    def listened(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            result = function(*args, **options)
            on_call(function, args, options, result)
            return result

        return call

    return replaced(module, {function.__name__: listened(function) for function in functions})


def listening_backward(on_root: Callable[[Tensor], None]) -> AbstractContextManager[None]:
    """Tell a listener of what is differentiated: `loss.backward()` calls `torch.autograd.backward`."""
    plain = torch.autograd.backward

    @functools.wraps(plain)
    def backward(tensors: Any, *args: Any, **options: Any) -> None:
        for root in (tensors,) if isinstance(tensors, Tensor) else tuple(tensors):
            on_root(root)
        plain(tensors, *args, **options)

    return replaced(torch.autograd, {"backward": backward})


class TrainingReader:
    """Observes everything that is trained within its `with` block, by the thread that entered it.

    With `any_thread` it observes the whole process, for frameworks that train in another thread. Losses are then seen
    only if they are called by way of `torch.nn.functional`, as torch's own modules do.

    With `keep_examples` the inputs are kept as the model was given them. Otherwise only their digests are: these show
    how many different examples there were and in which order they came.

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
        """The error that ended the observation; what came before is then not all of the training. Empty without one."""
        self.first_pass: ForwardPass | None = None
        self._thread: int | None = None
        self._open = ExitStack()
        self._keep_examples = keep_examples
        self.inputs: dict[bytes, Tensor] = {}
        """The examples by their digests, in the order in which they first came; empty if none are kept."""
        self._passes = ForwardPasses()
        self._losses: list[LossCall] = []
        self._penalty = False
        self._drawn: list[tuple[float, int]] = []
        """The rate and the size of each Poisson sample that a data loader has yielded since the last step."""
        self._watched: set[int] = set()
        """The parameters with a hook, by identity."""
        self._norms: dict[int, Tensor] = {}
        self._versions: dict[int, tuple[Tensor, int]] = {}
        """By parameter, its count of writes when training last left it."""
        self._pending: dict[str, Any] = {}
        """The optimiser's own numbers before the step that is being taken."""

    def __enter__(self) -> Self:
        self._thread = threading.get_ident()
        handles = (
            register_module_forward_pre_hook(self._harmless(self._on_enter)),
            register_module_forward_hook(self._harmless(self._on_leave), always_call=True),
            register_optimizer_step_pre_hook(self._harmless(self._before_step)),
            register_optimizer_step_post_hook(self._harmless(self._after_step)),
        )
        for handle in handles:
            self._open.callback(handle.remove)
        called = self._harmless(self._on_function)
        self._open.enter_context(listening(F, LOSSES, called) if self.any_thread else FunctionListener(called))
        self._open.enter_context(listening_backward(self._harmless(self._on_backward)))
        fetch = _BaseDataLoaderIter.__next__
        self._open.enter_context(listening(_BaseDataLoaderIter, [fetch], self._harmless(self._on_batch)))
        return self

    def __exit__(self, *raised: object) -> None:
        self._open.close()
        self._watched.clear()
        trained = frozenset[int]().union(*(step.weights for step in self.steps))
        if any(_was_written(*write) for weight, write in self._versions.items() if weight in trained):
            self.steps[-1] = replace(self.steps[-1], by_hand=True)
        self._versions.clear()

    def _harmless(self, listen: Callable[..., None]) -> Callable[..., None]:
        """Return the same listener, which never disturbs a training that it does not understand."""

        def safe(*args: Any) -> None:
            # A graph that is being compiled or traced must not contain the listener: only the outermost call is seen.
            if torch.compiler.is_compiling() or is_tracing() or self.fault:  # type: ignore[no-untyped-call] # of torch
                return
            try:
                listen(*args)
            except Exception as error:  # noqa: BLE001 # no error of an observer may end the training
                self.fault = type(error).__name__
                text = " ".join(str(error).split())
                warn_once(text if isinstance(error, UsageError) else f"{self.fault}: {text}")

        return safe

    def _observes_thread(self) -> bool:
        return self.any_thread or threading.get_ident() == self._thread

    def _observes_graph(self) -> bool:
        return torch.is_grad_enabled() and self._observes_thread()

    # Modules

    def _on_enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if not self._observes_graph() or not self._passes.enter(module, inputs):
            return
        for parameter in (parameter for parameter in module.parameters() if parameter.requires_grad):
            self._versions.setdefault(id(parameter), (parameter, parameter._version))
            if id(parameter) not in self._watched:
                call = self._harmless(self._on_accumulated)
                handle = parameter.register_post_accumulate_grad_hook(call)  # type: ignore[no-untyped-call] # of torch
                self._open.callback(handle.remove)
                self._watched.add(id(parameter))

    def _on_leave(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        ended = self._passes.leave(module, output) if self._observes_graph() else None
        if ended is not None:
            forward, outputs = ended
            self.first_pass = self.first_pass or forward
            for tensor in outputs:
                on_gradient(tensor, self._harmless(forward.on_gradient))

    def _on_accumulated(self, parameter: Tensor) -> None:
        if parameter.grad is not None and not parameter.grad.is_sparse:
            self._norms[id(parameter)] = parameter.grad.detach().norm()

    # Functions

    def _on_function(self, function: Any, args: tuple[Any, ...], options: Mapping[str, Any], result: Any) -> None:
        """Take down a call of a loss."""
        if not isinstance(result, Tensor) or not result.requires_grad or not self._observes_graph():
            return
        if function in LOSSES:
            if is_functorch_wrapped_tensor(result):
                raise UsageError(TORCH_FUNC)
            loss = LossCall.of(LOSSES[function], args, options)
            on_gradient(result, self._harmless(loss.on_gradient))
            self._losses.append(loss)

    def _on_backward(self, root: Tensor) -> None:
        """Note a penalty on the weights, as FedProx has one."""
        self._penalty = self._penalty or (self._observes_thread() and has_weight_penalty(root))

    def _on_batch(self, function: Any, args: tuple[Any, ...], options: Mapping[str, Any], batch: Any) -> None:
        rate = sample_rate_of(getattr(args[0], "_index_sampler", None)) if self._observes_thread() else None
        if rate is not None:
            self._drawn.append((rate, len(next(tensors_in([batch]), ()))))

    # Steps

    def _before_step(self, optimiser: Optimizer, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        if not self._observes_thread():
            return
        closure = len(args) > 1 or options.get("closure") is not None
        groups = optimiser.param_groups
        weights = [parameter for group in groups for parameter in group["params"]]
        private = private_step(optimiser)
        self._pending = {
            "optimiser": class_name(optimiser, "torch.optim."),
            "options": [{k: v for k, v in group.items() if k != "params"} for group in groups],
            "carried": bool(optimiser.state) and not self.steps,
            # With a closure the gradients are yet to come; otherwise a parameter without one stays as it is.
            "weights": frozenset(id(p) for p in weights if closure or p.grad is not None),
            # The gradients of Opacus are other ones than backward has left.
            "gradient": None if closure or private is not None else self._gradient(weights),
            "private": private,
            "by_hand": any(_was_written(*self._versions[id(p)]) for p in weights if id(p) in self._versions),
        }

    def _gradient(self, parameters: Iterable[Tensor]) -> Gradient | None:
        """Compare the gradient after backward with the one that is used, by the norms of the parameters' gradients."""
        pairs = [(self._norms[id(p)], p.grad.norm()) for p in parameters if id(p) in self._norms and p.grad is not None]
        if not pairs:
            return None
        before, used = (torch.stack([pair[i].cpu().double() for pair in pairs]) for i in (0, 1))
        norm_before, norm_used = float(before.norm()), float(used.norm())
        scaled = before * (norm_used / norm_before) if norm_before else before
        same_direction = bool(torch.allclose(scaled, used, rtol=1e-3, atol=1e-6 * max(norm_used, 1e-30)))
        return Gradient(norm_before, norm_used, same_direction)

    def _after_step(self, optimiser: Optimizer, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        if not self._observes_thread() or not self._pending["weights"]:
            return  # without a gradient nothing is stepped
        passes = [forward for forward in self._passes.since_step if forward.used]
        losses = [loss for loss in self._losses if loss.used]
        rows = self._rows_of([forward.inputs for forward in passes])
        self._pending["sample_rate"] = rate_of_step(self._drawn, len(passes), len(rows))
        self.steps.append(ObservedStep.of(self._pending, passes, losses, rows, penalty=self._penalty))
        self._losses, self._drawn, self._penalty = [], [], False
        self._passes.since_step.clear()
        self._norms.clear()
        weights = (parameter for group in optimiser.param_groups for parameter in group["params"])
        self._versions |= {id(weight): (weight, weight._version) for weight in weights}

    def _rows_of(self, batches: Sequence[Tensor | None]) -> list[bytes]:
        """Return a digest of each example of a step; the second of two equal examples has a digest of its own.

        A batch that comes again holds the same examples: L-BFGS and sharpness-aware steps evaluate a batch twice.
        """
        earlier: list[list[bytes]] = []
        times: Counter[bytes] = Counter()
        rows = []
        for batch in batches:
            examples = [] if batch is None else list(batch.cpu())
            digests = [_digest(example) for example in examples]
            if digests in earlier:
                continue
            earlier.append(digests)
            for digest, example in zip(digests, examples, strict=True):
                rows.append(digest + times[digest].to_bytes(4))
                times[digest] += 1
                if self._keep_examples and rows[-1] not in self.inputs:
                    self.inputs[rows[-1]] = example.clone()
        return rows


def _digest(example: Tensor) -> bytes:
    content = example.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(content, digest_size=16).digest()


def _was_written(weight: Tensor, version: int) -> bool:
    """Check whether a weight was written to since; torch counts writes, except those by way of `.data`."""
    return weight._version != version


def on_gradient(tensor: Tensor, call: Callable[[Tensor], None]) -> None:
    """Call a function with the gradient when it comes to a tensor."""
    tensor.register_hook(call)  # type: ignore[no-untyped-call] # of torch
