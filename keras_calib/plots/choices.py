"""What a choice rests on: candidates of a calibrator, labels for a risk."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error
from keras_calib.calibrators import CalibratorChoice
from keras_calib.plots.display import (
    BLUE,
    GREY,
    ORANGE,
    Display,
    draw_band,
    draw_rows,
    plain,
)
from keras_calib.selection import LabelTable, SampleSizePlan, SizeTable

# Beyond so many times the usual distance from the best a candidate would hide
# the differences of the others.
_FAR = 10.0


class CalibratorChoiceDisplay(Display):
    """Held-out NLL of each candidate less that of the best.

    Use it to show why `choose_calibrator` chose: the choice is the first whose
    bar of one standard error reaches 0. Candidates that were not tried, or lie
    ten times as far from the best as the others, are left out.

    Args:
        choice: What `choose_calibrator` returned.
        name: Name of the model, for the title.

    Raises:
        TypeError: If `choice` is something else.

    Example:

    >>> import keras_calib
    >>> rng = np.random.default_rng(0)
    >>> logits = 4 * rng.normal(size=(300, 3))
    >>> labels = (logits / 2 + rng.gumbel(size=(300, 3))).argmax(-1)
    >>> choice = keras_calib.choose_calibrator(labels, logits)
    >>> display = CalibratorChoiceDisplay(choice)
    >>> display.candidates[0].name
    'temperature_scaling'

    Reference:
        The rule of one standard error: Breiman et al., Classification and
        Regression Trees, 1984, section 3.4.3.
    """

    def __init__(self, choice: CalibratorChoice, *, name: str | None = None):
        if not isinstance(choice, CalibratorChoice):
            raise type_error(
                "`choice` must be what `choose_calibrator` returned",
                choice=type(choice).__name__,
            )
        self.choice, self.name = choice, name
        tried = [x for x in choice.candidates if not x.note]
        reaches = [x.behind + x.error for x in tried]
        usual = float(np.median(reaches))
        self.candidates = [
            x
            for x, reach in zip(tried, reaches, strict=True)
            if reach <= _FAR * usual or x.name == choice.name
        ]
        self._size = (6.4, 1.5 + 0.4 * len(self.candidates))

    def _draw(self, ax: Any) -> None:
        chosen = [x.name == self.choice.name for x in self.candidates]
        names = [
            plain(x.name.replace("_", " ")) + (" (chosen)" if mark else "")
            for x, mark in zip(self.candidates, chosen, strict=True)
        ]
        values = [x.behind for x in self.candidates]
        errors = [x.error for x in self.candidates]
        draw_rows(ax, values, errors, names, chosen)
        ax.set(
            xlabel="held-out NLL above the best, one standard error",
            title=self._title("Choice of a calibrator"),
        )
        ax.locator_params(axis="x", nbins=5)


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
    >>> int(PlanDisplay(found).sizes.samples[0])
    59

    Reference:
        Angelopoulos et al., Learn then Test, 2021,
        https://arxiv.org/abs/2110.01052
    """

    def __init__(self, plan: SampleSizePlan, *, name: str | None = None):
        if not isinstance(plan, SampleSizePlan):
            raise type_error(
                "`plan` must be what `plan` returned", plan=type(plan).__name__
            )
        self.plan, self.name = plan, name

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
        ax.plot(
            sizes.samples,
            sizes.coverage,
            label=self._look.label or "mean",
            **self._style(0),
        )
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
            title=self._title(
                f"Labels for a risk of {plan.risk:g}, delta {plan.delta:g}"
            ),
        )
        self._legend(ax)
