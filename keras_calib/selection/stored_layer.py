"""The configuration of a selector, from which it is loaded."""

from typing import Any

import numpy as np

from keras_calib.inputs.weights import weight_of_rows
from keras_calib.selection.candidates import candidates
from keras_calib.selection.costs import CostLayer
from keras_calib.selection.mixture_targets import MixtureTarget
from keras_calib.selection.prior_targets import PriorTarget
from keras_calib.selection.thresholds import Target

__all__ = ["StoredLayer"]


class StoredLayer(CostLayer):
    """Abstract: a selector that takes records, is saved and loaded."""

    stored_parts = ("calibrator", "score")

    def get_config(self):
        return {**super().get_config(), **self.score_config()}

    def take_records(
        self,
        target: Target | PriorTarget | MixtureTarget,
        records: tuple,
        names: tuple | None,
        kind: Any,
        log_odds: bool,
    ) -> None:
        """Takes the best threshold; raises ValueError if none is within reach.

        Args:
            target: What to reach.
            records: Scores, correctness and weights of one shape.
            names: Names of the groups, or None.
            kind: True class or place of the group of each record, or None.
            log_odds: Whether scores are log-odds of the confidence.
        """
        if names is not None and isinstance(target, Target):
            self.take_groups(names, kind, records, target)
            return
        scores, correct, weight = records
        found = candidates(scores, correct, weight, target.delta)
        if isinstance(target, Target):
            self.take(found, target, log_odds)
            return
        if weight is not None:
            counted = weight_of_rows(weight, np.shape(scores)) > 0
            scores, correct, kind = (
                np.asarray(x)[counted] for x in (scores, correct, kind)
            )
        found, chosen, certified = target.choose(
            scores, correct, kind, log_odds
        )
        self.keep(found, chosen, certified, target.delta)

    def parts(self) -> list[Any]:
        """Calibrator and scores."""
        return [*super().parts(), *self._functions]
