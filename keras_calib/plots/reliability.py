"""Accuracy against confidence."""

from typing import Any

import keras
import numpy as np

from keras_calib.bin_errors import calibration_error
from keras_calib.bins import BinSums
from keras_calib.calibration_error import equal_width_bins
from keras_calib.checks import invalid
from keras_calib.intervals import clopper_pearson
from keras_calib.metrics.calibration import ECE
from keras_calib.metrics.calibration import BinnedMetric
from keras_calib.metrics.table import CalibrationMetrics
from keras_calib.numerics import safe_divide
from keras_calib.plots.figures import BLUE
from keras_calib.plots.figures import GREY
from keras_calib.plots.figures import ORANGE
from keras_calib.plots.figures import Display
from keras_calib.plots.figures import titled
from keras_calib.plots.models import seen

__all__ = ["ReliabilityDisplay"]


class ReliabilityDisplay(Display):
    """Reliability diagram: accuracy against confidence, with counts.

    Bars reach from the accuracy of a bin to its mean confidence. Each
    accuracy carries an exact 95 % binomial interval, so that bins without
    evidence show it.

    Args:
        sums: What the bins hold, arrays `(num_bins,)`.
        name: Name of the model, for the title.
        zoom: Least confidence of an inset that shows the corner where most
            samples are, in (0, 1); None, the default, for no inset.

    Raises:
        ValueError: If `zoom` is out of range.

    Example:

    >>> display = ReliabilityDisplay.from_predictions([0], [[0.8, 0.2]])
    >>> round(display.ece, 4)
    0.2

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        figure 1, https://arxiv.org/abs/1706.04599
    """

    _size = (4.8, 5.6)

    def __init__(
        self,
        sums: BinSums,
        *,
        name: str | None = None,
        zoom: float | None = None,
    ):
        if zoom is not None and not 0.0 < zoom < 1.0:
            raise ValueError(invalid("`zoom` must be in (0, 1)", zoom=zoom))
        self.sums = sums
        self.name = name
        self.zoom = zoom
        self.ece = float(calibration_error(sums))
        self.accuracy = float(
            safe_divide(sums.correct.sum(), sums.weight.sum())
        )

    @classmethod
    def from_predictions(
        cls,
        labels: Any,
        probs: Any,
        *,
        num_bins: int = 15,
        from_logits: bool = False,
        sample_weight: Any = None,
        ignore_class: int | None = None,
        name: str | None = None,
        zoom: float | None = None,
    ) -> "ReliabilityDisplay":
        """From a whole data set; arguments as in `ece` and of the class."""
        sums = equal_width_bins(
            labels,
            probs,
            num_bins=num_bins,
            from_logits=from_logits,
            sample_weight=sample_weight,
            ignore_class=ignore_class,
        )
        return cls(sums, name=name, zoom=zoom)

    @classmethod
    def from_model(
        cls,
        model: keras.Model,
        data: Any,
        *,
        num_bins: int = 15,
        from_logits: bool = False,
        ignore_class: int | None = None,
        batch_size: int = 32,
        steps: int | None = None,
        name: str | None = None,
        zoom: float | None = None,
    ) -> "ReliabilityDisplay":
        """From what a model predicts, read once in fixed memory.

        Args:
            model: A Keras model with one output.
            data: A tuple of arrays `(x, y)` or `(x, y, sample_weight)`, or
                batches of them, such as a `tf.data.Dataset`.
            num_bins: Number of bins.
            from_logits: Whether the model returns logits.
            ignore_class: Class id that does not count.
            batch_size: Size of the batches of arrays.
            steps: How many batches, at most; None for all.
            name: Name of the model, for the title.
            zoom: As in the class.
        """
        metric = ECE(
            num_bins, from_logits=from_logits, ignore_class=ignore_class
        )
        metric = seen(metric, model, data, batch_size, steps)
        return cls.from_metric(metric, name=name, zoom=zoom)

    @classmethod
    def from_metric(
        cls,
        metric: Any,
        *,
        name: str | None = None,
        zoom: float | None = None,
    ) -> "ReliabilityDisplay":
        """From a metric with equal-width bins that has seen data.

        Args:
            metric: `ECE` or another error over its bins, or
                `CalibrationMetrics`.
            name: Name of the model, for the title.
            zoom: As in the class.
        """
        if not isinstance(metric, BinnedMetric | CalibrationMetrics):
            raise TypeError(
                invalid(
                    "`metric` must be `ECE`, another metric of equal-width "
                    "bins, or `CalibrationMetrics`",
                    metric=type(metric).__name__,
                )
            )
        return cls(metric.bins(), name=name, zoom=zoom)

    def _axes(self, figure: Any) -> list:
        return list(figure.subplots(2, 1, height_ratios=(4, 1), sharex=True))

    def _draw(self, ax: Any, counts_ax: Any = None) -> None:
        self.counts_ax_ = counts_ax
        self._bars(ax, labelled=True)
        ax.set(
            xlim=(-0.02, 1.02),
            ylim=(-0.02, 1.02),
            ylabel="accuracy",
            title=titled(
                self.name, f"ECE {self.ece:.4f}, accuracy {self.accuracy:.4f}"
            ),
        )
        # Over the corner that even an overconfident model leaves emptiest.
        ax.legend(
            loc="upper left" if self.zoom else "lower right",
            framealpha=0.9,
            fontsize="small",
        )
        if self.zoom:
            self._inset(ax)
        bottom = ax if counts_ax is None else counts_ax
        bottom.set_xlabel("confidence (probability of the predicted class)")
        if counts_ax is not None:
            num_bins = len(self.sums.weight)
            centers = (np.arange(num_bins) + 0.5) / num_bins
            counts_ax.bar(
                centers, self.sums.weight, width=0.9 / num_bins, color=BLUE
            )
            counts_ax.set_ylabel("samples")
            counts_ax.set_yscale("symlog", linthresh=1)
            counts_ax.set_ylim(bottom=0)

    def _bars(self, ax: Any, *, labelled: bool) -> None:
        sums = self.sums
        filled = sums.weight > 0
        x, y = sums.mean_confidence[filled], sums.accuracy[filled]
        effective = safe_divide(np.square(sums.weight), sums.squared_weight)
        low, high = clopper_pearson(
            np.minimum(sums.accuracy * effective, effective), effective
        )
        low, high = low[filled], high[filled]
        ax.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1)
        ax.bar(
            x,
            x - y,
            bottom=y,
            width=0.6 / len(sums.weight),
            color=ORANGE,
            alpha=0.35,
            label="gap to confidence" if labelled else None,
        )
        ax.errorbar(
            x,
            y,
            yerr=np.maximum([y - low, high - y], 0.0),
            fmt="o",
            markersize=4,
            color=BLUE,
            capsize=2,
            linewidth=1,
            label="accuracy, 95 % interval" if labelled else None,
        )

    def _inset(self, ax: Any) -> None:
        self.zoom_ax_ = ax.inset_axes((0.56, 0.09, 0.4, 0.4))
        self._bars(self.zoom_ax_, labelled=False)
        inside = self.sums.weight > 0
        inside &= self.sums.mean_confidence >= self.zoom
        low = min([self.zoom, *self.sums.accuracy[inside]])
        edge = 0.03 * (1.0 - self.zoom)
        self.zoom_ax_.set(
            xlim=(self.zoom - edge, 1.0 + edge),
            ylim=(low - edge, 1.0 + edge),
        )
        self.zoom_ax_.tick_params(labelsize="x-small")
        ax.indicate_inset_zoom(self.zoom_ax_, edgecolor=GREY)
