"""How many labels an attack got wrong, whatever their order."""

from __future__ import annotations

from torch import Tensor, bincount

from fedglass.core.errors import DataError, UsageError


def label_errors(recovered: Tensor, true: Tensor, classes: int) -> int:
    """Half the L1 distance of the label counts [Dimitrov et al., 2022].  # (n,), (n,) -> 0..n

    For lists of different lengths, max(lengths) - overlap: each label that is missing, superfluous or
    exchanged counts once, which is half the L1 distance where the lengths agree. A recovered label of -1 is one that
    the attack could not tell.

    >>> from torch import tensor
    >>> label_errors(tensor([3, 1, 1]), tensor([1, 2, 3]), classes=5)
    1
    >>> label_errors(tensor([1]), tensor([1, 2, 3]), 5), label_errors(tensor([1, -1]), tensor([1, 2]), 5)
    (2, 1)
    """
    if classes < 1:
        raise UsageError(f"Expected classes to be at least 1, got {classes}.")
    told = recovered[recovered != -1] if recovered.ndim == 1 else recovered
    found, truth = (_counts(n, x, classes) for n, x in (("recovered", told), ("true", true)))
    overlap = found.minimum(truth).sum()
    return max(len(recovered), len(true)) - int(overlap)


def _counts(name: str, labels: Tensor, classes: int) -> Tensor:
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
        raise DataError(
            f"Expected {name} labels as whole numbers in one dimension, got {labels.dtype} of shape "
            f"{tuple(labels.shape)}."
        )
    labels = labels.detach().cpu().long()
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise DataError(
            f"Expected {name} labels in 0..{classes - 1}, got {int(labels.min())}..{int(labels.max())}: "
            "check the number of classes."
        )
    return bincount(labels, minlength=classes)
