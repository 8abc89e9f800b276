"""How sure a model is where it is right, and where it is wrong."""

from typing import Any

import numpy as np

from keras_calib.formulas.bins import BinSums
from keras_calib.numerics.arrays import safe_divide
from keras_calib.plots.binned import BinnedDisplay
from keras_calib.plots.display import BLUE
from keras_calib.plots.display import ORANGE
from keras_calib.plots.display import legend
from keras_calib.plots.display import titled

__all__ = ["ConfidenceDisplay"]


class ConfidenceDisplay(BinnedDisplay):
    """Histogram of the confidence, correct and wrong predictions apart.

    Vertical lines are the mean confidence and the accuracy: their distance
    is the over- or underconfidence.

    Args:
        sums: What the bins hold, arrays `(num_bins,)`.
        name: Name of the model, for the title.
        log: Whether counts have a logarithmic scale, which shows few errors
            beside many hits.

    Example:

    >>> display = ConfidenceDisplay.from_predictions(
    ...     [0, 1], [[0.8, 0.2], [0.6, 0.4]], num_bins=5)
    >>> display.correct.tolist(), display.wrong.tolist()
    ([0.0, 0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0])

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        figure 1, https://arxiv.org/abs/1706.04599
    """

    def __init__(
        self, sums: BinSums, *, name: str | None = None, log: bool = True
    ):
        super().__init__(sums, name=name)
        self.log = log
        self.correct = np.asarray(sums.correct)
        # Sums of weights round.
        self.wrong = np.maximum(sums.weight - sums.correct, 0.0)
        self.mean_confidence = float(
            safe_divide(sums.confidence.sum(), sums.weight.sum())
        )

    def _draw(self, ax: Any) -> None:
        num_bins = len(self.correct)
        # Beside one another: on a logarithmic scale stacks mislead.
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
            xlabel="confidence (probability of the predicted class)",
            ylabel="samples",
            title=titled(self.name, "Confidence of correct and wrong"),
        )
        if self.log:
            ax.set_yscale("symlog", linthresh=1)
            ax.set_ylim(bottom=0)
        legend(ax, loc="upper left")
