"""Displays of logits and of their normalisation."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas.scores import p_norm
from keras_calib.inputs.batch import standardize_logits
from keras_calib.inputs.checks import check_at_least, check_integer
from keras_calib.inputs.top_label import hard_labels
from keras_calib.numerics.arrays import safe_divide
from keras_calib.numerics.softmax import is_wrong, top1
from keras_calib.plots.display import (
    BLUE,
    ORANGE,
    ModelDisplay,
    draw_band,
    legend,
    line_style,
    titled,
)
from keras_calib.predictions.collect import predicted
from keras_calib.predictions.outputs import choose_output, loss_of, setting_of

__all__ = [
    "MaxLogitDisplay",
    "NormalizedLogitDisplay",
    "SortedLogitsDisplay",
    "Windows",
    "slide",
]


class _LogitDisplay(ModelDisplay):
    """Base of displays that keep logits and the correctness of predictions."""

    def __init__(
        self,
        labels: Any,
        logits: Any,
        *,
        sample_weight: Any = None,
        ignore_class: int | None = None,
        name: str | None = None,
    ):
        read = standardize_logits(labels, logits, sample_weight, ignore_class)
        kept = slice(None) if read.weight is None else read.weight > 0
        self.logits = read.outputs[kept].astype("float64")
        self.max_logit = self.logits.max(-1)
        self.confidence = top1(self.logits, from_logits=True).confidence
        wrong = is_wrong(self.logits, hard_labels(read.labels[kept]))
        self.is_wrong = np.asarray(wrong, bool)
        self.name = name

    @classmethod
    def from_predictions(
        cls, labels: Any, logits: Any, **options: Any
    ) -> "_LogitDisplay":
        """Makes the display from a data set, with the class's arguments."""
        return cls(labels, logits, **options)

    @classmethod
    def _of_model(
        cls,
        model: Any,
        source: tuple[Any, int, Any],
        reading: tuple,
        **options: Any,
    ) -> Self:
        _, ignore_class, output = reading
        if ignore_class is None:
            loss = loss_of(model, choose_output(model, output))
            ignore_class = setting_of(loss, "ignore_class")
        found = predicted(model, *source, output)
        options["ignore_class"] = ignore_class
        options["sample_weight"] = found.sample_weight
        return cls(found.labels, found.outputs, **options)


class MaxLogitDisplay(_LogitDisplay):
    """Largest logit against confidence, of correct and wrong predictions.

    Use it to see whether the largest logit tells more than the confidence,
    which the distance of the two lines shows. Label smoothing makes the
    largest logit of wrong predictions larger. Lines are means, and bands
    standard deviations, in a sliding window.

    Args:
        labels: Class ids `(n, ...)` or one-hot or soft labels.
        logits: Logits `(n, ..., num_classes)`, at least two classes.
        width: Width of the window, in (0, 1].
        **kwargs: `sample_weight`, of which 0 leaves out a row,
            `ignore_class`, the class id to leave out, and `name`, the name of
            the model for the title.

    Raises:
        ValueError: If shapes do not fit or `width` is out of range.

    Example:

    >>> display = MaxLogitDisplay([0, 1], [[2.0, 0.0], [3.0, 0.0]])
    >>> display.max_logit.tolist()
    [2.0, 3.0]

    Reference:
        Xia et al., Towards Understanding Why Label Smoothing Degrades
        Selective Classification and How to Fix It, ICLR 2025, figure 9,
        https://arxiv.org/abs/2403.14715
    """

    def __init__(
        self, labels: Any, logits: Any, *, width: float = 0.05, **kwargs: Any
    ):
        if not 0.0 < width <= 1.0:
            raise value_error("`width` must be in (0, 1]", width=width)
        super().__init__(labels, logits, **kwargs)
        self.width = width
        centers = np.linspace(0.0, 1.0, 201)
        self.correct, self.wrong = (
            slide(self.confidence[rows], self.max_logit[rows], centers, width)
            for rows in (~self.is_wrong, self.is_wrong)
        )

    def _draw(self, ax: Any) -> None:
        self.correct.draw(ax, "correct", 0)
        self.wrong.draw(ax, "wrong", 1)
        ax.set(
            xlim=(0, 1),
            xlabel="confidence of the predicted class",
            ylabel="largest logit",
            title=titled(self.name, "Largest logit, mean ± deviation"),
        )
        legend(ax, loc="upper left")


class NormalizedLogitDisplay(_LogitDisplay):
    """Normalised against plain largest logit, at equal confidence.

    Use it to see what `LogitNormalization` does to a ranking. Each range of
    the confidence has a line, with standard deviations. A falling line lowers
    samples whose logit is large for their confidence. This repairs the
    ranking of networks trained with label smoothing.

    Args:
        labels: Class ids `(n, ...)` or one-hot or soft labels.
        logits: Logits `(n, ..., num_classes)`, at least two classes.
        p: Order of the norm, >= 0.
        center: Whether to subtract the mean of the logits first.
        edges: Edges of the ranges of the confidence, ascending in [0, 1].
        **kwargs: `sample_weight`, of which 0 leaves out a row,
            `ignore_class`, the class id to leave out, and `name`, the name of
            the model for the title.

    Raises:
        ValueError: If shapes do not fit, or `edges` do not ascend.

    Example:

    >>> display = NormalizedLogitDisplay([0, 1], [[2.0, 0.0], [3.0, 0.0]])
    >>> [round(float(x), 4) for x in display.normalized]
    [0.8409, 0.8409]

    Reference:
        Xia et al., Towards Understanding Why Label Smoothing Degrades
        Selective Classification and How to Fix It, ICLR 2025, figure 19,
        https://arxiv.org/abs/2403.14715
    """

    def __init__(
        self,
        labels: Any,
        logits: Any,
        *,
        p: float = 4.0,
        center: bool = True,
        edges: Sequence[float] = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
        **kwargs: Any,
    ):
        ends = np.ravel(edges).astype("float64")
        ascending = len(ends) > 1 and (np.diff(ends) > 0).all()
        if not ascending or ends[0] < 0.0 or ends[-1] > 1.0:
            raise value_error("`edges` must ascend in [0, 1]", edges=edges)
        super().__init__(labels, logits, **kwargs)
        self.p = p
        self.edges = ends
        self.normalized = p_norm(self.logits, p=p, center=center)
        self.lines = {}
        for low, high in zip(ends, ends[1:], strict=False):
            rows = (self.confidence > low) & (self.confidence <= high)
            x = self.max_logit[rows]
            # The outer tenth is too sparse for a mean.
            first, last = np.quantile(x, (0.05, 0.95)) if x.size else (0, 0)
            self.lines[float(low), float(high)] = slide(
                x,
                self.normalized[rows],
                np.linspace(first, last, 41),
                max(last - first, 1e-9) / 8,
            )

    def _draw(self, ax: Any) -> None:
        for i, ((low, high), line) in enumerate(self.lines.items()):
            line.draw(ax, f"{low:g} to {high:g}", i)
        ax.set(
            xlabel="largest logit",
            ylabel=f"largest logit over the {self.p:g}-norm",
            title=titled(self.name, "Normalised logit, mean ± deviation"),
        )
        legend(ax, title="confidence")


class SortedLogitsDisplay(_LogitDisplay):
    """Sorted logits: plain, to a power and as exponentials.

    Use it to see how many logits a norm and the softmax depend on. It shows
    mean and standard deviation of the k-th largest logit, for correct and for
    wrong predictions.

    Args:
        labels: Class ids `(n, ...)` or one-hot or soft labels.
        logits: Logits `(n, ..., num_classes)`, at least two classes.
        p: Power, >= 0.
        top: Number of the largest logits to draw, at most.
        **kwargs: `sample_weight`, `ignore_class` and `name`, as in
            `MaxLogitDisplay`.

    Raises:
        ValueError: If shapes do not fit or a number is out of range.

    Example:

    >>> display = SortedLogitsDisplay([0, 1], [[2.0, 0.0], [1.0, 3.0]])
    >>> display.sorted.tolist()
    [[2.0, 0.0], [3.0, 1.0]]

    Reference:
        Xia et al., Towards Understanding Why Label Smoothing Degrades
        Selective Classification and How to Fix It, ICLR 2025, figure 18,
        https://arxiv.org/abs/2403.14715
    """

    _size = (10.0, 3.6)
    _panels = (3,)

    def __init__(
        self,
        labels: Any,
        logits: Any,
        *,
        p: float = 5.0,
        top: int = 20,
        **kwargs: Any,
    ):
        check_at_least("p", p, 0.0)
        check_integer("top", top, 1)
        super().__init__(labels, logits, **kwargs)
        self.p = p
        self.sorted = -np.sort(-self.logits, axis=-1)[:, :top]

    def values(self) -> dict[str, np.ndarray]:
        """Sorted logits, their powers and exponentials, `(n, top)`."""
        powers = np.sign(self.sorted) * np.abs(self.sorted) ** self.p
        return {
            "logit": self.sorted,
            f"logit to the power {self.p:g}": powers,
            "exponential of the logit": np.exp(self.sorted),
        }

    def _draw(self, *axes: Any) -> None:
        places = np.arange(1, self.sorted.shape[-1] + 1)
        kinds = {
            "correct": (~self.is_wrong, -0.15, BLUE, "o"),
            "wrong": (self.is_wrong, 0.15, ORANGE, "s"),
        }
        for ax, (what, array) in zip(axes, self.values().items(), strict=True):
            for label, (rows, shift, color, marker) in kinds.items():
                if not rows.any():
                    continue
                # Of the classes that are not ruled out.
                shown = np.ma.masked_invalid(array[rows])
                ax.errorbar(
                    places + shift,
                    shown.mean(0).filled(np.nan),
                    yerr=shown.std(0).filled(np.nan),
                    color=color,
                    marker=marker,
                    markersize=3,
                    linewidth=1,
                    capsize=2,
                    label=label,
                )
            ax.set(xlabel="rank of the logit", ylabel=what)
            ax.xaxis.get_major_locator().set_params(integer=True)
        axes[2].set_yscale("log", nonpositive="clip")
        axes[1].set_title(titled(self.name, "Sorted logits, mean ± deviation"))
        legend(axes[0])


class Windows(NamedTuple):
    """Means, deviations and counts of windows, arrays `(num_windows,)`."""

    center: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    count: np.ndarray  # type: ignore[assignment]  # hides tuple.count

    def draw(self, ax: Any, label: str, i: int) -> None:
        """Draws the i-th line of means, in a band of deviations."""
        style = line_style(i)
        ends = self.mean - self.deviation, self.mean + self.deviation
        draw_band(ax, self.center, *ends, style["color"])
        ax.plot(self.center, self.mean, label=label, **style)


def slide(
    places: np.ndarray,
    values: np.ndarray,
    centers: np.ndarray,
    width: float,
    at_least: int = 5,
) -> Windows:
    """Mean and deviation of the values whose places are in each window.

    Windows include both ends. With fewer than `at_least` values they are NaN.
    """
    order = np.argsort(places, kind="stable")
    places, values = places[order], values[order].astype("float64")
    middle = values.mean() if len(values) else 0.0
    # Centred, so that differences of sums keep their digits.
    values = values - middle
    first = np.searchsorted(places, centers - width / 2, side="left")
    last = np.searchsorted(places, centers + width / 2, side="right")
    count = last - first

    def means(x: np.ndarray) -> np.ndarray:
        total = np.concatenate([[0.0], np.cumsum(x)])
        return safe_divide(total[last] - total[first], count.astype("float64"))

    mean = means(values)
    deviation = np.sqrt(np.maximum(means(values**2) - mean**2, 0.0))
    few = count < at_least
    mean = np.where(few, np.nan, mean + middle)
    return Windows(centers, mean, np.where(few, np.nan, deviation), count)
