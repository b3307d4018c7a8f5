"""Layers that no client of a simulated federation trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedglass.audit.simulated import Simulated
from fedglass.audit.target import ready_target
from fedglass.core.errors import UsageError
from fedglass.plan.compile import compile_plan
from fedglass.plan.schema import parse_plan

TEXT = """
[federation]
data = "photos"
size = 12
clients = 2
examples = 1
model = "lenet"
untrained = {names}
[federation.training]
lr = 0.1
[[attacks]]
name = "inverting_gradients"
iterations = 3
"""


def simulated(folder: Path, names: str) -> Simulated:
    (source,) = compile_plan(parse_plan(TEXT.format(names=names)), folder).sources
    assert isinstance(source, Simulated)
    return source


def test_they_are_constants_of_the_network(tmp_path: Path) -> None:
    source, whole = simulated(tmp_path, '["body.0.*"]'), simulated(tmp_path, "[]")
    target, *_ = source.targets(lambda done, total: None)
    seen = ready_target(target).observation
    assert not any(name.startswith("body.0.") for name in seen.update)
    assert {"body.0.weight", "body.0.bias"} <= set(seen.buffers)
    assert source.identity() != whole.identity()


def test_a_name_of_no_parameter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"federation.untrained has 'features.\*', which matches no parameter"):
        simulated(tmp_path, '["features.*"]')


def test_where_the_last_layer_is_not_trained_an_attack_is_named_that_needs_none(tmp_path: Path) -> None:
    text = TEXT.format(names='["fc.*"]')
    with pytest.raises(UsageError, match=r"last dense layer is not trained.*such as name = \"dlg\""):
        compile_plan(parse_plan(text), tmp_path)
    assert compile_plan(parse_plan(text.replace("inverting_gradients", "dlg")), tmp_path).sources
