"""Display of risk-coverage curves."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.formulas.risk_coverage import RiskCoveragePoints
from keras_calib.functional.risk_coverage import aurc, risk_coverage_curve
from keras_calib.metrics.risk_coverage import HistogramMetric
from keras_calib.metrics.table import CalibrationMetrics
from keras_calib.plots.display import Display, by_model, draw_band, plain, short
from keras_calib.predictions.predictions import Predictions
from keras_calib.selection import Choice

_MARKERS = ("o", "s", "^", "D", "v")
# Coverages of means over seeds.
_GRID = np.linspace(0.0, 1.0, 501)[1:]


class RiskCoverageDisplay(Display):
    """Risk-coverage curves: error rate of the accepted against their share.

    Use it to see how much can be accepted at which risk, and to compare
    models or scores.

    Args:
        predictions: `Predictions` of a model; or an updated metric of a
            ranking, such as `AURC`, or `CalibrationMetrics`. Or a list of
            them, or a dict by the name of the model. A list in it has the
            seeds of a model. They are drawn as the mean risk at each coverage,
            with a band of one standard deviation.
        band: Whether to draw the exact binomial 95 % interval at each
            coverage, valid for one point chosen in advance. It needs equal
            weights, and of metrics a `CalibrationMetrics`. With votes it is
            that of one vote for each sample, which is wider.
        points: Operating points, `Choice` by name. A certified risk
            is drawn as a line that ends at the point.
        name: Name of the model, for the legend.

    Raises:
        TypeError: If `predictions` are something else.
        ValueError: If `band` is given for what does not allow it, or there is
            no model.

    Attributes:
        curves: `RiskCoveragePoints` of each model, by its name.
        values: AURC of each model, by its name.

    Example:

    >>> import keras_calib
    >>> p = keras_calib.Predictions([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> display = RiskCoverageDisplay({"net": p})
    >>> round(display.values["net"], 4)
    0.25

    Reference:
        El-Yaniv and Wiener, On the Foundations of Noise-free Selective
        Classification, JMLR 2010,
        https://www.jmlr.org/papers/v11/el-yaniv10a.html
    """

    _measure = "aurc"

    def __init__(
        self,
        predictions: Any,
        *,
        band: bool = False,
        points: dict[str, Choice] | None = None,
        name: str | None = None,
    ):
        self.name, self.points = name, points or {}
        self.curves: dict[str, RiskCoveragePoints] = {}
        self.values: dict[str, float] = {}
        # Numbers of samples of models with a band.
        self.counts: dict[str, int] = {}
        # Standard deviations over seeds, of models with several.
        self._spreads: dict[str, np.ndarray] = {}
        for key, given in by_model(predictions, name or "model").items():
            model = str(key)
            if not isinstance(given, list | tuple):
                self.curves[model], self.values[model] = _curve_of(given)
                if band:
                    self.counts[model] = _count(given)
                continue
            curves, values = zip(*map(_curve_of, given), strict=True)
            self.values[model] = float(np.mean(values))
            risks = [np.interp(_GRID, x.coverage, x.risk) for x in curves]
            mean, spread = np.mean(risks, axis=0), np.full(len(_GRID), np.nan)
            self.curves[model] = RiskCoveragePoints(_GRID, mean, spread)
            if len(risks) > 1:
                self._spreads[model] = np.std(risks, axis=0, ddof=1)

    @property
    def bands(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Lower and upper ends of the risk, by the name of the model."""
        bands = {}
        for name, spread in self._spreads.items():
            mean = self.curves[name].risk
            bands[name] = np.maximum(mean - spread, 0.0), mean + spread
        for name, count in self.counts.items():
            curve = self.curves[name]
            accepted = curve.coverage * count
            wrong = np.minimum(curve.risk * accepted, accepted)
            bands[name] = clopper_pearson(wrong, accepted)
        return bands

    def _draw(self, ax: Any) -> None:
        highest, bands = 0.0, self.bands
        for i, (name, curve) in enumerate(self.curves.items()):
            value = f"AURC {short(self.values[name])}"
            style, shown = self._style(i), plain(name)
            if self._look.label is not None and len(self.curves) == 1:
                shown = plain(self._look.label)
            label = f"{shown} ({value})"
            ax.plot(curve.coverage, curve.risk, label=label, **style)
            # The risk of the first few samples swings between 0 and 1.
            settled = curve.coverage >= min(0.05, curve.coverage[-1])
            highest = max(highest, float(curve.risk[settled].max()))
            if name in bands:
                low, high = bands[name]
                label = "standard deviation of seeds"
                label = "95 % interval" if name in self.counts else label
                label = None if i else label
                color = style["color"]
                draw_band(ax, curve.coverage, low, high, color, label)
                highest = max(highest, float(high[-1]))
        for i, (name, point) in enumerate(self.points.items()):
            _mark(ax, name, point, _MARKERS[i % len(_MARKERS)])
            highest = max(highest, point.risk, point.risk_limit or 0.0)
        ax.set(
            xlim=(0, 1),
            ylim=(0, max(1.1 * highest, 1e-3)),
            xlabel="coverage (share of samples accepted)",
            ylabel="risk (error rate of the accepted)",
            title=self._title("Risk against coverage", named=False),
        )
        self._legend(ax)


def _curve_of(given: Any) -> tuple[RiskCoveragePoints, float]:
    """The curve of a model and its AURC."""
    if isinstance(given, Predictions):
        return risk_coverage_curve(given, None), aurc(given, None)
    if isinstance(given, HistogramMetric | CalibrationMetrics):
        return given.curve(), given.aurc()
    raise type_error(
        "`predictions` must be `Predictions`, or an updated `AURC`, another "
        "metric of a ranking or `CalibrationMetrics`; or a dict of them",
        predictions=type(given).__name__,
    )


def _mark(ax: Any, name: str, point: Choice, marker: str) -> None:
    label = f"{plain(name)}: coverage {point.coverage:.3f}, "
    if point.confidence is not None:
        label += f"confidence from {point.confidence:.4g}, "
    label += f"risk {point.risk:.4f}"
    style = {"color": "black", "linewidth": 1}
    if (limit := point.risk_limit) is not None:
        label += f", certified {limit:.4g}"
        ax.plot([0.0, point.coverage], [limit] * 2, linestyle=":", **style)
    ax.plot(
        point.coverage,
        point.risk,
        marker=marker,
        linestyle="none",
        label=label,
        **style,
    )


def _count(given: Any) -> int:
    """Number of samples of equal weight."""
    if isinstance(given, Predictions):
        found = given.outcomes()
        if found.weight is None or (found.weight == 1.0).all():
            return len(found.score)
    elif isinstance(given, CalibrationMetrics):
        sums = given.bins()
        count = sums.weight.sum()
        if count == sums.squared_weight.sum():
            return int(count)
    raise value_error(
        "`band` must be False unless all samples have weight 1, in "
        "`Predictions` or a `CalibrationMetrics`: its interval counts them",
        band=True,
        predictions=type(given).__name__,
    )
