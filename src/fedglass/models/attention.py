"""Attention in a form that can be differentiated twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

_FUSED = (F.scaled_dot_product_attention, F.multi_head_attention_forward)


class Watch(TorchFunctionMode):
    """Notes whether PyTorch's own attention is called, whose fused kernels have no second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.seen = self.seen or func in _FUSED
        return func(*args, **(kwargs or {}))


def written_out() -> Any:
    """A context in which attention is computed from matrix products; entering it takes microseconds."""
    return sdpa_kernel(SDPBackend.MATH)
