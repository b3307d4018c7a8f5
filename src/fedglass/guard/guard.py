"""A client's own check of an update before it leaves."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedglass.attack.best_of import AnyAttack
from fedglass.core.errors import UsageError
from fedglass.core.losses import TargetKind, target_kind
from fedglass.core.tensors import Params
from fedglass.core.types import Training, Whitening
from fedglass.defend.dpsgd import DPSGD
from fedglass.guard.checks import CheckRequest
from fedglass.guard.message import built
from fedglass.guard.outbound import (
    Clip,
    Outbound,
    Protected,
    exceeds_clip,
    has_wrong_layout,
    loses_precision,
    static_checks,
    under_model_names,
)
from fedglass.guard.received import ReceivedRequest
from fedglass.guard.report import (
    FIRST_LINES,
    LOG,
    GuardCounts,
    GuardMemory,
    GuardReport,
    Level,
    Policy,
    Reason,
    ReceivedReport,
    level_of,
)
from fedglass.guard.runners import InlineRunner, SubprocessRunner, failed_checks
from fedglass.models.names import names_of, unwrap
from fedglass.recorders.hooks import TrainingReader
from fedglass.recorders.steps import ObservedStep
from fedglass.recorders.training_facts import Reservation, training_facts
from fedglass.recordings.facts import OBJECTIVE, RESERVATION_IDS, RESERVATIONS, FactSheet
from fedglass.recordings.transcript import loss_fact, training_of_batches
from fedglass.verdict.gate import Gate

BROKEN = {Reason.STRUCTURE, Reason.FAULT, Reason.UNWATCHED}
"""Reasons after which nothing is known of what left."""
POLICIES: tuple[Policy, ...] = ("block", "warn", "log")
REPLAYED = {Reservation.WRITTEN_BY_HAND, Reservation.ODD_BATCHES}
"""Reservations that the replay of the very batches settles: weights that were written to may hold declared noise."""
OF_LOSSES = {Reservation.WEIGHTED_LOSS, Reservation.OTHER_TARGETS, Reservation.SCALED_LOSS}
"""Reservations that a loss with a name settles: its options say what they warn of."""


@dataclass(frozen=True, eq=False)
class Guard:
    """Checks each update with the true examples, which only the client has, and blocks what it cannot clear.

    It fails closed: an internal error, a used-up time budget or a structure that is not the model's is a reason to
    refuse. Others are sent `fedglass.guard.report.REFUSED`, and nothing else. docs/guard.md states its limits.
    """

    policy: Policy = "block"
    """`block` stops every update with a reason against it; `warn` and `log` let it leave and log the reason."""
    budget_seconds: float = 30.0
    """Time for all checks of an update together."""
    min_examples: int = 2
    """Least number of distinct examples behind an update."""
    max_examples: int = 4096
    """Most examples behind an update; larger ones are not checked, and thus blocked."""
    clip: Clip | None = None
    """The declared bound on the norm of everything that leaves, or of each tensor by its name."""
    noise_multiplier: float = 0.0
    """The declared deviation of Gaussian noise on the update, in units of `clip`."""
    dpsgd: DPSGD | None = None
    """The declared clipping and noise inside local steps."""
    level: Level = "reconstruction"
    """`reconstruction` refuses an update from which an attack reads an example. `singling_out` also refuses one that
    names its examples among others, as most updates without noise do: later attacks may read them.
    """
    false_alarms: float | None = None
    """The older way to set `level`: 0 is `reconstruction`, any other share below 1 is `singling_out`."""
    attacks: Mapping[str, AnyAttack] | None = None
    """Searches after the exact attacks; None chooses one that is fast on such a message, {} runs no attack at all."""
    starts: int = 8
    """Most runs of each attack."""
    gate: Gate = field(default_factory=Gate)
    whitening: Whitening | None = None
    """Between pixels and the network's inputs; None takes each channel's range."""
    runner: InlineRunner | SubprocessRunner = field(default_factory=SubprocessRunner)
    seed: int = 0
    distrust_server: bool = True
    """Whether received models are checked for signs that a malicious server crafted them."""
    log: str | Path | None = None
    """A file to which each report is appended as a line of JSON. Reports are made with private data."""
    memory: GuardMemory = field(default_factory=GuardMemory, repr=False)

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UsageError(f"Guard.policy must be one of {', '.join(POLICIES)}, got {self.policy!r}.")
        if not 0 < self.budget_seconds < math.inf:
            raise UsageError(f"Guard.budget_seconds must be positive and finite, got {self.budget_seconds}.")
        if self.false_alarms is not None:
            object.__setattr__(self, "level", level_of(self.false_alarms, self.level))
        if self.level not in FIRST_LINES:
            raise UsageError(f"Guard.level must be one of {', '.join(FIRST_LINES)}, got {self.level!r}.")
        if self.min_examples < 1 or self.max_examples < self.min_examples or self.starts < 1:
            raise UsageError(
                f"Guard needs 1 <= min_examples <= max_examples and starts >= 1, got {self.min_examples}, "
                f"{self.max_examples} and {self.starts}."
            )
        self.protected  # noqa: B018 # refuses an invalid declaration

    @property
    def protected(self) -> Protected:
        return Protected(self.clip, self.noise_multiplier, self.dpsgd)

    @property
    def counts(self) -> GuardCounts:
        return self.memory.counts

    def check(
        self,
        model: nn.Module,
        before: Params,
        *,
        after: Params | None = None,
        update: Params | None = None,
        examples: Tensor,
        labels: Tensor,
        training: Training,
        batches: Sequence[Sequence[int]] | None = None,
        others: Tensor | None = None,
        distinct: int | None = None,
    ) -> GuardReport:
        """Check one update; never raises.

        `before` came from the server; `after` would leave, or `update` is the difference. `examples` are the inputs of
        the network, `others` inputs that were not trained on: candidates of the game. `batches` are the rows of each
        local step; without them several batches in an unknown order look like noise. `distinct` is the number of
        different examples where augmentation makes several of one.
        """
        start = time.monotonic()
        try:
            if (after is None) == (update is None):
                raise UsageError("Guard.check needs either `after` or `update`.")
            leaving = after if update is None else update
            assert leaving is not None, "one of both is given"
            added = None if update is None or has_wrong_layout(before, update) else update  # or it is refused later
            if added is not None:
                leaving = {name: before[name] + tensor for name, tensor in added.items()}
            rows = None if batches is None else tuple(tuple(int(i) for i in rows) for rows in batches)
            out = Outbound(model, before, leaving, examples, labels, training, rows, self.whitening, others)
            if added is not None and loses_precision(out, added):
                report = GuardReport(self.policy, (Reason.NOT_EXPLAINED,))
            else:
                report = self._checked(out, distinct, start)
                if report.allowed and report.examined.change is not None:
                    change, noisy = report.examined.change, self.protected.noisy
                    message = built(before, change, noisy=noisy, as_update=update is not None)
                    report = replace(report, message=message)
                elif report.sound:  # never the app's own arrays without a reason against them
                    report = replace(report, reasons=(Reason.FAULT,))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 # it fails closed, also where the app's code ends the process
            report = GuardReport(self.policy, (Reason.FAULT,), examined=failed_checks(error))
        return self.decided(replace(report, seconds=time.monotonic() - start), before, after, update)

    def watch(self, *, any_thread: bool = False) -> TrainingReader:
        """Return a context manager for the training, so that `check_watched` needs neither examples nor facts."""
        return TrainingReader(keep_examples=True, any_thread=any_thread)

    def check_watched(
        self,
        reader: TrainingReader | None,
        before: Mapping[str, Tensor],
        *,
        after: Mapping[str, Tensor] | None = None,
        update: Mapping[str, Tensor] | None = None,
        others: Tensor | None = None,
        distinct: int | None = None,
    ) -> GuardReport:
        """Check an update with what `watch` observed; never raises.

        Names are those of a framework's message or of the model. The report's message has names and types that came.
        """
        try:
            if reader is None:
                return self.refused(Reason.UNWATCHED)
            trained, never_moved, observed = observed_training(reader, noisy_steps=self.dpsgd is not None)
            model = unwrap(trained)
            received, sent_after, sent_update = (
                None if arrays is None else under_model_names(arrays, model, never_moved)
                for arrays in (before, after, update)
            )
            # As it is loaded: in a mean over clients, counters of batches are not whole numbers any more.
            kinds = {name: tensor.dtype for name, tensor in model.state_dict().items()}
            received = None if received is None else {name: tensor.to(kinds[name]) for name, tensor in received.items()}
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 # it fails closed
            return self.decided(GuardReport(self.policy, (Reason.UNWATCHED,), examined=failed_checks(error)))
        if (
            received is None
            or (sent_after is None) == (sent_update is None)
            or set(sent_after or sent_update or ()) != set(received)
        ):
            return self.refused(Reason.STRUCTURE)
        # Untrained parameters that were not sent are unchanged.
        untrained = {name: p.detach() for name, p in model.named_parameters() if name not in received}
        unmoved = {name: 0 * tensor for name, tensor in untrained.items()}
        report = self.check(
            model,
            {**received, **untrained},
            after=None if sent_after is None else {**sent_after, **untrained},
            update=None if sent_update is None else {**sent_update, **unmoved},
            others=others,
            distinct=distinct,
            **observed,
        )
        if report.message is None:
            return report
        names = names_of([(n, tuple(t.shape)) for n, t in before.items()], model, "The message", never_moved).model
        message = {name: report.message[names[name]].to(came.dtype) for name, came in before.items()}
        return replace(report, message=message)

    def check_received(
        self,
        received: Params,
        *,
        model: nn.Module | None = None,
        inputs: Tensor | None = None,
        labels: Tensor | None = None,
        preliminary: bool = False,
    ) -> ReceivedReport:
        """Check a model that came, before it is trained; never raises but an interrupt. See `fedglass.guard.received`.

        With a network and inputs it runs the network, in a process that is killed when the time is over.
        `preliminary` says that `check_watched` follows, which has both, and decides on parallel rows where the client's
        own last update has parallel rows, too.
        """
        if not self.distrust_server:
            return ReceivedReport(self.policy)
        request = ReceivedRequest(received, self.policy, self.memory, model, inputs, labels, preliminary)
        if not request.runs_model:
            return self._logged(request.report())
        try:
            examined = self.runner.run(request.on_cpu(), self.budget_seconds)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 # it fails closed
            examined = failed_checks(error)
        report = ReceivedReport(self.policy, examined.reasons, fault=examined.fault)
        return self._logged(examined.received or report)

    def _logged(self, report: ReceivedReport) -> ReceivedReport:
        """Log the reasons against a received model, in fixed words."""
        if not report.sound:
            level = logging.INFO if self.policy == "log" else logging.WARNING
            done = "accepted" if report.allowed else "refused"
            LOG.log(level, "%s a received model: %s", done, [reason.value for reason in report.reasons])
        return report

    def refused(self, reason: Reason) -> GuardReport:
        """Return the report on an update that could not be checked, for adapters of frameworks."""
        return self.decided(GuardReport(self.policy, (reason,)))

    def decided(
        self,
        report: GuardReport,
        before: Params | None = None,
        after: Params | None = None,
        update: Params | None = None,
    ) -> GuardReport:
        """Count and log a report. Only fixed words are logged, since logs may leave the client too."""
        counts, memory = self.memory.counts, self.memory
        if not counts.checked:
            LOG.log(logging.WARNING if self.level == "reconstruction" else logging.INFO, FIRST_LINES[self.level])
        memory.counts = GuardCounts(
            counts.checked + 1,
            counts.refused + (not report.allowed),
            counts.warned + (report.allowed and not report.sound),
            counts.alone + (Reason.ALONE in report.reasons),
        )
        memory.forget()
        if report.allowed and before is not None and not BROKEN & set(report.reasons):
            draft = update if update is not None else {n: after[n] - before[n] for n in before} if after else None
            if draft is not None:
                changes = report.examined.change or {}
                memory.keep(before, {**draft, **{n: t.to(draft[n].dtype) for n, t in changes.items()}}, draft)
        if not report.sound:
            level = logging.INFO if self.policy == "log" else logging.WARNING
            LOG.log(level, "%s: %s", "refused" if not report.allowed else "let out", [r.value for r in report.reasons])
        else:
            LOG.info("allowed")
        if self.log is not None:
            report.append_to(Path(self.log), self.counts.checked)
        return report

    def _checked(self, out: Outbound, distinct: int | None, start: float) -> GuardReport:
        static_reasons = static_checks(out)
        if static_reasons:
            return GuardReport(self.policy, static_reasons)
        whole = out.on_cpu().without_unused()
        out = whole.without_untrained()
        # One example that is repeated a hundred times is one.
        different = len({row.numpy().tobytes() for row in out.inputs.contiguous()})
        distinct_examples = different if distinct is None else min(different, distinct)
        report = GuardReport(self.policy, examples=distinct_examples, norm=out.norm)
        reasons = [Reason.ALONE] * self.memory.was_alone(out.before)
        reasons += [Reason.FEW_EXAMPLES] * (distinct_examples < self.min_examples)
        reasons += [Reason.TOO_LARGE] * (len(out.labels) > self.max_examples)
        if self.clip is not None and not self.noise_multiplier:
            # With noise on top, the replay tests the clipping.
            reasons += [Reason.CLIPPING] * exceeds_clip(out, self.clip)
        if reasons:
            return replace(report, reasons=tuple(reasons))
        # Another seed in each round: where one start fails, the next may recover images.
        seed = self.seed + self.counts.checked
        received = ReceivedRequest(whole.before, self.policy, self.memory, whole.model, whole.inputs, whole.labels)
        request = CheckRequest(
            out,
            self.protected,
            self.level,
            self.attacks,
            self.starts,
            self.gate,
            seed,
            self.memory.draft,
            received if self.distrust_server else None,
        )
        examined = self.runner.run(request, self.budget_seconds - (time.monotonic() - start))
        if examined.received is not None:
            self._logged(examined.received)
        if examined.received is not None and examined.received.sound:
            self.memory.accept(whole.before, {name: whole.after[name] - whole.before[name] for name in whole.leaving})
        return replace(report, reasons=examined.reasons, examined=examined)


# Trainings that were observed while the client ran them: the examples need not be handed to the guard.


def observed_training(
    reader: TrainingReader, noisy_steps: bool = False
) -> tuple[nn.Module, tuple[str, ...], dict[str, Any]]:
    """Return the network that a client trained, the parameters that no step moved, and arguments of `Guard.check`.

    Raise UsageError if the training cannot be replayed.

    Args:
        noisy_steps: Whether a defence is declared that changes gradients, as DP-SGD does.
    """
    steps = reader.steps
    if reader.fault:
        raise UsageError(f"The training cannot be replayed: observing it failed ({reader.fault}).")
    if not steps:
        raise UsageError("No optimiser took a step while the guard watched: train inside of `guard.watch()`.")
    facts = training_facts(steps)
    loss = loss_fact({name: {"read": value} for name, value in facts.items()})
    named = loss is not None and target_kind(loss.get("loss")) is not TargetKind.UNKNOWN and steps_have_targets(steps)
    settled = [
        r.identifier
        for r in REPLAYED
        | ({Reservation.CHANGED_GRADIENTS} if noisy_steps else set())
        | (OF_LOSSES if named and OBJECTIVE in facts else set())
    ]
    reservations = zip(facts.get(RESERVATION_IDS, ()), facts.get(RESERVATIONS, ()), strict=True)
    sentences = [sentence for reservation, sentence in reservations if reservation not in settled]
    if sentences or not named or "lr" not in facts:
        raise UsageError(f"The training cannot be replayed: {' '.join(sentences) or 'its loss is not known.'}")
    model = steps[-1].module
    if model is None or any(step.module is not model for step in steps):
        raise UsageError("The training cannot be replayed: the network or the labels were not observed.")
    if any(step.shape is None or len(step.shape) != 3 for step in steps):
        raise UsageError("The training cannot be replayed: the inputs of the network are not images.")
    examples = dict.fromkeys(example for step in steps for example in _labelled(step))
    row_of = {example: row for row, example in enumerate(examples)}
    sheet: FactSheet = {name: {"read": value} for name, value in facts.items()}
    training = training_of_batches(sheet, [step.examples for step in steps], len(examples))
    if training is None:
        raise UsageError("The training cannot be replayed: its optimiser, with its options, is not known.")
    observed = {
        "examples": torch.stack([reader.inputs[digest] for digest, _ in examples]),
        "labels": torch.stack([torch.as_tensor(target) for _, target in examples]),
        "training": training,
        "batches": tuple(tuple(row_of[example] for example in _labelled(step)) for step in steps),
    }
    return model, tuple(facts.get("untrained", ())), observed


def steps_have_targets(steps: Sequence[ObservedStep]) -> bool:
    """Return whether the targets of every step were observed: classes, or those of a loss with a name."""
    return all(step.labels is not None for step in steps) or all(step.objective is not None for step in steps)


def _labelled(step: ObservedStep) -> list[tuple[bytes, Any]]:
    """Return digest and label of each example of a step: one image under two labels is two examples.

    A target of another loss is given as nested tuples.
    """
    if step.labels is not None:
        return list(zip(step.rows, step.labels, strict=True))
    assert step.objective is not None, "its targets were observed"
    return list(zip(step.rows, map(_as_tuples, step.objective.targets.tolist()), strict=True))


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
