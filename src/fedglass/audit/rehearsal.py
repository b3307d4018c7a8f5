"""A rehearsal of an audit: what could only fail after the training, or deep in an attack, is refused before both.

Nothing is trained or attacked. The parts of every attack are bound to a message of zeros, and a defence sees two
examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.forward.observed_residual import ObservedResidual
from fedglass.attack.forward.target import head_of, is_gradient, network_of
from fedglass.attack.forward.unroll import Unroll, UnrollEpochs
from fedglass.attack.hypotheses import AnyAttack, TryEpochs, hypotheses
from fedglass.audit.failures import blaming
from fedglass.audit.isolation import compares_sizes, oracle_facts, simulates, told
from fedglass.audit.target import Source
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.rng import stream
from fedglass.core.types import Observation


def rehearse(sources: Sequence[Source], attacks: Mapping[str, AnyAttack]) -> None:
    """Refuse the first attack or defence that could not be played, in a sentence that says why."""
    for source in sources:
        # Views that differ in the client alone are all alike.
        different = {seen.observation.knows.sizes: seen.observation for seen in source.rehearse()}
        for observation in different.values():
            for name, attack in attacks.items():
                with blaming(f"attack {name!r}"):
                    _try_attack(attack, observation)


def _try_attack(attack: AnyAttack, observation: Observation) -> None:
    _check_clients(attack, observation.knows.sizes or ())
    seen = replace(observation, knows=told(observation.knows, attack))
    if isinstance(attack, TryEpochs):
        for guess in hypotheses(seen):
            _bind(attack.attack, replace(seen, knows=replace(seen.knows, training=guess)))
    elif isinstance(attack, Attack):
        _bind(attack, seen)


def _check_clients(attack: AnyAttack, sizes: Sequence[int]) -> None:
    """Refuse what an aggregate of several clients does not allow."""
    if len(sizes) > 1 and "batch_labels" in oracle_facts(attack):
        raise UsageError(
            f"The labels of each batch can not be told of an aggregate of {len(sizes)} clients, only of one: set "
            'adversary.view = "server", or adversary.knows_labels = true and labels = "oracle".'
        )
    if len(set(sizes)) > 1 and simulates(attack):
        raise UsageError(
            f"Simulating an aggregate needs equal numbers of examples per client, got {sum(sizes)} examples of "
            f"{len(sizes)} clients, {min(sizes)} to {max(sizes)} each: correct federation.examples or "
            "recording.clients, or attack with sme or inverting_gradients."
        )


def _bind(attack: Attack, seen: Observation) -> None:
    """Bind the parts that may refuse the message, without the work that some labels are."""
    check = getattr(attack.labels, "check", None)
    if check is None:
        attack.labels.bind(seen, stream(0, "rehearsal"))
    else:
        check(seen)
    for stage in attack.stages:
        _check_size(stage, seen)
        stage.forward.bind(seen)
    blank = torch.zeros(1, *seen.knows.shape)
    for refinement in attack.refine:
        refinement.refine(blank, stream(0, "rehearsal"))


def _check_size(stage: Stage, seen: Observation) -> None:
    """Refuse to compare sizes with a message that has none."""
    known = Fact.SIZE in seen.facts or isinstance(stage.forward, Unroll | UnrollEpochs)
    if known or not compares_sizes(stage.objective) or _reads_size(stage, seen):
        return
    if seen.knows.training is not None:
        raise UsageError(
            "It compares the size of the message with that of a gradient, which the message does not tell with "
            f"{seen.knows.training.optimiser}: simulate the training, with dlfa, or attack by direction alone, with "
            "inverting_gradients or coarse_stage."
        )
    raise UsageError(
        "It compares the size of the message with that of a gradient, which needs the learning rate and the number of "
        "local steps: set adversary.knows_training or adversary.knows_steps = true (for a recording, give "
        "recording.training), or attack by direction alone, with inverting_gradients or coarse_stage."
    )


def _reads_size(stage: Stage, seen: Observation) -> bool:
    """Whether the operator takes the network's error, and the size with it, from the message."""
    if not isinstance(stage.forward, ObservedResidual) or seen.knows.examples != 1 or not is_gradient(seen):
        return False
    return head_of(seen, network_of(seen))[1] is not None
