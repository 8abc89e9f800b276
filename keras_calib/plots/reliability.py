"""Displays of bins, of the confidence or of each class: rates, gaps, counts."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.formulas.binned_errors import calibration_error
from keras_calib.formulas.binned_intervals import accuracy_interval
from keras_calib.formulas.bins import BinSums
from keras_calib.functional.calibration_errors import equal_width_bins
from keras_calib.functional.classwise import classwise_bins
from keras_calib.inputs.checks import check_integer
from keras_calib.metrics.calibration_errors import BinnedMetric
from keras_calib.metrics.table import CalibrationMetrics
from keras_calib.numerics.arrays import safe_divide
from keras_calib.plots.display import (
    BLUE,
    GREY,
    ORANGE,
    Display,
    ModelsDisplay,
    by_model,
    draw_band,
    plain,
    short,
)
from keras_calib.predictions.predictions import Predictions

# An interval that says little: its bin is faint.
_WIDE = 0.3
# With more bins their numbers would overlap.
_NUM_NUMBERED = 20
# How a diagram names the forecast of an event, how often it is, and the gap.
_EVENTS = {
    "top_label": (
        "confidence",
        "accuracy",
        "gap to confidence",
    ),
    "binary": (
        "probability of the second class",
        "share of the second class",
        "gap to probability",
    ),
}


class _BinnedDisplay(ModelsDisplay):
    """Base of displays of the bins of the confidence, `sums` of each model."""

    def __init__(
        self,
        predictions: Any,
        *,
        num_bins: int = 15,
        mode: str = "top_label",
        name: str | None = None,
    ):
        self._num_bins = num_bins
        super().__init__(predictions, mode, name)
        self._forecast, self._rate, self._gap = _EVENTS[self.mode]
        if len(self.models) == 1:
            (self.sums,) = self.models.values()

    def _read(self, given: Any, mode: str) -> BinSums:
        if isinstance(given, BinSums):
            return given
        if isinstance(given, Predictions):
            return equal_width_bins(given, None, self._num_bins, mode=mode)
        if isinstance(given, BinnedMetric | CalibrationMetrics):
            return given.bins()
        raise type_error(
            "`predictions` must be `Predictions`, or an updated `ECE`, another "
            "metric of equal-width bins or `CalibrationMetrics`; or a dict of "
            "them",
            predictions=type(given).__name__,
        )

    @property
    def accuracy(self) -> float:
        """Share of correct predictions."""
        total = self.sums.weight.sum()
        return float(safe_divide(self.sums.correct.sum(), total))


class ReliabilityDisplay(_BinnedDisplay):
    """Reliability diagram: accuracy against confidence, with counts.

    Use it to see where a model is over- or underconfident.

    Bars reach from the accuracy of a bin to its mean confidence. The exact
    95 % binomial interval of each accuracy shows how much evidence it has; a
    bin with so few samples that its interval is wider than 0.3 is faint. With
    votes the accuracy is their share for the prediction. With `mode="binary"`
    the diagram has the share of the second of two classes against its
    probability, as scikit-learn's calibration curve.

    Several models are drawn as a curve each, without bars, intervals and the
    bins that would be faint. Seeds of a model are one curve of the means of
    each bin that all seeds fill, with a band of one standard deviation.

    Args:
        predictions: `Predictions` of a model; or an updated metric of
            equal-width bins or `CalibrationMetrics`, or its `bins()`. Or a list
            of them, or a dict by the name of the model. A list in it has the
            seeds of a model.
        num_bins: Number of bins of predictions.
        mode: `"top_label"` for the predicted class, `"binary"` for the second
            of two. A metric has its own.
        zoom: Least confidence of an inset that magnifies the corner with most
            samples, in (0, 1), for one model; None for no inset.
        name: Name of the model, for the title.

    Raises:
        TypeError: If `predictions` are something else.
        ValueError: If `zoom` is out of range.

    Attributes:
        models, values: `BinSums` and ECE of each model, by its name; of seeds
            a list of `BinSums`, and the mean ECE.
        sums, ece: Those of the model, if there is one alone.

    Example:

    >>> import keras_calib
    >>> p = keras_calib.Predictions([0], [[0.8, 0.2]])
    >>> round(ReliabilityDisplay(p).ece, 4)
    0.2

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        figure 1, https://arxiv.org/abs/1706.04599
    """

    _size = (4.8, 5.6)
    _panels = (1, 2)
    _measure = "ece"

    def __init__(
        self,
        predictions: Any,
        *,
        num_bins: int = 15,
        mode: str = "top_label",
        zoom: float | None = None,
        name: str | None = None,
    ):
        super().__init__(predictions, num_bins=num_bins, mode=mode, name=name)
        if zoom is not None and not 0.0 < zoom < 1.0:
            raise value_error("`zoom` must be in (0, 1)", zoom=zoom)
        self.zoom = zoom
        self.values = {
            k: float(np.mean([calibration_error(x) for x in _seeds(own)]))
            for k, own in self.models.items()
        }
        if len(self.values) == 1:
            (self.ece,) = self.values.values()

    def _read(self, given: Any, mode: str) -> Any:
        if isinstance(given, list | tuple):
            return [self._read(x, mode) for x in given]
        return super()._read(given, mode)

    @property
    def _is_overconfident(self) -> bool:
        return self.sums.residual.sum() > 0

    def _axes(self, figure: Any) -> list:
        return list(figure.subplots(2, 1, height_ratios=(3, 1), sharex=True))

    def _draw(self, ax: Any, counts_ax: Any = None) -> None:
        self.counts_ax_, seeds = counts_ax, [*map(_seeds, self.models.values())]
        several = len(seeds) > 1 or len(seeds[0]) > 1
        if several:
            title = f"{self._rate} by {self._forecast}"
            ax.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1)
            for i, (name, own) in enumerate(
                zip(self.models, seeds, strict=True)
            ):
                filled = np.all([x.weight > 0 for x in own], axis=0)
                if len(own) == 1:
                    low, high = accuracy_interval(own[0])
                    sure = filled & (high - low <= _WIDE)
                    filled = sure if sure.any() else filled
                x = np.mean([x.mean_confidence[filled] for x in own], axis=0)
                rates = [x.accuracy[filled] for x in own]
                y, style = np.mean(rates, axis=0), self._style(i)
                told = f"ECE {short(self.values[name])}"
                if len(own) > 1:
                    spread = np.std(rates, axis=0, ddof=1)
                    ends = x, y - spread, y + spread
                    label = None if i else "standard deviation of seeds"
                    draw_band(ax, *ends, style["color"], label)
                    told += f", {len(own)} seeds"
                ax.plot(
                    *(x, y),
                    label=f"{plain(name)} ({told})",
                    **{"marker": "o", "markersize": 4, **style},
                )
        else:
            title = f"ECE {short(self.ece)}, {self._rate} "
            title += short(self.accuracy)
            self._bars(ax)
        ax.set(
            xlim=(-0.02, 1.02),
            ylim=(-0.02, 1.02),
            ylabel=self._rate,
            title=self._title(title),
        )
        self._legend(ax)
        if (zoom := self.zoom) and not several:
            place = (0.1, 0.56) if self._is_overconfident else (0.56, 0.09)
            self.zoom_ax_ = ax.inset_axes((*place, 0.4, 0.4))
            self._bars(self.zoom_ax_)
            inside = self.sums.weight > 0
            inside &= self.sums.mean_confidence >= zoom
            low = min([zoom, *self.sums.accuracy[inside]])
            edge = 0.03 * (1.0 - zoom)
            ends = {"xlim": (zoom - edge, 1.0 + edge)}
            self.zoom_ax_.set(ylim=(low - edge, 1.0 + edge), **ends)
            self.zoom_ax_.tick_params(labelsize="x-small")
            ax.indicate_inset_zoom(self.zoom_ax_, edgecolor=GREY)
        bottom = ax if counts_ax is None else counts_ax
        bottom.set_xlabel(self._forecast)
        if counts_ax is not None:
            weights = [
                np.mean([x.weight for x in own], axis=0) for own in seeds
            ]
            for i, weight in enumerate(weights):
                edges = np.linspace(0.0, 1.0, len(weight) + 1)
                color = self._style(i)["color"]
                counts_ax.stairs(weight, edges, color=color, linewidth=1.5)
            counts_ax.set_ylabel("samples (log)", fontsize="small")
            _logarithmic(counts_ax, weights)
            if not several and len(weights[0]) <= _NUM_NUMBERED:
                _number(counts_ax, weights[0])

    def _bars(self, ax: Any) -> None:
        sums, look = self.sums, self._look
        filled = sums.weight > 0
        x, y = sums.mean_confidence[filled], sums.accuracy[filled]
        low, high = (end[filled] for end in accuracy_interval(sums))
        ax.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1)
        faint = high - low > _WIDE
        told = look.label or f"{self._rate}, 95 % interval"
        style = {"fmt": "o", "markersize": 4, "color": look.color or BLUE}
        style |= {"capsize": 2, "linewidth": 1, **look.line}
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
                alpha=alpha,
                label=told if alpha == 1.0 else None,
                **style,
            )


class ConfidenceDisplay(_BinnedDisplay):
    """Histograms of the confidence of correct and of wrong predictions.

    Use it to see how well the confidence separates errors. Vertical lines
    are the mean confidence and the accuracy; their distance is the over- or
    underconfidence. With several models it draws the wrong predictions alone.

    Args:
        predictions: As in `ReliabilityDisplay`.
        num_bins: Number of bins of predictions.
        log: Whether counts have a logarithmic scale, which shows few errors
            beside many correct predictions.
        name: Name of the model, for the title.

    Raises:
        TypeError: If `predictions` are something else.
        ValueError: If a metric is of the second of two classes.

    Attributes:
        models, values: `BinSums` and mean confidence of each, by its name.
        correct, wrong: Weight of the correct and of the wrong predictions in
            each bin, if there is one model alone.

    Example:

    >>> import keras_calib
    >>> p = keras_calib.Predictions([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> display = ConfidenceDisplay(p, num_bins=5)
    >>> display.correct.tolist(), display.wrong.tolist()
    ([0.0, 0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0])

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        figure 1, https://arxiv.org/abs/1706.04599
    """

    _measure = "mean_confidence"

    def __init__(
        self,
        predictions: Any,
        *,
        num_bins: int = 15,
        log: bool = True,
        name: str | None = None,
    ):
        super().__init__(predictions, num_bins=num_bins, name=name)
        if self.mode != "top_label":
            raise value_error(
                '`predictions` must be of the mode "top_label"', mode=self.mode
            )
        self.log = log
        self.values = {
            k: float(safe_divide(x.confidence.sum(), x.weight.sum()))
            for k, x in self.models.items()
        }
        if len(self.models) == 1:
            (self.mean_confidence,) = self.values.values()
            self.correct = np.asarray(self.sums.correct)
            self.wrong = _wrong_in(self.sums)

    def _draw(self, ax: Any) -> None:
        title = "Confidence of wrong predictions"
        lines: tuple = ()
        counts = {name: _wrong_in(x) for name, x in self.models.items()}
        if len(counts) == 1:
            title = "Confidence of correct and wrong"
            counts = {"correct": self.correct, "wrong": self.wrong}
            lines = (
                ("mean confidence", self.mean_confidence, "--"),
                ("accuracy", self.accuracy, "-"),
            )
        # Outlines: areas would mislead on a logarithmic scale.
        for i, (name, values) in enumerate(counts.items()):
            edges = np.linspace(0.0, 1.0, len(values) + 1)
            told = f"{plain(name)} ({values.sum():,.6g})"
            ax.stairs(values, edges, label=told, **self._style(i))
        for name, value, style in lines:
            told = f"{name} {short(value)}"
            ax.axvline(value, color="black", linestyle=style, label=told)
        ax.set(
            xlim=(0, 1),
            xlabel=self._forecast,
            ylabel="samples",
            title=self._title(title),
        )
        if self.log:
            _logarithmic(ax, [*counts.values()])
        self._legend(ax)


def _logarithmic(ax: Any, counts: Sequence[np.ndarray]) -> None:
    """A logarithmic scale of counts, with a line at each decade."""
    filled = np.concatenate([*counts, [1.0]])
    filled = filled[filled > 0]
    # What is left of a sum of weights is no count.
    high = 2.0 * filled.max()
    ax.set_yscale("log", nonpositive="clip")
    ax.set_ylim(max(0.5 * filled.min(), 1e-9 * high), high)
    ax.yaxis.set_major_formatter("{x:,.12g}")
    ax.minorticks_off()
    ax.grid(axis="y", color=GREY, alpha=0.4, linewidth=0.6)


def _number(ax: Any, counts: np.ndarray) -> None:
    """The number of each step above it, in the place of a scale."""
    low, high = ax.get_ylim()
    room = min(28.0 / (72.0 * ax.bbox.height / ax.figure.dpi), 0.6)
    ax.set(ylim=(low, high * (high / low) ** (room / (1 - room))), yticks=[])
    style = {"rotation": "vertical", "ha": "center", "va": "bottom"}
    for k in np.flatnonzero(counts > 0):
        place = (k + 0.5) / len(counts), 1.3 * max(counts[k], low)
        ax.text(*place, f"{counts[k]:,.6g}", fontsize=6, **style)


def _seeds(own: Any) -> list[BinSums]:
    """The sums of each seed of a model, or those of the one that there is."""
    return own if isinstance(own, list) else [own]


def _wrong_in(sums: BinSums) -> np.ndarray:
    """Weight of the wrong predictions of each bin."""
    # Rounding in sums of weights can give less than 0.
    return np.maximum(sums.weight - sums.correct, 0.0)


class ClasswiseReliabilityDisplay(Display):
    """Reliability diagrams of the worst classes, a panel per class.

    Use it to find classes with wrong probabilities: a model with a calibrated
    confidence can still be wrong about rare classes. A panel shows the share
    of the class against its probability, over all samples.

    Args:
        predictions: `Predictions` of a model, or a list or dict of them, of
            which each is drawn in the panels of the worst classes of the first.
        num_bins: Number of bins of each class.
        classes: Ids of the classes to draw; None for the worst.
        max_panels: Number of worst classes to draw, at most.
        name: Name of the model, for the title.

    Raises:
        TypeError: If `predictions` are something else.
        ValueError: If a class does not exist, or names do not fit.

    Attributes:
        models, values: Bins and classwise ECE of each model, by its name.
        bins, classwise_ece: Those of the model, if there is one alone.
        errors: Calibration error of each of its classes, whose mean that is.

    Example:

    >>> import keras_calib
    >>> p = keras_calib.Predictions([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> display = ClasswiseReliabilityDisplay(p)
    >>> [round(float(x), 4) for x in display.errors]
    [0.4, 0.4]

    Reference:
        Nixon et al., Measuring Calibration in Deep Learning, CVPR Workshops
        2019, https://arxiv.org/abs/1904.01685
    """

    _measure = "classwise_ece"

    def __init__(
        self,
        predictions: Any,
        *,
        num_bins: int = 10,
        classes: Sequence[int] | None = None,
        max_panels: int = 12,
        name: str | None = None,
    ):
        check_integer("max_panels", max_panels, 1)
        given = by_model(predictions, name)
        for p in given.values():
            if not isinstance(p, Predictions):
                raise type_error(
                    "`predictions` must be `Predictions`, or a dict of them",
                    predictions=type(p).__name__,
                )
        self.name = name
        bins = [
            classwise_bins(p, None, num_bins=num_bins) for p in given.values()
        ]
        self.models = dict(zip(given, bins, strict=True))
        each = [np.abs(x.residual).sum(-1) / x.total for x in bins]
        self.values = {
            k: float(x.mean()) for k, x in zip(given, each, strict=True)
        }
        if len(given) == 1:
            (self.bins,), (self.errors,) = bins, each
            (self.classwise_ece,) = self.values.values()
        num_classes = len(each[0])
        if classes is None:
            classes = np.argsort(-each[0], kind="stable")[:max_panels]
        for k in classes:
            check_integer("classes", k)
        self.classes = [int(k) for k in classes]
        if not self.classes or not {*self.classes} <= {*range(num_classes)}:
            raise value_error(
                "`classes` must be ids of classes of the model",
                classes=self.classes,
                num_classes=num_classes,
            )
        told = (p.class_names for p in given.values() if p.class_names)
        self.class_names = names = next(told, None)
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
        told = [f"classwise ECE {short(x)}" for x in self.values.values()]
        if len(told) > 1:
            names = map(plain, self.models)
            told = [f"{k}: {x}" for k, x in zip(names, told, strict=True)]
        figure.suptitle(self._title("\n".join(told)), fontsize="medium")
        return list(drawn)

    def _draw(self, *axes: Any) -> None:
        several = len(self.models) > 1
        for ax, k in zip(axes, self.classes, strict=True):
            ax.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1)
            for i, (name, bins) in enumerate(self.models.items()):
                weight = bins.weight[k]
                filled = weight > 0
                p = safe_divide(bins.probability[k], weight)[filled]
                share = safe_divide(bins.positive[k], weight)[filled]
                if not several:
                    width = 0.8 / bins.weight.shape[-1]
                    style = {"color": ORANGE, "alpha": 0.4}
                    ax.bar(p, p - share, bottom=share, width=width, **style)
                # Points grow with the share of the samples.
                ax.scatter(
                    p,
                    share,
                    s=8.0 + 60.0 * np.sqrt(weight[filled] / bins.total),
                    color=self._style(i)["color"],
                    zorder=3,
                    label=plain(name) if several else self._look.label,
                )
            text = (
                f"class {k}"
                if (names := self.class_names) is None
                else names[k]
            )
            told = "" if several else f": {short(self.errors[k])}"
            ax.set_title(plain(text) + told, fontsize="small")
            ax.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
        if several or self._look.label:
            self._legend(axes[0])
