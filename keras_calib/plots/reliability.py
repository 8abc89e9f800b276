"""Displays of bins, of the confidence or of each class: rates, gaps, counts."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.formulas.binned_errors import calibration_error
from keras_calib.formulas.binned_intervals import accuracy_interval
from keras_calib.formulas.bins import BinSums
from keras_calib.functional.calibration_errors import equal_width_bins
from keras_calib.functional.classwise import ClasswiseBins, classwise_bins
from keras_calib.inputs.checks import (
    MODES,
    check_in,
    check_integer,
)
from keras_calib.metrics.calibration_errors import ECE, BinnedMetric
from keras_calib.metrics.table import CalibrationMetrics
from keras_calib.numerics.arrays import safe_divide
from keras_calib.plots.display import (
    BLUE,
    GREY,
    ORANGE,
    ModelDisplay,
    legend,
    plain,
    streamed,
    titled,
)
from keras_calib.predictions.collect import predicted
from keras_calib.predictions.outputs import read_as

__all__ = [
    "ClasswiseReliabilityDisplay",
    "ConfidenceDisplay",
    "ReliabilityDisplay",
]

_NUM_BINS = 15
# An interval that says little: its bin is faint.
_WIDE = 0.3
# How a diagram names the forecast of an event, how often it is, and the gap.
_EVENTS = {
    "top_label": (
        "confidence of the predicted class",
        "accuracy",
        "gap to confidence",
    ),
    "binary": (
        "probability of the second class",
        "share of the second class",
        "gap to probability",
    ),
}


@dataclasses.dataclass(eq=False, repr=False)
class _BinnedDisplay(ModelDisplay):
    """Base of displays that keep bins of the confidence as `sums`."""

    sums: BinSums
    _: dataclasses.KW_ONLY
    name: str | None = None

    @property
    def accuracy(self) -> float:
        """Share of correct predictions."""
        total = self.sums.weight.sum()
        return float(safe_divide(self.sums.correct.sum(), total))

    @classmethod
    def from_metric(cls, metric: Any, **options: Any) -> Self:
        """Makes the display from an updated metric with equal-width bins.

        Args:
            metric: `ECE` or another error over its bins, or
                `CalibrationMetrics`.
            **options: Arguments of the class, such as `name`.

        Raises:
            TypeError: If `metric` is another one.
            ValueError: If the display is of the predicted class, and `metric`
                is not.
        """
        if not isinstance(metric, BinnedMetric | CalibrationMetrics):
            raise type_error(
                "`metric` must be `ECE`, another metric of equal-width "
                "bins, or `CalibrationMetrics`",
                metric=type(metric).__name__,
            )
        if getattr(metric.summary, "is_binary", False):
            if not hasattr(cls, "mode"):
                raise value_error(
                    '`metric` must have `mode="top_label"`', mode="binary"
                )
            options["mode"] = "binary"
        return cls(metric.bins(), **options)

    @classmethod
    def _of_arrays(cls, labels, outputs, reading, num_bins=None, **options):
        num_bins = _NUM_BINS if num_bins is None else num_bins
        mode = options.get("mode", "top_label")
        sums = equal_width_bins(labels, outputs, num_bins, mode=mode, **reading)
        return cls(sums, **options)

    @classmethod
    def _of_model(cls, *how, num_bins=None, votes=False, **options):
        num_bins = _NUM_BINS if num_bins is None else num_bins
        mode = options.pop("mode", "top_label")
        make = functools.partial(ECE, num_bins, mode=mode)
        return cls.from_metric(streamed(make, *how, votes=votes), **options)


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class ReliabilityDisplay(_BinnedDisplay):
    """Reliability diagram: accuracy against confidence, with counts.

    Use it to see where a model is over- or underconfident.

    Bars reach from the accuracy of a bin to its mean confidence. The exact
    95 % binomial interval of each accuracy shows how much evidence it has; a
    bin with so few samples that its interval is wider than 0.3 is faint. With
    votes the accuracy is their share for the prediction. With `mode="binary"`
    the diagram has the share of the second of two classes against its
    probability, as scikit-learn's calibration curve.

    Args:
        sums: Sums of the bins, arrays `(num_bins,)`.
        name: Name of the model, for the title.
        mode: `"top_label"` for the predicted class, `"binary"` for the second
            of two. `from_metric` takes it from the metric.
        zoom: Least confidence of an inset that magnifies the corner with most
            samples, in (0, 1); None, the default, for no inset.

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
    _panels = (1, 2)

    mode: str = "top_label"
    zoom: float | None = None

    def __post_init__(self):
        check_in("mode", self.mode, MODES)
        self._forecast, self._rate, self._gap = _EVENTS[self.mode]
        if self.zoom is not None and not 0.0 < self.zoom < 1.0:
            raise value_error("`zoom` must be in (0, 1)", zoom=self.zoom)
        self.ece = float(calibration_error(self.sums))

    @property
    def _is_overconfident(self) -> bool:
        return self.sums.residual.sum() > 0

    def _axes(self, figure: Any) -> list:
        return list(figure.subplots(2, 1, height_ratios=(4, 1), sharex=True))

    def _draw(self, ax: Any, counts_ax: Any = None) -> None:
        self.counts_ax_ = counts_ax
        self._bars(ax)
        ax.set(
            xlim=(-0.02, 1.02),
            ylim=(-0.02, 1.02),
            ylabel=self._rate,
            title=titled(
                self.name,
                f"ECE {self.ece:.4f}, {self._rate} {self.accuracy:.4f}",
            ),
        )
        # Leave the inset the corner that is emptiest.
        in_its_way = self.zoom is not None and not self._is_overconfident
        legend(ax, loc="upper left" if in_its_way else "lower right")
        if self.zoom:
            self._inset(ax, self.zoom)
        bottom = ax if counts_ax is None else counts_ax
        bottom.set_xlabel(self._forecast)
        if counts_ax is not None:
            num_bins = len(self.sums.weight)
            centers = (np.arange(num_bins) + 0.5) / num_bins
            counts_ax.bar(
                centers, self.sums.weight, width=0.9 / num_bins, color=BLUE
            )
            counts_ax.set_ylabel("samples (log)")
            counts_ax.set_yscale("symlog", linthresh=1)
            counts_ax.set_ylim(bottom=0)
            most = max(float(np.max(self.sums.weight)), 1.0)
            decades = math.floor(math.log10(most))
            ticks = sorted({0, 10 ** (decades // 2), 10**decades})
            counts_ax.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
            counts_ax.minorticks_off()

    def _bars(self, ax: Any) -> None:
        sums = self.sums
        filled = sums.weight > 0
        x, y = sums.mean_confidence[filled], sums.accuracy[filled]
        low, high = (end[filled] for end in accuracy_interval(sums))
        ax.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1)
        faint = high - low > _WIDE
        for some, alpha in ((~faint, 1.0), (faint, 0.3)):
            ax.bar(
                x[some],
                (x - y)[some],
                bottom=y[some],
                width=0.6 / len(sums.weight),
                color=ORANGE,
                alpha=0.35 * alpha,
                label=self._gap if alpha == 1.0 else None,
            )
            ax.errorbar(
                x[some],
                y[some],
                yerr=np.maximum([y - low, high - y], 0.0)[:, some],
                fmt="o",
                markersize=4,
                color=BLUE,
                alpha=alpha,
                capsize=2,
                linewidth=1,
                label=f"{self._rate}, 95 % interval" if alpha == 1.0 else None,
            )

    def _inset(self, ax: Any, zoom: float) -> None:
        place = (0.1, 0.56) if self._is_overconfident else (0.56, 0.09)
        self.zoom_ax_ = ax.inset_axes((*place, 0.4, 0.4))
        self._bars(self.zoom_ax_)
        inside = self.sums.weight > 0
        inside &= self.sums.mean_confidence >= zoom
        low = min([zoom, *self.sums.accuracy[inside]])
        edge = 0.03 * (1.0 - zoom)
        self.zoom_ax_.set(
            xlim=(zoom - edge, 1.0 + edge), ylim=(low - edge, 1.0 + edge)
        )
        self.zoom_ax_.tick_params(labelsize="x-small")
        ax.indicate_inset_zoom(self.zoom_ax_, edgecolor=GREY)


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class ConfidenceDisplay(_BinnedDisplay):
    """Histograms of the confidence of correct and of wrong predictions.

    Use it to see how well the confidence separates errors. Vertical lines
    are the mean confidence and the accuracy; their distance is the over- or
    underconfidence.

    Args:
        sums: Sums of the bins, arrays `(num_bins,)`.
        name: Name of the model, for the title.
        log: Whether counts have a logarithmic scale, which shows few errors
            beside many correct predictions.

    Example:

    >>> display = ConfidenceDisplay.from_predictions(
    ...     [0, 1], [[0.8, 0.2], [0.6, 0.4]], num_bins=5)
    >>> display.correct.tolist(), display.wrong.tolist()
    ([0.0, 0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0])

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        figure 1, https://arxiv.org/abs/1706.04599
    """

    log: bool = True

    def __post_init__(self):
        sums = self.sums
        self.correct = np.asarray(sums.correct)
        # Rounding in sums of weights can give less than 0.
        self.wrong = np.maximum(sums.weight - sums.correct, 0.0)
        self.mean_confidence = float(
            safe_divide(sums.confidence.sum(), sums.weight.sum())
        )

    def _draw(self, ax: Any) -> None:
        num_bins = len(self.correct)
        # Side by side, as stacks mislead on a logarithmic scale.
        width = 0.45 / num_bins
        for i, values, color, hatch, label in (
            (0, self.correct, BLUE, None, "correct"),
            (1, self.wrong, ORANGE, "///", "wrong"),
        ):
            ax.bar(
                (np.arange(num_bins) + 0.05) / num_bins + i * width,
                values,
                width=width,
                align="edge",
                color=color,
                hatch=hatch,
                edgecolor="white",
                linewidth=0,
                label=f"{label} ({values.sum():,.6g})",
            )
        for value, style, label in (
            (self.mean_confidence, "--", "mean confidence"),
            (self.accuracy, "-", "accuracy"),
        ):
            ax.axvline(
                value,
                color="black",
                linestyle=style,
                linewidth=1.2,
                label=f"{label} {value:.4f}",
            )
        ax.set(
            xlim=(0, 1),
            xlabel="confidence of the predicted class",
            ylabel="samples",
            title=titled(self.name, "Confidence of correct and wrong"),
        )
        if self.log:
            ax.set_yscale("symlog", linthresh=1)
            ax.set_ylim(bottom=0)
        legend(ax, loc="upper left")


@dataclasses.dataclass(eq=False, repr=False)
class ClasswiseReliabilityDisplay(ModelDisplay):
    """Reliability diagrams of the worst classes, a panel per class.

    Use it to find classes with wrong probabilities: a model with a calibrated
    confidence can still be wrong about rare classes. A panel shows the share
    of the class against its probability, over all samples.

    Args:
        bins: Sums of the bins of each class, arrays
            `(num_classes, num_bins)`.
        classes: Ids of the classes to draw; None for the worst.
        max_panels: Number of worst classes to draw, at most.
        class_names: Names of the classes, or None for their ids.
        name: Name of the model, for the title.

    Raises:
        ValueError: If a class does not exist, or names do not fit.

    Example:

    >>> display = ClasswiseReliabilityDisplay.from_predictions(
    ...     [0, 1], [[0.8, 0.2], [0.6, 0.4]], num_bins=10)
    >>> [round(float(x), 4) for x in display.errors]
    [0.4, 0.4]

    Reference:
        Nixon et al., Measuring Calibration in Deep Learning, CVPR Workshops
        2019, https://arxiv.org/abs/1904.01685
    """

    bins: ClasswiseBins
    _: dataclasses.KW_ONLY
    classes: Sequence[int] | None = None
    max_panels: int = 12
    class_names: Sequence[str] | None = None
    name: str | None = None

    def __post_init__(self):
        check_integer("max_panels", self.max_panels, 1)
        # Calibration error of each class, whose mean is the classwise ECE.
        self.errors = np.abs(self.bins.residual).sum(-1) / self.bins.total
        self.classwise_ece = float(self.errors.mean())
        classes, num_classes = self.classes, len(self.errors)
        if classes is None:
            order = np.argsort(-self.errors, kind="stable")
            classes = order[: self.max_panels]
        for k in classes:
            check_integer("classes", k)
        self.classes = [int(k) for k in classes]
        if not self.classes or not {*self.classes} <= {*range(num_classes)}:
            raise value_error(
                "`classes` must be ids of classes of the model",
                classes=self.classes,
                num_classes=num_classes,
            )
        names = self.class_names
        if names is not None and len(names) != num_classes:
            raise value_error(
                "`class_names` must have a name for each class",
                names=len(names),
                num_classes=num_classes,
            )
        self._panels = (len(self.classes),)
        columns = min(4, len(self.classes))
        self._grid = -(-len(self.classes) // columns), columns
        self._size = (max(2.2 * columns + 0.4, 3.6), 2.2 * self._grid[0] + 0.8)

    @classmethod
    def _of_arrays(cls, labels, outputs, reading, num_bins=None, **options):
        num_bins = 10 if num_bins is None else num_bins
        bins = classwise_bins(labels, outputs, num_bins=num_bins, **reading)
        return cls(bins, **options)

    @classmethod
    def _of_model(cls, model, source, reading, **options):
        read = read_as(model, *reading)
        data, batch_size, steps = source
        found = predicted(model, data, batch_size, steps, read.output)
        return cls.from_predictions(
            found.labels,
            found.outputs,
            from_logits=read.from_logits,
            sample_weight=found.sample_weight,
            ignore_class=read.ignore_class,
            **options,
        )

    def _axes(self, figure: Any) -> list:
        axes = figure.subplots(
            *self._grid, sharex=True, sharey=True, squeeze=False
        )
        for ax in axes[:, 0]:
            ax.set_ylabel("share of the class")
        drawn, empty = np.split(axes.reshape(-1), self._panels)
        for ax in empty:
            ax.remove()
        for ax in drawn[-self._grid[1] :]:
            ax.set_xlabel("probability")
            ax.tick_params(labelbottom=True)
        figure.suptitle(
            titled(self.name, f"classwise ECE {self.classwise_ece:.4f}"),
            fontsize="medium",
        )
        return list(drawn)

    def _draw(self, *axes: Any) -> None:
        width = 0.8 / self.bins.weight.shape[-1]
        for ax, k in zip(axes, self.classes or (), strict=True):
            weight = self.bins.weight[k]
            filled = weight > 0
            p = safe_divide(self.bins.probability[k], weight)[filled]
            share = safe_divide(self.bins.positive[k], weight)[filled]
            ax.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1)
            ax.bar(
                p, p - share, bottom=share, width=width, color=ORANGE, alpha=0.4
            )
            # Points grow with the share of the samples.
            ax.scatter(
                p,
                share,
                s=8.0 + 60.0 * np.sqrt(weight[filled] / self.bins.total),
                color=BLUE,
                zorder=3,
            )
            text = str(k if self.class_names is None else self.class_names[k])
            ax.set_title(
                f"{plain(text)}: {self.errors[k]:.4f}", fontsize="small"
            )
            ax.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
