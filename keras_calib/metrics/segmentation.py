"""Metrics of dense predictions, averaged over images."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.backend.compiled import run_by_xla, without_autograph
from keras_calib.backend.errors import type_error, value_error
from keras_calib.formulas.intervals import mean_interval
from keras_calib.inputs.batch import Batch
from keras_calib.inputs.checks import check_integer, check_rank
from keras_calib.inputs.given_metrics import get
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.inputs.top_label import hard_labels
from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.reading import (
    add_limbs,
    is_empty,
    read_batch,
    read_on_host,
)
from keras_calib.metrics.states.composite import Readings
from keras_calib.metrics.states.records import outcomes_of, split_rows
from keras_calib.metrics.states.sums import MomentSummary
from keras_calib.metrics.table import CalibrationMetrics
from keras_calib.numerics.arrays import as_numbers, on_host, shape_of


def _value_of(records):
    return records.score, None


def _of_images(values: Any, counts: Any, num_pixels: int) -> Outcomes:
    """Records of images: their values, and how many pixels count."""
    return Outcomes(
        score=values,
        # As shares, because exact sums take weights of at most 1e4.
        weight=counts / num_pixels,
        mask=counts > 0,
    )


def _masked(records: Outcomes, kept: np.ndarray) -> Outcomes:
    """Records on the host, of which only those that are kept count."""
    mask = records.mask & kept
    mask_of_rows = mask
    if not isinstance(records.rows.mask, np.ndarray):
        mask_of_rows = ops.convert_to_tensor(mask)
    return records._replace(
        mask=mask, rows=records.rows._replace(mask=mask_of_rows)
    )


@keras.saving.register_keras_serializable(package="keras_calib")
class PerImage(StreamingMetric):
    """Mean of a metric over images, weighted by their valid pixels.

    Use it to compare with published tables of segmentation, which average over
    images, often without the background. The function `per_image` has the
    formula.

    Args:
        metric: A metric of this package with a scalar value, and not of
            images, as `keras_calib.metrics.get` takes it: `"ece"`, `ECE`,
            `ECE(ignore_class=255)`. Its `from_logits`, `axis`, `ignore_class`,
            `refresh_every` and other options apply to the images. `evaluate`
            and `compare` read a key or a class as the `Predictions` tell.
        background: Class id whose pixels are left out too, or None.
        name: Name of the metric. Defaults to `"image_"` plus the name of
            `metric`.
        dtype: Dtype of the result.

    Raises:
        TypeError: If `metric` is not a metric of this package. On update, if
            there are sample weights.
        ValueError: On update, if predictions are not
            `(batch, ..., num_classes)` with a known number of pixels.

    Example:

    >>> from keras_calib import ECE
    >>> metric = PerImage(ECE(ignore_class=255))
    >>> probs = [[[0.8, 0.2], [0.5, 0.5]], [[0.6, 0.4], [0.1, 0.9]]]
    >>> metric.update_state([[0, 255], [1, 1]], probs)
    >>> round(float(metric.result()), 4)
    0.3

    Reference:
        That of the function `per_image`.
    """

    # Set to that of `metric`.
    mode: str | None = None

    def __init__(
        self,
        metric: Any,
        *,
        background: int | None = None,
        name: str | None = None,
        dtype: Any = None,
    ):
        # A key or a class reads as it is told.
        self.given = metric
        metric = get(metric)
        alone = isinstance(metric, StreamingMetric)
        if not alone or isinstance(metric, CalibrationMetrics | PerImage):
            raise type_error(
                "`metric` must be a metric of keras_calib that has one value "
                "for all pixels, such as `ECE`",
                type=type(metric).__name__,
            )
        if background is not None:
            check_integer("background", background)
        self.mode = metric.mode
        super().__init__(
            MomentSummary(_value_of),
            **metric.options.of_metric(),
            refresh_every=metric.refresh_every,
            name=name or f"image_{metric.name}",
            dtype=dtype,
        )
        self.metric = metric
        self.background = background
        self._largest = metric._largest

    @without_autograph
    def update_state(self, y_true, y_pred, sample_weight=None):
        """Add one batch of images; `sample_weight` must be None."""
        if sample_weight is not None:
            raise type_error(
                "`sample_weight` must be None: all pixels have equal weight",
                sample_weight=type(sample_weight).__name__,
            )
        name = self.options.names[1]
        y_pred = as_numbers(y_pred, name)
        check_rank(name, y_pred, 3, "(batch, ..., num_classes)")
        if self._add_on_host(y_true, y_pred):
            return
        y_pred = ops.convert_to_tensor(y_pred)
        batch, num_invalid = read_batch(y_true, y_pred, None, self.options)
        if is_empty(batch):
            return
        num_pixels = self._num_pixels(y_pred)
        if self.background is not None:
            ids = ops.cast(hard_labels(batch.labels), "int32")
            kept = ops.not_equal(ids, self.background)
            batch = batch._replace(mask=ops.logical_and(batch.mask, kept))
        images = {
            name: ops.reshape(x, (-1, num_pixels, *x.shape[1:]))
            for name, x in batch._asdict().items()
            if hasattr(x, "shape")
        }
        values, counts = run_by_xla(
            lambda images: ops.map(self._of_image, images),
            images,
            only_if=self.options.jit_compile,
        )
        records = _of_images(values, counts, num_pixels)
        limbs = [self.summary.update(records)]
        self._add(limbs, None, num_invalid, batch)

    def _add_on_host(self, y_true: Any, y_pred: Any) -> bool:
        """Add a batch in the memory of the host; False if it cannot."""
        summary = self.metric.summary
        found = read_on_host(self, summary, y_true, y_pred, None)
        if found is None:
            return False
        records, flags = found
        if self.background is not None:
            kept = hard_labels(on_host(records.rows.labels)) != self.background
            records = _masked(records, kept)
        num_pixels = self._num_pixels(y_pred)
        values, counts = [], []
        for image in split_rows(records, num_pixels):
            with np.errstate(all="ignore"):
                limbs = on_host(summary.update(image))
            values.append(self.metric._value(Readings(summary, limbs, True)))
            counts.append(image.mask.sum())
        records = _of_images(
            np.array(values, "float32"), np.array(counts, "float32"), num_pixels
        )
        add_limbs(self, [self.summary.update(records)], flags)
        return True

    def update_scores(self, confidence, correct, sample_weight=None):
        raise type_error(
            "`PerImage` needs predictions of whole images: use `update_state`",
            method="update_scores",
        )

    def get_config(self):
        return {
            "metric": keras.saving.serialize_keras_object(self.metric),
            "background": self.background,
            "name": self.name,
            "dtype": self.dtype,
        }

    def _comparable_config(self):
        config = super()._comparable_config()
        inner = self.metric._comparable_config()
        return {**config, "metric": {**config["metric"], "config": inner}}

    @classmethod
    def from_config(cls, config):
        metric = keras.saving.deserialize_keras_object(config["metric"])
        return cls(**{**config, "metric": metric})

    def _num_pixels(self, y_pred: Any) -> int:
        sizes = list(shape_of(y_pred))
        del sizes[self.options.axis % len(sizes)]
        if None in sizes[1:]:
            name = self.options.names[1]
            raise value_error(
                f"`{name}` must have a known number of pixels",
                **{f"{name}.shape": shape_of(y_pred)},
            )
        num_pixels = math.prod(sizes[1:])
        chosen = self.options.pixels_per_image
        return num_pixels if chosen is None else min(num_pixels, chosen)

    @without_autograph
    def _of_image(self, image: dict[str, Any]) -> tuple[Any, Any]:
        """Value and number of valid pixels of one image."""
        batch = Batch(
            from_logits=self.options.from_logits,
            votes=self.options.votes,
            **image,
        )
        summary = self.metric.summary
        limbs = summary.update(outcomes_of(batch))
        readings = Readings(summary, limbs, ops.convert_to_tensor(True))
        value = self.metric._value(readings)
        count = ops.sum(ops.cast(batch.mask, "float32"))
        return ops.cast(value, "float32"), count

    def _value(self, readings):
        return readings.moments().mean

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return a confidence interval `(low, high)` of the mean over images.

        It is Student's interval of a weighted mean, corrected for skewness as
        Hall does. Images are taken as independent draws, pixels of one image
        are not. In simulations with skewed values it covers the mean in at
        least 0.92 of the draws of 60 images or more, and of 20 in at least
        0.87. It knows nothing of kinds of images that are not among them. A
        single image gives the whole range.
        """
        low, high = mean_interval(self._read().moments(), level=level)
        low, high = np.clip((low, high), 0.0, self._largest)
        return float(low), float(high)

    def as_told(self, reading: dict[str, Any]) -> "PerImage":
        """A new metric whose key or class reads so; an object reads as made."""
        if isinstance(self.given, keras.metrics.Metric):
            return self
        own = {"background": self.background, "name": self.name}
        made = PerImage(get(self.given, **reading), **own, dtype=self.dtype)
        made.given = self.given
        return made
