"""The ways to find labels by name, for plans and for the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedglass.attack.labels.bias_counts import BiasCounts
from fedglass.attack.labels.counts import CountsAfter, CountsBefore, InterpolatedCounts
from fedglass.attack.labels.given import OracleBatchLabels, OracleLabels
from fedglass.attack.labels.joint import JointLabels
from fedglass.attack.labels.minimum_rule import MinimumRule
from fedglass.attack.labels.sign_rule import SignRule
from fedglass.attack.parts import Labels
from fedglass.core.errors import unknown_name


@dataclass(frozen=True)
class LabelsEntry:
    """A labels part: how to make it, in one line, and where it comes from."""

    make: Callable[[], Labels]
    summary: str
    paper: str


GENG = (
    "Geng, Mou, Li, Li, Beyan, Decker, Rong: Towards General Deep Leakage in Federated Learning, 2021, arXiv 2110.09074"
)
DLFA = (
    "Dimitrov, Balunović, Konstantinov, Vechev: Data Leakage in Federated Averaging, TMLR 2022, "
    "https://openreview.net/forum?id=e7A0B99zJf"
)

LABELS: Mapping[str, LabelsEntry] = {
    "sign_rule": LabelsEntry(
        SignRule,
        "classes with the most negative gradient in the last layer, each once",
        "Zhao, Mopuri, Bilen: iDLG, 2020, https://arxiv.org/abs/2001.02610",
    ),
    "minimum_rule": LabelsEntry(
        MinimumRule,
        "classes with the most negative single entry in the last layer's gradient, each once",
        "Yin, Mallya, Vahdat, Alvarez, Kautz, Molchanov: See through Gradients (GradInversion), CVPR 2021, "
        "https://arxiv.org/abs/2104.07586",
    ),
    "joint": LabelsEntry(
        JointLabels,
        "free logits, optimised together with the images",
        "Zhu, Liu, Han: Deep Leakage from Gradients, NeurIPS 2019, https://arxiv.org/abs/1906.08935",
    ),
    "counts_before": LabelsEntry(CountsBefore, "label counts from the last layer, at the weights before", GENG),
    "bias_counts": LabelsEntry(BiasCounts, "label counts from the last layer's bias, at the weights before", GENG),
    "counts_after": LabelsEntry(CountsAfter, "label counts from the last layer, at the weights after", GENG),
    "interpolated_counts": LabelsEntry(
        InterpolatedCounts, "label counts from the last layer, averaged over the way from before to after", DLFA
    ),
    "oracle": LabelsEntry(
        OracleLabels, "ORACLE: the true labels, in no particular order; needs adversary.knows_labels", ""
    ),
    "oracle_batches": LabelsEntry(
        OracleBatchLabels, "ORACLE: the true labels of each local batch; needs adversary.knows_batch_labels", ""
    ),
}


def labels_part(name: str) -> Labels:
    """The labels part of that name.

    >>> labels_part("sign_rule")
    SignRule()
    """
    if name not in LABELS:
        raise unknown_name("labels", name, LABELS)
    return LABELS[name].make()
