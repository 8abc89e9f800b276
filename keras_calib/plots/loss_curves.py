"""Losses and their regularisers, drawn."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_calib.analysis.regularizers import RegularizerHistogram
from keras_calib.analysis.regularizers import per_sample_losses
from keras_calib.analysis.regularizers import regularizer_histogram
from keras_calib.inputs.checks import check_integer
from keras_calib.inputs.checks import check_loss
from keras_calib.losses import BatchCoupledLoss
from keras_calib.numerics.arrays import to_numpy
from keras_calib.plots.display import Display
from keras_calib.plots.display import line_style
from keras_calib.plots.texts import plain

__all__ = [
    "LossCurveDisplay",
    "NUM_POINTS",
    "RegularizerDisplay",
    "draw_curves",
    "named_losses",
    "read_each",
]

# Points of a curve.
NUM_POINTS = 241


class LossCurveDisplay(Display):
    """Losses against the probability of the label.

    The rest of the probability is spread evenly over the other classes.

    Args:
        probability: Of the label, `(num_points,)`.
        losses: Name of each loss to its values in nats, `(num_points,)`.

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

    def __init__(self, probability: np.ndarray, losses: dict[str, np.ndarray]):
        self.probability = probability
        self.losses = losses

    @classmethod
    def from_losses(
        cls, losses: Any, *, num_classes: int = 2
    ) -> "LossCurveDisplay":
        """Of losses alone.

        Args:
            losses: A loss, as in `per_sample_losses`, or a dict of them by
                name. One that looks at the whole batch is read for each
                prediction alone.
            num_classes: Number of classes, at least 2.
        """
        check_integer("num_classes", num_classes, 2)
        p = np.linspace(0.002, 0.998, NUM_POINTS)
        others = np.log((1.0 - p) / (num_classes - 1))
        logits = np.repeat(others[:, None], num_classes, axis=1)
        logits[:, 0] = np.log(p)
        logits = logits.astype("float32")
        values = {
            name: read_each(
                loss,
                lambda labels, rows, loss=loss: to_numpy(
                    per_sample_losses(loss, labels, rows)
                ),
                logits,
            )
            for name, loss in named_losses(losses).items()
        }
        return cls(p, values)

    def _draw(self, ax: Any) -> None:
        draw_curves(ax, self.probability, self.losses)
        # A logarithm's end would leave the rest flat.
        highest = max(
            float(np.quantile(values, 0.97)) for values in self.losses.values()
        )
        lowest = min(0.0, *(float(v.min()) for v in self.losses.values()))
        ax.set(
            xlim=(0, 1),
            ylim=(lowest - 0.03 * highest, 1.05 * highest + 1e-6),
            xlabel="probability of the label",
            ylabel="loss (nats)",
            title="Losses of one prediction",
        )
        ax.legend(framealpha=0.9, fontsize="small")


class RegularizerDisplay(Display):
    """Distribution of what losses add to cross entropy.

    Args:
        histograms: Name of each loss to its histogram, as of
            `regularizer_histogram`.

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

    def __init__(self, histograms: dict[str, RegularizerHistogram]):
        self.histograms = histograms

    @classmethod
    def from_predictions(
        cls,
        losses: Any,
        labels: Any,
        logits: Any,
        *,
        num_bins: int = 50,
        limits: tuple[float, float] = (0.0, 0.1),
    ) -> "RegularizerDisplay":
        """From a whole data set; arguments as in `regularizer_histogram`.

        Args:
            losses: A loss, or a dict of them by name.
            labels: As in `regularizer_histogram`.
            logits: As in `regularizer_histogram`.
            num_bins: As in `regularizer_histogram`.
            limits: As in `regularizer_histogram`.
        """
        return cls(
            {
                name: regularizer_histogram(
                    loss, labels, logits, num_bins=num_bins, limits=limits
                )
                for name, loss in named_losses(losses).items()
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
        ax.legend(framealpha=0.9, fontsize="small")


def named_losses(losses: Any) -> dict[str, Any]:
    """A dict as it is, a loss under the name of its class."""
    if isinstance(losses, dict):
        return losses
    check_loss(losses)
    is_loss = isinstance(losses, keras.losses.Loss)
    name = None if is_loss else getattr(losses, "__name__", None)
    return {name or type(losses).__name__: losses}


def read_each(
    loss: Any, read: Callable[[Any, Any], np.ndarray], logits: np.ndarray
) -> np.ndarray:
    """What is read of each row, whose label is 0."""
    labels = np.zeros(len(logits), "int32")
    if not isinstance(loss, BatchCoupledLoss):
        return read(labels, logits)
    rows = range(len(logits))
    return np.concatenate([read(labels[:1], logits[i : i + 1]) for i in rows])


def draw_curves(ax: Any, x: np.ndarray, curves: dict[str, np.ndarray]) -> None:
    """Lines that differ in colour and dashes."""
    for i, (name, values) in enumerate(curves.items()):
        ax.plot(x, values, label=plain(name), **line_style(i))
