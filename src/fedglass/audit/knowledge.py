"""Sentences about what an adversary knows, for the report and the command line."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

from fedglass.attack.needs import parts_of
from fedglass.attack.parts import GeneratesImages
from fedglass.core.optimisers import SGD
from fedglass.core.types import BatchNorm, Knowledge, Training
from fedglass.federation.views import Knows

UNKNOWN = "not known"


def describe_knowledge(knows: Knowledge) -> dict[str, str]:
    """Return the facts by name, each with what the adversary knows of it.

    >>> from fedglass.core.types import Whitening
    >>> facts = Knowledge((1, 28, 28), 62, 4, Whitening((0.5,), (0.5,)))
    >>> describe_knowledge(facts)["training"], describe_knowledge(facts)["images"]
    ('not known', '28 x 28 pixels, 1 channel, values in [0, 1]')
    """
    channels, height, width = knows.shape
    plural = "" if channels == 1 else "s"
    labels = UNKNOWN if knows.labels is None else "oracle: the true labels, in no particular order"
    batches = UNKNOWN if knows.batch_labels is None else "oracle: the true labels of each local batch"
    return {
        "images": f"{height} x {width} pixels, {channels} channel{plural}, values in [{knows.low:g}, {knows.high:g}]",
        "classes": str(knows.classes),
        "examples": f"{knows.examples} behind the message" if knows.counted else UNKNOWN,
        "clients": _clients(knows),
        "training": UNKNOWN if knows.training is None else describe_training(knows.training),
        "learning rate": UNKNOWN if knows.lr is None else f"{knows.lr:g}",
        "local steps": UNKNOWN if knows.steps is None else str(knows.steps),
        "labels": labels,
        "labels of each batch": batches,
    }


def describe_learned(attack: object) -> str:
    """Return what the networks that draw an attack's images have learned from; empty where none does.

    >>> from fedglass.recipes import recipe
    >>> describe_learned(recipe("maliciously_curious_client_published"))
    'an autoencoder that the adversary has trained on its own examples'
    """
    sources = dict.fromkeys(part.learned_from for part in parts_of(attack) if isinstance(part, GeneratesImages))
    return "; ".join(sources)


def _clients(knows: Knowledge) -> str:
    if not knows.counted:
        return UNKNOWN
    return "one" if knows.clients == 1 else f"{knows.clients}, combined in the message{_each(knows)}"


def _each(knows: Knowledge) -> str:
    """Return the number of examples of each of several clients, where it is known."""
    if knows.sizes is None:
        return ""
    low, high = min(knows.sizes), max(knows.sizes)
    return f", of {low} examples each" if low == high else f", of {low} to {high} examples each"


def describe_training(training: Training) -> str:
    """Return a client's training as one phrase.

    >>> describe_training(Training(lr=0.1))
    'one SGD step on all examples at learning rate 0.1 (FedSGD)'
    >>> describe_training(Training(lr=0.1, batch_size=8, steps=40, optimiser=SGD(momentum=0.9), clip=1.0))
    '40 steps of SGD (momentum 0.9) in batches of 8 at learning rate 0.1 (FedAvg), gradients clipped at norm 1'
    """
    how, rate, more = describe_optimiser(training.optimiser), f"learning rate {training.lr:g}", _particulars(training)
    if training.batch_size is None and training.epochs == 1 and training.steps in (None, 1):
        named = " (FedSGD)" if training.optimiser == SGD() else ""
        return f"one {how} step on all examples at {rate}{named}{more}"
    count, unit = (training.epochs, "epoch") if training.steps is None else (training.steps, "step")
    size = "all examples" if training.batch_size is None else f"{training.batch_size}"
    return f"{count} {unit}{'' if count == 1 else 's'} of {how} in batches of {size} at {rate} (FedAvg){more}"


def describe_optimiser(optimiser: object) -> str:
    """Return the name of an optimiser, and its options where they are not the default.

    >>> describe_optimiser(SGD(momentum=0.9, nesterov=True))
    'SGD (momentum 0.9, nesterov)'
    """
    changed: dict[str, object] = {}
    if is_dataclass(optimiser):
        changed = {f.name: value for f in fields(optimiser) if (value := getattr(optimiser, f.name)) != f.default}
    options = [name.replace("_", " ") + ("" if value is True else f" {value}") for name, value in changed.items()]
    return type(optimiser).__name__ + (f" ({', '.join(options)})" if options else "")


def _particulars(training: Training) -> str:
    """Return what else of a training is not the default."""
    applies_by_text = {
        "batches in file order": not training.shuffle,
        f"gradients clipped at norm {training.clip or 0:g}": training.clip is not None,
        f"labels smoothed by {training.label_smoothing:g}": training.label_smoothing > 0,
        "normalised with batch statistics": training.batch_norm is BatchNorm.BATCH,
    }
    return "".join(f", {text}" for text, applies in applies_by_text.items() if applies)


def describe_knows(knows: Knows) -> list[str]:
    """Return the optional facts as sentences.

    >>> describe_knows(Knows(training=False))[1]
    "It does not know the clients' learning rate, epochs and batch size."
    """
    training = "the clients' learning rate, epochs and batch size"
    and_number = ", range and number" if knows.examples else " and range"
    lines = [
        f"It knows the model and its weights before the round, the shape{and_number} of the images, and the number of "
        "classes.",
        f"It {'knows' if knows.training and knows.lr else 'does not know'} {training}.",
    ]
    if (knows.steps or knows.training) and not (knows.training and knows.lr):
        lines.append(f"It knows the number of local steps{', but not the learning rate' if not knows.lr else ''}.")
    if not knows.examples:
        lines.append("It knows neither how many examples nor how many clients are behind the message.")
    if not knows.kept:
        lines.append("A peer does not know whose updates got through the rule.")
    if knows.labels:
        lines.append("ORACLE: it is told the true labels, in no particular order.")
    if knows.batch_labels:
        lines.append("ORACLE: it is told the true labels of each local batch.")
    if not knows.labels and not knows.batch_labels:
        lines.append("It does not know the labels.")
    return lines
