"""Displays of losses, their regularisers and their effective labels."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Self

import keras
import numpy as np

from keras_calib.analysis.regularizers import (
    RegularizerHistogram,
    effective_labels,
    per_sample_losses,
    regularizer_histogram,
)
from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import check_above, check_integer, check_loss
from keras_calib.losses import BatchCoupledLoss
from keras_calib.numerics.arrays import to_numpy
from keras_calib.plots.display import (
    COLORS,
    GREY,
    Display,
    legend,
    line_style,
    plain,
)

__all__ = [
    "EffectiveLabelsDisplay",
    "LossCurveDisplay",
    "RegularizerDisplay",
    "SmoothingProfileDisplay",
]

_NUM_POINTS = 241


@dataclasses.dataclass(eq=False, repr=False)
class LossCurveDisplay(Display):
    """Losses against the probability of the label.

    Use it to compare what losses ask of a prediction. The rest of the
    probability is spread evenly over the other classes.

    Args:
        probability: Probabilities of the label, `(num_points,)`.
        losses: Values of each loss in nats, `(num_points,)`, by its name.

    Example:

    >>> from keras_calib import LabelRelaxation
    >>> display = LossCurveDisplay.from_losses(
    ...     LabelRelaxation(alpha=0.1), num_classes=2)
    >>> float(display.losses["LabelRelaxation"][-1])
    0.0

    Reference:
        Lienen and Huellermeier, From Label Smoothing to Label Relaxation,
        AAAI 2021, figure 2, https://doi.org/10.1609/aaai.v35i10.17041
    """

    probability: np.ndarray
    losses: dict[str, np.ndarray]

    @classmethod
    def from_losses(cls, losses: Any, *, num_classes: int = 2) -> Self:
        """Makes the display from losses, without data.

        Args:
            losses: A loss, or a dict of losses by name. A loss of the whole
                batch gets one prediction at a time.
            num_classes: Number of classes, at least 2.
        """
        check_integer("num_classes", num_classes, 2)
        p = np.linspace(0.002, 0.998, _NUM_POINTS)
        others = np.log((1.0 - p) / (num_classes - 1))
        logits = np.repeat(others[:, None], num_classes, axis=1)
        logits[:, 0] = np.log(p)
        return cls(p, _of_each(per_sample_losses, losses, logits))

    def _draw(self, ax: Any) -> None:
        _draw_curves(ax, self.probability, self.losses)
        # The end of a logarithm would flatten all other curves.
        highest = max(float(np.quantile(v, 0.97)) for v in self.losses.values())
        lowest = min(0.0, *(float(v.min()) for v in self.losses.values()))
        ax.set(
            xlim=(0, 1),
            ylim=(lowest - 0.03 * highest, 1.05 * highest + 1e-6),
            xlabel="probability of the label",
            ylabel="loss (nats)",
            title="Losses of one prediction",
        )
        legend(ax)


@dataclasses.dataclass(eq=False, repr=False)
class RegularizerDisplay(Display):
    """Distribution of what losses add to cross entropy.

    Use it to see on which share of the samples a loss regularises, and how
    strongly.

    Args:
        histograms: Histogram of each loss, from `regularizer_histogram`, by
            its name.

    Example:

    >>> from keras_calib import MbLS
    >>> display = RegularizerDisplay.from_predictions(
    ...     MbLS(margin=6.0, from_logits=True), [0, 0], [[9.0, 0], [5.0, 0]])
    >>> display.histograms["MbLS"].inactive_share
    0.5

    Reference:
        Park et al., ACLS: Adaptive and Conditional Label Smoothing for
        Network Calibration, ICCV 2023, figure 3,
        https://arxiv.org/abs/2308.11911
    """

    histograms: dict[str, RegularizerHistogram]

    @classmethod
    def from_predictions(
        cls,
        losses: Any,
        labels: Any,
        logits: Any,
        *,
        num_bins: int = 50,
        limits: tuple[float, float] = (0.0, 0.1),
    ) -> Self:
        """Makes the display from a whole data set.

        Args:
            losses: A loss, or a dict of losses by name.
            labels: Labels `(...)` or `(..., num_classes)`.
            logits: Logits `(..., num_classes)` of at least two classes.
            num_bins: Number of bins of equal width.
            limits: The lowest and the highest edge, in nats, to which values
                are clipped.
        """
        return cls(
            {
                name: regularizer_histogram(
                    loss, labels, logits, num_bins=num_bins, limits=limits
                )
                for name, loss in _by_name(losses).items()
            }
        )

    def _draw(self, ax: Any) -> None:
        for i, (name, found) in enumerate(self.histograms.items()):
            total = max(1, int(found.counts.sum()))
            share = 100.0 * found.inactive_share
            ax.stairs(
                found.counts / total,
                found.edges,
                label=f"{plain(name)} (0 for {share:.1f} %)",
                **line_style(i),
            )
        ax.set_yscale("log")
        ax.set(
            xlabel="regulariser (nats; the ends hold what lies beyond)",
            ylabel="share of samples",
            title="What losses add to cross entropy",
        )
        legend(ax)


@dataclasses.dataclass(eq=False, repr=False)
class EffectiveLabelsDisplay(Display):
    """Bars of a prediction, its label and the effective labels of losses.

    Use it to see towards which target a loss pulls a prediction.

    Args:
        probs: The prediction, `(num_classes,)`.
        label: The label, `(num_classes,)`.
        effective: Effective labels `(num_classes,)` of each loss, from
            `effective_labels`, by its name.
        class_names: Names of the classes, or None for their ids.

    Raises:
        ValueError: If shapes do not fit.

    Example:

    >>> from keras_calib import LabelSmoothing
    >>> display = EffectiveLabelsDisplay.from_losses(
    ...     LabelSmoothing(alpha=0.3, from_logits=True), 0, [2.0, 0.0, 1.0])
    >>> [round(float(q), 4) for q in display.effective["LabelSmoothing"]]
    [0.8, 0.1, 0.1]

    Reference:
        Park et al., ACLS: Adaptive and Conditional Label Smoothing for
        Network Calibration, ICCV 2023, figure 1,
        https://arxiv.org/abs/2308.11911
    """

    probs: Any
    label: Any
    effective: dict[str, Any]
    _: dataclasses.KW_ONLY
    class_names: Sequence[str] | None = None

    def __post_init__(self):
        self.probs, self.label = to_numpy(self.probs), to_numpy(self.label)
        rows = {name: to_numpy(q) for name, q in self.effective.items()}
        self.effective = rows
        names = self.class_names
        self._names = range(len(self.probs)) if names is None else names
        rows = {"label": self.label, "class_names": self._names, **rows}
        for what, x in rows.items():
            if self.probs.ndim != 1 or np.shape(x)[:1] != self.probs.shape:
                raise value_error(
                    f"`{what}` and `probs` must have one entry per class",
                    probs=self.probs.shape,
                    **{what: np.shape(x)},
                )
        self._size = (max(4.0, 0.9 * len(self.probs) + 1.5), 3.6)

    @classmethod
    def from_losses(
        cls, losses: Any, label: int, logits: Any, **options: Any
    ) -> Self:
        """Makes the display from losses and one prediction.

        Args:
            losses: A loss, or a dict of losses by name.
            label: Class id.
            logits: Logits `(num_classes,)`.
            **options: `class_names` of the class.
        """
        logits = np.asarray(logits, "float32")
        if logits.ndim != 1:
            raise value_error(
                "`logits` must have shape (num_classes,)",
                **{"logits.shape": logits.shape},
            )
        labels, rows = np.array([label], "int32"), logits[None]
        found = {
            name: to_numpy(effective_labels(loss, labels, rows).labels)[0]
            for name, loss in _by_name(losses).items()
        }
        probs = keras.ops.softmax(keras.ops.convert_to_tensor(logits))
        return cls(probs, np.eye(len(logits))[label], found, **options)

    def _draw(self, ax: Any) -> None:
        series = {"prediction": self.probs, "label": self.label}
        series |= self.effective
        width = 0.8 / len(series)
        places = np.arange(len(self.probs))
        colors = (GREY, *COLORS)
        hatches = ("", "", "///", "...", "xxx", "\\\\\\", "+++")
        for i, (name, values) in enumerate(series.items()):
            ax.bar(
                places + (i + 0.5) * width - 0.4,
                values,
                width=width,
                color=colors[i % len(colors)],
                hatch=hatches[i % len(hatches)],
                edgecolor="white",
                linewidth=0,
                label=plain(name),
            )
        ax.axhline(0.0, color="black", linewidth=0.8)
        ax.set_xticks(places, [plain(name) for name in self._names])
        ax.set(
            xlabel="class",
            ylabel="probability",
            title="What losses ask for: effective labels",
        )
        legend(ax)


@dataclasses.dataclass(eq=False, repr=False)
class SmoothingProfileDisplay(Display):
    """Smoothing by losses, against the logit of the right class.

    Use it to compare how losses adapt their smoothing to the confidence. The
    other logits are 0. The left panel shows how much losses lower the label
    of the predicted class, the right one how much they raise that of each
    other class.

    Args:
        logit: Logits of the right class, `(num_points,)`.
        predicted: Smoothing of the predicted class, `(num_points,)`, by the
            name of the loss.
        other: Mean smoothing of the other classes, `(num_points,)`, by the
            name of the loss.

    Example:

    >>> from keras_calib import LabelSmoothing
    >>> display = SmoothingProfileDisplay.from_losses(
    ...     LabelSmoothing(alpha=0.3, from_logits=True), num_classes=3)
    >>> round(float(display.predicted["LabelSmoothing"][-1]), 4)
    0.2

    Reference:
        Park et al., ACLS: Adaptive and Conditional Label Smoothing for
        Network Calibration, ICCV 2023, section 3 and figure 1,
        https://arxiv.org/abs/2308.11911
    """

    _size = (8.4, 3.6)
    _panels = (2,)

    logit: np.ndarray
    predicted: dict[str, np.ndarray]
    other: dict[str, np.ndarray]

    @classmethod
    def from_losses(
        cls, losses: Any, *, num_classes: int = 10, highest: float = 15.0
    ) -> Self:
        """Makes the display from losses, without data.

        Args:
            losses: A loss, or a dict of losses by name. A loss of the whole
                batch gets one prediction at a time.
            num_classes: Number of classes, at least 2.
            highest: Largest logit, above 0.
        """
        check_integer("num_classes", num_classes, 2)
        check_above("highest", highest, 0.0)
        logit = np.linspace(0.0, highest, _NUM_POINTS)
        logits = np.zeros((_NUM_POINTS, num_classes))
        logits[:, 0] = logit
        # At 0 all classes would tie.
        logits[0, 0] = 1e-3
        found = _of_each(_smoothing, losses, logits)
        return cls(
            logit,
            {name: both[:, 0] for name, both in found.items()},
            {name: both[:, 1] for name, both in found.items()},
        )

    def _draw(self, *axes: Any) -> None:
        for ax, curves, title in (
            (axes[0], self.predicted, "taken off the predicted class"),
            (axes[1], self.other, "added to each other class"),
        ):
            _draw_curves(ax, self.logit, curves)
            ax.set(
                xlabel="logit of the right class, the others 0",
                ylabel="smoothing",
                title=title,
            )
        legend(axes[0])


def _by_name(losses: Any) -> dict[str, Any]:
    """A dict of losses; a single loss under the name of its class."""
    if isinstance(losses, dict):
        return losses
    check_loss(losses)
    return {getattr(losses, "__name__", type(losses).__name__): losses}


def _smoothing(loss: Any, labels: Any, rows: Any) -> np.ndarray:
    """Smoothing of the predicted class, and mean of the others, `(n, 2)`."""
    _, predicted, other = map(to_numpy, effective_labels(loss, labels, rows))
    return np.stack([predicted, other.sum(-1) / (rows.shape[-1] - 1)], axis=-1)


def _of_each(
    function: Callable, losses: Any, logits: np.ndarray
) -> dict[str, np.ndarray]:
    """Values of a function of each loss and rows of logits with label 0."""
    logits = logits.astype("float32")
    labels, found = np.zeros(len(logits), "int32"), {}
    for name, loss in _by_name(losses).items():
        size = 1 if isinstance(loss, BatchCoupledLoss) else len(logits)
        parts = [slice(i, i + size) for i in range(0, len(logits), size)]
        found[name] = np.concatenate(
            [to_numpy(function(loss, labels[x], logits[x])) for x in parts]
        )
    return found


def _draw_curves(ax: Any, x: np.ndarray, curves: dict[str, np.ndarray]) -> None:
    for i, (name, values) in enumerate(curves.items()):
        ax.plot(x, values, label=plain(name), **line_style(i))
