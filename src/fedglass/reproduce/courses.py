"""From an experiment to the target in a late round: a federation that is played from its first round on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedglass.audit.public import Public
from fedglass.audit.target import Target, target_of
from fedglass.audit.utility import accuracy, after
from fedglass.core.errors import UsageError
from fedglass.core.rng import derive
from fedglass.reproduce.experiment import Course, Experiment, Setup
from fedglass.reproduce.messages import network_of
from fedglass.reproduce.populations import KINDS, Population
from fedglass.rounds.client import Client
from fedglass.rounds.federation import Federation
from fedglass.rounds.transcript import Round, Transcript
from fedglass.rounds.views.peer import PeerView
from fedglass.rounds.views.server import ServerView

ACCURACY = "test accuracy"
MARKED = 10
"""Every so many rounds the model is tested."""
PATIENCE = 20
"""Rounds that a peer waits for one in which something of others got through the rule."""


@dataclass(frozen=True, eq=False)
class Played:
    """A run of a federation, drawn by its number: network, data and training are its own."""

    experiment: Experiment
    population: Population
    index: int
    seed: int

    def target(self) -> Target:
        setup = self.experiment.setup
        course, seed = _course(setup), derive(self.seed, "run", self.index)
        federation = federation_of_course(setup, self.population, self.index, seed)
        test, utility = self.population.test(), dict[str, float]()
        for index, past in enumerate(federation.play(course.rounds + PATIENCE)):
            if (index + 1) % MARKED == 0 or index + 1 >= course.rounds:
                utility[f"{ACCURACY} after {index + 1}"] = accuracy(
                    after(federation.model, past), federation.whitening, test
                )
            if index + 1 >= course.rounds and (not setup.sizes or _readable(federation, past)):
                break
        else:
            raise UsageError(
                f"In {PATIENCE} rounds from round {course.rounds} on nothing of others got through the rule: choose "
                "another round."
            )
        view = PeerView(0, index) if setup.sizes else ServerView(0, index)
        transcript = Transcript(federation.model, federation.terms, {index: past})
        found = target_of(transcript, view, self.experiment.knows, federation.truths([index]))
        return replace(found, utility=utility, public=Public.of(test.images, test.labels))


def federation_of_course(setup: Setup, population: Population, index: int, seed: int) -> Federation:
    """The clients of one run, the first of whom is the adversary: it does not defend itself, and may send poison."""
    course, kind = _course(setup), KINDS[setup.data]
    sizes = setup.sizes or (setup.examples,) * setup.clients
    drawn = population.apart(index, sizes) if course.alpha is None else population.dealt(index, sizes, course.alpha)
    (name, images, labels), *others = drawn
    clients = [
        Client(name, images, labels, behaviour=course.behaviour),
        *(Client(*other, setup.gradient, setup.release) for other in others),
    ]
    model = network_of(setup, seed)
    return Federation(model, clients, setup.training, kind.classes, kind.whitening, aggregator=course.rule, seed=seed)


def _readable(federation: Federation, past: Round) -> bool:
    """Whether anything of others than the adversary is in the step."""
    return any(name != federation.clients[0].name for name in past.kept)


def _course(setup: Setup) -> Course:
    assert setup.course is not None
    return setup.course
