"""An attack scored as the coarse-to-fine paper scores it, with the sparsity of what it was given."""

from __future__ import annotations

from dataclasses import dataclass

from fedglass.analysis.sparsity import sparsity
from fedglass.attack.attack import Attack
from fedglass.attack.parts import Progress
from fedglass.audit.play import told_of
from fedglass.core.types import Observation, Reconstruction
from fedglass.metrics.catalogue import Scores, score
from fedglass.metrics.labels import label_errors
from fedglass.reproduce.experiment import Finding
from fedglass.rounds.truth import Truth

METRICS = ("psnr", "ssim", "lpips")


@dataclass(frozen=True)
class Invert:
    """Mean PSNR, SSIM and LPIPS of the restart of lowest energy [K. Zhu et al., 2025, Sec. 5.1].

    The attack's own merge and refinements are kept, and several restarts are one run.
    """

    attack: Attack

    @property
    def iterations(self) -> int:
        """Of all stages together, in one restart."""
        return sum(int(getattr(stage.solver, "iterations", 0)) for stage in self.attack.stages)

    def measure(self, seen: Observation, truth: Truth, seed: int, progress: Progress) -> Finding:
        found = self.attack.run(seen, seed, progress)
        scores = score(found.images, truth.images, METRICS)
        measures = {name: sum(values) / len(values) for name, values in scores.values.items()}
        measures["label_errors"] = float(label_errors(found.labels.cpu(), truth.labels, seen.knows.classes))
        measures["sparsity"] = sparsity(seen.update.values())  # of the message, as the attack was given it
        return Finding(
            measures,
            scores.values,
            truth.images,
            scores.matching.apply(found.images.detach().cpu()),
            record=self._record(seen, truth, found, scores),
        )

    def _record(self, seen: Observation, truth: Truth, found: Reconstruction, scores: Scores) -> dict[str, object]:
        device = next(iter(seen.before.values())).device
        images, labels = truth.images.to(device), truth.labels.to(device)
        return {
            "labels_true": truth.labels.tolist(),
            "labels_recovered": found.labels.tolist(),
            "label_errors": int(label_errors(found.labels.cpu(), truth.labels, seen.knows.classes)),
            "energy": found.energy,
            "energy_truth": self.attack.energy_of(seen, images, labels, found),
            "trace": list(found.trace),
            "iterations": self.iterations,
            "energy_refined": found.energy_refined,
            "extra": {**told_of(found), "skipped": dict(scores.skipped)},
        }
