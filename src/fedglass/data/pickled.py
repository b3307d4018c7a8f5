"""Reads the plain values out of a pickle without unpickling it.

Loading a pickle runs what it names: any function, with any arguments. Even a loader that admits numpy's
functions alone is no shelter, since a forged dtype state can make numpy take bytes for pointers. So this is a
small machine of its own over the opcodes of a pickle: it builds dicts, lists, tuples, numbers and text, and
where a pickle says "call this" it only writes down what was named. Nothing is imported or called, and no
memory is reserved by an announced size; an array of bytes is recognised by the names that numpy gives it, and
every other name is refused.
"""

from __future__ import annotations

import math
import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedglass.core.errors import DataError
from fedglass.data.files import Array

_ARRAYS = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
_NAMES = (*_ARRAYS, "numpy ndarray", "numpy dtype")
_TEXTS = frozenset(f"{size}{kind}" for kind in ("BINSTRING", "BINUNICODE", "BINBYTES") for size in ("", "SHORT_"))
_NUMBERS = ("BININT", "BININT1", "BININT2", "INT", "LONG1", "BINFLOAT")
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IDLE = ("PROTO", "FRAME")
_MARK = object()


@dataclass(eq=False)
class _Named:
    """A call that was written down instead of made: what was named, with what, and the state given to it."""

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = None


def plain_values(raw: bytes, path: Path) -> object:
    """The value that a pickle describes, where it is made of plain values and arrays of bytes.

    >>> import pickle
    >>> plain_values(pickle.dumps({"labels": [1, 2], "batch": (3, "a")}, protocol=2), Path("x"))
    {'labels': [1, 2], 'batch': (3, 'a')}
    """
    machine = _Machine(path)
    try:
        for opcode, argument, _ in pickletools.genops(raw):
            machine.step(opcode.name, argument)
        return machine.stack.pop()
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: not a readable pickle of plain values ({error}): it is truncated or corrupt."
        ) from None


def byte_array(value: object, path: Path) -> Array:
    """The array of unsigned bytes that a written-down call stands for."""
    if isinstance(value, _Named) and value.name in _ARRAYS:
        match value.state:
            case (_, tuple() as shape, _Named(name="numpy dtype", arguments=("u1", *_)), False | 0, raw):
                data = raw.encode("latin-1") if isinstance(raw, str) else raw
                sound = isinstance(data, bytes) and all(type(side) is int and side >= 0 for side in shape)
                if sound and math.prod(shape) == len(data):
                    return np.frombuffer(data, np.uint8).reshape(shape)
    raise DataError(f"{path}: expected an array of unsigned bytes, found something else: fetch the file again.")


class _Machine:
    """The stack and the memory of a pickle, as the format defines them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stack: list[Any] = []
        self.memory: dict[int, Any] = {}

    def step(self, opcode: str, argument: Any) -> None:
        stack = self.stack
        if opcode in _NUMBERS or opcode in _TEXTS:
            stack.append(argument)
        elif opcode in _CONSTANTS:
            stack.append(_CONSTANTS[opcode])
        elif opcode in _TUPLES:
            stack.append(tuple(self._take(_TUPLES[opcode])))
        elif opcode not in _IDLE:
            self._structure(opcode, argument)

    def _structure(self, opcode: str, argument: Any) -> None:
        stack = self.stack
        match opcode:
            case "STOP":
                return
            case "MARK":
                stack.append(_MARK)
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "TUPLE":
                stack.append(tuple(self._since_mark()))
            case "APPEND" | "APPENDS":
                items = self._take(1) if opcode == "APPEND" else self._since_mark()
                self._top(list).extend(items)
            case "SETITEM" | "SETITEMS":
                items = self._take(2) if opcode == "SETITEM" else self._since_mark()
                self._top(dict).update(zip(items[::2], items[1::2], strict=True))
            case "BINPUT" | "LONG_BINPUT":
                self.memory[argument] = stack[-1]
            case "MEMOIZE":
                self.memory[len(self.memory)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self.memory[argument])
            case _:
                self._call(opcode, argument)

    def _call(self, opcode: str, argument: Any) -> None:
        """Write down what would be called."""
        match opcode:
            case "GLOBAL":
                self.stack.append(self._named(argument))
            case "STACK_GLOBAL":
                module, name = self._take(2)
                self.stack.append(self._named(f"{module} {name}"))
            case "REDUCE":
                called, arguments = self._take(2)
                self.stack.append(_Named(called.name, tuple(arguments)))
            case "BUILD":
                (state,) = self._take(1)
                self._top(_Named).state = state
            case _:
                raise DataError(f"{self.path}: the pickle uses {opcode}, which plain data has no need of: refused.")

    def _named(self, name: str) -> _Named:
        if name not in _NAMES:
            raise DataError(
                f"{self.path}: the pickle names {name.replace(' ', '.')!r}, which could run code: refused. "
                "Use the binary version of the data."
            )
        return _Named(name)

    def _top(self, kind: type[Any]) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise TypeError(f"expected a {kind.__name__}")
        return self.stack[-1]

    def _take(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError("its stack runs empty")
        taken = self.stack[-count:]
        del self.stack[-count:]
        return taken

    def _since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise IndexError("a mark is missing")
        taken = self.stack[at + 1 :]
        del self.stack[at:]
        return taken
