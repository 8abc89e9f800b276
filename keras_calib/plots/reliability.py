"""Accuracy against confidence."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas.binned_errors import calibration_error
from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.numerics.arrays import safe_divide
from keras_calib.plots.binned import BinnedDisplay
from keras_calib.plots.display import BLUE
from keras_calib.plots.display import GREY
from keras_calib.plots.display import ORANGE
from keras_calib.plots.display import legend
from keras_calib.plots.display import titled

__all__ = ["ReliabilityDisplay"]


class ReliabilityDisplay(BinnedDisplay):
    """Reliability diagram: accuracy against confidence, with counts.

    Bars reach from the accuracy of a bin to its mean confidence. The exact
    95 % binomial interval of each accuracy shows how much evidence it has.

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
    _panels = (1, 2)

    def __init__(
        self,
        sums: BinSums,
        *,
        name: str | None = None,
        zoom: float | None = None,
    ):
        if zoom is not None and not 0.0 < zoom < 1.0:
            raise value_error("`zoom` must be in (0, 1)", zoom=zoom)
        super().__init__(sums, name=name)
        self.zoom = zoom
        self.ece = float(calibration_error(sums))

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
            ylabel="accuracy",
            title=titled(
                self.name, f"ECE {self.ece:.4f}, accuracy {self.accuracy:.4f}"
            ),
        )
        # Over the corner that even an overconfident model leaves emptiest.
        in_its_way = self.zoom is not None and not self._is_overconfident
        legend(ax, loc="upper left" if in_its_way else "lower right")
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

    def _bars(self, ax: Any) -> None:
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
            label="gap to confidence",
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
            label="accuracy, 95 % interval",
        )

    def _inset(self, ax: Any) -> None:
        place = (0.1, 0.56) if self._is_overconfident else (0.56, 0.09)
        self.zoom_ax_ = ax.inset_axes((*place, 0.4, 0.4))
        self._bars(self.zoom_ax_)
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
