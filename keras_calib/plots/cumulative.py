"""Display of the cumulative differences of confidence and correctness."""

import dataclasses
import functools
from typing import Any, Self

import numpy as np

from keras_calib.backend.errors import type_error
from keras_calib.formulas.cumulative import (
    BAND,
    CumulativeDifferences,
    cumulative_error,
)
from keras_calib.functional.calibration_errors import cumulative_differences
from keras_calib.inputs.checks import MODES, check_in
from keras_calib.metrics.calibration_errors import ECCE
from keras_calib.metrics.table import CalibrationMetrics
from keras_calib.plots.display import (
    BLUE,
    GREY,
    ModelDisplay,
    draw_band,
    legend,
    streamed,
    titled,
)

__all__ = ["CumulativeDisplay"]


@dataclasses.dataclass(eq=False, repr=False)
class CumulativeDisplay(ModelDisplay):
    """Cumulative differences: confidence less correctness, without bins.

    Use it to see at which confidences a model is over- or underconfident, and
    whether chance explains it.

    The curve is C_k = (1/n) sum over the k least confident of (confidence_i -
    correct_i), against k / n. It rises where the model is overconfident and
    falls where it is underconfident; the slope over a stretch is the gap there.
    The band holds the whole curve of calibrated predictions with a probability
    of 95 %, or more if confidences tie. It ends at +-2.2414 standard deviations
    of C_n. With votes it is that of one vote for each sample, which is wider.

    Args:
        differences: Result of `cumulative_differences`.
        name: Name of the model, for the title.
        mode: `"top_label"` for the predicted class, `"binary"` for the
            probability of the second of two. `from_metric` takes it from the
            metric.

    Attributes:
        ecce_range: ECCE-R, the height of the curve, 0 included.
        ecce_maximum: ECCE-MAD, the largest distance of the curve from 0.
        band: Upper end of the band; the lower one is its negative.

    Example:

    >>> display = CumulativeDisplay.from_predictions(
    ...     [1, 0], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(display.ecce_range, 4), round(display.ecce_maximum, 4)
    (0.4, 0.2)

    Reference:
        Arrieta-Ibarra, Gujral, Tannen, Tygert and Xu, Metrics of Calibration
        for Probabilistic Predictions, JMLR 2022,
        https://jmlr.org/papers/v23/22-0658.html

    Differs:
        The paper plots correctness less confidence, and a triangle of two
        standard deviations at the origin in place of the band.
    """

    differences: CumulativeDifferences
    _: dataclasses.KW_ONLY
    name: str | None = None
    mode: str = "top_label"

    def __post_init__(self):
        check_in("mode", self.mode, MODES)
        found = self.differences
        self.ecce_range = self.ecce_maximum = 0.0
        if len(found.difference):
            self.ecce_range, self.ecce_maximum = (
                float(cumulative_error(found.difference, kind))
                for kind in ("range", "maximum")
            )
        self.band = BAND * float(found.deviation)

    @classmethod
    def from_metric(cls, metric: Any, *, name: str | None = None) -> Self:
        """Makes the display from an updated metric, by the cells it fills.

        Args:
            metric: `ECCE` or `CalibrationMetrics`.
            name: Name of the model, for the title.

        Raises:
            TypeError: If `metric` is another one.
        """
        if not isinstance(metric, ECCE | CalibrationMetrics):
            raise type_error(
                "`metric` must be `ECCE` or `CalibrationMetrics`",
                metric=type(metric).__name__,
            )
        is_binary = getattr(metric.summary, "is_binary", False)
        mode = "binary" if is_binary else "top_label"
        return cls(metric.differences(), name=name, mode=mode)

    @classmethod
    def _of_arrays(cls, labels, probs, reading, mode="top_label", **options):
        found = cumulative_differences(labels, probs, mode=mode, **reading)
        return cls(found, mode=mode, **options)

    @classmethod
    def _of_model(cls, *how, votes=False, mode="top_label", **options):
        make = functools.partial(ECCE, mode=mode)
        return cls.from_metric(streamed(make, *how, votes=votes), **options)

    def _draw(self, ax: Any) -> None:
        share = np.r_[0.0, self.differences.share]
        difference = np.r_[0.0, self.differences.difference]
        band = self.band
        draw_band(
            ax, [0, 1], [-band] * 2, [band] * 2, GREY, "95 % if calibrated"
        )
        ax.axhline(0.0, color=GREY, linewidth=1, linestyle="--")
        ax.plot(
            share,
            difference,
            color=BLUE,
            linewidth=1.5,
            label=(
                "probability less outcome"
                if self.mode == "binary"
                else "confidence less correctness"
            ),
        )
        ax.set(
            xlim=(0, 1),
            xlabel="share of samples, "
            + ("lowest" if self.mode == "binary" else "least confident")
            + " first",
            ylabel="cumulative difference",
            title=titled(
                self.name,
                f"ECCE-R {self.ecce_range:.4f}, "
                f"ECCE-MAD {self.ecce_maximum:.4f}",
            ),
        )
        # Two numbers are wider than a small picture.
        ax.title.set_fontsize("medium")
        legend(ax, loc="best")
