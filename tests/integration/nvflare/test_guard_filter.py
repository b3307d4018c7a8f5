"""The guard as a client's filter: what it lets out, and that whatever else an executor answers stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install nvflare")
from nvflare.apis.dxo import DXO, DataKind, from_shareable  # noqa: E402
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, ReturnCode  # noqa: E402
from nvflare.apis.fl_context import FLContext  # noqa: E402
from nvflare.apis.shareable import Shareable, make_reply  # noqa: E402

from fedglass.guard import REFUSED, Counts, GuardRefusal  # noqa: E402
from fedglass.guard.nvflare import _CAME, _MEMORIES, GuardFilter  # noqa: E402
from fedglass.guard.watched import latest, watching  # noqa: E402

NOISY: dict[str, Any] = {"clip": 0.5, "noise_multiplier": 1.0, "budget_seconds": 600.0}
IMAGES = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    _CAME.clear()
    _MEMORIES.clear()
    latest()


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 5))


def context(direction: str) -> FLContext:
    found = FLContext()
    found.set_prop(ReservedKey.IDENTITY_NAME, "site-1", private=False, sticky=False)
    found.set_prop(FLContextKey.FILTER_DIRECTION, direction, private=True, sticky=False)
    return found


def weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return dict(Net().state_dict())


def arrays(params: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: t.detach().numpy() for name, t in params.items()}


def update(multiplier: float) -> dict[str, Tensor]:
    """What a script trains while it is watched, clipped and with noise."""
    model = Net()
    model.load_state_dict(weights())
    with watching():
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        F.cross_entropy(model(IMAGES), torch.arange(4)).backward()
        optimiser.step()
    moved = {name: t - weights()[name] for name, t in model.state_dict().items()}
    norm, draws = float(torch.stack([t.norm() for t in moved.values()]).norm()), torch.Generator().manual_seed(3)
    return {
        name: t * min(1.0, 0.5 / norm) + 0.5 * multiplier * torch.randn(t.shape, generator=draws)
        for name, t in moved.items()
    }


def answered(guard: GuardFilter, answer: Shareable) -> Shareable:
    came = DXO(DataKind.WEIGHTS, arrays(weights())).to_shareable()
    assert guard.process(came, context(FilterKey.IN)) is came
    return guard.process(answer, context(FilterKey.OUT))


def counts() -> Counts:
    return _MEMORIES["site-1"].counts


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_a_protected_update_leaves(kind: str) -> None:
    moved = update(1.0)
    sent = moved if kind == DataKind.WEIGHT_DIFF else {name: weights()[name] + t for name, t in moved.items()}
    meta = {"NUM_STEPS_CURRENT_ROUND": 1, "site_name": "site-1", "initial_metrics": {"train_loss": 0.5}}
    answer = DXO(kind, arrays(sent), meta=meta).to_shareable()
    answer.set_header("current_round", 3)
    left = answered(GuardFilter(**NOISY), answer)
    found = from_shareable(left)
    assert all(np.array_equal(found.data[name], t.numpy()) for name, t in sent.items())
    assert found.meta == {"NUM_STEPS_CURRENT_ROUND": 1, "initial_metrics": {"train_loss": 0.5}}
    assert left.get_header("current_round") == 3
    assert counts() == Counts(checked=1)


def test_an_update_without_its_noise_stays_and_nothing_is_told() -> None:
    answer = DXO(DataKind.WEIGHT_DIFF, arrays(update(0.0))).to_shareable()
    with pytest.raises(GuardRefusal) as raised:
        answered(GuardFilter(**NOISY), answer)
    assert str(raised.value) == REFUSED
    assert raised.value.__cause__ is None
    assert counts() == Counts(checked=1, refused=1)


def stowaways() -> Iterator[Any]:
    def dxo(**meta: Any) -> Shareable:
        return DXO(DataKind.WEIGHT_DIFF, arrays(update(1.0)), meta=meta).to_shareable()

    def beside() -> Shareable:
        found = dxo()
        found["pixels"] = IMAGES.numpy()
        return found

    yield pytest.param(lambda: Shareable({"pixels": IMAGES.numpy()}), id="no DXO")
    yield pytest.param(beside, id="beside the DXO")
    yield pytest.param(lambda: dxo(initial_metrics={"pixel 1": 0.5}), id="unknown figure")
    yield pytest.param(lambda: dxo(initial_metrics={"loss": [0.5]}), id="list for a figure")
    yield pytest.param(lambda: DXO(DataKind.METRICS, {"loss": 0.1}).to_shareable(), id="metrics")
    more = {"pixels": IMAGES.numpy()}
    yield pytest.param(
        lambda: DXO(DataKind.WEIGHT_DIFF, {**arrays(update(1.0)), **more}).to_shareable(), id="one array more"
    )
    inner = {"inner": DXO(DataKind.WEIGHTS, more)}
    yield pytest.param(lambda: DXO(DataKind.COLLECTION, inner).to_shareable(), id="collection")


@pytest.mark.parametrize("answer", list(stowaways()))
def test_nothing_else_leaves(answer: Any) -> None:
    with pytest.raises(GuardRefusal):
        answered(GuardFilter(**NOISY), answer())


def test_what_nobody_watched_stays() -> None:
    sent = update(1.0)
    latest()
    with pytest.raises(GuardRefusal):
        answered(GuardFilter(**NOISY), DXO(DataKind.WEIGHT_DIFF, arrays(sent)).to_shareable())


def test_an_error_leaves_as_its_code_alone() -> None:
    answer = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    answer["why"] = "patient 4711 has no scan"
    left = answered(GuardFilter(**NOISY), answer)
    assert left.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert "why" not in left
