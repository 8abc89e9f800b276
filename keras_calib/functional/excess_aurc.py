"""Risk-coverage areas beyond what the error rate explains, in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np

from keras_calib.formulas.risk_coverage import augrc_of_groups
from keras_calib.formulas.risk_coverage import normalized_aurc_of_groups
from keras_calib.formulas.risk_coverage_conventions import aurc_by_convention
from keras_calib.formulas.risk_coverage_conventions import optimum_by_convention
from keras_calib.functional.ranking import ranked
from keras_calib.numerics.arrays import safe_divide

__all__ = ["eaugrc", "normalized_aurc"]


def normalized_aurc(
    labels: Any,
    probs: Any,
    *,
    score: str | Callable[[Any], Any] = "msp",
    ties: str = "average",
    convention: str = "mean",
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """Normalised AURC of a whole data set.

    (AURC - AURC*) / (error - AURC*), AURC* the AURC with every error last:
    comparable between models of different error rates.

    Args:
        labels: As in `aurc`, shape `(n, ...)`.
        probs: As in `aurc`, shape `(n, ..., num_classes)`.
        score: As in `aurc`.
        ties: `"average"` or `"order"`, as in `aurc`.
        convention: As in `aurc`, of both areas.
        from_logits: Whether `probs` are logits.
        sample_weight: As in `aurc`.
        ignore_class: Class id that does not count.

    Returns:
        0 for a perfect ranking, 1 for a random one (by `"mean"`), above 1
        for worse; 0 where all predictions are right or all are wrong.

    Example:

    >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]]
    >>> round(normalized_aurc([0, 1, 0], probs), 4)
    0.75

    Reference:
        Cattelan and Silva, How to Fix a Broken Confidence Estimator:
        Evaluating Post-hoc Methods for Selective Classification with Deep
        Neural Networks, UAI 2024, https://arxiv.org/abs/2305.15508

    Differs:
        The released code has the convention `"origin"` and the order of the
        samples among ties.
    """
    reading = from_logits, sample_weight, ignore_class
    groups = ranked(labels, probs, score, ties, *reading)
    if convention == "mean":
        return float(normalized_aurc_of_groups(groups))
    value = aurc_by_convention(groups, convention)
    best = optimum_by_convention(groups, convention)
    wrong, total = np.sum(groups.wrong), np.sum(groups.mass)
    if wrong in (0.0, total):
        return 0.0
    return float(safe_divide(value - best, wrong / total - best))


def eaugrc(
    labels: Any,
    probs: Any,
    *,
    score: str | Callable[[Any], Any] = "msp",
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """Excess AUGRC: AUGRC less r^2 / 2, its optimum at the error rate r.

    Args:
        labels: As in `aurc`, shape `(n, ...)`.
        probs: As in `aurc`, shape `(n, ..., num_classes)`.
        score: As in `aurc`.
        from_logits: Whether `probs` are logits.
        sample_weight: As in `aurc`.
        ignore_class: Class id that does not count.

    Returns:
        (1 - AUROC) r (1 - r), in [0, 0.25], AUROC as in `failure_auroc`.

    Reference:
        Traub et al., Overcoming Common Flaws in the Evaluation of Selective
        Classification Systems, NeurIPS 2024, https://arxiv.org/abs/2407.01032
    """
    reading = from_logits, sample_weight, ignore_class
    groups = ranked(labels, probs, score, "average", *reading)
    rate = np.sum(groups.wrong) / np.sum(groups.mass)
    return float(augrc_of_groups(groups) - 0.5 * rate**2)
