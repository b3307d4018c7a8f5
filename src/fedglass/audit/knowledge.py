"""Sentences about what an adversary sees and knows, for the report and the command line."""

from __future__ import annotations

from collections.abc import Sequence

from fedglass.attack.parts import GeneratesImages, parts_of
from fedglass.audit.target import Section, TargetInfo
from fedglass.core.optimisers import SGD
from fedglass.core.text import part_in_words, some
from fedglass.core.types import BatchNorm, Knowledge, Training
from fedglass.federation.views import ViewResult
from fedglass.verdict.records import STANDPOINTS, UNNAMED, Facts, KnownFact, Sight, ThreatModel

UNKNOWN = "not known"
SHOWN = 6
"""Views that the threat model of a plan lists one by one."""


def describe_knowledge(knows: Knowledge) -> dict[str, KnownFact]:
    """Return what the adversary knows of each fact.

    >>> from fedglass.core.types import Whitening
    >>> facts = describe_knowledge(Knowledge((1, 28, 28), 62, 4, Whitening((0.5,), (0.5,))))
    >>> facts["training"].text, facts["images"].text
    ('not known', '28 x 28 pixels, 1 channel, values in [0, 1]')
    """
    channels, height, width = knows.shape
    plural = "" if channels == 1 else "s"
    texts = {
        "model": "the network and its weights before the round",
        "images": f"{height} x {width} pixels, {channels} channel{plural}, values in [{knows.low:g}, {knows.high:g}]",
        "classes": str(knows.classes),
        "examples": f"{knows.examples} behind the message" if knows.counted else UNKNOWN,
        "clients": _clients(knows),
        "training": UNKNOWN if knows.training is None else describe_training(knows.training),
        "learning rate": UNKNOWN if knows.lr is None else f"{knows.lr:g}",
        "local steps": UNKNOWN if knows.steps is None else str(knows.steps),
    }
    if knows.filter is not None:
        texts["filter"] = f"{knows.filter!r}, as declared"
    if knows.present is not None:
        texts["accepted updates"] = f"{UNKNOWN}: the rule may have rejected some"
    return {name: KnownFact(text=text) for name, text in texts.items()} | {
        "labels": _oracle(knows.labels, "the true labels, in no particular order"),
        "labels of each batch": _oracle(knows.batch_labels, "the true labels of each local batch"),
    }


def _oracle(labels: object, text: str) -> KnownFact:
    return KnownFact(text=UNKNOWN) if labels is None else KnownFact(text=text, oracle=True)


def adversary_sections(
    infos: Sequence[TargetInfo], views: Sequence[ViewResult], more: Sequence[str], source: str
) -> list[Section]:
    """Return what the adversary sees and knows, as `fedglass check` prints it; `more` are further facts."""
    pairs = zip(infos, views, strict=True)
    sights = [Sight(info.text, info.standpoint, describe_knowledge(view.observation.knows)) for info, view in pairs]
    model, of = ThreatModel(sights), f" of {source}" if source else ""
    sees = [" ".join(STANDPOINTS.get(standpoint, UNNAMED)) for standpoint in model.standpoints]
    lines = [f"{view[0].upper()}{view[1:]}." for view in model.views]
    knows = _lines(model.common)
    for sights_alike, facts in model.differences[:SHOWN]:
        knows += [f"{some([sight.view for sight in sights_alike])}: {line}" for line in _lines(facts)]
    if len(model.differences) > SHOWN:
        knows.append(f"... and {len(model.differences) - SHOWN} more sets of facts.")
    if len(lines) > SHOWN:
        lines = [*lines[: SHOWN - 1], f"... and {len(lines) - SHOWN + 1} more of this kind."]
    return [
        (f"What the adversary sees{of}", [*sees, *lines]),
        (f"What it knows apart from the message{of}", [*knows, *more]),
    ]


def _lines(facts: Facts) -> list[str]:
    return [f"{name}: {'ORACLE: ' if fact.oracle else ''}{fact.text}" for name, fact in facts.items()]


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
    if knows.clients == 1:
        return "one"
    sizes = [str(size) for size in sorted({min(knows.sizes), max(knows.sizes)})] if knows.sizes else []
    each = f", of {' to '.join(sizes)} examples each" if sizes else ""
    return f"{knows.clients}, combined in the message{each}"


def describe_training(training: Training) -> str:
    """Return a client's training as one phrase.

    >>> describe_training(Training(lr=0.1))
    'one SGD step on all examples at learning rate 0.1 (FedSGD)'
    >>> describe_training(Training(lr=0.1, batch_size=8, steps=40, optimiser=SGD(momentum=0.9), clip=1.0))
    '40 steps of SGD (momentum 0.9) in batches of 8 at learning rate 0.1 (FedAvg), gradients clipped at norm 1'
    """
    how, rate, more = part_in_words(training.optimiser), f"learning rate {training.lr:g}", _particulars(training)
    if training.batch_size is None and training.epochs == 1 and training.steps in (None, 1):
        named = " (FedSGD)" if training.optimiser == SGD() else ""
        return f"one {how} step on all examples at {rate}{named}{more}"
    count, unit = (training.epochs, "epoch") if training.steps is None else (training.steps, "step")
    size = "all examples" if training.batch_size is None else f"{training.batch_size}"
    return f"{count} {unit}{'' if count == 1 else 's'} of {how} in batches of {size} at {rate} (FedAvg){more}"


def _particulars(training: Training) -> str:
    """Return what else of a training is not the default."""
    applies_by_text = {
        "batches in file order": not training.shuffle,
        f"gradients clipped at norm {training.clip or 0:g}": training.clip is not None,
        f"labels smoothed by {training.label_smoothing:g}": training.label_smoothing > 0,
        f"the loss is {training.loss!r}": training.loss is not None,
        "normalised with batch statistics": training.batch_norm is BatchNorm.BATCH,
    }
    return "".join(f", {text}" for text, applies in applies_by_text.items() if applies)
