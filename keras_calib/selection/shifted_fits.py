"""What a fit of a selector does for another prior, or for mixtures."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error, warn
from keras_calib.calibrators import PriorCorrection
from keras_calib.inputs.checks import check_flag
from keras_calib.inputs.top_label import hard_labels
from keras_calib.numerics.softmax import Top1
from keras_calib.selection.mixture_targets import MixtureTarget
from keras_calib.selection.prior_targets import PriorTarget

__all__ = ["labels_of", "shifted_target"]

# Largest difference of two priors that are one.
_SAME = 1e-3


def shifted_target(
    names: tuple | None,
    one_threshold: bool,
    target_prior: Any,
    asked: tuple,
    seed: int = 0,
    costs: Any = None,
) -> PriorTarget | MixtureTarget | None:
    """The target of a fit for shifted data, checked; None for other fits.

    `names` are those of the groups, and `asked` has risk, coverage, delta and
    method.
    """
    check_flag("one_threshold", one_threshold)
    if one_threshold and names is None:
        raise value_error(
            "`one_threshold` needs `groups`: it is one threshold that holds "
            "for every mixture of them",
            groups=None,
        )
    if target_prior is None and not one_threshold:
        return None
    risk, coverage, delta, method = asked
    rule = None
    if target_prior is not None and names is not None:
        rule = "`target_prior` and `groups` exclude each other"
    elif costs is not None:
        rule = "`target_prior` must be left out with `costs`"
    elif coverage is not None:
        rule = "`coverage` must be None: only a `risk` is guaranteed here"
    if rule is not None:
        raise value_error(rule, coverage=coverage)
    if target_prior is not None:
        return PriorTarget.of(target_prior, risk, delta, method, seed)
    if method is not None:
        raise value_error(
            "`method` must be None with `one_threshold`: the test is binomial",
            method=method,
        )
    return MixtureTarget.of(names or (), risk, delta, seed)


def labels_of(top: Top1, target: PriorTarget, calibrator: Any) -> np.ndarray:
    """True classes of scored rows `(n,)`, for classes of the target alone.

    Warns about a calibrator that corrects to another prior.
    """
    num_classes = top.rows.outputs.shape[-1]
    if len(target.prior) != num_classes:
        raise value_error(
            "`target_prior` must have a share for each class",
            shares=len(target.prior),
            classes=num_classes,
        )
    while calibrator is not None:
        if isinstance(calibrator, PriorCorrection):
            gap = float(np.abs(calibrator.target - target.prior).max())
            if gap > _SAME:
                warn(
                    "`calibrator` corrects to another prior than "
                    f"`target_prior`: a share differs by {gap:.3g}. The "
                    "guarantee holds, but the probabilities are for the prior "
                    "of the calibrator: give it the same `target`."
                )
        calibrator = getattr(calibrator, "calibrator", None)
    return np.asarray(hard_labels(top.rows.labels), "int64")
