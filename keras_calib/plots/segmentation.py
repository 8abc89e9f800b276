"""Display of one segmented image: confidence, errors and reliability."""

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import keras
import numpy as np
from scipy.stats import rankdata

from keras_calib.backend.errors import value_error
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.top_label import hard_labels
from keras_calib.numerics.arrays import as_array, to_numpy
from keras_calib.numerics.softmax import is_wrong, top1
from keras_calib.plots.display import (
    ORANGE,
    Display,
    as_picture,
    matplotlib_module,
    show,
    titled,
)
from keras_calib.plots.reliability import ReliabilityDisplay
from keras_calib.predictions.batches import Examples, Predictor
from keras_calib.predictions.outputs import read_as

__all__ = ["SegmentationDisplay"]

# In print without colour these are three shades of grey.
_RIGHT, _WRONG, _IGNORED = "#FFFFFF", ORANGE, "#CCCCCC"


@dataclasses.dataclass(eq=False, repr=False)
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
        confidence: Probability of the predicted class `(h, w)`.
        wrong: Which valid pixels have a wrong prediction, bool `(h, w)`.
        ignored: Which pixels are left out, bool `(h, w)`.
        rank: Rank of the wrong pixels `(h, w)`, NaN elsewhere.
        reliability: Diagram of the valid pixels.
        image: `(h, w)` or `(h, w, channels)` of 1 or 3 channels, or None.
        name: Name of the model, for the title.

    Example:

    >>> probs = [[[0.9, 0.1], [0.8, 0.2]], [[0.7, 0.3], [0.6, 0.4]]]
    >>> display = SegmentationDisplay.from_predictions([[0, 0], [1, 0]], probs)
    >>> int(display.wrong.sum()), float(display.rank[1, 0])
    (1, 0.625)

    Reference:
        Liu et al., The Devil is in the Margin: Margin-based Label Smoothing
        for Network Calibration, CVPR 2022, figure 3 of the appendix
        (confidence map and reliability diagram of an image),
        https://arxiv.org/abs/2111.15430
    """

    confidence: np.ndarray
    wrong: np.ndarray
    ignored: np.ndarray
    rank: np.ndarray
    reliability: ReliabilityDisplay
    _: dataclasses.KW_ONLY
    image: np.ndarray | None = None
    name: str | None = None

    def __post_init__(self):
        height, width = self.confidence.shape
        if self.image is not None:
            self.image = as_picture("image", self.image)
            if self.image.shape[:2] != (height, width):
                raise value_error(
                    "`image` must have the height and width of the predictions",
                    image=self.image.shape,
                    predictions=(height, width),
                )
        self._num_maps = 3 if self.image is None else 4
        # Callers' axes need no panel for counts.
        self._panels = (self._num_maps + 1, self._num_maps + 2)
        side = min(max(3.0 * height / width, 2.0), 6.0)
        self._size = 3.0 * self._num_maps + 3.6, max(side + 1.2, 4.0)

    @classmethod
    def from_predictions(
        cls,
        labels: Any,
        outputs: Any,
        image: Any = None,
        *,
        num_bins: int = 15,
        from_logits: bool = False,
        ignore_class: int | None = None,
        name: str | None = None,
    ) -> Self:
        """Makes the display from the predictions of one image.

        Args:
            labels: Class ids `(h, w)` or `(h, w, 1)`, or one-hot or soft
                labels `(h, w, num_classes)`.
            outputs: Probabilities `(h, w, num_classes)`, or `(h, w, 1)` for
                the second of two classes.
            image: `(h, w)` or `(h, w, channels)` of 1 or 3 channels, or None.
            num_bins: Number of bins of the reliability diagram.
            from_logits: Whether `outputs` are logits.
            ignore_class: Class id to leave out.
            name: Name of the model, for the title.

        Raises:
            ValueError: If shapes do not fit or no pixel is valid.
        """
        outputs = as_array(outputs, "outputs")
        if outputs.ndim != 3:
            raise value_error(
                "`outputs` must have shape (height, width, num_classes), of "
                "one image",
                **{"outputs.shape": outputs.shape},
            )
        reading: dict[str, Any] = {
            "from_logits": from_logits,
            "ignore_class": ignore_class,
        }
        read = standardize_arrays(labels, outputs, drop=False, **reading)
        confidence, log_odds = top1(read.outputs, from_logits=from_logits)
        score = log_odds if from_logits else confidence
        counted = np.ones(score.shape, "bool")
        if read.mask is not None:
            counted = read.mask
        wrong = counted & is_wrong(read.outputs, hard_labels(read.labels))
        rank = np.full(score.shape, np.nan)
        rank[counted] = 1.0 - (rankdata(score[counted]) - 0.5) / counted.sum()
        rank[~wrong] = np.nan
        shape = outputs.shape[:2]
        return cls(
            confidence.reshape(shape),
            wrong.reshape(shape),
            ~counted.reshape(shape),
            rank.reshape(shape),
            ReliabilityDisplay.from_predictions(
                labels, outputs, num_bins=num_bins, **reading
            ),
            image=image,
            name=name,
        )

    @classmethod
    def from_model(
        cls,
        model: keras.Model,
        image: Any,
        labels: Any,
        *,
        from_logits: bool | None = None,
        ignore_class: int | None = None,
        **options: Any,
    ) -> Self:
        """Makes the display from a model and one image.

        Args:
            model: A Keras model with one output
                `(batch, h, w, num_classes)`.
            image: Image as the model takes it, `(h, w, channels)`.
            labels: As for `from_predictions`.
            from_logits, ignore_class: As for `ReliabilityDisplay.from_model`.
            **options: `num_bins` and `name` of `from_predictions`.
        """
        reading = read_as(model, from_logits, ignore_class)
        image = to_numpy(image)
        batch = Predictor(model)(Examples(image[None], None, None, None))
        return cls.from_predictions(
            labels,
            batch.outputs[0],
            image,
            from_logits=reading.from_logits,
            ignore_class=reading.ignore_class,
            **options,
        )

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
        maps[0].set_title(titled(self.name, maps[0].get_title()))
        self._draw_errors(errors)
        self._draw_ranks(ranks)
        self._draw_reliability(bars)

    def _draw_reliability(self, axes: Sequence) -> None:
        display = copy.copy(self.reliability).plot(axes)
        display.ax_.set_title(
            f"ECE {display.ece:.4f}, accuracy {display.accuracy:.4f}",
            fontsize="medium",
        )
        axes[-1].set_xlabel("confidence")
        if display.counts_ax_ is not None:
            # The panel of counts is low, so it has few ticks.
            most = max(display.sums.weight.max(), 1.0)
            axes[-1].set_yticks([0.0, 10.0 ** np.floor(np.log10(most))])
            axes[-1].set_ylabel("pixels")
            axes[0].tick_params(labelbottom=False)

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

    def _draw_ranks(self, ax: Any) -> None:
        show(ax, self.ignored, _shades(_RIGHT, _IGNORED))
        # Even the palest shade is darker than both backgrounds.
        copper = matplotlib_module().colormaps["copper"]
        shades = _shades(*copper(np.linspace(0.0, 0.75, 256)))
        shown = show(ax, self.rank, shades)
        title = "wrong pixels by rank"
        if self.wrong.any():
            title += f": mean {np.nanmean(self.rank):.2f}"
        ax.set_title(title)
        _bar(ax, shown, "share of pixels that are surer")


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
