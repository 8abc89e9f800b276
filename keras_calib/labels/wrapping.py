"""The one name for what takes several labels at once."""

from typing import Any

from keras_calib.backend.errors import type_error
from keras_calib.calibrators import Calibrator
from keras_calib.labels.calibrator import MultiLabelCalibrator
from keras_calib.labels.loss import MultiLabelLoss
from keras_calib.labels.metric import MultiLabelMetric
from keras_calib.labels.selector import MultiLabelSelector, selector_of
from keras_calib.losses import PerSampleLoss
from keras_calib.metrics import StreamingMetric
from keras_calib.selection.classifier import SelectiveClassifier

__all__ = ["MultiLabel"]

# Kinds, their wrappers, and what makes them; the first that fits is taken.
_WRAPPERS: tuple[tuple[type, type, Any], ...] = (
    (PerSampleLoss, MultiLabelLoss, MultiLabelLoss),
    (StreamingMetric, MultiLabelMetric, MultiLabelMetric),
    (Calibrator, MultiLabelCalibrator, MultiLabelCalibrator),
    (SelectiveClassifier, MultiLabelSelector, selector_of),
)


def MultiLabel(part: Any, **options: Any) -> Any:  # noqa: N802  # a class to users
    """A part of keras_calib for two classes, wrapped for several labels.

    Use it for models with several yes-or-no outputs `(batch, labels)`: pass a
    metric, a loss, a calibrator or a selector made for one such output.

    Label k is the two-class problem of column k: targets `(batch, labels)` are
    0 or 1, and outputs are probabilities or logits of 1. Class ids of one
    label among many need no wrapper.

    Args:
        part: A metric, a loss, a calibrator or an unfitted
            `SelectiveClassifier` of keras_calib.
        **options: Arguments of the wrapper.

    Returns:
        A `MultiLabelMetric` of a metric, a `MultiLabelLoss` of a loss, a
        `MultiLabelCalibrator` of a calibrator, or a `MultiLabelSelector` of a
        `SelectiveClassifier`, whose calibrator is then one of several labels.

    Raises:
        TypeError: If there is no wrapper for this part, or if an option is not
            an argument of the wrapper.
        ValueError: If a `SelectiveClassifier` is fitted, or has costs or
            another score than the default.

    Example:

    >>> from keras_calib import ECE
    >>> metric = MultiLabel(ECE(num_bins=10), num_labels=2)
    >>> metric.update_state([[1, 0], [1, 1]], [[0.8, 0.4], [0.9, 0.7]])
    >>> round(float(metric.result()), 4)
    0.25

    Reference:
        Read et al., Classifier Chains for Multi-label Classification, Machine
        Learning 2011, https://doi.org/10.1007/s10994-011-5256-5, who
        call this the binary relevance method
    """
    for kind, _, make in _WRAPPERS:
        if isinstance(part, kind):
            return make(part, **options)
    names = [wrapper.__name__ for _, wrapper, _ in _WRAPPERS]
    raise type_error(
        "`part` must be a part of keras_calib that has a wrapper for several "
        f"labels ({', '.join(names)})",
        type=type(part).__name__,
    )
