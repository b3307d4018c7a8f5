"""What an adversary knows, in plain words for the report and the command line."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

from fedglass.attack.needs import parts_of
from fedglass.attack.parts import GeneratesImages
from fedglass.core.optimisers import SGD
from fedglass.core.types import BatchNorm, Knowledge, Training
from fedglass.federation.views import Knows

UNKNOWN = "not known"


def knowledge_in_words(knows: Knowledge) -> dict[str, str]:
    """Fact -> what the adversary knows of it.

    >>> from fedglass.core.types import Whitening
    >>> facts = Knowledge((1, 28, 28), 62, 4, Whitening((0.5,), (0.5,)))
    >>> knowledge_in_words(facts)["training"], knowledge_in_words(facts)["images"]
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
        "training": UNKNOWN if knows.training is None else training_in_words(knows.training),
        "learning rate": UNKNOWN if knows.lr is None else f"{knows.lr:g}",
        "local steps": UNKNOWN if knows.steps is None else str(knows.steps),
        "labels": labels,
        "labels of each batch": batches,
    }


def learned_in_words(attack: object) -> str:
    """What the networks have learned from that draw an attack's images; empty where none does.

    >>> from fedglass.recipes import recipe
    >>> learned_in_words(recipe("maliciously_curious_client_published"))
    'an autoencoder that the adversary has trained on its own examples'
    """
    found = dict.fromkeys(part.learned_from for part in parts_of(attack) if isinstance(part, GeneratesImages))
    return "; ".join(found)


def _clients(knows: Knowledge) -> str:
    if not knows.counted:
        return UNKNOWN
    return "one" if knows.clients == 1 else f"{knows.clients}, combined in the message{_each(knows)}"


def _each(knows: Knowledge) -> str:
    """How many examples each of several clients has, where that is known."""
    if knows.sizes is None:
        return ""
    low, high = min(knows.sizes), max(knows.sizes)
    return f", of {low} examples each" if low == high else f", of {low} to {high} examples each"


def training_in_words(training: Training) -> str:
    """A client's training in one phrase.

    >>> training_in_words(Training(lr=0.1))
    'one SGD step on all examples at learning rate 0.1 (FedSGD)'
    >>> training_in_words(Training(lr=0.1, batch_size=8, steps=40, optimiser=SGD(momentum=0.9), clip=1.0))
    '40 steps of SGD (momentum 0.9) in batches of 8 at learning rate 0.1 (FedAvg), gradients clipped at norm 1'
    """
    how, rate, more = optimiser_in_words(training.optimiser), f"learning rate {training.lr:g}", _particulars(training)
    if training.batch_size is None and training.epochs == 1 and training.steps in (None, 1):
        named = " (FedSGD)" if training.optimiser == SGD() else ""
        return f"one {how} step on all examples at {rate}{named}{more}"
    count, unit = (training.epochs, "epoch") if training.steps is None else (training.steps, "step")
    size = "all examples" if training.batch_size is None else f"{training.batch_size}"
    return f"{count} {unit}{'' if count == 1 else 's'} of {how} in batches of {size} at {rate} (FedAvg){more}"


def optimiser_in_words(optimiser: object) -> str:
    """Its name, and its options where they are not the default.

    >>> optimiser_in_words(SGD(momentum=0.9, nesterov=True))
    'SGD (momentum 0.9, nesterov)'
    """
    given: dict[str, object] = {}
    if is_dataclass(optimiser):
        given = {f.name: value for f in fields(optimiser) if (value := getattr(optimiser, f.name)) != f.default}
    words = [name.replace("_", " ") + ("" if value is True else f" {value}") for name, value in given.items()]
    return type(optimiser).__name__ + (f" ({', '.join(words)})" if words else "")


def _particulars(training: Training) -> str:
    """What else is not the default."""
    said = {
        "batches in file order": not training.shuffle,
        f"gradients clipped at norm {training.clip or 0:g}": training.clip is not None,
        f"labels smoothed by {training.label_smoothing:g}": training.label_smoothing > 0,
        "normalised with batch statistics": training.batch_norm is BatchNorm.BATCH,
    }
    return "".join(f", {words}" for words, applies in said.items() if applies)


def knows_in_words(knows: Knows) -> list[str]:
    """The optional facts as sentences.

    >>> knows_in_words(Knows(training=False))[1]
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
        lines.append("It knows neither how many examples nor how many clients stand behind the message.")
    if not knows.kept:
        lines.append("A peer does not know whose updates got through the rule.")
    if knows.labels:
        lines.append("ORACLE: it is told the true labels, in no particular order.")
    if knows.batch_labels:
        lines.append("ORACLE: it is told the true labels of each local batch.")
    if not knows.labels and not knows.batch_labels:
        lines.append("It does not know the labels.")
    return lines
