"""What an adversary knows, in plain words for the report and the command line."""

from __future__ import annotations

from fedglass.core.types import BatchNorm, Knowledge, Training
from fedglass.rounds.views.view import Knows

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
        "examples": f"{knows.examples} behind the message",
        "clients": "one" if knows.clients == 1 else f"{knows.clients}, averaged in the message",
        "training": UNKNOWN if knows.training is None else training_in_words(knows.training),
        "learning rate": UNKNOWN if knows.lr is None else f"{knows.lr:g}",
        "local steps": UNKNOWN if knows.steps is None else str(knows.steps),
        "labels": labels,
        "labels of each batch": batches,
    }


def training_in_words(training: Training) -> str:
    """A client's training in one phrase.

    >>> training_in_words(Training(lr=0.1))
    'one SGD step on all examples at learning rate 0.1 (FedSGD)'
    """
    epochs = f"{training.epochs} epoch{'' if training.epochs == 1 else 's'}"
    rate = f"learning rate {training.lr:g}"
    norm = ", normalised with batch statistics" if training.batch_norm is BatchNorm.BATCH else ""
    if training.batch_size is None and training.epochs == 1:
        return f"one SGD step on all examples at {rate} (FedSGD){norm}"
    size = "all examples" if training.batch_size is None else f"{training.batch_size}"
    return f"{epochs} of SGD in batches of {size} at {rate} (FedAvg){norm}"


def knows_in_words(knows: Knows) -> list[str]:
    """The optional facts as sentences.

    >>> knows_in_words(Knows(training=False))[1]
    "It does not know the clients' learning rate, epochs and batch size."
    """
    training = "the clients' learning rate, epochs and batch size"
    lines = [
        "It knows the model and its weights before the round, the shape, range and number of the images, and "
        "the number of classes.",
        f"It {'knows' if knows.training else 'does not know'} {training}.",
    ]
    if knows.steps and not knows.training:
        lines.append("It knows the number of local steps.")
    if knows.labels:
        lines.append("ORACLE: it is told the true labels, in no particular order.")
    if knows.batch_labels:
        lines.append("ORACLE: it is told the true labels of each local batch.")
    if not knows.labels and not knows.batch_labels:
        lines.append("It does not know the labels.")
    return lines
