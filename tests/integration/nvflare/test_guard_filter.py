"""The guard as a client's filter: what it lets out, and that whatever else an executor answers stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.fl_exception import UnsafeJobError
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.private.event import fire_event
from nvflare.private.fed.client.client_engine_executor_spec import TaskAssignment
from nvflare.private.fed.client.client_runner import ClientRunner, ClientRunnerConfig, TaskRouter
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.guard import REFUSED, GuardCounts, GuardRefusal
from fedglass.guard.nvflare import _MEMORIES, _READERS, _RECEIVED, GuardFilter, guard_clients

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
    came.set_header("current_round", 3)
    assert guard.process(came, context(FilterKey.IN)) is came
    return guard.process(answer(), context(FilterKey.OUT))


def counts() -> GuardCounts:
    return _MEMORIES["site-1"].counts


def test_a_crafted_model_is_refused_before_it_is_trained() -> None:
    crafted = {name: tensor[:1].expand_as(tensor).clone() for name, tensor in weights().items()}
    came = DXO(DataKind.WEIGHTS, arrays(crafted)).to_shareable()
    with pytest.raises(GuardRefusal, match=REFUSED):
        GuardFilter(**NOISY).process(came, context(FilterKey.IN))
    assert not _READERS, "nothing is observed any more"


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_a_protected_update_leaves(kind: str) -> None:
    moved = update(1.0)
    sent = moved if kind == DataKind.WEIGHT_DIFF else {name: weights()[name] + t for name, t in moved.items()}

    def answer() -> Shareable:
        update(1.0)
        figures = {"train_loss": 0.123456789}
        meta = {"NUM_STEPS_CURRENT_ROUND": 4711, "site_name": "site-1", "initial_metrics": figures, "start_round": 4711}
        made = DXO(kind, arrays(sent), meta=meta).to_shareable()
        made.set_header("current_round", 4711)
        return made

    left = answered(GuardFilter(**NOISY), answer)
    found = from_shareable(left)
    assert list(found.data) == list(sent)
    apart = np.concatenate([(found.data[name] - t.numpy()).ravel() for name, t in sent.items()])
    assert apart.std() == pytest.approx(2**0.5 * 0.5, rel=0.1), "the guard's noise is there in place of the script's"
    assert found.meta == {"NUM_STEPS_CURRENT_ROUND": 1, "initial_metrics": {"train_loss": 0.123}}
    assert left.get_header("current_round") == 3, "as it came"
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


SECRET = "patient 4711 has no scan"


@pytest.mark.parametrize("answer", [update, None], ids=["allowed", "error"])
@pytest.mark.parametrize("sticky", [True, False])
def test_what_an_app_writes_into_its_task_and_its_context_stays(answer: Any, sticky: bool) -> None:
    manager = FLContextManager(identity_name="site-1", job_id="job", public_stickers={"site": "here"})
    fl_ctx, guard = manager.new_context(), GuardFilter(**NOISY)
    came = DXO(DataKind.WEIGHTS, arrays(weights())).to_shareable()
    came.add_cookie("task", 7)
    fl_ctx.set_prop(FLContextKey.FILTER_DIRECTION, FilterKey.IN, private=True, sticky=False)
    given, public = guard.process(came, fl_ctx), fl_ctx.get_all_public_props()
    fl_ctx.set_prop("note", SECRET, private=False, sticky=sticky)
    fl_ctx.set_prop("site", SECRET, private=False, sticky=True)
    fl_ctx.set_prop(ReservedKey.IDENTITY_NAME, SECRET, private=False, sticky=False)
    given.add_cookie("note", SECRET)
    fl_ctx.set_prop(FLContextKey.FILTER_DIRECTION, FilterKey.OUT, private=True, sticky=False)
    made = make_reply(SECRET) if answer is None else DXO(DataKind.WEIGHT_DIFF, arrays(answer(1.0))).to_shareable()
    left = guard.process(made, fl_ctx)
    assert left.get_return_code() == (ReturnCode.OK if answer else ReturnCode.EXECUTION_EXCEPTION)
    assert given.get_cookie_jar() == {"task": 7}, "NVFlare returns the cookies of the task"
    assert fl_ctx.get_all_public_props() == public, "NVFlare sends them with the answer"
    assert SECRET not in repr(manager.new_context().get_all_public_props())


class Gossip(Executor):
    """Writes into its task and its context, and then ends in some way."""

    def __init__(self, ends: Callable[[Signal], Any]) -> None:
        super().__init__()
        self.ends = ends

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        shareable.add_cookie("note", SECRET)
        shareable.set_header("cookie_jar", {"note": SECRET})
        fl_ctx.set_prop("note", SECRET, private=False, sticky=False)
        fl_ctx.set_prop("sticky note", SECRET, private=False, sticky=True)
        fl_ctx.set_prop("site", SECRET, private=False, sticky=True)
        return self.ends(abort_signal)  # type: ignore[no-any-return]

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.BEFORE_SEND_TASK_RESULT:
            fl_ctx.set_prop("later note", SECRET, private=False, sticky=False)


def raises(error: BaseException) -> Callable[[Signal], Any]:
    def ends(abort_signal: Signal) -> Any:
        raise error

    return ends


def aborted(abort_signal: Signal) -> Shareable:
    abort_signal.trigger(True)
    return Shareable()


ENDS = {
    "error": raises(ValueError(SECRET)),
    "runtime error": raises(RuntimeError(SECRET)),
    "unsafe job": raises(UnsafeJobError(SECRET)),
    "aborted": aborted,
    "no shareable": lambda abort_signal: SECRET,
    "refused": lambda abort_signal: Shareable({"note": SECRET}),
}


@pytest.mark.parametrize("ends", ENDS)
def test_what_an_executor_writes_stays_where_it_ends_without_an_answer(ends: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("nvflare.private.fed.client.client_runner.add_job_audit_event", lambda **_: "")
    engine, sent = MagicMock(), list[tuple[Any, Any]]()
    manager = FLContextManager(engine, "site-1", "job", public_stickers={"site": "here"})
    executor, coming, leaving, router = Gossip(ENDS[ends]), GuardFilter(**NOISY), GuardFilter(**NOISY), TaskRouter()
    router.add_executor(["train"], executor)
    config = ClientRunnerConfig(router, {"train/in": [coming]}, {"train/out": [leaving]})
    engine.fire_event = lambda event, ctx: fire_event(event, [executor, coming, leaving], ctx)
    engine.get_task_assignment = lambda *_: TaskAssignment("train", "1", came)
    engine.send_task_result = lambda reply, ctx, **_: sent.append((dict(reply), ctx.get_all_public_props())) or True
    runner = ClientRunner({}, config, "job", engine)
    monkeypatch.setattr(runner, "_check_task_once", lambda *_: 0)
    fl_ctx = manager.new_context()
    fl_ctx.set_peer_context(FLContextManager(engine, "server", "job").new_context())
    came = DXO(DataKind.WEIGHTS, arrays(weights())).to_shareable()
    came.add_cookie("task", 7)
    public = fl_ctx.get_all_public_props()
    runner.fetch_and_run_one_task(fl_ctx)
    ((reply, props),) = sent
    assert SECRET not in repr(reply)
    assert reply[ReservedHeaderKey.HEADERS][ReservedHeaderKey.COOKIE_JAR] == {"task": 7}
    assert props == public
    assert SECRET not in repr(manager.new_context().get_all_public_props())
    assert not _READERS, "nothing is observed any more"


class Recipe:
    """Remembers the filters of a job."""

    def __init__(self) -> None:
        self.leaving: dict[str, GuardFilter] = {}

    def add_client_input_filter(self, part: GuardFilter, tasks: list[str]) -> None:
        assert tasks == ["train"]

    def add_client_output_filter(self, part: GuardFilter, tasks: list[str]) -> None:
        self.leaving |= dict.fromkeys(tasks, part)


def test_a_model_for_cross_site_evaluation_stays(tmp_path: Path) -> None:
    recipe = Recipe()
    guard_clients(recipe, **NOISY, log=str(tmp_path))
    own = DXO(DataKind.WEIGHTS, arrays(weights())).to_shareable()
    with pytest.raises(GuardRefusal):
        recipe.leaving["submit_model"].process(own, context(FilterKey.OUT))
    assert counts().refused == 1
    assert '"structure"' in (tmp_path / "site-1.jsonl").read_text()


def test_what_nobody_watched_stays() -> None:
    sent = DXO(DataKind.WEIGHT_DIFF, arrays(update(1.0))).to_shareable()  # before the filter listens
    with pytest.raises(GuardRefusal):
        answered(GuardFilter(**NOISY), lambda: sent)


@pytest.mark.parametrize("code", [ReturnCode.EXECUTION_EXCEPTION, "patient 4711 has no scan"])
def test_an_error_leaves_as_one_code_alone(code: str) -> None:
    answer = make_reply(code)
    answer["why"] = "patient 4711 has no scan"
    left = answered(GuardFilter(**NOISY), lambda: answer)
    assert left.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert "why" not in left


def test_an_app_that_ends_the_process_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(*_: object, **__: object) -> None:
        raise SystemExit("patient 4711 has no scan")

    monkeypatch.setattr("fedglass.guard.guard.Guard.check_watched", ends)
    with pytest.raises(GuardRefusal) as raised:
        answered(GuardFilter(**NOISY), lambda: DXO(DataKind.WEIGHT_DIFF, arrays(update(1.0))).to_shareable())
    assert str(raised.value) == REFUSED
    assert counts().refused == 1
