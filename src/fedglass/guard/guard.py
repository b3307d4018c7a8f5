"""A client's own check of an update before it leaves."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from fedglass.attack.best_of import AnyAttack
from fedglass.core.errors import UsageError
from fedglass.core.tensors import Params
from fedglass.core.types import Training, Whitening
from fedglass.defend.dpsgd import DPSGD
from fedglass.guard.checks import Errand
from fedglass.guard.names import under_own_names, unwrapped
from fedglass.guard.outbound import Clip, Outbound, Protected, at_a_glance, finer, misfit, too_long_to_replay
from fedglass.guard.report import Counts, GuardReport, Memory, Policy, Reason
from fedglass.guard.runners import Apart, Runner, failed
from fedglass.guard.watched import trained
from fedglass.recorders.hooks import TrainingReader
from fedglass.verdict.gate import Gate

LOG = logging.getLogger("fedglass.guard")
BROKEN = {Reason.STRUCTURE, Reason.FAULT, Reason.UNWATCHED}
"""Reasons after which nothing is known of what left."""
POLICIES: tuple[Policy, ...] = ("block", "warn", "log")


@dataclass(frozen=True, eq=False)
class Guard:
    """Audits each update with the truth that only the client has, and refuses what it can not clear.

    It fails closed: an error inside, a time that ran out or a structure that is not the model's is a reason to refuse.
    What it tells others is `fedglass.guard.report.REFUSED`, and nothing else. docs/guard.md says what it can not do.
    """

    policy: Policy = "block"
    """`block` lets nothing leave that has a reason against it; `warn` and `log` let it leave and say so here."""
    budget_seconds: float = 30.0
    """For all checks of an update together."""
    min_examples: int = 2
    """Distinct examples that must stand behind an update."""
    max_examples: int = 4096
    """Beyond which no update is examined, and thus none is let out."""
    clip: Clip | None = None
    """The declared bound on the norm of all that leaves, or of each tensor by its name."""
    noise_multiplier: float = 0.0
    """The declared deviation of Gaussian noise on the update, in units of `clip`."""
    dpsgd: DPSGD | None = None
    """The declared clipping and noise inside of local steps."""
    false_alarms: float = 0.05
    """The share of messages that tell nothing which may be refused for pointing at their examples; 0 does not ask.

    Every message without noise points at its examples, whether a known attack reads them or not.
    """
    attacks: Mapping[str, AnyAttack] | None = None
    """To be played in what is left of the time; None chooses one that is fast on such a message."""
    starts: int = 8
    """Of each attack, at most."""
    gate: Gate = field(default_factory=Gate)
    whitening: Whitening | None = None
    """Between pixels and the network's inputs; None takes each channel's range."""
    runner: Runner = field(default_factory=Apart)
    seed: int = 0
    memory: Memory = field(default_factory=Memory, repr=False)

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UsageError(f"Guard.policy must be one of {', '.join(POLICIES)}, got {self.policy!r}.")
        if not 0 < self.budget_seconds < math.inf:
            raise UsageError(f"Guard.budget_seconds must be positive and finite, got {self.budget_seconds}.")
        if not 0 <= self.false_alarms < 1:
            raise UsageError(f"Guard.false_alarms must be at least 0 and below 1, got {self.false_alarms}.")
        if self.min_examples < 1 or self.max_examples < self.min_examples or self.starts < 1:
            raise UsageError(
                f"Guard needs 1 <= min_examples <= max_examples and starts >= 1, got {self.min_examples}, "
                f"{self.max_examples} and {self.starts}."
            )
        self.protected  # noqa: B018 # refuses what can not be declared

    @property
    def protected(self) -> Protected:
        return Protected(self.clip, self.noise_multiplier, self.dpsgd)

    @property
    def counts(self) -> Counts:
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
        """Audit one update; never raises. `examples` are as the network was fed, `others` such that were not.

        `before` is what came from the server; `after` is what would leave, or `update` the difference. `batches` are
        the rows of each local step, without which several batches in an unknown order can not be told from noise.
        `distinct` is the number of examples where augmentation makes several of one.
        """
        start = time.monotonic()

        def made() -> Outbound:
            if (after is None) == (update is None):
                raise UsageError("Guard.check needs either `after` or `update`.")
            leaving = after if update is None else update
            assert leaving is not None, "one of both is given"
            if update is not None and not misfit(before, update):  # what does not fit is refused as it is
                leaving = {name: before[name] + tensor for name, tensor in update.items()}
            rows = None if batches is None else tuple(tuple(int(i) for i in rows) for rows in batches)
            return Outbound(model, before, leaving, examples, labels, training, rows, self.whitening, others)

        try:
            out = made()
            if update is not None and not misfit(before, update) and finer(out, update):
                report = GuardReport(self.policy, (Reason.NOT_EXPLAINED,))
            else:
                report = self._checked(out, distinct, start)
        except Exception as error:  # noqa: BLE001 # it fails closed, whatever happens
            report = GuardReport(self.policy, (Reason.FAULT,), examined=failed(error))
        return self.decided(replace(report, seconds=time.monotonic() - start), before, after, update)

    def watch(self, *, any_thread: bool = False) -> TrainingReader:
        """To be entered around the training, so that `check_watched` needs neither examples nor facts."""
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
        """`check` with what `watch` saw; never raises. Names are those of a framework's message or of the model."""
        try:
            if reader is None:
                return self.refused(Reason.UNWATCHED)
            seen = trained(reader, noisy_steps=self.dpsgd is not None)
            model = unwrapped(seen.model)
            came, left, moved = (
                None if arrays is None else under_own_names(arrays, model, seen.untrained)
                for arrays in (before, after, update)
            )
            # As it is loaded: a mean over clients comes with counters of batches that are no whole numbers any more.
            kinds = {name: tensor.dtype for name, tensor in model.state_dict().items()}
            came = None if came is None else {name: tensor.to(kinds[name]) for name, tensor in came.items()}
        except Exception as error:  # noqa: BLE001 # it fails closed, whatever happens
            return self.decided(GuardReport(self.policy, (Reason.UNWATCHED,), examined=failed(error)))
        if came is None or (left is None) == (moved is None) or set(left or moved or ()) != set(came):
            return self.refused(Reason.STRUCTURE)
        # What is not trained and does not travel is here as it was.
        rest = {name: p.detach() for name, p in model.named_parameters() if name not in came}
        return self.check(
            model,
            {**came, **rest},
            after=None if left is None else {**left, **rest},
            update=None if moved is None else {**moved, **{name: 0 * tensor for name, tensor in rest.items()}},
            examples=seen.examples,
            labels=seen.labels,
            training=seen.training,
            batches=seen.batches,
            others=others,
            distinct=distinct,
        )

    def refused(self, reason: Reason) -> GuardReport:
        """The report on an update of which nothing could be checked, for whoever stands between guard and framework."""
        return self.decided(GuardReport(self.policy, (reason,)))

    def decided(
        self,
        report: GuardReport,
        before: Params | None = None,
        after: Params | None = None,
        update: Params | None = None,
    ) -> GuardReport:
        """Count and log a report. What is logged are fixed words, since logs may leave the client too."""
        counts, memory = self.memory.counts, self.memory
        memory.counts = Counts(
            counts.checked + 1,
            counts.refused + (not report.allowed),
            counts.warned + (report.allowed and not report.sound),
            counts.alone + (Reason.ALONE in report.reasons),
        )
        memory.forget()
        if report.allowed and before is not None and not BROKEN & set(report.reasons):
            sent = update if update is not None else {n: after[n] - before[n] for n in before} if after else None
            if sent is not None:
                memory.keep(before, sent)
        if not report.sound:
            level = logging.INFO if self.policy == "log" else logging.WARNING
            LOG.log(level, "%s: %s", "refused" if not report.allowed else "let out", [r.value for r in report.reasons])
        return report

    def _checked(self, out: Outbound, distinct: int | None, start: float) -> GuardReport:
        glance = at_a_glance(out)
        if glance:
            return GuardReport(self.policy, glance)
        out = out.without_untrained()
        found = min(_distinct(out), math.inf if distinct is None else distinct)
        report = GuardReport(self.policy, examples=int(found), norm=out.norm)
        reasons = [Reason.ALONE] * self.memory.was_alone(out.before)
        reasons += [Reason.FEW_EXAMPLES] * (found < self.min_examples)
        reasons += [Reason.TOO_LARGE] * (len(out.labels) > self.max_examples)
        if self.clip is not None and not self.noise_multiplier:
            # With noise on top, what is clipped is told by the replay.
            reasons += [Reason.CLIPPING] * too_long_to_replay(out, self.clip)
        if reasons:
            return replace(report, reasons=tuple(reasons))
        # Another seed in each round: a message that one start does not read, the next may.
        seed = self.seed + self.counts.checked
        errand = Errand(
            out, self.protected, self.false_alarms, self.attacks, self.starts, self.gate, seed, self.memory.sent
        )
        examined = self.runner.run(errand, self.budget_seconds - (time.monotonic() - start))
        return replace(report, reasons=examined.reasons, examined=examined)


def _distinct(out: Outbound) -> int:
    """How many different examples there are: one that is repeated a hundred times is one."""
    return len({row.numpy().tobytes() for row in out.inputs.detach().cpu().contiguous()})
