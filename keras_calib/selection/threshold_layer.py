"""The base of layers that compare a score with a fitted threshold."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import invalid, value_error
from keras_calib.backend.traced import note_graph
from keras_calib.inputs.checks import check_number
from keras_calib.selection.candidates import Candidates
from keras_calib.selection.data_hash import with_group_hashes, with_hashes
from keras_calib.selection.group_thresholds import (
    GroupThresholds,
    choose_of_groups,
    split_by_group,
)
from keras_calib.selection.selector_layer import SelectorLayer
from keras_calib.selection.served_groups import (
    ids_of,
    served_ids,
    thresholds_of,
)
from keras_calib.selection.shifted_facts import MixtureThreshold, PriorThreshold
from keras_calib.selection.thresholds import (
    ChosenThreshold,
    Target,
    ThresholdTable,
    choose,
    table_of,
)

__all__ = ["ThresholdLayer"]


class ThresholdLayer(SelectorLayer):
    """Abstract: a layer with a threshold, and the facts of its choice."""

    # Candidate thresholds of the last fit, which are certified, delta, and the
    # largest cost of an answer; None for errors.
    _table: tuple[Candidates, Any, float | None, float | None] | None = None

    # Names of the groups, their ids, and candidates by group.
    _group: tuple = ()
    _ids: Any = None
    _group_table: tuple | None = None
    # Scores, costs and correctness of the last fit with costs.
    _cost_records: tuple | None = None

    def __call__(self, logits, *args, **kwargs):
        if kwargs.get("groups") is not None:
            kwargs["groups"] = served_ids(kwargs["groups"], self._group)
        return super().__call__(logits, *args, **kwargs)

    def set_threshold(self, threshold: Any, chosen: Any) -> None:
        """Makes the variable; the constructor calls it last.

        `threshold` is None to wait for a fit, or one for each group of the
        facts `chosen`.
        """
        group = chosen.group if isinstance(chosen, GroupThresholds) else ()
        self.check_facts(threshold, chosen)
        self._make_threshold(group)
        self._fitted = threshold is not None
        self._chosen = chosen
        if chosen:
            self.note_fits()
        if threshold is None:
            return
        if not group and threshold not in (float("inf"), -float("inf")):
            check_number("threshold", threshold)
        self._threshold.assign(np.asarray(threshold, "float32"))

    def _make_threshold(self, group: tuple) -> None:
        """Variables for one threshold, or for one of each group and the ids.

        Functions that JAX compiled read variables, and keep other arrays.
        """
        shape = (len(group),) if group else ()
        self.make_threshold(shape)
        if self._ids is not None and tuple(self._ids.shape) != shape:
            del self._ids
        if group and self._ids is None:
            self._ids = self.add_weight(
                shape=shape,
                initializer="zeros",
                trainable=False,
                dtype="int32",
                name="group_ids",
            )
        self._group = group
        if group:
            self._ids.assign(ids_of(group))

    @property
    def groups(self) -> tuple:
        """Ids or names of the groups, ascending; empty without groups."""
        return self._group

    def threshold_for(self, groups: Any, shape: tuple) -> Any:
        """The threshold, or that of each sample's group, for scores' shape."""
        if (groups is None) != (self._ids is None):
            raise value_error(
                "`groups` must be given to a selector with thresholds by "
                "group, and to no other",
                groups=None if groups is None else type(groups).__name__,
                fitted_groups=len(self._group),
            )
        note_graph(self)
        if self._ids is None:
            return self._threshold
        return thresholds_of(self._ids, self._threshold, groups, shape)

    def table(self, group: Any = None) -> ThresholdTable:
        """Coverage and risk of each threshold, on the data of the last fit.

        Args:
            group: Id or name of a group, after a fit with `groups`.
        """
        if (group is None) != (not self._group):
            raise value_error(
                "`group` must name a group after a fit with `groups`, and "
                "else be None",
                group=group,
                groups=len(self._group),
            )
        if self._group_table is not None:
            tables, delta = self._group_table
            if tables.get(group) is None:
                raise value_error(
                    "`group` must be a group of the fit with data", group=group
                )
            found, certified = tables[group]
            return table_of(found, certified, delta)
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
        chosen = with_hashes(chosen, found)
        self.keep(found, chosen, certified, target.delta)

    def keep(
        self,
        found: Candidates,
        chosen: ChosenThreshold | PriorThreshold | MixtureThreshold,
        certified: Any,
        delta: float | None,
        largest_cost: float | None = None,
    ) -> None:
        """Takes a threshold that was chosen among the candidates."""
        self._hold((), chosen)
        self._table = (found, certified, delta, largest_cost)

    def take_groups(
        self, names: tuple, places: np.ndarray, records: tuple, target: Target
    ) -> None:
        """Takes the best threshold of each group, as `take` does of all.

        Args:
            names: Names of the groups.
            places: Place of the group of each record.
            records: Scores, correctness and weights of one shape.
            target: What to reach.
        """
        scores, correct, weight = records
        found = split_by_group(
            scores, correct, places, len(names), weight, target.delta
        )
        chosen, certified = choose_of_groups(names, found, target)
        chosen = with_group_hashes(chosen, found)
        self._hold(names, chosen)
        rows = iter(certified)
        self._group_table = (
            {
                name: None if one is None else (one, next(rows))
                for name, one in zip(names, found, strict=True)
            },
            target.delta,
        )

    def _hold(self, group: tuple, chosen: Any) -> None:
        """Takes what was chosen, in place of all of an earlier fit."""
        self._make_threshold(group)
        self._chosen = chosen
        self._table = self._group_table = self._cost_records = None
        self.note_fits()
        self._threshold.assign(np.asarray(chosen.threshold, "float32"))
        self.mark_fitted()
