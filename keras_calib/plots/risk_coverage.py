"""Display of risk-coverage curves."""

import dataclasses
import functools
from typing import Any, Self

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.formulas.risk_coverage import RiskCoveragePoints
from keras_calib.functional.risk_coverage import aurc, risk_coverage_curve
from keras_calib.inputs.top_label import top_label
from keras_calib.metrics.risk_coverage import HistogramMetric
from keras_calib.metrics.table import CalibrationMetrics
from keras_calib.plots.display import (
    ModelDisplay,
    draw_band,
    legend,
    line_style,
    plain,
    streamed,
)
from keras_calib.predictions.batches import check_reread
from keras_calib.selection import Choice

__all__ = ["RiskCoverageDisplay"]

_MARKERS = ("o", "s", "^", "D", "v")
# Letters of a line of the legend.
_LINE = 48


@dataclasses.dataclass(eq=False, repr=False)
class RiskCoverageDisplay(ModelDisplay):
    """Risk-coverage curves: error rate of the accepted against their share.

    Use it to see how much can be accepted at which risk, and to compare
    models or scores.

    Args:
        curves: Curve of each model, by its name.
        values: AURC of each model, by its name.
        counts: Number of samples of each model with a band, by its name. The
            band is the exact binomial 95 % interval at each coverage, valid
            for one point chosen in advance, and needs equal weights. With
            votes it is that of one vote for each sample, which is wider.
        points: Operating points, `Choice` by name. A certified risk
            is drawn as a line that ends at the point.

    Example:

    >>> display = RiskCoverageDisplay.from_predictions(
    ...     [0, 1], {"net": [[0.8, 0.2], [0.6, 0.4]]})
    >>> round(display.values["net"], 4)
    0.25

    Reference:
        El-Yaniv and Wiener, On the Foundations of Noise-free Selective
        Classification, JMLR 2010,
        https://www.jmlr.org/papers/v11/el-yaniv10a.html
    """

    curves: dict[str, RiskCoveragePoints]
    values: dict[str, float]
    _: dataclasses.KW_ONLY
    counts: dict[str, int] | None = None
    points: dict[str, Choice] | None = None

    def __post_init__(self):
        self.counts, self.points = self.counts or {}, self.points or {}

    @property
    def bands(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Lower and upper ends of the risk, by the names in `counts`."""
        bands = {}
        for name, count in (self.counts or {}).items():
            curve = self.curves[name]
            accepted = curve.coverage * count
            wrong = np.minimum(curve.risk * accepted, accepted)
            bands[name] = clopper_pearson(wrong, accepted)
        return bands

    @classmethod
    def from_predictions(
        cls,
        labels: Any,
        probs: Any,
        *,
        band: bool = False,
        points: dict[str, Choice] | None = None,
        **options: Any,
    ) -> Self:
        """Makes the display from a whole data set.

        Args:
            labels: Class ids `(n, ...)` or one-hot or soft labels.
            probs: Probabilities `(n, ..., num_classes)`, or a dict of them
                by the name of the model.
            band: Whether to draw bands, which exclude `sample_weight`.
            points: Operating points, `Choice` by name.
            **options: `from_logits`, `sample_weight`, `ignore_class` and
                `votes`, as in `aurc`.

        Raises:
            ValueError: If `band` is given with weights, or there is no
                model.
        """
        if band and options.get("sample_weight") is not None:
            raise value_error(
                "`band` must be False with `sample_weight`: its interval "
                "counts samples",
                band=band,
            )
        if not (models := _by_name(probs)):
            raise value_error(
                "`probs` must hold a model's predictions", probs=probs
            )
        curves, values, counts = {}, {}, {}
        for name, outputs in models.items():
            curves[name] = risk_coverage_curve(labels, outputs, **options)
            values[name] = aurc(labels, outputs, **options)
            if band:
                found = top_label(labels, outputs, **options)
                counts[name] = len(found.correct)
        return cls(curves, values, counts=counts, points=points)

    @classmethod
    def from_model(  # type: ignore[override]  # several models
        cls, models: Any, data: Any, **options: Any
    ) -> Self:
        """Makes the display from models and a data set, in fixed memory.

        Args:
            models: A Keras model, or a dict of them by name.
            data: Arrays `(x, y)` or `(x, y, sample_weight)`, or a data set of
                such batches, read once for each model.
            **options: Options of `ReliabilityDisplay.from_model`, `votes`
                and those of `from_metric`.
        """
        return super().from_model(models, data, **options)

    @classmethod
    def _of_model(cls, models, source, reading, votes=False, **options):
        models = _by_name(models)
        if len(models) > 1:
            check_reread("data", source[0])
        make = functools.partial(CalibrationMetrics, ["aurc"])
        metrics = {
            name: streamed(make, model, source, reading, votes=votes)
            for name, model in models.items()
        }
        return cls.from_metric(metrics, **options)

    @classmethod
    def from_metric(
        cls,
        metrics: Any,
        *,
        band: bool = False,
        points: dict[str, Choice] | None = None,
    ) -> Self:
        """Makes the display from updated selection metrics.

        Args:
            metrics: A metric of a ranking, such as `AURC`, or
                `CalibrationMetrics`; or a dict of them by the name of the
                model.
            band: Whether to draw bands, for `CalibrationMetrics` with equal
                weights only.
            points: Operating points, `Choice` by name.

        Raises:
            TypeError: If a metric is another one.
            ValueError: If `band` is given for a metric that does not allow
                it.
        """
        curves, values, counts = {}, {}, {}
        for name, metric in _by_name(metrics).items():
            if not isinstance(metric, HistogramMetric | CalibrationMetrics):
                raise type_error(
                    "`metrics` must be `AURC`, another metric of a "
                    "ranking, or `CalibrationMetrics`",
                    metric=type(metric).__name__,
                )
            curves[name], values[name] = metric.curve(), metric.aurc()
            if band:
                counts[name] = _count(metric)
        return cls(curves, values, counts=counts, points=points)

    def _draw(self, ax: Any) -> None:
        highest, bands = 0.0, self.bands
        for i, (name, curve) in enumerate(self.curves.items()):
            value = f"AURC {1000 * self.values[name]:.2f}e-3"
            label, style = f"{plain(name)} ({value})", line_style(i)
            if len(label) > _LINE:
                label = f"{plain(name)}\n({value})"
            ax.plot(curve.coverage, curve.risk, label=label, **style)
            # The risk of the first few samples swings between 0 and 1.
            settled = curve.coverage >= min(0.05, curve.coverage[-1])
            highest = max(highest, float(curve.risk[settled].max()))
            if name in bands:
                low, high = bands[name]
                label = "95 % interval" if i == 0 else None
                color = style["color"]
                draw_band(ax, curve.coverage, low, high, color, label)
                highest = max(highest, float(high[-1]))
        for i, (name, point) in enumerate((self.points or {}).items()):
            _mark(ax, name, point, _MARKERS[i % len(_MARKERS)])
            highest = max(highest, point.risk, point.risk_limit or 0.0)
        ax.set(
            xlim=(0, 1),
            ylim=(0, max(1.1 * highest, 1e-3)),
            xlabel="coverage (share of samples accepted)",
            ylabel="risk (error rate of the accepted)",
            title="Risk against coverage",
        )
        legend(ax, loc="upper left")


def _by_name(given: Any) -> dict:
    return given if isinstance(given, dict) else {"model": given}


def _mark(ax: Any, name: str, point: Choice, marker: str) -> None:
    label = f"{plain(name)}: coverage {point.coverage:.3f},\n"
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


def _count(metric: Any) -> int:
    if isinstance(metric, CalibrationMetrics):
        sums = metric.bins()
        count = sums.weight.sum()
        if count == sums.squared_weight.sum():
            return int(count)
    raise value_error(
        "`band` must be False unless the metric is a `CalibrationMetrics` "
        "whose samples all have weight 1",
        metric=type(metric).__name__,
    )
