"""Displays of the bins of the confidence: accuracy, gaps and counts."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.formulas.binned_errors import calibration_error
from keras_calib.formulas.binned_intervals import accuracy_interval
from keras_calib.formulas.bins import BinSums
from keras_calib.functional.calibration_errors import equal_width_bins
from keras_calib.inputs.checks import MODES, check_flag, check_in
from keras_calib.metrics.calibration_errors import ECE, BinnedMetric
from keras_calib.metrics.table import CalibrationMetrics
from keras_calib.numerics.arrays import safe_divide
from keras_calib.plots.display import (
    BLUE,
    GREY,
    ORANGE,
    ModelDisplay,
    legend,
    titled,
)
from keras_calib.predictions.collect import seen
from keras_calib.predictions.outputs import read_as

__all__ = [
    "BinnedDisplay",
    "BinsDisplay",
    "ConfidenceDisplay",
    "ReliabilityDisplay",
    "streamed",
]

# An interval that says little: its bin is faint.
_WIDE = 0.3


class _Event(NamedTuple):
    """How a diagram names the forecast of an event, and how often it is."""

    forecast: str
    rate: str
    gap: str


_EVENTS = {
    "top_label": _Event(
        "confidence of the predicted class", "accuracy", "gap to confidence"
    ),
    "binary": _Event(
        "probability of the second class",
        "share of the second class",
        "gap to probability",
    ),
}


class BinsDisplay(ModelDisplay):
    """Base of displays of bins."""

    _bins_of: Callable
    _num_bins = 15

    @classmethod
    def from_predictions(
        cls,
        labels: Any,
        probs: Any,
        *,
        num_bins: int | None = None,
        from_logits: bool = False,
        sample_weight: Any = None,
        ignore_class: int | None = None,
        votes: bool = False,
        **options: Any,
    ) -> Self:
        """Makes the display from a whole data set.

        Args:
            labels: Class ids `(n, ...)` or one-hot or soft labels.
            probs: Probabilities `(n, ..., num_classes)`.
            num_bins: Number of bins of equal width; None for 15, or for 10 of
                each class in `ClasswiseReliabilityDisplay`.
            from_logits: Whether `probs` are logits.
            sample_weight: Weights of the shape of the class ids, or `(n,)`.
            ignore_class: Class id to leave out.
            votes: Whether labels are rows of annotators' votes, as in `ece`.
            **options: Arguments of the class, such as `name`.
        """
        how = {"mode": options["mode"]} if "mode" in options else {}
        bins = cls._bins_of(
            labels,
            probs,
            num_bins=cls._num_bins if num_bins is None else num_bins,
            from_logits=from_logits,
            sample_weight=sample_weight,
            ignore_class=ignore_class,
            votes=votes,
            **how,
        )
        return cls(bins, **options)  # type: ignore[call-arg]  # dataclasses


@dataclasses.dataclass(eq=False, repr=False)
class BinnedDisplay(BinsDisplay):
    """Base of displays that keep bins of the confidence as `sums`."""

    _bins_of = staticmethod(equal_width_bins)

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
    def _of_model(cls, *how, num_bins=None, votes=False, **options):
        make = functools.partial(
            ECE,
            cls._num_bins if num_bins is None else num_bins,
            mode=options.pop("mode", "top_label"),
        )
        return cls.from_metric(streamed(make, *how, votes=votes), **options)


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class ReliabilityDisplay(BinnedDisplay):
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
        self._event = _EVENTS[self.mode]
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
            ylabel=self._event.rate,
            title=titled(
                self.name,
                f"ECE {self.ece:.4f}, {self._event.rate} {self.accuracy:.4f}",
            ),
        )
        # Leave the inset the corner that is emptiest.
        in_its_way = self.zoom is not None and not self._is_overconfident
        legend(ax, loc="upper left" if in_its_way else "lower right")
        if self.zoom:
            self._inset(ax, self.zoom)
        bottom = ax if counts_ax is None else counts_ax
        bottom.set_xlabel(self._event.forecast)
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
                label=self._event.gap if alpha == 1.0 else None,
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
                label=f"{self._event.rate}, 95 % interval"
                if alpha == 1.0
                else None,
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
            xlim=(zoom - edge, 1.0 + edge),
            ylim=(low - edge, 1.0 + edge),
        )
        self.zoom_ax_.tick_params(labelsize="x-small")
        ax.indicate_inset_zoom(self.zoom_ax_, edgecolor=GREY)


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class ConfidenceDisplay(BinnedDisplay):
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


def streamed(
    make: Callable,
    model: Any,
    source: tuple[Any, int, Any],
    reading: tuple,
    *,
    votes: bool = False,
) -> Any:
    """The metric, updated with a model's predictions in fixed memory."""
    check_flag("votes", votes)
    options = read_as(model, *reading)
    metric = make(
        from_logits=options.from_logits,
        ignore_class=options.ignore_class,
        labels="votes" if votes else "classes",
    )
    return seen(metric, model, *source, options.output)
