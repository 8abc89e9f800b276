"""Risk against coverage."""

from typing import Any

from keras_calib.checks import invalid
from keras_calib.metrics.histogram_metric import HistogramMetric
from keras_calib.metrics.table import CalibrationMetrics
from keras_calib.plots.figures import COLORS
from keras_calib.plots.figures import DASHES
from keras_calib.plots.figures import Display
from keras_calib.risk_coverage import RiskCoverageCurve
from keras_calib.risk_coverage import aurc
from keras_calib.risk_coverage import risk_coverage_curve

__all__ = ["RiskCoverageDisplay"]


class RiskCoverageDisplay(Display):
    """Risk-coverage curves: error among the accepted as more are accepted.

    Args:
        curves: Name of each model to its curve.
        values: Name of each model to its AURC.

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
        self, curves: dict[str, RiskCoverageCurve], values: dict[str, float]
    ):
        self.curves = curves
        self.values = values

    @classmethod
    def from_predictions(
        cls,
        labels: Any,
        probs: Any,
        *,
        from_logits: bool = False,
        sample_weight: Any = None,
        ignore_class: int | None = None,
    ) -> "RiskCoverageDisplay":
        """From a whole data set; arguments as in `aurc`.

        Args:
            labels: Class ids `(n, ...)` or one-hot or soft labels.
            probs: Probabilities `(n, ..., num_classes)`, or a dict of them
                by the name of the model.
            from_logits: Whether `probs` are logits.
            sample_weight: As in `aurc`.
            ignore_class: Class id that does not count.
        """
        models = probs if isinstance(probs, dict) else {"model": probs}
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
        return cls(curves, values)

    @classmethod
    def from_metric(cls, metrics: Any) -> "RiskCoverageDisplay":
        """From selection metrics that have seen data.

        Args:
            metrics: A metric of a ranking, such as `AURC`, or
                `CalibrationMetrics`; or a dict of them by the name of the
                model.
        """
        if not isinstance(metrics, dict):
            metrics = {"model": metrics}
        for metric in metrics.values():
            if not isinstance(metric, HistogramMetric | CalibrationMetrics):
                raise TypeError(
                    invalid(
                        "`metrics` must be `AURC`, another metric of a "
                        "ranking, or `CalibrationMetrics`",
                        metric=type(metric).__name__,
                    )
                )
        return cls(
            {name: metric.curve() for name, metric in metrics.items()},
            {name: metric.aurc() for name, metric in metrics.items()},
        )

    def _draw(self, ax: Any) -> None:
        highest = 0.0
        for i, (name, curve) in enumerate(self.curves.items()):
            ax.plot(
                curve.coverage,
                curve.risk,
                color=COLORS[i % len(COLORS)],
                linestyle=DASHES[i % len(DASHES)],
                linewidth=1.5,
                label=f"{name} (AURC {1000 * self.values[name]:.2f}e-3)",
            )
            # The first few samples swing between 0 and 1.
            settled = curve.risk[
                curve.coverage >= min(0.05, curve.coverage[-1])
            ]
            highest = max(highest, float(settled.max()))
        ax.set(
            xlim=(0, 1),
            ylim=(0, max(1.1 * highest, 1e-3)),
            xlabel="coverage (share of samples accepted)",
            ylabel="risk (error rate of the accepted)",
            title="Risk against coverage",
        )
        ax.legend(loc="upper left", frameon=False, fontsize="small")
