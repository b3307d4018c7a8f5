"""What a re-creation will cost, said before it starts."""

from __future__ import annotations

from collections.abc import Iterable

from fedglass.reproduce.cases import Trial, TrialCase
from fedglass.reproduce.cost import TIMED, Load
from fedglass.reproduce.experiment import Experiment


def seconds_of(experiment: Experiment) -> float:
    """About how long one case takes on one core."""
    setup = experiment.setup
    load = Load(setup.network, setup.data, experiment.supposed or setup.training, setup.examples, setup.clients)
    # Of clients that train for many rounds all are simulated, of a message those behind it.
    trainings = 1 if setup.course is None else setup.course.rounds * setup.clients
    return trainings * load.training_seconds() + experiment.probe.seconds(load)


def training_seconds(trial: Trial) -> float:
    """About how long the trial's network is trained before, on one core."""
    setup, population = trial.experiment.setup, trial.population
    warm_up = setup.warm_up
    if warm_up is None:
        return 0.0
    examples = warm_up.examples or len(population.dataset()) // (population.writers() or 1)
    each = Load(setup.network, setup.data, warm_up.training, examples).training_seconds()
    return warm_up.rounds * warm_up.called * each


def in_words(cases: Iterable[TrialCase], workers: int, untrained: Iterable[TrialCase] = ()) -> str:
    """The whole cost in one sentence, or that nothing is left to do."""
    costs = [seconds_of(case.subject.experiment) for case in cases]
    if not costs:
        return "Nothing is left to run."
    each = (
        f"about {duration(costs[0])}"
        if max(costs) < 1.5 * min(costs)
        else f"{duration(min(costs))} to {duration(max(costs))}"
    )
    running = min(workers, len(costs))
    wall = max(sum(costs) / running, max(costs))
    plural = "" if len(costs) == 1 else "s"
    training = max((training_seconds(case.subject) for case in untrained), default=0.0)
    before = f", after about {duration(training)} of training the network" if training else ""
    return (
        f"{len(costs)} run{plural}, {each} each on one core, about {duration(wall)} in all with {running} "
        f"worker{'' if running == 1 else 's'} (estimated from {TIMED} timed steps){before}."
    )


def duration(seconds: float) -> str:
    """A length of time in one unit.

    >>> duration(0.4), duration(90), duration(5000), duration(200000)
    ('1 s', '90 s', '83 min', '56 h')
    """
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
