"""Reliability of detections, by confidence and overlap."""

from typing import Any

import numpy as np

from keras_calib.detection.errors import detection_ece, localization_aware_ece
from keras_calib.detection.matching import BoxPredictions, check_boxes
from keras_calib.formulas.bins import bin_index
from keras_calib.inputs.checks import check_integer
from keras_calib.numerics.arrays import safe_divide
from keras_calib.plots.display import BLUE, GREY, ORANGE, Display


class DetectionReliabilityDisplay(Display):
    """Reliability of detections: precision and overlap by confidence.

    Use it to see whether the confidence of boxes is their precision, their
    overlap with the true box, or neither. The first panel has the precision and
    the mean overlap (0 without a match) of each bin of the confidence. The
    second has the share of each overlap among the boxes of a bin.

    Args:
        predictions: What `match` returns.
        num_bins: Number of bins of the confidence and of the overlap.
        name: Name of the model, for the title.

    Raises:
        TypeError: If `predictions` are not from `match`.
        ValueError: If there is no detection.

    Attributes:
        confidence: Mean confidence of each bin `(num_bins,)`, NaN if empty.
        precision: Share of right detections of each bin `(num_bins,)`.
        overlap: Mean overlap of each bin `(num_bins,)`.
        shares: Share of each bin of the overlap among the detections of a bin
            of the confidence `(num_bins, num_bins)`, overlaps last.
        detection_ece: D-ECE of these bins, pooled.
        localization_aware_ece: LaECE of these bins, pooled.

    Example:

    >>> from keras_calib.detection import match
    >>> truth = [{"boxes": [[0, 0, 10, 10]], "labels": [1]}]
    >>> found = [{"boxes": [[0, 0, 10, 8], [20, 0, 30, 9]],
    ...           "labels": [1, 1], "confidence": [0.9, 0.3]}]
    >>> display = DetectionReliabilityDisplay(match(truth, found))
    >>> round(display.detection_ece, 4)
    0.2

    Reference:
        Oksuz et al., Towards Building Self-Aware Object Detectors via
        Reliable Uncertainty Quantification and Calibration, CVPR 2023,
        https://arxiv.org/abs/2307.00934
    """

    _size = (8.4, 4.0)
    _panels = (2,)

    def __init__(
        self,
        predictions: BoxPredictions,
        *,
        num_bins: int = 10,
        name: str | None = None,
    ):
        check_boxes(predictions)
        check_integer("num_bins", num_bins, 1)
        index = bin_index(predictions.confidence, num_bins)
        count = np.bincount(index, minlength=num_bins).astype("float64")

        def mean(values: np.ndarray) -> np.ndarray:
            total = np.bincount(index, values, num_bins)
            return np.where(count > 0, safe_divide(total, count), np.nan)

        cells = index * num_bins + bin_index(predictions.overlap, num_bins)
        shares = np.bincount(cells, minlength=num_bins**2)
        shares = shares.reshape(num_bins, num_bins)
        laece = localization_aware_ece(
            predictions, num_bins=num_bins, average="pooled"
        )
        self.name = name
        self.confidence = mean(predictions.confidence)
        self.precision = mean(predictions.correct)
        self.overlap = mean(predictions.overlap)
        self.shares = safe_divide(
            shares, np.repeat(count[:, None], num_bins, 1)
        )
        self.detection_ece = detection_ece(predictions, num_bins=num_bins).value
        self.localization_aware_ece = laece.value

    def _draw(self, *axes: Any) -> None:
        first, second = axes
        filled = np.isfinite(self.confidence)
        first.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1)
        for values, color, marker, label in (
            (self.precision, BLUE, "o", "precision"),
            (self.overlap, ORANGE, "s", "mean overlap"),
        ):
            first.plot(
                self.confidence[filled],
                values[filled],
                color=color,
                marker=marker,
                linewidth=1.2,
                label=label,
            )
        first.set(
            xlim=(0, 1),
            ylim=(0, 1),
            xlabel="mean confidence",
            title=self._title(
                f"D-ECE {self.detection_ece:.4f}, "
                f"LaECE {self.localization_aware_ece:.4f}"
            ),
        )
        first.title.set_fontsize("medium")
        self._legend(first)
        second.imshow(
            self.shares.T,
            origin="lower",
            extent=(0, 1, 0, 1),
            aspect="auto",
            cmap="Blues",
            vmin=0.0,
            vmax=1.0,
            interpolation="nearest",
        )
        second.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1)
        second.set(
            xlabel="confidence",
            ylabel="overlap with the true box",
            title="share within a confidence",
        )
        second.title.set_fontsize("medium")
