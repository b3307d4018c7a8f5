"""Sentences about what protects the clients of a simulated federation, and the differential privacy that it gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fedglass.core.rng import stream
from fedglass.core.tensors import buffers_of, weights_of
from fedglass.core.text import some, values_by_key
from fedglass.core.types import Training
from fedglass.defend import accounting as opacus
from fedglass.defend.accounting import DELTA, Mechanism, budgets, client_mechanism
from fedglass.defend.dpsgd import DPSGD
from fedglass.defend.filters import FlowerFixedClipping
from fedglass.defend.noise import GaussianNoise
from fedglass.defend.noise_model import CLIPS, epsilon_claims, named_parts, release_parts
from fedglass.execution.executor import as_usage_error
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation
from fedglass.fl.local import MeanGradient, Step
from fedglass.fl.release import AsIs, Outgoing, Protection, Release
from fedglass.models.network import Network
from fedglass.recordings.saved_transcripts import defence_text

FEW = 2
"""Examples that a defence is tried on: more than one, which shows defences that cannot take a batch."""
SHOWN = 6
"""Clients that are named one by one."""


def defences_of(client: Client) -> list[str]:
    """Return the names of a client's defences in the order in which they act."""
    return defence_names(Protection(client.gradient, client.release))


def defence_names(protection: Protection) -> list[str]:
    """Return the names of the parts of a protection in the order in which they act.

    >>> from fedglass.defend.noise import Clip
    >>> defence_names(Protection(release=Clip(norm=1.0)))
    ['Clip(norm=1.0)']
    """
    return list(map(repr, _defence_parts(protection)))


def _defence_parts(protection: Protection) -> list[object]:
    local = [] if isinstance(protection.gradient, MeanGradient) else [protection.gradient]
    return [*local, *named_parts(protection.release)]


def undefended(client: Client) -> Client:
    """Return the same client without its defences."""
    return replace(client, gradient=MeanGradient(), release=AsIs())


def rehearse_defences(federation: Federation) -> None:
    """Try one local step on a few examples, and the release of its update, for each kind of protection."""
    clients = sorted(federation.clients, key=lambda c: len(c.labels))
    kinds = {f"{defences_of(c)} {c.training or federation.training}": c for c in clients if defences_of(c)}
    for client in kinds.values():
        with as_usage_error("defences"):
            _rehearse(client, federation)


def _rehearse(client: Client, federation: Federation) -> None:
    training = client.training or federation.training
    network = Network(federation.model, buffers_of(federation.model), training.batch_norm)
    before = weights_of(federation.model)
    rows = slice(0, min(FEW, training.batches(len(client.labels))[0].stop))
    inputs, noise = federation.whitening.whiten(client.images[rows]), stream(federation.seed, "rehearsal")
    weights = [before[name].requires_grad_() for name in network.names]
    smoothing, loss = training.label_smoothing, training.loss
    step = Step(network, weights, inputs, client.labels[rows], generator=noise, smoothing=smoothing, objective=loss)
    gradient = client.gradient.gradient(step)
    update = {name: g.detach() for name, g in zip(network.names, gradient, strict=True)}
    client.release.release(Outgoing(update, noise, before=before))


def describe_protection(
    federation: Federation, rounds: int, in_words: Callable[[object], str] = repr
) -> dict[str, tuple[str, ...]]:
    """Return sentences about what protects each client's messages and what that promises; none without a defence.

    Of clients with the same protection, the one with the fewest examples counts for all. Records name a defence by its
    repr; `in_words` describes it for a reader.
    """
    sentences_by_kind: dict[str, tuple[str, ...]] = {}
    entries = sum(tensor.numel() for tensor in weights_of(federation.model).values())
    for client in sorted(federation.clients, key=lambda c: len(c.labels)):
        training = client.training or federation.training
        kind = f"{defences_of(client)} {training}"
        if kind not in sentences_by_kind:
            parts = _defence_parts(Protection(client.gradient, client.release))
            defences = [defence_text(text) for text in dict.fromkeys(map(in_words, parts))]
            declared = map(str, epsilon_claims(client.release, rounds, entries))
            sentences_by_kind[kind] = (*defences, *describe_privacy(client, training, rounds), *declared)
    return {
        c.name: sentences_by_kind[f"{defences_of(c)} {c.training or federation.training}"] for c in federation.clients
    }


def merge_by_client(protection: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the sentences of several clients; they are named where they are not protected alike.

    >>> merge_by_client({"client 0": ("Defended by Clip(norm=1.0).",), "client 1": ()})
    ['Client 0: Defended by Clip(norm=1.0).', 'Client 1: No defence.']
    """
    kinds = values_by_key((tuple(sentences), name) for name, sentences in protection.items())
    if len(kinds) == 1:
        return list(next(iter(kinds)))
    return [f"{_named(names)}: {line}" for sentences, names in kinds.items() for line in sentences or ("No defence.",)]


def _named(clients: Sequence[str]) -> str:
    text = some(clients, SHOWN)
    return text[0].upper() + text[1:]


def describe_privacy(client: Client, training: Training, rounds: int) -> list[str]:
    """Return sentences about the differential privacy of a client's defences; often none."""
    sentences, examples = list[str](), len(client.labels)
    times = "one round" if rounds == 1 else f"{rounds} rounds"
    if isinstance(client.gradient, DPSGD):
        mechanism = client_mechanism(client.gradient, training, examples, rounds)
        texts = "; ".join(map(str, budgets(mechanism, DELTA)))
        sentences.append(f"Each of a client's {examples} example(s), over {times} of DP-SGD: {texts}.")
        if mechanism.sample_rate < 1 and not opacus.opacus_installed():  # the Gaussian bound of full batches is exact
            sentences.append("Tighter bounds (RDP, PRV) need Opacus: pip install fedglass[dp].")
    multiplier = _noise_over_norm(release_parts(client.release))
    if multiplier > 0:  # noise after a clip is a Gaussian mechanism for all examples of a client
        texts = "; ".join(map(str, budgets(Mechanism(multiplier, 1.0, rounds), DELTA)))
        sentences.append(f"Whether a client takes part, over {times} of clipped and noised updates: {texts}.")
    if any(isinstance(part, FlowerFixedClipping) and part.adaptive for part in named_parts(client.release)):
        sentences.append("The epsilon of adaptive clipping is not computed.")
    return sentences


def _noise_over_norm(parts: Sequence[Release]) -> float:
    """Return the largest ratio of added noise to the norm that was in force when it was added.

    What comes after noise does not change what it hides: a later clip counts for later noise alone.

    >>> from fedglass.defend.noise import Clip
    >>> _noise_over_norm([Clip(10.0), GaussianNoise(1.0), Clip(0.1)])
    0.1
    """
    best, norm, spread = 0.0, math.inf, 0.0
    for part in parts:
        if isinstance(part, GaussianNoise):
            spread = math.hypot(spread, part.std)
            best = max(best, spread / norm)
            continue
        if spread > 0:
            norm, spread = math.inf, 0.0
        if isinstance(part, CLIPS) and not (isinstance(part, FlowerFixedClipping) and part.adaptive):
            norm = min(norm, part.norm)
    return best
