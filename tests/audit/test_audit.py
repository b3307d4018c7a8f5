"""An audit from a job to its records: resumed, repeated, spread over processes, and with broken messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedglass.attack.attack import Attack
from fedglass.attack.labels.given import OracleLabels
from fedglass.audit.audit import Job, run
from fedglass.audit.simulated import Simulated
from fedglass.audit.target import AuditProgress, Case
from fedglass.cli.progress import outcome_in_words
from fedglass.core.errors import AuditError, UsageError
from fedglass.core.tensors import Update
from fedglass.core.types import Observation, Reconstruction
from fedglass.execution.processes import Processes
from fedglass.federation.federation import Federation
from fedglass.federation.peer import PeerView
from fedglass.federation.views import AggregateView, Knows, ServerView
from fedglass.fl.aggregate.rule import Aggregated, AggregationContext, State, mean_of
from fedglass.fl.release import Outgoing
from fedglass.recipes import recipe
from fedglass.report.audit_page import audit_page
from fedglass.verdict.collect_doubts import flags_of
from fedglass.verdict.directory import RECORDS, RecordFile
from fedglass.verdict.doubts import DoubtKind
from fedglass.verdict.gate import Gate
from fedglass.verdict.images import ImageScores
from fedglass.verdict.outcomes import read_audit
from fedglass.verdict.records import Record

Make = Callable[..., Job]


class Log(AuditProgress):
    """Remembers which cases ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def finished(self, case: Case[Any], record: Record) -> None:
        self.ran.append(case.key)


def timeless(records: list[Record] | Any) -> list[dict[str, Any]]:
    """The records without what depends on the day: time and memory."""
    return sorted((r.model_dump(exclude={"seconds", "peak_mib", "finished"}) for r in records), key=lambda r: r["key"])


def test_a_run_leaves_records_images_and_a_verdict(make_job: Make, tmp_path: Path) -> None:
    result = run(make_job(), tmp_path)
    assert len(result.searches) == 4
    for record in result.searches:
        assert record.status == "done"
        assert len(record.metrics["psnr"]) == len(record.pictures) == 1
        assert record.energy_truth is not None
        assert record.energy_blind is not None
        assert record.versions["threads"] == "1"
        for path in (record.pictures[0].original, record.pictures[0].reconstruction):
            assert (tmp_path / path).is_file()
        saved = load_file(tmp_path / "reconstructions" / f"{record.key}.safetensors")
        assert saved["images"].shape == (1, 1, 12, 12)
    assert result.verdict.exit_code in (1, 3)
    assert (tmp_path / "summary.json").is_file()


def test_what_is_finished_is_never_run_again(make_job: Make, tmp_path: Path) -> None:
    first, second = Log(), Log()
    before = run(make_job(), tmp_path, progress=first)
    after = run(make_job(), tmp_path, progress=second)
    assert len(first.ran) == len(make_job().cases)
    assert second.ran == []
    assert before.records == after.records


def test_a_stopped_audit_continues_where_it_was(make_job: Make, tmp_path: Path) -> None:
    class Stop(Log):
        def finished(self, case: Case[Any], record: Record) -> None:
            super().finished(case, record)
            if len(self.ran) == 2:
                raise KeyboardInterrupt

    stopped, rest = Stop(), Log()
    with pytest.raises(KeyboardInterrupt):
        run(make_job(), tmp_path / "a", progress=stopped)
    result = run(make_job(), tmp_path / "a", progress=rest)
    assert not set(stopped.ran) & set(rest.ran)
    assert (len(stopped.ran), len(rest.ran)) == (2, len(make_job().cases) - 2)
    assert timeless(result.records) == timeless(run(make_job(), tmp_path / "b").records)


def test_records_do_not_depend_on_the_executor_or_the_callers_threads(make_job: Make, tmp_path: Path) -> None:
    alone = run(make_job(), tmp_path / "one")
    torch.set_num_threads(2)
    try:
        spread = run(make_job(), tmp_path / "two", executor=Processes(2))
        again = run(make_job(), tmp_path / "again")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert timeless(alone.records) == timeless(spread.records) == timeless(again.records)
    for path in (tmp_path / "one" / "reconstructions").iterdir():
        other = load_file(tmp_path / "two" / "reconstructions" / path.name)
        assert all(torch.equal(t, other[name]) for name, t in load_file(path).items())


def test_another_gate_judges_the_same_records(make_job: Make, tmp_path: Path) -> None:
    strict, log = make_job(gate=Gate(threshold=1.0)), Log()
    run(make_job(gate=Gate(threshold=99.0)), tmp_path)
    assert run(strict, tmp_path, progress=log).verdict.exit_code == 1
    assert log.ran == []


def test_a_directory_belongs_to_one_plan(make_job: Make, tmp_path: Path) -> None:
    run(make_job(), tmp_path)
    with pytest.raises(UsageError, match="holds another plan's records"):
        run(make_job(seed=1), tmp_path)


@dataclass(frozen=True)
class Moody:
    """An attack that fails as often as it is told to, which is no part of what it is."""

    inner: Attack
    error: BaseException | None = field(compare=False)

    def run(self, observation: Observation, seed: int = 0, progress: Any = None) -> Reconstruction:
        if self.error is not None:
            raise self.error
        return self.inner.run(observation, seed)

    def check(self, observation: Observation) -> None:
        self.inner.check(observation)

    def energy_of(self, *arguments: Any) -> float:
        return self.inner.energy_of(*arguments)


@pytest.mark.parametrize("error", [RuntimeError("boom"), MemoryError("too much"), AuditError("no")])
def test_a_failed_case_is_a_failed_record_and_is_tried_again(error: Exception, make_job: Make, tmp_path: Path) -> None:
    inner = recipe("inverting_gradients", iterations=3)
    assert isinstance(inner, Attack)
    view = (ServerView(0),)
    broken = run(make_job(views=view, attacks={"moody": Moody(inner, error)}), tmp_path)
    (record,) = broken.searches
    assert record.status == "failed"
    assert str(error) in (record.error or "")
    assert (broken.verdict.exit_code, broken.verdict.state) == (3, "incomplete")
    healed = run(make_job(views=view, attacks={"moody": Moody(inner, None)}), tmp_path)
    assert {r.status for r in healed.records} == {"done"}
    assert len(RecordFile(tmp_path / RECORDS).history()) == len(healed.records) + 1


def test_a_fault_of_the_code_is_not_a_record(make_job: Make, tmp_path: Path) -> None:
    inner = recipe("inverting_gradients", iterations=3)
    assert isinstance(inner, Attack)
    with pytest.raises(ZeroDivisionError):
        run(make_job(attacks={"moody": Moody(inner, ZeroDivisionError())}), tmp_path)
    assert "moody" not in {record.attack for record in RecordFile(tmp_path / RECORDS).read()}


@dataclass(frozen=True)
class Silence:
    """A release that sends nothing, or nonsense."""

    value: float

    def release(self, leaving: Outgoing) -> Update:
        return {name: torch.full_like(tensor, self.value) for name, tensor in leaving.update.items()}


@pytest.mark.parametrize(("value", "flag"), [(0.0, "zero update"), (float("nan"), "non-finite update")])
def test_an_empty_message_is_flagged_and_not_played(
    value: float, flag: str, make_job: Make, make_federation: Callable[..., Federation], tmp_path: Path
) -> None:
    federation = make_federation()
    silent = replace(federation, clients=[replace(c, release=Silence(value)) for c in federation.clients])
    result = run(make_job(federation=silent), tmp_path)
    for record in result.records:
        assert [f.name for f in flags_of(record, Gate())] == [flag]
        assert record.status == "done"
        assert record.energy is None
        assert not any(result.summary.judged_by().hits(ImageScores.of(record)))
    assert (result.verdict.state, result.verdict.exit_code) == ("incomplete", 3)
    said = f"nothing to attack in {len(result.records)} of {len(result.records)} cases ({flag}): "
    assert said in result.verdict.lead
    assert "learning rate" in result.verdict.lead
    assert outcome_in_words(result.searches[0]).startswith("not scored")


def test_the_aggregate_is_attacked_as_one_message(make_job: Make, tmp_path: Path) -> None:
    result = run(make_job(views=(AggregateView(),)), tmp_path)
    for record in result.searches:
        assert record.status == "done", record.error
        assert len(record.metrics["psnr"]) == 2
        assert record.client == "client 0, client 1"
        assert "secure aggregation" in record.view


def test_oracle_use_is_marked_by_what_an_attack_uses(make_job: Make, tmp_path: Path) -> None:
    attacks = {
        "told": recipe("inverting_gradients", labels=OracleLabels(), iterations=3),
        "dlg": recipe("dlg", iterations=2),
    }
    job = make_job(views=(ServerView(0),), knows=Knows(labels=True), attacks=attacks)
    told, dlg = run(job, tmp_path).searches
    assert told.oracle
    assert DoubtKind.ORACLE_USED in [each.kind for each in told.doubts]
    assert told.knows["labels"].oracle
    assert not dlg.oracle
    assert dlg.knows["labels"].text == "not known"


def test_progress_is_told_in_order(make_job: Make, tmp_path: Path) -> None:
    events: list[tuple[Any, ...]] = []

    class Tell(AuditProgress):
        def planned(self, cases: int, done: int) -> None:
            events.append(("planned", cases, done))

        def trained(self, name: str, done: int, total: int) -> None:
            events.append(("trained", done, total))

        def started(self, case: Case[Any]) -> None:
            events.append(("started", case.key))

        def moved(self, case: Case[Any], done: int, total: int) -> None:
            events.append(("moved", case.key, done, total))

        def finished(self, case: Case[Any], record: Record) -> None:
            events.append(("finished", case.key))

    job = make_job(views=(ServerView(0),))
    run(job, tmp_path, progress=Tell())
    first, last = job.cases[0].key, job.cases[-1].key
    assert events[:3] == [("planned", 5, 0), ("trained", 1, 1), ("started", first)]
    assert ("moved", last, 5, 5) in events
    assert [e[0] for e in events].count("finished") == 5


def test_a_record_says_where_unknowns_ended_and_what_was_supposed(make_job: Make, tmp_path: Path) -> None:
    attacks = {
        "sme": recipe("sme_published", iterations=3),
        "epochs": recipe("dlfa_unknown_epochs", iterations=2),
        "ig": recipe("inverting_gradients", iterations=2),
    }
    knows = Knows(training=False, steps=True)
    sme, epochs, plain = run(make_job(views=(ServerView(0),), attacks=attacks, knows=knows), tmp_path).searches
    unknowns = sme.extra["unknowns"]
    assert isinstance(unknowns, dict)
    assert list(unknowns) == ["alpha"]
    assert isinstance(unknowns["alpha"], float)
    assert sme.extra["supposed"] is None
    assert str(epochs.extra["supposed"]).startswith("Training(lr=0.1, epochs=1, batch_size=1")
    assert (plain.extra["unknowns"], plain.extra["supposed"]) == ({}, None)


@dataclass(frozen=True)
class FirstOnly:
    """A rule that lets the first update through, and no other."""

    def init(self, weights: torch.Tensor) -> State:
        return None

    def aggregate(self, updates: torch.Tensor, context: AggregationContext, state: State) -> Aggregated:
        return Aggregated(updates[0], torch.arange(len(updates)) == 0)


def test_a_view_that_a_rule_leaves_nothing_to_see_fails_alone(
    make_federation: Callable[..., Federation], tmp_path: Path
) -> None:
    federation = replace(make_federation(), aggregator=FirstOnly())
    source = Simulated(federation, views=(PeerView(0), PeerView(1)))
    attacks = {"ig": recipe("inverting_gradients", iterations=2)}
    first, second = run(Job([source], attacks, metrics=("psnr",)), tmp_path).searches
    assert (first.status, second.status) == ("failed", "done")
    assert "accepted no update of the round but that of 'client 0' itself" in str(first.error)
    assert (second.client, second.accepted) == ("client 0", ["client 0"])


@dataclass(frozen=True)
class NobodyAtFirst:
    """A rule that rejects everybody in the first round, and nobody afterwards."""

    def init(self, weights: torch.Tensor) -> State:
        return None

    def aggregate(self, updates: torch.Tensor, context: AggregationContext, state: State) -> Aggregated:
        return mean_of(updates, torch.full((len(updates),), context.round > 0))


def test_a_round_whose_updates_were_all_rejected_keeps_the_model_and_the_audit_goes_on(
    make_federation: Callable[..., Federation], tmp_path: Path
) -> None:
    federation = replace(make_federation(), aggregator=NobodyAtFirst())
    views = PeerView(0, 0), AggregateView(0), ServerView(0, 0), PeerView(0, 1)
    attacks = {"ig": recipe("inverting_gradients", iterations=2)}
    job = Job([Simulated(federation, 2, views)], attacks, metrics=("psnr",))
    peer, aggregate, server, later = run(job, tmp_path).searches
    assert [r.status for r in (peer, aggregate, server, later)] == ["failed", "failed", "done", "done"]
    assert "The rule rejected all updates of the round and left the model as it was" in str(peer.error)
    assert "The rule rejected all updates of round 0" in str(aggregate.error)
    assert (server.accepted, later.accepted) == ([], ["client 0", "client 1"])
    assert "Round 1: the aggregation rule rejected all 2 updates; the model did not change." in audit_page(
        read_audit(tmp_path, records=[server, later])
    )
