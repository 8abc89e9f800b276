"""The candidates of a choice of a calibrator."""

import dataclasses
from typing import Any, Self

import numpy as np

from keras_calib.backend.errors import type_error
from keras_calib.calibrators import CalibratorChoice
from keras_calib.plots.display import BLUE, GREY, ORANGE, Display, plain, titled

__all__ = ["CalibratorChoiceDisplay"]

# Beyond so many times the usual distance from the best a candidate would hide
# the differences of the others.
_FAR = 10.0


@dataclasses.dataclass(eq=False, repr=False)
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
    >>> display = CalibratorChoiceDisplay.from_choice(choice)
    >>> display.candidates[0].name
    'temperature_scaling'

    Reference:
        The rule of one standard error: Breiman et al., Classification and
        Regression Trees, 1984, section 3.4.3.
    """

    choice: CalibratorChoice
    _: dataclasses.KW_ONLY
    name: str | None = None

    def __post_init__(self):
        if not isinstance(self.choice, CalibratorChoice):
            raise type_error(
                "`choice` must be what `choose_calibrator` returned",
                choice=type(self.choice).__name__,
            )
        tried = [x for x in self.choice.candidates if not x.note]
        reaches = [x.behind + x.error for x in tried]
        usual = float(np.median(reaches))
        self.candidates = [
            x
            for x, reach in zip(tried, reaches, strict=True)
            if reach <= _FAR * usual or x.name == self.choice.name
        ]
        self._size = (6.4, 1.5 + 0.4 * len(self.candidates))

    @classmethod
    def from_choice(
        cls, choice: CalibratorChoice, *, name: str | None = None
    ) -> Self:
        """Makes the display of a choice.

        Args:
            choice: What `choose_calibrator` returned.
            name: Name of the model, for the title.
        """
        return cls(choice, name=name)

    def _draw(self, ax: Any) -> None:
        ax.axvline(0.0, color=GREY, linestyle="--")
        for place, x in enumerate(self.candidates):
            chosen = x.name == self.choice.name
            ax.errorbar(
                x.behind,
                place,
                xerr=x.error,
                fmt="D" if chosen else "o",
                color=ORANGE if chosen else BLUE,
                capsize=3,
            )
        names = [
            plain(x.name.replace("_", " "))
            + (" (chosen)" if x.name == self.choice.name else "")
            for x in self.candidates
        ]
        ax.set(
            yticks=range(len(names)),
            yticklabels=names,
            ylim=(len(names) - 0.5, -0.5),
            xlabel="held-out NLL above the best, one standard error",
            title=titled(self.name, "Choice of a calibrator"),
        )
        ax.locator_params(axis="x", nbins=5)
