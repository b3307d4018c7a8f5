"""Equal values have equal names, different ones different names, and what has no name is refused."""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import math
import pkgutil
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import fedglass
from fedglass.core.errors import UsageError
from fedglass.core.identity import digest, identity_text, of_architecture, of_model, of_tensor
from fedglass.core.registry import built_in
from fedglass.core.types import Training


@dataclass(frozen=True)
class Part:
    weight: float = 1.0
    inner: object = None
    hidden: int = field(default=0, repr=False)
    note: str = field(default="", compare=False)

    def __repr__(self) -> str:
        return "always the same"


@dataclass(frozen=True)
class Other:
    weight: float = 1.0
    inner: object = None
    hidden: int = 0


@dataclass
class Loose:
    weight: float = 1.0


class Pair(NamedTuple):
    a: int
    b: int


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Opaque:
    def __init__(self, weight: float) -> None:
        self.weight = weight


class Net(nn.Module):
    def __init__(self, slope: float = 1.0, **more: object) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self._slope = slope
        for name, value in more.items():
            setattr(self, name, value)


def double(x: float) -> float:
    return 2 * x


VALUES: list[object] = [
    None,
    True,
    False,
    0,
    1,
    1.0,
    math.nan,
    math.inf,
    "1",
    b"1",
    (),
    (1,),
    [1],
    (1, (2, 3)),
    ((1, 2), 3),
    Pair(1, 2),
    (1, 2),
    {},
    {"a": 1},
    {"a": "1"},
    frozenset({1, 2}),
    Path("a"),
    "a",
    Colour.RED,
    Colour.BLUE,
    double,
    math.sqrt,
    torch.relu,
    torch.tanh,
    Part,
    functools.partial(double, 1.0),
    functools.partial(double, x=1.0),
    Part(),
    Part(2.0),
    Part(hidden=1),
    Part(inner=Part()),
    Other(),
    Training(lr=0.1),
    Training(lr=0.2),
    torch.device("cpu"),
    torch.float32,
    range(3),
]


def test_different_values_have_different_texts() -> None:
    texts = [identity_text(value) for value in VALUES]
    assert len(set(texts)) == len(VALUES)
    assert not any("0x" in text for text in texts)


def test_equal_values_have_equal_texts() -> None:
    assert identity_text({"a": 1, "b": 2}) == identity_text({"b": 2, "a": 1})
    assert identity_text(frozenset({"x", "y"})) == identity_text(frozenset({"y", "x"}))
    assert identity_text(np.float64(0.1)) == identity_text(0.1)
    assert identity_text(Part(note="a")) == identity_text(Part(note="b")), "it does not count in a comparison"
    assert identity_text(Part()) == f"{__name__}.Part(weight=1.0, inner=None, hidden=0)"


@pytest.mark.parametrize("name", built_in("attacks"))
def test_every_attack_can_be_written_down(name: str) -> None:
    make: Callable[[], object] = built_in("attacks")[name].value
    assert identity_text(make()) == identity_text(make())


def test_the_text_is_the_same_in_another_process() -> None:
    code = "from fedglass.core.identity import *; from fedglass.recipes import recipe\n"
    code += "print(identity_text((recipe('dlfa'), frozenset('abc'), {'b': 1, 'a': print})))"
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1] != ""


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Opaque(1.0), "The part is of type Opaque, which cannot be written down"),
        (Part(inner=Opaque(1.0)), r"The part: Part\.inner is of type Opaque"),
        ((1, [Opaque(1.0)]), r"The part\[1\]\[0\] is of type Opaque"),
        ({"a": Opaque(1.0)}, r"The part\['a'\] is of type Opaque"),
        (Loose(), "is of type Loose, which can change, .* make it a frozen dataclass of plain values"),
        (lambda: None, "a function without a name of its own, .* define it at the top level of a module"),
        (Opaque(1.0).__init__, "a function without a name of its own"),
        (functools.partial(lambda: None), "The part: its function is a function without a name"),
        (torch.zeros(2), "The part is of type Tensor"),
        (OrderedDict(a=1), "is of type OrderedDict"),
        (iter(()), "is of type tuple_iterator"),
    ],
)
def test_what_can_not_be_written_down_is_refused(value: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        identity_text(value, "The part")


def test_a_class_inside_a_function_is_refused() -> None:
    def make(weight: float) -> object:
        @dataclass(frozen=True)
        class Local:
            def run(self) -> float:
                return weight

        return Local()

    with pytest.raises(UsageError, match=r"the class .*Local without a name of its own"):
        identity_text(make(1.0))


def test_tensors_of_other_type_shape_or_value_have_other_digests() -> None:
    base = torch.zeros(2, 2)
    others = [base.double(), base.view(4), base + 1, torch.zeros(2, 3), base.bool()]
    assert len({of_tensor(t) for t in [base, *others]}) == 6
    assert of_tensor(base.t()) == of_tensor(base)
    assert of_tensor(torch.arange(4.0).view(2, 2).t()) == of_tensor(torch.tensor([[0.0, 2.0], [1.0, 3.0]]))


def test_digests_tell_where_a_text_ends() -> None:
    assert digest("a", "") != digest("", "a") != digest("a")


def zeros(model: nn.Module) -> nn.Module:
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data.zero_()
    return model


def test_models_differ_in_what_their_repr_does_not_show() -> None:
    models = [
        Net(),
        Net(slope=2.0),
        Net(mode="fast"),
        Net(sizes=(1, 2)),
        Net(call=double),
        nn.Sequential(Net()),
        nn.Linear(2, 2),
        nn.Linear(2, 2, bias=False),
    ]
    assert repr(models[0]) == repr(models[1]) == repr(models[2])
    assert len({of_model(zeros(model)) for model in models}) == len(models)


def test_the_mode_and_hooks_do_not_count_and_what_can_not_be_written_down_does() -> None:
    base = of_model(zeros(Net()))
    assert of_model(zeros(Net()).eval()) == base
    hooked = zeros(Net())
    hooked.register_forward_hook(lambda *_: None)
    assert of_model(hooked) == base
    assert of_model(zeros(Net(cache=Opaque(1.0)))) != of_model(zeros(Net(cache=Opaque(2.0))))


def test_weights_and_unsaved_buffers_count() -> None:
    one, other, third = Net(), Net(), Net()
    other.load_state_dict(one.state_dict())
    assert of_model(one) == of_model(other) != of_model(third)
    for model, value in ((one, 0.0), (other, 1.0)):
        model.register_buffer("scale", torch.full((1,), value), persistent=False)
    assert of_model(one) != of_model(other)
    assert of_architecture(one) == of_architecture(other)


class Scaled(nn.Module):
    """A module whose behaviour is in an attribute that no repr shows."""

    def __init__(self, how: object) -> None:
        super().__init__()
        self.how = how


def by(factor: float) -> object:
    return lambda x: x * factor


class Plain:
    def __init__(self, value: object) -> None:
        self.value = value


def test_models_that_differ_in_a_function_or_an_object_differ() -> None:
    models = [Scaled(by(2.0)), Scaled(by(3.0)), Scaled(lambda x: x + 1), Scaled(Plain(1)), Scaled(Plain(2))]
    assert len({of_model(model) for model in models}) == len(models)
    assert of_model(Scaled(by(2.0))) == of_model(Scaled(by(2.0)))
    with pytest.raises(UsageError, match=r"Scaled\.how is of type Plain, which cannot be written down"):
        of_model(Scaled(Plain(by(2.0))))


def test_moving_a_class_of_fedglass_changes_no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity_text(Training(1, 4))
    monkeypatch.setattr(Training, "__module__", "fedglass.core.identity")
    monkeypatch.setattr("fedglass.core.identity.Training", Training, raising=False)
    assert identity_text(Training(1, 4)) == before
    assert "fedglass.Training(" in before


def test_classes_of_one_name_differ_in_their_fields() -> None:
    """By their names alone they could not be told apart."""
    for module in pkgutil.walk_packages(fedglass.__path__, "fedglass."):
        if module.name.split(".")[1] not in ("__main__", "guard", "recorders"):  # these need other packages
            importlib.import_module(module.name)
    fields_of: dict[tuple[str, tuple[str, ...]], set[str]] = {}
    for name, content in list(sys.modules.items()):
        for value in vars(content).values() if name.startswith("fedglass.") else ():
            if inspect.isclass(value) and is_dataclass(value) and value.__module__ == name:
                fields_of.setdefault((value.__qualname__, tuple(f.name for f in fields(value))), set()).add(name)
    assert {key: modules for key, modules in fields_of.items() if len(modules) > 1} == {}
