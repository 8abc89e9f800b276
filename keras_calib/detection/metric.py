"""Streaming calibration errors of detections."""

from collections.abc import Sequence
from typing import Annotated, Any, TypedDict, Unpack

import keras
import numpy as np
from keras import ops

from keras_calib.backend.arguments import KeepsArguments
from keras_calib.backend.compiled import without_autograph
from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.keras_internals import set_direction
from keras_calib.backend.locks import STATES
from keras_calib.backend.replicas import assign_sum
from keras_calib.backend.traced import is_traced
from keras_calib.detection.boxes import BOX_FORMATS
from keras_calib.detection.errors import (
    AVERAGES,
    UNITS,
    DetectionSums,
    bins_of,
    cells_of,
    error_of,
    errors_by_class,
    interval_of,
    sums_of_cells,
)
from keras_calib.detection.matching import BoxPredictions, check_boxes, match
from keras_calib.formulas.bins import CLOSED
from keras_calib.inputs.checks import check_in, check_integer, check_share
from keras_calib.inputs.options import filled
from keras_calib.metrics.state_dicts import MergeableMetric
from keras_calib.numerics import exact_sums

# Images whose sums are taken at once.
_BLOCK = 512


class Matching(TypedDict, total=False):
    """Options of metrics about matches, as of `match`."""

    min_overlap: Annotated[float, 0.5]
    min_confidence: Annotated[float, 0.0]
    box_format: Annotated[str, "xyxy"]


class ShapedMatching(Matching, total=False):
    """Those of `DetectionECE`, whose features may need sizes of images."""

    image_shape: Any


class _DetectionMetric(KeepsArguments, MergeableMetric):
    """Abstract base of metrics whose samples are the boxes of images."""

    mode = "min"
    # Arguments that one of them has.
    features: tuple[str, ...] = ()
    image_shape: tuple | None = None
    # Whether the confidence should be the overlap, not the precision.
    _of_overlap = False

    def __init__(
        self, num_bins: tuple[int, ...], name: str, dtype: Any, **arguments: Any
    ):
        super().__init__(name=name, dtype=dtype)
        set_direction(self, self.mode)
        self._keep(num_bins=num_bins, **arguments)
        if self.num_classes is not None:
            check_integer("num_classes", self.num_classes, 1)
        check_in("average", self.average, AVERAGES)
        if self.average == "macro" and self.num_classes is None:
            raise value_error(
                '`num_classes` must be given for `average="macro"`',
                num_classes=None,
            )
        check_share("min_overlap", self.min_overlap)
        check_share("min_confidence", self.min_confidence)
        check_in("box_format", self.box_format, BOX_FORMATS)
        check_in("closed", self.closed, CLOSED)
        self._shape = self.num_classes or 1, int(np.prod(num_bins))
        size = 8 * int(np.prod(self._shape)) + 4
        self._add_sums((exact_sums.NUM_LIMBS, size))

    @without_autograph
    def update_state(self, y_true, y_pred, sample_weight=None):
        """Add the boxes of a batch of images.

        Args:
            y_true: True boxes, as `match` takes them.
            y_pred: Detections, as `match` takes them.
            sample_weight: Must be None.
        """
        if sample_weight is not None:
            raise type_error(
                "`sample_weight` must be None: all boxes have equal weight",
                sample_weight=type(sample_weight).__name__,
            )
        parts = keras.tree.flatten([y_true, y_pred])
        if any(ops.is_tensor(x) and is_traced(x) for x in parts):
            raise type_error(
                f"`{type(self).__name__}` must be updated outside compiled "
                "code: call `update_state` with what `predict` returns",
                method="update_state",
            )
        self.update_records(
            match(
                y_true,
                y_pred,
                min_overlap=self.min_overlap,
                box_format=self.box_format,
                image_shape=self.image_shape,
                min_confidence=self.min_confidence,
            )
        )

    def update_records(self, predictions: BoxPredictions) -> None:
        """Add what `match` returned, of images not added before."""
        check_boxes(predictions, self.num_classes, empty=True)
        if not len(predictions):
            return
        cells = cells_of(predictions, self.num_bins, self.features, self.closed)
        group = predictions.groups["class"]
        if self.num_classes is None:
            group = np.zeros_like(group)
        target = predictions.correct
        if self._of_overlap:
            target = predictions.overlap
        confidence, target = (
            np.round(x * UNITS) / UNITS
            for x in (predictions.confidence, target)
        )
        outcomes = predictions.boxes()._replace(
            confidence=confidence, group=group
        )
        # A block of images has sums that float64 holds without rounding.
        blocks = outcomes.unit // _BLOCK
        added = np.zeros(self.sums.shape[1], "int64")
        for block in np.unique(blocks):
            own = blocks == block
            sums = sums_of_cells(
                outcomes.part(own), target[own], cells[own], self._shape
            )
            flat = np.concatenate([np.ravel(x) for x in sums])
            added += np.rint(flat * UNITS).astype("int64")
        mask = 2**24 - 1
        limbs = np.stack([added & mask, (added >> 24) & mask, added >> 48])
        with STATES:
            state = ops.convert_to_numpy(self.sums).astype("int64")
            assign_sum(self.sums, exact_sums.normalize_limbs(state + limbs))

    def _read(self) -> DetectionSums:
        """The sums so far, on the host."""
        limbs = ops.convert_to_numpy(self.sums)
        values = exact_sums.to_float(limbs)
        own, images = values[:-4].reshape(2, 4, *self._shape)
        return DetectionSums(own, images, values[-4:])

    @without_autograph
    def result(self):
        """Return the error so far, a scalar tensor; 0 before any box."""
        value = error_of(self._read(), self.average)
        return ops.convert_to_tensor(value, dtype=self.dtype)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return a confidence interval of the error, with images as units.

        Args:
            level: Probability to cover the error of the population, in (0, 1).

        Returns:
            `(low, high)`; (0, 1) before any box.
        """
        return interval_of(self._read(), self.average, level)

    def by_class(self) -> dict[int, float]:
        """Return the error of each class that has detections, by class id.

        Raises:
            ValueError: If the metric has no `num_classes`.
        """
        if self.num_classes is None:
            raise value_error(
                "`num_classes` must be given for errors by class",
                num_classes=self.num_classes,
            )
        values = errors_by_class(self._read())
        return {k: float(v) for k, v in enumerate(values) if not np.isnan(v)}

    def get_config(self):
        return super().get_config() | self._kept()


@keras.saving.register_keras_serializable(package="keras_calib")
class DetectionECE(_DetectionMetric):
    """Streaming detection expected calibration error (D-ECE).

    Use it where detections do not fit into memory, or come from several
    workers: its state merges by addition. Call `update_state` with what
    `predict` of a detector returns, outside compiled code.

    D-ECE = sum_b (n_b / N) |precision_b - mean confidence_b|

    Args:
        num_bins, features: As in `detection_ece`.
        num_classes: Number of classes, for `by_class()` and the mean over
            classes, or None.
        average, closed: As in `detection_ece`.
        min_overlap, min_confidence, box_format: As in `match`.
        image_shape: Height and width of all images, or None. Only `features`
            need it.
        name: Name of the metric.
        dtype: Dtype of the result.

    Returns:
        `result()` returns a scalar in [0, 1], or 0 before any detection.

    Raises:
        TypeError: On update, if the boxes are in no known form, or in compiled
            code.
        ValueError: If an argument is out of range. On update, if shapes or
            values are invalid.

    Example:

    >>> metric = DetectionECE()
    >>> truth = [{"boxes": [[0, 0, 10, 10]], "labels": [1]}]
    >>> found = [{"boxes": [[0, 0, 10, 8], [20, 0, 30, 9]],
    ...           "labels": [1, 1], "confidence": [0.9, 0.3]}]
    >>> metric.update_state(truth, found)
    >>> round(float(metric.result()), 4)
    0.2

    Reference:
        Kueppers et al., Multivariate Confidence Calibration for Object
        Detection, CVPR Workshops 2020, https://arxiv.org/abs/2004.13546
    """

    def __init__(
        self,
        num_bins: int | Sequence[int] = 10,
        *,
        features: Sequence[str] = (),
        num_classes: int | None = None,
        average: str = "pooled",
        closed: str = "right",
        name: str = "detection_ece",
        dtype: Any = None,
        **matching: Unpack[ShapedMatching],
    ):
        how = filled("DetectionECE", matching, ShapedMatching)
        if how.image_shape is not None:
            how.image_shape = tuple(how.image_shape)
        super().__init__(
            num_bins=bins_of(num_bins, features),
            num_classes=num_classes,
            average=average,
            closed=closed,
            name=name,
            dtype=dtype,
            **vars(how),
        )
        self._keep(features=tuple(features))


@keras.saving.register_keras_serializable(package="keras_calib")
class LocalizationAwareECE(_DetectionMetric):
    """Streaming localization-aware expected calibration error (LaECE).

    Use it where the confidence should also say how well a box fits. Call
    `update_state` with what `predict` of a detector returns, outside compiled
    code.

    It is the error of `localization_aware_ece`, whose formula and papers stand
    there.

    Args:
        num_classes: Number of classes. None with `average="pooled"`.
        num_bins, average, closed: As in `localization_aware_ece`.
        min_overlap: Least intersection over union of a match, in [0, 1].
            Defaults to `0.1`, as in the paper; `0.0` is LaECE_0.
        min_confidence, box_format: As in `match`.
        name: Name of the metric.
        dtype: Dtype of the result.

    Returns:
        `result()` returns a scalar in [0, 1], or 0 before any detection.

    Raises:
        TypeError: On update, if the boxes are in no known form, or in compiled
            code.
        ValueError: If an argument is out of range. On update, if shapes or
            values are invalid.

    Example:

    >>> metric = LocalizationAwareECE(num_classes=2)
    >>> truth = [{"boxes": [[0, 0, 10, 10]], "labels": [1]}]
    >>> found = [{"boxes": [[0, 0, 10, 8], [20, 0, 30, 9]],
    ...           "labels": [1, 1], "confidence": [0.9, 0.3]}]
    >>> metric.update_state(truth, found)
    >>> round(float(metric.result()), 4)
    0.2

    Reference:
        Oksuz et al., CVPR 2023, https://arxiv.org/abs/2307.00934

    Differs:
        As `localization_aware_ece` does.
    """

    _of_overlap = True

    def __init__(
        self,
        num_classes: int | None,
        *,
        num_bins: int = 25,
        average: str = "macro",
        closed: str = "right",
        name: str = "localization_aware_ece",
        dtype: Any = None,
        **matching: Unpack[Matching],
    ):
        given = {"min_overlap": 0.1, **matching}
        how = filled("LocalizationAwareECE", given, Matching)
        super().__init__(
            num_bins=bins_of(num_bins, ()),
            num_classes=num_classes,
            average=average,
            closed=closed,
            name=name,
            dtype=dtype,
            **vars(how),
        )

    def get_config(self):
        return super().get_config() | {"num_bins": self.num_bins[0]}
