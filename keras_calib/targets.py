"""Soft targets: what a loss is asked to fit in place of the hard label."""

from typing import Any

__all__ = ["smooth_labels"]


def smooth_labels(labels: Any, *, alpha: float, spread: str = "all") -> Any:
    """Moves the share `alpha` of each label to the classes.

    `spread="all"`: (1 - alpha) labels + alpha / K, the true class keeps
    1 - alpha + alpha / K. `spread="others"`: the true class keeps 1 - alpha
    and each other class gets alpha / (K - 1). The first with
    alpha K / (K - 1) is the second with alpha.

    Args:
        labels: One-hot or soft labels `(..., K)`, rows sum to 1.
        alpha: Share moved, at most 1; negative sharpens.
        spread: `"all"` or `"others"`.

    Returns:
        Soft labels `(..., K)`, rows sum to 1.

    Reference:
        Szegedy et al., Rethinking the Inception Architecture for Computer
        Vision, CVPR 2016, section 7, https://arxiv.org/abs/1512.00567
    """
    num_classes = labels.shape[-1]
    if spread == "others":
        alpha = alpha * num_classes / (num_classes - 1)
    return (1.0 - alpha) * labels + alpha / num_classes
