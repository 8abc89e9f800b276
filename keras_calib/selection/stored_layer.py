"""The configuration of a selector, from which it is loaded."""

from typing import Any

from keras_calib.selection.candidates import of_records
from keras_calib.selection.candidates import read_records
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
        read = read_records(scores, correct, weight, target.delta)
        kept = read[2] > 0
        scores, correct, weight = (x[kept] for x in read)
        found = of_records(scores, correct, weight)
        if isinstance(target, Target):
            self.take(found, target, log_odds)
            return
        found, chosen, certified = target.choose(
            scores, correct, kind[kept], log_odds
        )
        self.keep(found, chosen, certified, target.delta)

    def parts(self) -> list[Any]:
        """Calibrator and scores."""
        return [*super().parts(), *self._functions]
