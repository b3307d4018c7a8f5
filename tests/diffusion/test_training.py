from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedglass.core.errors import AuditError, UsageError
from fedglass.diffusion.denoiser import Prediction
from fedglass.diffusion.training import (
    Batch,
    DenoisingTask,
    ImageModelTraining,
    TrainingOptions,
    batch_of,
    squared_error,
)


class Linear(nn.Module):
    """A network of one factor and one offset a pixel, which notes what labels it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.offset = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(4, 4))
        self.told: list[Tensor | None] = []

    def forward(self, noisy: Tensor, steps: Tensor, labels: Tensor | None) -> Tensor:
        self.told.append(labels)
        return self.factor * noisy + self.offset


def images(count: int = 10) -> Tensor:
    return torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(1)) * 2 - 1


class Listener:
    def __init__(self) -> None:
        self.losses: list[float] = []
        self.saves: list[int] = []

    def moved(self, step: int, share: float, loss: float) -> None:
        self.losses.append(loss)

    def saved(self, state: ImageModelTraining) -> None:
        self.saves.append(state.step)


def test_the_loss_falls_and_what_was_trained_is_saved_now_and_at_the_end() -> None:
    heard, course = Listener(), TrainingOptions(steps=250, lr=0.05)
    lesson = DenoisingTask(images(1), prediction=Prediction.SAMPLE)  # of one image, the offset can be that image
    ImageModelTraining(Linear(), lesson, course, heard.saved).run(heard.moved)
    assert sum(heard.losses[-20:]) < 0.1 * sum(heard.losses[:20])
    assert heard.saves == [100, 200, 250]


def test_a_training_in_two_parts_is_the_training_in_one() -> None:
    course, lesson = TrainingOptions(steps=12, batch_size=4), DenoisingTask(images())
    whole = ImageModelTraining(Linear(), lesson, course).run()

    class Stop(Exception):
        pass

    class Stopping(Listener):
        def moved(self, step: int, share: float, loss: float) -> None:
            if step == 5:
                raise Stop

    parts = ImageModelTraining(Linear(), lesson, course)
    with pytest.raises(Stop):
        parts.run(Stopping().moved)
    parts.run()
    assert torch.equal(whole.averaged["offset"], parts.averaged["offset"])
    assert torch.equal(whole.network.state_dict()["offset"], parts.network.state_dict()["offset"])


def test_the_average_is_not_the_last_iterate() -> None:
    course = TrainingOptions(steps=30)
    state = ImageModelTraining(Linear(), DenoisingTask(images()), course).run()
    assert not torch.equal(state.averaged["offset"], state.network.state_dict()["offset"])


def test_an_epoch_passes_over_every_image_once_with_its_own_label() -> None:
    told = torch.arange(10)
    lesson, course = DenoisingTask(images(), told), TrainingOptions(steps=1, batch_size=5)
    seen = [batch_of(lesson, course, step).labels for step in (0, 1)]
    both = torch.cat([labels for labels in seen if labels is not None])
    assert sorted(both.tolist()) == list(range(10))


def test_labels_reach_the_network_only_where_there_are_some() -> None:
    course = TrainingOptions(steps=1, batch_size=3)
    blind, told = Linear(), Linear()
    ImageModelTraining(blind, DenoisingTask(images()), course).run()
    ImageModelTraining(told, DenoisingTask(images(), torch.arange(10)), course).run()
    assert blind.told == [None]
    assert told.told[0] is not None
    assert told.told[0].shape == (3,)


def test_a_loss_of_ones_own_is_used_and_may_draw() -> None:
    drawn = []

    def masked(network: nn.Module, batch: Batch) -> Tensor:
        drawn.append(float(torch.rand((), generator=batch.generator)))
        return squared_error(network, batch)

    course = TrainingOptions(steps=3)
    for _ in range(2):
        ImageModelTraining(Linear(), DenoisingTask(images(), loss=masked), course).run()
    assert drawn[:3] == drawn[3:]
    assert len(set(drawn)) == 3


def test_the_minutes_end_a_training_and_let_the_rate_fall() -> None:
    course = TrainingOptions(minutes=2.0)
    assert course.share(step=10**6, seconds=60.0) == 0.5
    assert course.share(step=0, seconds=120.0) == 1.0
    assert course.rate(1000, 0.0) > course.rate(1000, 0.5) > course.rate(1000, 1.0) > 0


def test_a_training_that_diverges_says_so() -> None:
    broken = images()
    broken[:] = float("nan")
    with pytest.raises(AuditError, match="diverged at step 0"):
        ImageModelTraining(Linear(), DenoisingTask(broken), TrainingOptions(steps=1)).run()


@pytest.mark.parametrize(
    "wrong", [{}, {"steps": 0}, {"minutes": 0.0}, {"steps": 1, "lr": 0.0}, {"steps": 1, "average": 1.0}]
)
def test_courses_without_an_end_or_a_pace_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        TrainingOptions(**wrong)  # type: ignore[arg-type]
