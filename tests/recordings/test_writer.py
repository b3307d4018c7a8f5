"""A bundle is whole after every call, private, in order, and joined of what several recorders saw."""

from __future__ import annotations

import errno
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedglass.core.errors import DataError, UsageError
from fedglass.core.files import write_atomic
from fedglass.federation.truth import Truths
from fedglass.recordings import BundleWriter, read_bundle
from fedglass.recordings.facts import large_metrics
from fedglass.recordings.join import join
from fedglass.recordings.reader import files_of

STATE = {"b.weight": torch.tensor([[1.0, 2.0]]), "a.bias": torch.tensor(3.0), "n": torch.tensor(4)}


def moved(by: float) -> dict[str, Tensor]:
    return {name: tensor + torch.tensor(by).to(tensor.dtype) for name, tensor in STATE.items()}


def test_what_was_written_is_read_in_the_order_in_which_it_was_sent(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b", writer="server", facts={"rule": {"name": "mean"}})
    first = writer.round(1)
    first.sent(STATE)
    first.received("a", moved(1), examples=(2, 9), config={"lr": 0.1, "key": b"xyz"}, facts={"steps": 2})
    first.absent("b", "timed out")
    first.aggregated(moved(1), kept=["a"])
    writer.training("a", 1, {"lr": 0.5}, source="declared")
    writer.training("a", None, {"optimiser": "SGD"}, source="read")
    bundle = read_bundle(tmp_path / "b")
    held = bundle.rounds[1].sent
    assert held is not None
    assert list(bundle.arrays(held)) == list(STATE)
    assert all(torch.equal(tensor, STATE[name]) for name, tensor in bundle.arrays(held).items())
    assert bundle.facts_of("a", 1) == {
        "optimiser": {"read": "SGD"},
        "steps": {"read": 2},
        "examples": {"read": [2, 9]},
        "config": {"read": {"lr": 0.1, "key": "(3 bytes)"}},
        "lr": {"declared": 0.5},
    }
    absent = bundle.message("b", 1)
    assert absent is not None
    assert absent.absent == "timed out"


def test_after_every_call_there_is_a_whole_bundle(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    writer = BundleWriter(folder)
    calls = [
        lambda: writer.round(0).sent(STATE),
        lambda: writer.round(0).received("a", moved(1), examples=3),
        lambda: writer.round(0).aggregated(moved(1)),
        lambda: writer.round(1).sent(moved(1)),
        lambda: writer.training("a", 1, {"lr": 0.1}),
        lambda: writer.facts({"classes": 10}),
    ]
    for call in calls:
        call()
        read_bundle(folder)


class Crash(BaseException):
    """Nothing may catch it, as nothing catches a power cut."""


def _record_rounds(folder: Path) -> None:
    writer = BundleWriter(folder)
    for index in range(9):
        writer.round(index).sent(moved(index))
        writer.round(index).received("a", moved(index + 1))
        writer.round(index).aggregated(moved(index + 1))


@pytest.mark.parametrize("last", range(1, 14))
def test_a_crash_leaves_the_bundle_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    """After any number of files that were written, the next one never arrives."""
    writes = []

    def put(path: Path, content: bytes) -> None:
        if len(writes) == last:
            raise Crash
        writes.append(path)
        write_atomic(path, content)

    monkeypatch.setattr("fedglass.recordings.writer.write_atomic", put)
    with pytest.raises(Crash):
        _record_rounds(tmp_path / "b")
    manifests = [path for path in writes if path.name == "manifest.json"]
    bundle = read_bundle(tmp_path / "b")
    files = [held for past in bundle.rounds.values() for held in files_of(past)]
    assert len(files) == len(manifests) - 1
    monkeypatch.undo()
    BundleWriter(tmp_path / "b", resume=True).round(20).sent(STATE)
    assert 20 in read_bundle(tmp_path / "b").rounds


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b")
    writer.round(0).sent(STATE)
    writer.truth("a", np.zeros((2, 1, 3, 3), np.uint8), [0, 1])
    files = [*(tmp_path / "b").iterdir(), *(tmp_path / "b-truth").rglob("*.*")]
    assert len(files) == 6
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o700


def test_the_truth_is_beside_the_bundle_and_the_audit_can_read_it(tmp_path: Path) -> None:
    images = np.linspace(0, 1, 3 * 9, dtype=np.float32).reshape(3, 1, 3, 3)
    folder = BundleWriter(tmp_path / "b").truth("a", images, [0, 1, 1], batches={4: [[2], [0]]})
    assert not list((tmp_path / "b").glob("*truth*"))
    truths = Truths.load(folder)
    assert truths.of("a", 4).labels.tolist() == [0, 1]
    assert truths.of("a", 5).labels.tolist() == [0, 1, 1]
    assert truths.batch_labels[4, "a"] == ((1,), (0,))


def test_lists_of_arrays_are_numbered(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b")
    writer.round(0).sent([np.ones((2, 2), np.float32), np.float64(7)])
    held = read_bundle(tmp_path / "b").rounds[0].sent
    assert held is not None
    assert [(array.name, array.dtype, array.shape) for array in held.arrays] == [("0", "F32", [2, 2]), ("1", "F64", [])]


def test_bfloat16_and_tied_weights_are_kept(tmp_path: Path) -> None:
    weight = torch.ones(2, 2, dtype=torch.bfloat16)
    writer = BundleWriter(tmp_path / "b")
    writer.round(0).sent({"one": weight, "other": weight, "turned": weight.t()})
    held = read_bundle(tmp_path / "b").rounds[0].sent
    assert held is not None
    assert {array.dtype for array in held.arrays} == {"BF16"}


def test_a_bundle_is_continued_only_when_asked_for(tmp_path: Path) -> None:
    BundleWriter(tmp_path / "b").round(0).sent(STATE)
    with pytest.raises(UsageError, match="holds a bundle already"):
        BundleWriter(tmp_path / "b")
    BundleWriter(tmp_path / "b", resume=True).round(0).received("a", moved(1))
    assert read_bundle(tmp_path / "b").rounds[0].messages[0].received is not None


def test_writers_of_one_folder_add_to_what_the_others_wrote(tmp_path: Path) -> None:
    one, other = BundleWriter(tmp_path / "b"), BundleWriter(tmp_path / "b", resume=True)
    one.round(0).sent(STATE)
    other.round(0).received("a", moved(1))
    one.round(0).received("b", moved(2))
    other.round(1).sent(STATE)
    bundle = read_bundle(tmp_path / "b")
    assert [message.client for message in bundle.rounds[0].messages] == ["a", "b"]
    assert list(bundle.rounds) == [0, 1]


def _sends(folder: Path, number: int) -> None:
    writer = BundleWriter(folder, resume=True)
    for index in range(5):
        writer.round(index).received(f"client {number}", moved(number))


def test_writers_wait_for_each_other(tmp_path: Path) -> None:
    BundleWriter(tmp_path / "b")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(_sends, [tmp_path / "b"] * 4, range(4)))
    bundle = read_bundle(tmp_path / "b")
    assert {len(past.messages) for past in bundle.rounds.values()} == {4}
    assert len(bundle.rounds) == 5


@pytest.mark.parametrize(
    ("facts", "match"),
    [
        ({"learning_rate": 0.1}, "is not known"),
        ({"lr": -1.0}, "lr: Input should be greater than 0"),
        ({"steps": 1.5}, "steps"),
        ({"batch_norm": "sometimes"}, "batch_norm"),
        ({"examples": (9, 2)}, "examples"),
    ],
)
def test_facts_of_another_kind_are_refused(tmp_path: Path, facts: dict[str, object], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        BundleWriter(tmp_path / "b").training("a", 0, facts)


def test_each_message_comes_once(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b")
    writer.round(0).received("a", STATE)
    with pytest.raises(UsageError, match="the message of 'a' already"):
        writer.round(0).received("a", STATE)


def test_arrays_must_hold_numbers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'w' must hold numbers"):
        BundleWriter(tmp_path / "b").round(0).sent({"w": np.array(["x"], dtype=object)})


@pytest.fixture
def server(tmp_path: Path) -> Path:
    writer = BundleWriter(tmp_path / "server", writer="server")
    writer.round(1).sent(STATE)
    writer.round(1).received("node 7", moved(1), examples=4)
    writer.round(1).aggregated(moved(1), kept=["node 7"])
    return tmp_path / "server"


def test_recorders_are_joined(server: Path, tmp_path: Path) -> None:
    client = BundleWriter(tmp_path / "client", writer="a")
    client.round(1).received("a", moved(1))
    client.training("a", 1, {"lr": 0.1}, source="read")
    bundle = join(tmp_path / "all", [server, tmp_path / "client"], names={"node 7": "a"})
    assert bundle.clients == ("a",)
    assert bundle.facts_of("a", 1) == {"examples": {"read": 4}, "lr": {"read": 0.1}}
    assert bundle.rounds[1].facts["kept"] == {"read": ["a"]}


def test_recorders_that_saw_different_messages_are_not_joined(server: Path, tmp_path: Path) -> None:
    BundleWriter(tmp_path / "client").round(1).received("node 7", moved(2))
    with pytest.raises(DataError, match="differs from what another recorder saw"):
        join(tmp_path / "all", [server, tmp_path / "client"])


def test_what_can_not_be_joined_leaves_no_part_of_it_behind(server: Path, tmp_path: Path) -> None:
    """A part would be a whole bundle to every reader, and say nothing of those who are missing."""
    BundleWriter(tmp_path / "client").round(1).received("node 7", moved(2))
    with pytest.raises(DataError):
        join(tmp_path / "all", [server, tmp_path / "client"])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({server.name, "client"})
    join(tmp_path / "all", [server])
    with pytest.raises(UsageError, match="there already"):
        join(tmp_path / "all", [server])


def test_recorders_that_tell_different_facts_are_not_joined(server: Path, tmp_path: Path) -> None:
    BundleWriter(tmp_path / "client").training("node 7", 1, {"examples": 5}, source="read")
    with pytest.raises(DataError, match=r"disagree on 'examples' \(read\): 4 and 5"):
        join(tmp_path / "all", [server, tmp_path / "client"])


def test_what_may_not_be_read_is_said_in_a_sentence(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("fedglass.recordings.format.os.open", refused)
    with pytest.raises(DataError, match="Permission denied; only the user who recorded it may"):
        read_bundle(server)


def test_what_may_not_be_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="Cannot write to"):
        BundleWriter(tmp_path / "file" / "b")


@pytest.mark.parametrize(
    "sizes", [None, [], {}, {"picture": 3}, {"picture": [64]}, {"picture": ["64", "0"]}, {"another": [0, 0]}]
)
def test_sizes_of_metrics_are_read_off_the_words_of_earlier_versions(sizes: object) -> None:
    """Files without sizes, or with something else in their place, have arrays and bytes as words."""
    metrics = {"picture": "(64 numbers)", "raw": "(2 bytes)", "few": "(3 numbers)", "note": "64 numbers"}
    assert large_metrics(metrics, sizes) == ["picture", "raw"]


def test_many_metrics_of_one_number_are_as_large_as_one_of_many() -> None:
    """A picture may leave a pixel at a time."""
    pixels = {f"m{i}": 0.5 for i in range(64)}
    assert large_metrics(pixels) == ["m0, m1, m2 and 61 more"]
    assert large_metrics({f"m{i}": 0.5 for i in range(63)}) == []
    assert large_metrics({f"word {i}": "x" * 100 for i in range(2)}) == ["word 0, word 1"]
    assert large_metrics({}) == []
