"""What a number of labels would certify."""

import dataclasses
from typing import Any, Self

import numpy as np

from keras_calib.backend.errors import type_error
from keras_calib.plots.display import (
    BLUE,
    GREY,
    ORANGE,
    Display,
    draw_band,
    legend,
    titled,
)
from keras_calib.selection import LabelTable, Plan, SizeTable

__all__ = ["PlanDisplay"]


@dataclasses.dataclass(eq=False, repr=False)
class PlanDisplay(Display):
    """Coverage that each number of labels certifies, and with what power.

    Use it to decide how many labels are worth their price: the curve shows
    the coverage to expect, the points what each coverage takes.

    Args:
        plan: What `plan` returned.
        name: Name of the model, for the title.

    Raises:
        TypeError: If `plan` is something else.

    Example:

    >>> import keras_calib
    >>> found = keras_calib.plan(risk=0.05, accuracy=0.95, max_samples=1000)
    >>> int(PlanDisplay.from_plan(found).sizes.samples[0])
    59

    Reference:
        Angelopoulos et al., Learn then Test, 2021,
        https://arxiv.org/abs/2110.01052
    """

    plan: Plan
    _: dataclasses.KW_ONLY
    name: str | None = None

    def __post_init__(self):
        if not isinstance(self.plan, Plan):
            raise type_error(
                "`plan` must be what `plan` returned",
                plan=type(self.plan).__name__,
            )

    @classmethod
    def from_plan(cls, plan: Plan, *, name: str | None = None) -> Self:
        """Makes the display of a plan.

        Args:
            plan: What `plan` returned.
            name: Name of the model, for the title.
        """
        return cls(plan, name=name)

    @property
    def sizes(self) -> SizeTable:
        """Coverage and power by number of labels."""
        return self.plan.by_samples

    @property
    def labels(self) -> LabelTable:
        """Labels by coverage."""
        return self.plan.by_coverage

    def _draw(self, ax: Any) -> None:
        plan, sizes, labels = self.plan, self.sizes, self.labels
        last = float(sizes.samples[-1])
        draw_band(
            ax, sizes.samples, sizes.low, sizes.high, BLUE, "80 % of fits"
        )
        ax.plot(sizes.samples, sizes.coverage, color=BLUE, label="mean")
        ax.plot(
            sizes.samples,
            sizes.power,
            color=GREY,
            linestyle="--",
            label="P(any threshold)",
        )
        ax.axhline(
            plan.best_coverage,
            color="black",
            linestyle=":",
            linewidth=1,
            label="risk reaches the limit",
        )
        known = np.isfinite(labels.samples)
        x, y = labels.samples[known], labels.coverage[known]
        low, high = labels.low[known], np.minimum(labels.high[known], last)
        ax.errorbar(
            x,
            y,
            xerr=[np.maximum(x - low, 0.0), np.maximum(high - x, 0.0)],
            fmt="o",
            color=ORANGE,
            capsize=3,
            label=f"at least, with probability {plan.power:g}",
        )
        ax.set(
            xscale="log",
            xlim=(sizes.samples[0], last),
            ylim=(0, 1.02),
            xlabel="labelled samples",
            ylabel="certified coverage",
            title=titled(
                self.name,
                f"Labels for a risk of {plan.risk:g}, delta {plan.delta:g}",
            ),
        )
        legend(ax, loc="lower right")
