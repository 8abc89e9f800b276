"""Displays: arrays first, then a picture.

`from_predictions` and `from_metric` compute, `plot` draws and keeps `ax_` and
`figure_`. matplotlib is imported when something is drawn.
"""

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_calib.bin_errors import calibration_error
from keras_calib.bins import BinSums
from keras_calib.calibration_error import equal_width_bins
from keras_calib.checks import invalid
from keras_calib.intervals import clopper_pearson
from keras_calib.metrics.calibration import BinnedMetric
from keras_calib.metrics.histogram_metric import HistogramMetric
from keras_calib.metrics.table import CalibrationMetrics
from keras_calib.numerics import safe_divide
from keras_calib.risk_coverage import RiskCoverageCurve
from keras_calib.risk_coverage import aurc
from keras_calib.risk_coverage import risk_coverage_curve

__all__ = ["ReliabilityDisplay", "RiskCoverageDisplay", "figure_and_canvas"]

_ABSENT = "Plots need matplotlib: pip install 'keras-calib[plots]'"
# Okabe and Ito's palette: told apart by colour-blind readers.
_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#999999"
_COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
# One fewer than the colours: 42 curves before a pair comes again.
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))


class ReliabilityDisplay:
    """Reliability diagram: accuracy against confidence, with counts.

    Bars reach from the accuracy of a bin to its mean confidence. Each
    accuracy carries an exact 95 % binomial interval, so that bins without
    evidence show it.

    Args:
        sums: What the bins hold, arrays `(num_bins,)`.
        name: Name of the model, for the title.

    Example:

    >>> display = ReliabilityDisplay.from_predictions([0], [[0.8, 0.2]])
    >>> round(display.ece, 4)
    0.2

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        figure 1, https://arxiv.org/abs/1706.04599
    """

    def __init__(self, sums: BinSums, *, name: str | None = None):
        self.sums = sums
        self.name = name
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
    ) -> "ReliabilityDisplay":
        """From a whole data set; arguments as in `ece`."""
        sums = equal_width_bins(
            labels,
            probs,
            num_bins=num_bins,
            from_logits=from_logits,
            sample_weight=sample_weight,
            ignore_class=ignore_class,
        )
        return cls(sums, name=name)

    @classmethod
    def from_metric(
        cls, metric: Any, *, name: str | None = None
    ) -> "ReliabilityDisplay":
        """From a metric with equal-width bins that has seen data.

        Args:
            metric: `ECE` or another error over its bins, or
                `CalibrationMetrics`.
            name: Name of the model, for the title.
        """
        if not isinstance(metric, BinnedMetric | CalibrationMetrics):
            raise TypeError(
                invalid(
                    "`metric` must be `ECE`, another metric of equal-width "
                    "bins, or `CalibrationMetrics`",
                    metric=type(metric).__name__,
                )
            )
        return cls(metric.bins(), name=name)

    def plot(self, ax: Any = None) -> "ReliabilityDisplay":
        """Draws the diagram with the counts below, and returns self.

        Args:
            ax: matplotlib axes to draw the diagram on, without counts; None
                makes a figure.
        """
        if ax is not None:
            return self._draw(ax)
        return self._draw(*_panels(_pyplot().figure))

    def to_png(self, dpi: int = 100) -> bytes:
        """The diagram with its counts as a PNG file, in bytes.

        Drawn on a figure of its own: the figures and the backend of pyplot
        are left as they are, so that this may run beside other drawing.

        Args:
            dpi: Dots per inch of 4.8 by 5.6 inches.
        """
        figure_class, canvas_class = figure_and_canvas()
        display = copy.copy(self)._draw(*_panels(figure_class))
        file = io.BytesIO()
        canvas = canvas_class(display.figure_)
        canvas.print_figure(file, format="png", dpi=dpi)
        return file.getvalue()

    def _draw(self, ax: Any, counts_ax: Any = None) -> "ReliabilityDisplay":
        self.ax_, self.counts_ax_, self.figure_ = ax, counts_ax, ax.figure
        sums = self.sums
        num_bins = len(sums.weight)
        filled = sums.weight > 0
        x, y = sums.mean_confidence[filled], sums.accuracy[filled]
        effective = safe_divide(np.square(sums.weight), sums.squared_weight)
        low, high = clopper_pearson(
            np.minimum(sums.accuracy * effective, effective), effective
        )
        low, high = low[filled], high[filled]
        ax.plot([0, 1], [0, 1], color=_GREY, linestyle="--", linewidth=1)
        width = 0.6 / num_bins
        ax.bar(
            x,
            x - y,
            bottom=y,
            width=width,
            color=_ORANGE,
            alpha=0.35,
            label="gap to confidence",
        )
        ax.errorbar(
            x,
            y,
            yerr=np.maximum([y - low, high - y], 0.0),
            fmt="o",
            markersize=4,
            color=_BLUE,
            capsize=2,
            linewidth=1,
            label="accuracy, 95 % interval",
        )
        ax.set(
            xlim=(-0.02, 1.02),
            ylim=(-0.02, 1.02),
            ylabel="accuracy",
            title=_title(
                self.name, f"ECE {self.ece:.4f}, accuracy {self.accuracy:.4f}"
            ),
        )
        # Over the corner that even an overconfident model leaves emptiest.
        ax.legend(loc="lower right", framealpha=0.9, fontsize="small")
        bottom = ax if counts_ax is None else counts_ax
        bottom.set_xlabel("confidence (probability of the predicted class)")
        if counts_ax is not None:
            centers = (np.arange(num_bins) + 0.5) / num_bins
            counts_ax.bar(
                centers, sums.weight, width=0.9 / num_bins, color=_BLUE
            )
            counts_ax.set_ylabel("samples")
            counts_ax.set_yscale("symlog", linthresh=1)
            counts_ax.set_ylim(bottom=0)
        return self


class RiskCoverageDisplay:
    """Risk-coverage curves: error among the accepted as more are accepted.

    Args:
        curves: Name of each model to its curve.
        values: Name of each model to its AURC.

    Example:

    >>> display = RiskCoverageDisplay.from_predictions(
    ...     [0, 1], {"net": [[0.8, 0.2], [0.6, 0.4]]})
    >>> round(display.values["net"], 4)
    0.25

    Reference:
        El-Yaniv and Wiener, On the Foundations of Noise-free Selective
        Classification, JMLR 2010,
        https://www.jmlr.org/papers/v11/el-yaniv10a.html
    """

    def __init__(
        self, curves: dict[str, RiskCoverageCurve], values: dict[str, float]
    ):
        self.curves = curves
        self.values = values

    @classmethod
    def from_predictions(
        cls,
        labels: Any,
        probs: Any,
        *,
        from_logits: bool = False,
        sample_weight: Any = None,
        ignore_class: int | None = None,
    ) -> "RiskCoverageDisplay":
        """From a whole data set; arguments as in `aurc`.

        Args:
            labels: Class ids `(n, ...)` or one-hot or soft labels.
            probs: Probabilities `(n, ..., num_classes)`, or a dict of them
                by the name of the model.
            from_logits: Whether `probs` are logits.
            sample_weight: As in `aurc`.
            ignore_class: Class id that does not count.
        """
        models = probs if isinstance(probs, dict) else {"model": probs}
        options = {
            "from_logits": from_logits,
            "sample_weight": sample_weight,
            "ignore_class": ignore_class,
        }
        curves = {
            name: risk_coverage_curve(labels, outputs, **options)
            for name, outputs in models.items()
        }
        values = {
            name: aurc(labels, outputs, **options)
            for name, outputs in models.items()
        }
        return cls(curves, values)

    @classmethod
    def from_metric(cls, metrics: Any) -> "RiskCoverageDisplay":
        """From selection metrics that have seen data.

        Args:
            metrics: A metric of a ranking, such as `AURC`, or
                `CalibrationMetrics`; or a dict of them by the name of the
                model.
        """
        if not isinstance(metrics, dict):
            metrics = {"model": metrics}
        for metric in metrics.values():
            if not isinstance(metric, HistogramMetric | CalibrationMetrics):
                raise TypeError(
                    invalid(
                        "`metrics` must be `AURC`, another metric of a "
                        "ranking, or `CalibrationMetrics`",
                        metric=type(metric).__name__,
                    )
                )
        return cls(
            {name: metric.curve() for name, metric in metrics.items()},
            {name: metric.aurc() for name, metric in metrics.items()},
        )

    def plot(self, ax: Any = None) -> "RiskCoverageDisplay":
        """Draws the curves and returns self.

        Args:
            ax: matplotlib axes to draw on; None makes a figure.
        """
        if ax is None:
            plt = _pyplot()
            _, ax = plt.subplots(figsize=(5.6, 4.2), layout="constrained")
        self.ax_, self.figure_ = ax, ax.figure
        highest = 0.0
        for i, (name, curve) in enumerate(self.curves.items()):
            ax.plot(
                curve.coverage,
                curve.risk,
                color=_COLORS[i % len(_COLORS)],
                linestyle=_DASHES[i % len(_DASHES)],
                linewidth=1.5,
                label=f"{name} (AURC {1000 * self.values[name]:.2f}e-3)",
            )
            # The first few samples swing between 0 and 1.
            settled = curve.risk[
                curve.coverage >= min(0.05, curve.coverage[-1])
            ]
            highest = max(highest, float(settled.max()))
        ax.set(
            xlim=(0, 1),
            ylim=(0, max(1.1 * highest, 1e-3)),
            xlabel="coverage (share of samples accepted)",
            ylabel="risk (error rate of the accepted)",
            title="Risk against coverage",
        )
        ax.legend(loc="upper left", frameon=False, fontsize="small")
        return self


def _panels(make_figure: Callable) -> tuple[Any, Any]:
    """Axes of the diagram and, below, of its counts, on a new figure."""
    figure = make_figure(figsize=(4.8, 5.6), layout="constrained")
    return figure.subplots(2, 1, height_ratios=(4, 1), sharex=True)


def _title(name: str | None, text: str) -> str:
    return text if name is None else f"{name}\n{text}"


def figure_and_canvas() -> tuple[type, type]:
    """matplotlib's classes to draw with into a file, without pyplot.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(_ABSENT) from error
    return Figure, FigureCanvasAgg


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(_ABSENT) from error
    return plt
