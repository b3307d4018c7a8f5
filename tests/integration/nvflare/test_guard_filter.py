"""The guard as a client's filter: what it lets out, and that whatever else an executor answers stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.guard import REFUSED, GuardCounts, GuardRefusal
from fedglass.guard.nvflare import _MEMORIES, _READERS, _RECEIVED, GuardFilter

NOISY: dict[str, Any] = {"clip": 0.5, "noise_multiplier": 1.0, "budget_seconds": 600.0}
IMAGES = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    for reader in _READERS.values():
        reader.__exit__(None, None, None)
    for kept in (_RECEIVED, _MEMORIES, _READERS):
        kept.clear()


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
    """What a script trains, in a thread of its own as the framework has it, clipped and with noise."""
    model = Net()
    model.load_state_dict(weights())

    def script() -> None:
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        F.cross_entropy(model(IMAGES), torch.arange(4)).backward()
        optimiser.step()

    thread = threading.Thread(target=script)
    thread.start()
    thread.join()
    moved = {name: t - weights()[name] for name, t in model.state_dict().items()}
    norm = float(torch.stack([t.norm() for t in moved.values()]).norm())
    draws = torch.Generator().manual_seed(98765432101)  # nobody tries it: predictable noise is refused
    return {
        name: t * min(1.0, 0.5 / norm) + 0.5 * multiplier * torch.randn(t.shape, generator=draws)
        for name, t in moved.items()
    }


def answered(guard: GuardFilter, answer: Callable[[], Shareable]) -> Shareable:
    """What leaves of an answer that is made between the filters."""
    came = DXO(DataKind.WEIGHTS, arrays(weights())).to_shareable()
    assert guard.process(came, context(FilterKey.IN)) is came
    return guard.process(answer(), context(FilterKey.OUT))


def counts() -> GuardCounts:
    return _MEMORIES["site-1"].counts


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_a_protected_update_leaves(kind: str) -> None:
    moved = update(1.0)
    sent = moved if kind == DataKind.WEIGHT_DIFF else {name: weights()[name] + t for name, t in moved.items()}

    def answer() -> Shareable:
        update(1.0)
        meta = {"NUM_STEPS_CURRENT_ROUND": 1, "site_name": "site-1", "initial_metrics": {"train_loss": 0.5}}
        made = DXO(kind, arrays(sent), meta=meta).to_shareable()
        made.set_header("current_round", 3)
        return made

    left = answered(GuardFilter(**NOISY), answer)
    found = from_shareable(left)
    assert all(np.array_equal(found.data[name], t.numpy()) for name, t in sent.items())
    assert found.meta == {"NUM_STEPS_CURRENT_ROUND": 1, "initial_metrics": {"train_loss": 0.5}}
    assert left.get_header("current_round") == 3
    assert counts() == GuardCounts(checked=1)


def test_an_update_without_its_noise_stays_and_nothing_is_told() -> None:
    with pytest.raises(GuardRefusal) as raised:
        answered(GuardFilter(**NOISY), lambda: DXO(DataKind.WEIGHT_DIFF, arrays(update(0.0))).to_shareable())
    assert str(raised.value) == REFUSED
    assert raised.value.__cause__ is None
    assert counts() == GuardCounts(checked=1, refused=1)


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
        answered(GuardFilter(**NOISY), answer)


def test_what_nobody_watched_stays() -> None:
    sent = DXO(DataKind.WEIGHT_DIFF, arrays(update(1.0))).to_shareable()  # before the filter listens
    with pytest.raises(GuardRefusal):
        answered(GuardFilter(**NOISY), lambda: sent)


def test_an_error_leaves_as_its_code_alone() -> None:
    answer = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    answer["why"] = "patient 4711 has no scan"
    left = answered(GuardFilter(**NOISY), lambda: answer)
    assert left.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert "why" not in left
