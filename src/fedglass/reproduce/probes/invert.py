"""An attack scored as the coarse-to-fine paper scores it, with the sparsity of what it was given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedglass.analysis.sparsity import sparsity
from fedglass.attack.attack import Attack
from fedglass.attack.parts import Progress
from fedglass.audit.probe import Finding
from fedglass.audit.target import Target
from fedglass.ledger.evidence import Strips
from fedglass.metrics.catalogue import score
from fedglass.reproduce.cost import Load, attack_seconds, iterations_of_stages
from fedglass.reproduce.probes.probe import of_attack

METRICS = ("psnr", "ssim", "lpips")


@dataclass(frozen=True)
class Invert:
    """Mean PSNR, SSIM and LPIPS of the restart of lowest energy [K. Zhu et al., 2025, Sec. 5.1].

    The attack's own merge and refinements are kept, and several restarts are one run.
    """

    accelerated: ClassVar[bool] = True

    attack: Attack

    def measure(self, target: Target, seed: int, progress: Progress) -> Finding:
        seen, truth = target.observation, target.known_truth
        found = self.attack.run(seen, seed, progress)
        scores = score(found.images, truth.images, METRICS)
        fields = of_attack(self.attack, target, found)
        measures = {name: sum(values) / len(values) for name, values in scores.values.items()}
        measures["label_errors"] = float(fields["label_errors"])
        measures["sparsity"] = sparsity(seen.update.values())  # of the message, as the attack was given it
        extra = {**fields["extra"], "measures": measures, "skipped": dict(scores.skipped)}
        told = {"metrics": dict(scores.values), "iterations": sum(iterations_of_stages(self.attack)), "extra": extra}
        shown = scores.matching.apply(found.images.detach().cpu())
        return Finding({**fields, **told}, Strips(truth.images.numpy(), shown.numpy()))

    def seconds(self, load: Load) -> float:
        return attack_seconds(self.attack, load)
