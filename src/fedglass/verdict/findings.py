"""What is known of one record, and whether it shows that nothing leaks.

Only the audit may compare the energy of a reconstruction with that of the true data. "Nothing leaks" is shown in two
ways, and no third. A defence hides the data: the message is explained, the same attack reads it without the defence,
and with it the true data no longer stand out from decoys. Or the message leaves a choice: it is explained, the true
data do stand out, the search reached their energy from several starts and with a weaker prior, and found others.
How weak that prior is was chosen on decoys, of which the adversary knows the answer.
Everything else is a serious flag of `verdict.flags`, which makes the audit inconclusive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from fedglass.core.notes import TAKEN_AS_DISTINCT
from fedglass.verdict.gate import CHOICE, HIDDEN, Gate
from fedglass.verdict.images import ImageScores

State = Literal["sound", "zero", "non-finite"]
CLEARLY = 0.1
"""By which share the true data's energy must undercut the reconstruction's for the optimiser to have failed."""
FAITHFUL = 0.2
"""The share of other images' energy that the truth's may have for an attack to model how the message was made."""
DISTINCT = 0.01
"""By which share it must undercut that of every decoy for the message to point at the true data."""


@dataclass(frozen=True)
class Look:
    """Another run of the attack, from another start or with a weaker prior, under its own objective."""

    words: str
    energy: float
    energy_truth: float
    energy_others: float
    """The lowest of decoys and blind guess."""
    recovered: int
    doubtful: int = 0
    """How many images it did not recover but shows so that they may be recognised, or as a guess does."""
    apart: Sequence[str] = ()
    """The tensors of the message that tell what it found from the truth."""
    must_reach: bool = True
    """Whether absence is shown only if it reaches the truth's energy: not asked of a stronger prior."""

    @property
    def reached(self) -> bool:
        """Whether it found an energy at or below that of the truth, which stands out from other images."""
        found = math.isfinite(self.energy) and not undercuts(self.energy_truth, self.energy, CLEARLY)
        found = found and not self.apart
        return found and math.isfinite(self.energy_others) and self.energy_truth <= FAITHFUL * self.energy_others


@dataclass(frozen=True)
class Findings:
    """All that the flags of one record are decided by."""

    gate: Gate
    update: State = "sound"
    scores: ImageScores = field(default_factory=ImageScores)
    otherwise: Sequence[bool] = ()
    """Image by image, whether it is shown in another contrast, mirrored or moved."""
    energy: float = math.nan
    energy_refined: float | None = None
    """Of the refined images, where some were refined."""
    energy_truth: float | None = None
    energy_decoys: Sequence[float] = ()
    """Energies of images that are as smooth as the true ones but show something else."""
    energy_blind: float | None = None
    energy_labels: float | None = None
    """Of the true images under the labels that the attack found, where those are wrong."""
    label_errors: int | None = None
    oracle: frozenset[str] = frozenset()
    notes: Sequence[str] = ()
    truth: bool = True
    defended: bool | None = False
    """Whether something protects the message, by defence or by the company of others; None where nobody knows."""
    read_without: bool | None = None
    """Whether the same attack reads the message without what protects it; None where that was not tried."""
    remains: Sequence[str] = ()
    """The tensors of a protected message in which the undefended one stands out from noise."""
    repeats: Sequence[str] = ()
    """Where the noise of a protected message repeats, inside of it or in other messages: there it cancels."""
    strangers: Sequence[str] = ()
    """The tensors of a protected message in which examples stand out from noise that are none of the truth's."""
    explained: bool | None = True
    """Whether the declared training gives the message; None where that can not be told."""
    replay: str = ""
    """What came of playing it again, in words, and what would explain the message."""
    batch_statistics: bool = False
    """Whether the clients' BatchNorm layers took the statistics of their batches, which the attack does not read."""
    in_clear: bool = False
    """Whether the statistics of batches left beside the message, whatever the attack reads: no defence covers them."""
    further: int = 0
    """Rounds in which the same examples were trained on, beyond those that were attacked together."""
    overlooked: Sequence[str] = ()
    """Clients that took part in the federation, and whose messages nobody looked at."""
    unread: Sequence[str] = ()
    """What left with the message and no attack looks at: buffers of the network's own, further arrays."""
    miscounted: bool = False
    """Whether the attack was told another number of examples than the truth has."""
    contradictions: Sequence[str] = ()
    """What of the message can not be as declared, whatever the data are."""
    apart: Sequence[str] = ()
    """The tensors of the message that tell what was found from the truth, whatever the attack's objective looks at."""
    looks: Sequence[Look] = ()
    asked: int = 0
    """How many looks the audit was told to take."""

    @property
    def recovered(self) -> list[bool]:
        """Image by image."""
        return self.gate.hits(self.scores)

    @property
    def all_recovered(self) -> bool:
        return bool(self.recovered) and all(self.recovered)

    @property
    def open(self) -> bool:
        """Whether there is something left of which absence would have to be shown."""
        return self.update == "sound" and self.energy_truth is not None and not self.all_recovered

    @property
    def hidden(self) -> bool:
        """Whether the true data fit the message no better than other data do."""
        if self.energy_truth is None or not math.isfinite(self.energy_truth) or not math.isfinite(self.others):
            return False
        return not undercuts(self.energy_truth, self.others, DISTINCT)

    @property
    def covered(self) -> bool:
        """Whether it is what protects the message that hides the data, and all of the message is under it."""
        seen = self.remains or self.repeats or self.strangers
        return bool(self.defended and self.read_without) and not seen

    @property
    def reached(self) -> bool:
        """Whether the search found an energy at or below that of the truth."""
        truth = self.energy_truth
        return truth is not None and math.isfinite(self.energy) and not undercuts(truth, self.energy, CLEARLY)

    @property
    def absence(self) -> str | None:
        """In which way it was shown that what was not recovered does not leak; None where it was not.

        What one message hides or leaves open several may tell together, and what it does not show another may.
        """
        return None if self.further or self.overlooked else self.absence_here

    @property
    def absence_here(self) -> str | None:
        """The same of this message alone, whatever others tell."""
        if (
            not self.open
            or self.explained is not True
            or self.contradictions
            or self.doubtful
            or self.mislabelled
            or self.miscounted
            or self.unread
            or self.batch_statistics
            or any(note != TAKEN_AS_DISTINCT for note in self.notes)
            or any(look.recovered or look.doubtful for look in self.looks)
        ):
            return None
        if self.hidden:
            return HIDDEN if self.covered and not self.in_clear else None
        enough = len(self.looks) >= max(1, self.asked) and not self.missed
        return CHOICE if self.reached and self.faithful and not self.apart and enough else None

    @property
    def altered(self) -> int:
        """How many images are not recovered, but shown in another contrast, mirrored or moved."""
        return sum(seen and not hit for seen, hit in zip(self.otherwise, self.recovered, strict=False))

    @property
    def doubtful(self) -> int:
        """How many are not recovered, of which it can not be said that they are not shown."""
        shown = self.gate.partly(self.scores) + self.gate.guessed(self.scores) + self.gate.imagined(self.scores)
        return shown + self.altered

    @property
    def missed(self) -> list[Look]:
        """The looks that should have reached the truth's energy, and did not."""
        return [look for look in self.looks if look.must_reach and not look.reached]

    @property
    def mislabelled(self) -> bool:
        """Whether the labels that the attack took are wrong, and make it look for other images."""
        truth, wrong = self.energy_truth, self.energy_labels
        if not self.label_errors or truth is None or wrong is None:
            return False
        return not math.isfinite(wrong) or undercuts(truth, wrong, DISTINCT)

    @property
    def others(self) -> float:
        """The lowest energy of images that are not the true ones."""
        known = [e for e in (*self.energy_decoys, self.energy_blind) if e is not None and math.isfinite(e)]
        return min(known, default=math.inf)

    @property
    def faithful(self) -> bool:
        """Whether the attack models how the message was made: at the truth little of it is left unexplained."""
        if self.energy_truth is None or not math.isfinite(self.others):
            return False
        return self.energy_truth <= FAITHFUL * self.others


def undercuts(lower: float, other: float, share: float) -> bool:
    """Whether one energy lies below another by more than a share of it."""
    return other - lower > share * abs(other)
