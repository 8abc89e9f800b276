"""The base of layers that compare a score with a fitted threshold."""

import math
from typing import Any

from keras import ops

from keras_calib.backend.errors import invalid
from keras_calib.calibrators.fitted_layer import FittedLayer
from keras_calib.inputs.checks import check_number
from keras_calib.selection.candidates import Candidates
from keras_calib.selection.thresholds import ChosenThreshold
from keras_calib.selection.thresholds import Target
from keras_calib.selection.thresholds import ThresholdTable
from keras_calib.selection.thresholds import choose
from keras_calib.selection.thresholds import table_of
from keras_calib.selection.tuning import check_same_fits
from keras_calib.selection.tuning import fits_of

__all__ = ["ThresholdLayer"]


class ThresholdLayer(FittedLayer):
    """Abstract: a layer with a threshold, and the facts of its choice."""

    # Candidate thresholds of the last fit, which are certified, delta, and the
    # largest cost of an answer; None for errors.
    _table: tuple[Candidates, Any, float | None, float | None] | None = None

    def parts(self) -> list[Any]:
        """Layers and functions for whose scores the threshold is."""
        raise NotImplementedError

    def set_threshold(
        self, threshold: float | None, chosen: ChosenThreshold | None
    ) -> None:
        """Makes the variable; the constructor calls it last.

        Args:
            threshold: The threshold, or None to wait for a fit.
            chosen: Facts about it, or None.
        """
        self._threshold = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="threshold"
        )
        self._fitted = threshold is not None
        self._chosen = chosen
        # Fits of the parts when the threshold was chosen.
        self._fits: list[int] | None = None
        if chosen:
            self._note_fits()
        if threshold is not None:
            if threshold not in (float("inf"), -float("inf")):
                check_number("threshold", threshold)
            self._threshold.assign(threshold)

    @property
    def threshold(self) -> float:
        """The least score that is accepted."""
        self.check_fitted()
        return float(ops.convert_to_numpy(self._threshold))

    @property
    def chosen(self) -> ChosenThreshold | None:
        """Coverage, risk and guarantee found by `fit`; None without a fit."""
        return self._chosen

    def check_fitted(self) -> None:
        """Raises RuntimeError before `fit`, and if a part was fitted later."""
        super().check_fitted()
        if self._fits is not None:
            check_same_fits(self.parts(), self._fits)

    def table(self) -> ThresholdTable:
        """Coverage and risk of each threshold, on the data of the last fit."""
        if self._table is None:
            raise RuntimeError(
                invalid(
                    "`table` needs the data of a `fit`, which loaded layers "
                    "do not keep",
                    fitted=self.fitted,
                )
            )
        return table_of(*self._table)

    def take(self, found: Candidates, target: Target, log_odds: bool) -> None:
        """Takes the best threshold; raises ValueError if none is within reach.

        `log_odds` is True if scores are log-odds of the confidence.
        """
        chosen, certified = choose(found, target, log_odds)
        self.keep(found, chosen, certified, target.delta)

    def keep(
        self,
        found: Candidates,
        chosen: ChosenThreshold,
        certified: Any,
        delta: float | None,
        largest_cost: float | None = None,
    ) -> None:
        """Takes a threshold that was chosen among the candidates."""
        self._chosen = chosen
        self._table = (found, certified, delta, largest_cost)
        self._note_fits()
        self._threshold.assign(chosen.threshold)
        self.mark_fitted()

    def part_was_fitted(self) -> None:
        """Rejects everything: compiled functions do not check the fits."""
        self._threshold.assign(math.inf)

    def _note_fits(self) -> None:
        self._fits = fits_of(self.parts())
        for part in self.parts():
            if isinstance(part, FittedLayer):
                part.tell(self)
