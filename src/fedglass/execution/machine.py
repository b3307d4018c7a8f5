"""The machine as records describe it: versions, devices, threads and memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from fedglass import __version__
from fedglass.core.errors import UsageError

DEVICES = ("auto", "cpu", "cuda", "mps")


def device_named(name: str) -> torch.device:
    """Return the device of that name; `auto` is CUDA or MPS where present, and the CPU otherwise.

    >>> device_named("cpu")
    device(type='cpu')
    """
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if present[kind]))
    if name not in present:
        raise UsageError(f"device must be one of {', '.join(DEVICES)}, got {name!r}.")
    if not present[name]:
        raise UsageError(f"device {name!r} was asked for, but torch finds none here: choose auto or cpu.")
    return torch.device(name)


def versions(device: torch.device) -> dict[str, str]:
    """Return the versions and settings that bit-identical records depend on, in addition to the plan."""
    return {
        "fedglass": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "device": device.type,
        "threads": str(torch.get_num_threads()),
    }


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread inside the context: sums then have one order on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def return_memory() -> None:
    """Give freed memory back to the system, where that is possible: the next peak is then that of one case alone."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def reset_peak() -> None:
    """Forget the highest memory use so far, where the system can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_mib() -> float | None:
    """Return the highest resident memory since `reset_peak` in MiB, or None where the system does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return None
