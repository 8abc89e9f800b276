"""Display of one segmented image: confidence, errors and reliability."""

import copy
from typing import Any

import numpy as np
from scipy.stats import rankdata

from keras_calib.backend.errors import type_error, value_error
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.top_label import hard_labels
from keras_calib.numerics.softmax import is_wrong, top1
from keras_calib.plots.display import (
    ORANGE,
    Display,
    as_picture,
    matplotlib_module,
    short,
    show,
)
from keras_calib.plots.reliability import ReliabilityDisplay
from keras_calib.predictions.predictions import Predictions

# In print without colour these are three shades of grey.
_RIGHT, _WRONG, _IGNORED = "#FFFFFF", ORANGE, "#CCCCCC"


class SegmentationDisplay(Display):
    """Confidence, errors and reliability of the pixels of one image.

    Use it to see where a segmenter is wrong though sure. Panels show the
    image, the confidence, right and wrong pixels, the wrong ones by rank, and
    the reliability diagram. Its intervals are too short, as they assume that
    neighbouring pixels are independent.

    The rank of a pixel is the share of surer pixels, plus half the share of
    equally sure ones: 0 for the surest, 0.5 on average. A good score gives
    wrong pixels ranks near 1, and misses those near 0.

    Args:
        predictions: `Predictions` of images, outputs
            `(n, h, w, num_classes)`.
        row: Which of the images to show.
        image: `(h, w)` or `(h, w, channels)` of 1 or 3 channels; None takes
            that of `inputs` of the predictions, if they have one.
        num_bins: Number of bins of the reliability diagram.
        name: Name of the model, for the title.

    Raises:
        TypeError: If `predictions` are something else.
        ValueError: If shapes do not fit, there is no such image, or no pixel
            is valid.

    Attributes:
        confidence: Probability of the predicted class `(h, w)`.
        wrong: Which valid pixels have a wrong prediction, bool `(h, w)`.
        ignored: Which pixels are left out, bool `(h, w)`.
        rank: Rank of the wrong pixels `(h, w)`, NaN elsewhere.
        reliability: Diagram of the valid pixels.

    Example:

    >>> import keras_calib
    >>> probs = [[[[0.9, 0.1], [0.8, 0.2]], [[0.7, 0.3], [0.6, 0.4]]]]
    >>> p = keras_calib.Predictions([[[0, 0], [1, 0]]], probs)
    >>> display = SegmentationDisplay(p)
    >>> int(display.wrong.sum()), float(display.rank[1, 0])
    (1, 0.625)

    Reference:
        Liu et al., The Devil is in the Margin: Margin-based Label Smoothing
        for Network Calibration, CVPR 2022, figure 3 of the appendix
        (confidence map and reliability diagram of an image),
        https://arxiv.org/abs/2111.15430
    """

    def __init__(
        self,
        predictions: Any,
        row: int = 0,
        *,
        image: Any = None,
        num_bins: int = 15,
        name: str | None = None,
    ):
        if not isinstance(predictions, Predictions):
            raise type_error(
                "`predictions` must be `Predictions` of images",
                predictions=type(predictions).__name__,
            )
        shape = predictions.outputs.shape
        if len(shape) != 4 or not 0 <= row < shape[0]:
            raise value_error(
                "`predictions` must have outputs (n, h, w, num_classes), and "
                "an image at `row`",
                row=row,
                **{"outputs.shape": shape},
            )
        own = predictions[row : row + 1]
        shown = own.inputs if image is None else [image]
        self.name = name
        self.image = None if shown is None else as_picture("image", shown[0])
        height, width = shape[1:3]
        if self.image is not None and self.image.shape[:2] != (height, width):
            raise value_error(
                "`image` must have the height and width of the predictions",
                image=self.image.shape,
                predictions=(height, width),
            )
        read = standardize_arrays(own, drop=False)
        confidence, log_odds = top1(read.outputs, from_logits=own.from_logits)
        score = log_odds if own.from_logits else confidence
        counted = np.ones(score.shape, "bool")
        if read.counted is not None:
            counted = read.counted
        wrong = counted & is_wrong(read.outputs, hard_labels(read.labels))
        rank = np.full(score.shape, np.nan)
        rank[counted] = 1.0 - (rankdata(score[counted]) - 0.5) / counted.sum()
        rank[~wrong] = np.nan
        self.confidence, self.wrong, self.ignored, self.rank = (
            x.reshape(height, width)
            for x in (confidence, wrong, ~counted, rank)
        )
        self.reliability = ReliabilityDisplay(own, num_bins=num_bins)
        self._num_maps = 3 if self.image is None else 4
        # Callers' axes need no panel for counts.
        self._panels = (self._num_maps + 1, self._num_maps + 2)
        side = min(max(3.0 * height / width, 2.0), 6.0)
        self._size = 3.0 * self._num_maps + 3.6, max(side + 1.2, 4.0)

    def _axes(self, figure: Any) -> list:
        *maps, _ = ratios = (*[3.0] * self._num_maps, 3.6)
        grid = figure.add_gridspec(1, len(ratios), width_ratios=ratios)
        axes = [figure.add_subplot(grid[0, i]) for i in range(len(maps))]
        below = grid[0, -1].subgridspec(2, 1, height_ratios=(4, 1), hspace=0.0)
        bars = figure.add_subplot(below[0])
        return [*axes, bars, figure.add_subplot(below[1], sharex=bars)]

    def _draw(self, *axes: Any) -> None:
        maps, bars = axes[: self._num_maps], axes[self._num_maps :]
        *first, confidence, errors, ranks = maps
        for ax in first:
            show(ax, self.image)
            ax.set_title("image")
        shown = show(confidence, self.confidence, "viridis")
        confidence.set_title("confidence")
        _bar(confidence, shown, "probability of the predicted class")
        title = maps[0].get_title()
        maps[0].set_title(self._title(title))
        self._draw_errors(errors)
        show(ranks, self.ignored, _shades(_RIGHT, _IGNORED))
        # Even the palest shade is darker than both backgrounds.
        copper = matplotlib_module().colormaps["copper"]
        shades = _shades(*copper(np.linspace(0.0, 0.75, 256)))
        shown = show(ranks, self.rank, shades)
        title = "wrong pixels by rank"
        if self.wrong.any():
            title += f": mean {np.nanmean(self.rank):.2f}"
        ranks.set_title(title)
        _bar(ranks, shown, "share of pixels that are surer")
        display = copy.copy(self.reliability).plot(bars)
        display.ax_.set_title(
            f"ECE {short(display.ece)}, accuracy {short(display.accuracy)}",
            fontsize="medium",
        )
        bars[-1].set_xlabel("confidence")
        if display.counts_ax_ is not None:
            bars[-1].set_ylabel("pixels (log)", fontsize="small")
            bars[0].tick_params(labelbottom=False)

    def _draw_errors(self, ax: Any) -> None:
        from matplotlib.patches import Patch

        shades = {"right": _RIGHT, "wrong": _WRONG, "ignored": _IGNORED}
        kinds = np.where(self.ignored, 2, self.wrong.astype("int64"))
        show(ax, kinds, _shades(*shades.values()), vmax=2)
        ax.set_title(f"errors: {self.wrong.sum()} pixels")
        if not self.ignored.any():
            del shades["ignored"]
        ax.legend(
            handles=[
                Patch(facecolor=color, edgecolor="black", label=kind)
                for kind, color in shades.items()
            ],
            loc="upper center",
            bbox_to_anchor=(0.5, 0.0),
            ncols=len(shades),
            frameon=False,
            handlelength=1.0,
            columnspacing=1.0,
        )


def _shades(*colors: Any) -> Any:
    # matplotlib 3.8 takes a tuple of two as a colour and its opacity.
    return matplotlib_module("colors").ListedColormap(list(colors))


def _bar(ax: Any, shown: Any, label: str) -> None:
    # Below the map and not beside it, so that all maps keep their size.
    height, width = shown.get_array().shape
    share = 0.05 * width / height
    below = ax.inset_axes((0.0, -1.8 * share, 1.0, share))
    bar = ax.figure.colorbar(shown, cax=below, orientation="horizontal")
    bar.set_label(label)
