"""Risk against coverage."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error
from keras_calib.backend.errors import value_error
from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.formulas.risk_coverage import RiskCoverageCurve
from keras_calib.functional.risk_coverage import aurc
from keras_calib.functional.risk_coverage import risk_coverage_curve
from keras_calib.inputs.top_label import top_label
from keras_calib.metrics.risk_coverage import HistogramMetric
from keras_calib.metrics.table import CalibrationMetrics
from keras_calib.plots.display import Display
from keras_calib.plots.display import line_style
from keras_calib.plots.texts import plain
from keras_calib.predictions.batches import check_reread
from keras_calib.predictions.collect import seen
from keras_calib.predictions.outputs import read_as
from keras_calib.selection import ChosenThreshold

__all__ = ["RiskCoverageDisplay"]

_MARKERS = ("o", "s", "^", "D", "v")


class RiskCoverageDisplay(Display):
    """Risk-coverage curves: error among the accepted as more are accepted.

    Args:
        curves: Name of each model to its curve.
        values: Name of each model to its AURC.
        counts: Name of each model to the number of its samples, for those
            whose risk gets a band: the exact binomial 95 % interval at each
            coverage, of which one point may be picked in advance. Equal
            weights only.
        points: Names of operating points to their `ChosenThreshold`. A risk
            that is certified is a line that ends at the point.

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

    def __init__(
        self,
        curves: dict[str, RiskCoverageCurve],
        values: dict[str, float],
        *,
        counts: dict[str, int] | None = None,
        points: dict[str, ChosenThreshold] | None = None,
    ):
        self.curves = curves
        self.values = values
        self.counts = counts or {}
        self.points = points or {}

    @property
    def bands(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Lower and upper ends of the risk, by the names in `counts`."""
        return {
            name: _band(self.curves[name], count)
            for name, count in self.counts.items()
        }

    @classmethod
    def from_predictions(
        cls,
        labels: Any,
        probs: Any,
        *,
        from_logits: bool = False,
        sample_weight: Any = None,
        ignore_class: int | None = None,
        band: bool = False,
        points: dict[str, ChosenThreshold] | None = None,
    ) -> "RiskCoverageDisplay":
        """From a whole data set; arguments as in `aurc`.

        Args:
            labels: Class ids `(n, ...)` or one-hot or soft labels.
            probs: Probabilities `(n, ..., num_classes)`, or a dict of them
                by the name of the model.
            from_logits: Whether `probs` are logits.
            sample_weight: As in `aurc`.
            ignore_class: Class id that does not count.
            band: Whether curves get a band; without `sample_weight` only.
            points: As in the class.

        Raises:
            ValueError: If a band is asked for with weights, or there is no
                model.
        """
        if band and sample_weight is not None:
            raise value_error(
                "`band` must be False with `sample_weight`: the interval "
                "is of a number of samples",
                band=band,
            )
        models = probs if isinstance(probs, dict) else {"model": probs}
        if not models:
            raise value_error(
                "`probs` must hold a model's predictions", probs=probs
            )
        options = {
            "from_logits": from_logits,
            "sample_weight": sample_weight,
            "ignore_class": ignore_class,
        }
        curves = {
            name: risk_coverage_curve(labels, outputs, **options)
            for name, outputs in models.items()
        }
        values = {
            name: aurc(labels, outputs, **options)
            for name, outputs in models.items()
        }
        counts = {}
        if band:
            counts = {
                name: len(top_label(labels, outputs, **options).correct)
                for name, outputs in models.items()
            }
        return cls(curves, values, counts=counts, points=points)

    @classmethod
    def from_model(
        cls,
        models: Any,
        data: Any,
        *,
        from_logits: bool | None = None,
        ignore_class: int | None = None,
        output: str | int | None = None,
        batch_size: int = 32,
        steps: int | None = None,
        band: bool = False,
        points: dict[str, ChosenThreshold] | None = None,
    ) -> "RiskCoverageDisplay":
        """From what models predict, in fixed memory.

        Args:
            models: A Keras model, or a dict of them by name.
            data: As in `Calibrator.fit_on`; read once for each model.
            from_logits: As in `ReliabilityDisplay.from_model`.
            ignore_class: As in `ReliabilityDisplay.from_model`.
            output: As in `ReliabilityDisplay.from_model`.
            batch_size: As in `ReliabilityDisplay.from_model`.
            steps: As in `ReliabilityDisplay.from_model`.
            band: As in `from_metric`.
            points: As in the class.
        """
        models = models if isinstance(models, dict) else {"model": models}
        if len(models) > 1:
            check_reread("data", data)
        metrics = {}
        for name, model in models.items():
            reading = read_as(model, from_logits, ignore_class, output)
            metric = CalibrationMetrics(
                ["aurc"],
                from_logits=reading.from_logits,
                ignore_class=reading.ignore_class,
            )
            metrics[name] = seen(
                metric, model, data, batch_size, steps, reading.output
            )
        return cls.from_metric(metrics, band=band, points=points)

    @classmethod
    def from_metric(
        cls,
        metrics: Any,
        *,
        band: bool = False,
        points: dict[str, ChosenThreshold] | None = None,
    ) -> "RiskCoverageDisplay":
        """From selection metrics that have seen data.

        Args:
            metrics: A metric of a ranking, such as `AURC`, or
                `CalibrationMetrics`; or a dict of them by the name of the
                model.
            band: Whether curves get a band; of `CalibrationMetrics` with
                equal weights only.
            points: As in the class.

        Raises:
            TypeError: If a metric is another one.
            ValueError: If a band is asked for that cannot be had.
        """
        if not isinstance(metrics, dict):
            metrics = {"model": metrics}
        for metric in metrics.values():
            if not isinstance(metric, HistogramMetric | CalibrationMetrics):
                raise type_error(
                    "`metrics` must be `AURC`, another metric of a "
                    "ranking, or `CalibrationMetrics`",
                    metric=type(metric).__name__,
                )
        counts = {}
        if band:
            counts = {name: _count(metric) for name, metric in metrics.items()}
        return cls(
            {name: metric.curve() for name, metric in metrics.items()},
            {name: metric.aurc() for name, metric in metrics.items()},
            counts=counts,
            points=points,
        )

    def _draw(self, ax: Any) -> None:
        highest, bands = 0.0, self.bands
        for i, (name, curve) in enumerate(self.curves.items()):
            value = f"AURC {1000 * self.values[name]:.2f}e-3"
            label, style = f"{plain(name)} ({value})", line_style(i)
            ax.plot(curve.coverage, curve.risk, label=label, **style)
            # The first few samples swing between 0 and 1.
            settled = curve.coverage >= min(0.05, curve.coverage[-1])
            highest = max(highest, float(curve.risk[settled].max()))
            if name in bands:
                low, high = bands[name]
                ax.fill_between(
                    curve.coverage,
                    low,
                    high,
                    color=style["color"],
                    alpha=0.2,
                    linewidth=0,
                    label="95 % interval" if i == 0 else None,
                )
                highest = max(highest, float(high[-1]))
        for i, (name, point) in enumerate(self.points.items()):
            self._mark(ax, name, point, _MARKERS[i % len(_MARKERS)])
            limit = point.certified_risk or 0.0
            highest = max(highest, point.risk, limit)
        ax.set(
            xlim=(0, 1),
            ylim=(0, max(1.1 * highest, 1e-3)),
            xlabel="coverage (share of samples accepted)",
            ylabel="risk (error rate of the accepted)",
            title="Risk against coverage",
        )
        ax.legend(loc="upper left", framealpha=0.9, fontsize="small")

    def _mark(
        self, ax: Any, name: str, point: ChosenThreshold, marker: str
    ) -> None:
        label = f"{plain(name)}: coverage {point.coverage:.3f}"
        if point.confidence is not None:
            label += f" from confidence {point.confidence:.4g}"
        label += f", risk {point.risk:.4f}"
        if point.certified_risk is not None:
            label += f", certified {point.certified_risk:.4g}"
            ax.plot(
                [0.0, point.coverage],
                [point.certified_risk] * 2,
                color="black",
                linestyle=":",
                linewidth=1,
            )
        ax.plot(
            point.coverage,
            point.risk,
            color="black",
            marker=marker,
            linestyle="none",
            label=label,
        )


def _count(metric: Any) -> int:
    if isinstance(metric, CalibrationMetrics):
        sums = metric.bins()
        count = sums.weight.sum()
        if count == sums.squared_weight.sum():
            return int(count)
    raise value_error(
        "`band` needs `CalibrationMetrics` that saw samples of weight 1",
        metric=type(metric).__name__,
    )


def _band(
    curve: RiskCoverageCurve, count: int
) -> tuple[np.ndarray, np.ndarray]:
    accepted = curve.coverage * count
    return clopper_pearson(
        np.minimum(curve.risk * accepted, accepted), accepted
    )
