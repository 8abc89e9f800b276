"""Display of the cumulative differences of confidence and correctness."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error
from keras_calib.formulas.cumulative import (
    BAND,
    CumulativeCurve,
    cumulative_error,
)
from keras_calib.functional.calibration_errors import cumulative_differences
from keras_calib.metrics.calibration_errors import ECCE
from keras_calib.metrics.table import CalibrationMetrics
from keras_calib.plots.display import (
    GREY,
    ModelsDisplay,
    draw_band,
    plain,
    short,
)
from keras_calib.predictions.predictions import Predictions


class CumulativeDisplay(ModelsDisplay):
    """Cumulative differences: confidence less correctness, without bins.

    Use it to see at which confidences a model is over- or underconfident, and
    whether chance explains it.

    The curve is C_k = (1/n) sum over the k least confident of (confidence_i -
    correct_i), against k / n. It rises where the model is overconfident and
    falls where it is underconfident; the slope over a stretch is the gap there.
    The band holds the whole curve of calibrated predictions with a probability
    of 95 %, or more if confidences tie. It ends at +-2.2414 standard deviations
    of C_n. With votes it is that of one vote for each sample, which is wider.

    Args:
        predictions: `Predictions` of a model; or an updated `ECCE` or
            `CalibrationMetrics`, or a result of `cumulative_differences`. Or a
            list of them, or a dict by the name of the model. The band is that
            of the first.
        mode: `"top_label"` for the predicted class, `"binary"` for the
            probability of the second of two. A metric has its own.
        name: Name of the model, for the title.

    Raises:
        TypeError: If `predictions` are something else.

    Attributes:
        models, values: Differences and ECCE-R of each model, by its name.
        differences: Those of the model, if there is one alone.
        ecce_range: Its ECCE-R, the height of the curve, 0 included.
        ecce_maximum: ECCE-MAD, the largest distance of the curve from 0.
        band: Upper end of the band; the lower one is its negative.

    Example:

    >>> import keras_calib
    >>> p = keras_calib.Predictions([1, 0], [[0.8, 0.2], [0.6, 0.4]])
    >>> display = CumulativeDisplay(p)
    >>> round(display.ecce_range, 4), round(display.ecce_maximum, 4)
    (0.4, 0.2)

    Reference:
        Arrieta-Ibarra, Gujral, Tannen, Tygert and Xu, Metrics of Calibration
        for Probabilistic Predictions, JMLR 2022,
        https://jmlr.org/papers/v23/22-0658.html

    Differs:
        The paper plots correctness less confidence, and a triangle of two
        standard deviations at the origin in place of the band.
    """

    _measure = "ecce_range"

    def __init__(
        self,
        predictions: Any,
        *,
        mode: str = "top_label",
        name: str | None = None,
    ):
        super().__init__(predictions, mode, name)
        first, *others = self.models.values()
        self.values = {k: _error(x, "range") for k, x in self.models.items()}
        self.band = BAND * float(first.deviation)
        if not others:
            self.differences = first
            (self.ecce_range,) = self.values.values()
            self.ecce_maximum = _error(first, "maximum")

    def _read(self, given: Any, mode: str) -> CumulativeCurve:
        if isinstance(given, CumulativeCurve):
            return given
        if isinstance(given, Predictions):
            return cumulative_differences(given, None, mode=mode)
        if isinstance(given, ECCE | CalibrationMetrics):
            return given.differences()
        raise type_error(
            "`predictions` must be `Predictions`, or an updated `ECCE` or "
            "`CalibrationMetrics`; or a dict of them",
            predictions=type(given).__name__,
        )

    def _draw(self, ax: Any) -> None:
        band, several = self.band, len(self.models) > 1
        whose = f"{plain([*self.models][0])} is " if several else ""
        label = f"95 % if {whose}calibrated"
        draw_band(ax, [0, 1], [-band] * 2, [band] * 2, GREY, label)
        ax.axhline(0.0, color=GREY, linewidth=1, linestyle="--")
        told = "confidence less correctness"
        if self.mode == "binary":
            told = "probability less outcome"
        for i, (name, found) in enumerate(self.models.items()):
            label = self._look.label or told
            if several:
                label = f"{plain(name)} (ECCE-R {short(self.values[name])})"
            ax.plot(
                np.r_[0.0, found.share],
                np.r_[0.0, found.difference],
                label=label,
                **self._style(i),
            )
        title = told
        if not several:
            title = f"ECCE-R {short(self.ecce_range)}, "
            title += f"ECCE-MAD {short(self.ecce_maximum)}"
        ax.set(
            xlim=(0, 1),
            xlabel="share of samples, "
            + ("lowest" if self.mode == "binary" else "least confident")
            + " first",
            ylabel="cumulative difference",
            title=self._title(title),
        )
        # Two numbers are wider than a small picture.
        ax.title.set_fontsize("medium")
        self._legend(ax)


def _error(found: CumulativeCurve, kind: str) -> float:
    if not len(found.difference):
        return 0.0
    return float(cumulative_error(found.difference, kind))
