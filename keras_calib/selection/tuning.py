"""Held-out data, scored as a served model scores them."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import invalid, value_error
from keras_calib.formulas.risk_coverage import aurc_of_groups
from keras_calib.functional.ranking import rank
from keras_calib.inputs.batch import (
    Batch,
    standardize_logits,
    with_rows,
    without_masked,
)
from keras_calib.inputs.checks import check_above, check_any_weight, generator
from keras_calib.inputs.labels import is_ignored
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.inputs.rows import warn_of_probabilities
from keras_calib.inputs.top_label import hard_labels
from keras_calib.selection.rules import CostRule, ScoreRule, by_blocks

__all__ = [
    "HeldOut",
    "area",
    "check_nothing_to_tune",
    "drawn_parts",
    "tuned",
    "undone_by_errors",
]


class HeldOut(NamedTuple):
    """Held-out data as given to `fit`, NumPy; logits before calibration.

    `places` are those of groups, of the shape of the class ids.
    """

    labels: np.ndarray
    logits: np.ndarray
    weight: np.ndarray | None
    ignore_class: int | None
    places: np.ndarray | None = None

    def rows(self, part: Any) -> "HeldOut":
        """Some of the rows."""
        weight = None if self.weight is None else self.weight[part]
        places = None if self.places is None else self.places[part]
        return self._replace(
            labels=self.labels[part],
            logits=self.logits[part],
            weight=weight,
            places=places,
        )

    def split(self, fraction: float, seed: int) -> list["HeldOut"]:
        """A random share of the rows for tuning, and the rest."""
        count = len(self.logits)
        for name, array in (
            ("labels", self.labels),
            ("sample_weight", self.weight),
        ):
            if array is not None and array.shape[:1] != (count,):
                raise value_error(
                    f"`{name}` must have as many rows as `logits`",
                    rows=count,
                    **{f"{name}.shape": array.shape},
                )
        return [self.rows(x) for x in drawn_parts(count, fraction, seed)]

    def calibrated(self, calibrator: Any) -> Batch:
        """Calibrated logits, labels and weights, read and checked."""
        with np.errstate(over="ignore"):
            # What becomes infinite is refused below.
            logits = self.logits.astype("float32", copy=False)
        read = standardize_logits(
            self.labels,
            logits,
            sample_weight=self.weight,
            ignore_class=self.ignore_class,
            drop=calibrator is None,
        )
        if calibrator is None:
            return read
        # One output becomes two classes, as when served. The calibrator gets
        # the shape of the logits, as it may look at neighbours.
        every = read.outputs.reshape(*logits.shape[:-1], -1)
        outputs = by_blocks(calibrator, every).reshape(read.outputs.shape)
        if read.mask is not None:
            outputs, read = outputs[read.mask], without_masked(read)
            check_any_weight(read.weight)
        read = with_rows(read, outputs, "logits", None, log_odds=False)
        warn_of_probabilities(read.outputs, "logits")
        return read

    def judged(self, read: Batch, rule: ScoreRule | CostRule) -> Outcomes:
        """Outcomes `(n,)` of the answers to calibrated logits.

        Groups are those of the rows, or without any the true classes.
        """
        score = by_blocks(rule.score, read.outputs)
        if score.shape != read.outputs.shape[:1]:
            raise value_error(
                "`score` must return one value per sample",
                **{"score.shape": score.shape, "samples": len(read.outputs)},
            )
        truth = np.asarray(hard_labels(read.labels))
        correct, cost = rule.judge(read.outputs, truth)
        group = truth.astype("int64")
        if self.places is not None:
            group = self.places.reshape(-1)
            if self.ignore_class is not None:
                # Class ids were read, as they must where one is ignored.
                ids = self.labels.reshape(-1)
                group = group[~is_ignored(ids, self.ignore_class)]
        return Outcomes(score, correct, cost, read.weight, group=group)


def tuned(
    held_out: HeldOut,
    calibrator: Any,
    rules: Sequence[ScoreRule | CostRule],
    tune_fraction: float | None,
    seed: int,
    delta: float | None,
) -> tuple[Outcomes, int, int]:
    """Fits unfitted parts on a share of the rows, and chooses among the scores.

    Returns the outcomes that choose the threshold, by the rule of the least
    AURC, the place of this rule and the number of classes. `delta` is that of
    the threshold, or None.
    """
    tune = rest = held_out
    scores = [rule.function for rule in rules]
    if tune_fraction is None:
        check_nothing_to_tune([calibrator, *scores], delta)
    else:
        tune, rest = held_out.split(tune_fraction, seed)
    for part in _unfitted([calibrator]):
        part.fit(*tune[:3], ignore_class=held_out.ignore_class)
    place = 0
    if len(rules) > 1 or _unfitted(scores):
        data = tune.calibrated(calibrator)
        for part in _unfitted(scores):
            part.fit(data.labels, data.outputs, data.weight)
        plain = tune._replace(places=None)
        judged = [plain.judged(data, rule) for rule in rules]
        place = int(np.argmin([area(x) for x in judged]))
    read = rest.calibrated(calibrator)
    classes = read.outputs.shape[-1]
    return rest.judged(read, rules[place]), place, classes


@contextlib.contextmanager
def undone_by_errors(selector: Any, parts: Sequence[Any]) -> Iterator[None]:
    """Undoes the first fits of parts if the selector is not fitted after them.

    Else other rows could not fit them next time, and those that did could
    choose the threshold.
    """
    waiting, before = _unfitted(parts), selector.num_fits
    try:
        yield
    except BaseException:
        for part in waiting if selector.num_fits == before else ():
            part._fitted = False
        raise


def area(outcomes: Outcomes) -> float:
    """Exact AURC, the mean over orders of tied samples."""
    return float(aurc_of_groups(rank(outcomes)))


def drawn_parts(
    count: int, fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a random share for tuning, and all others."""
    check_above("tune_fraction", fraction, 0.0)
    num_tune = round(count * fraction)
    if not 0 < num_tune < count:
        raise value_error(
            "`tune_fraction` must leave rows on both sides",
            tune_fraction=fraction,
            rows=count,
        )
    order = generator(seed).permutation(count)
    # Only the choice of rows is random: they keep their order.
    return np.sort(order[:num_tune]), np.sort(order[num_tune:])


def check_nothing_to_tune(parts: Sequence[Any], delta: float | None) -> None:
    """Raises if a calibrator or its scores need a `tune_fraction`."""
    waiting = _unfitted(parts)
    if waiting:
        raise RuntimeError(
            invalid(
                "`calibrator` and `score` must be fitted on other data, or "
                "`tune_fraction` given to fit them on a share of this",
                unfitted=[type(part).__name__ for part in waiting],
            )
        )
    if delta is not None and len(parts) > 2:
        raise value_error(
            "`delta` with several scores needs a `tune_fraction`: the "
            "data that choose the score guarantee nothing",
            delta=delta,
            scores=len(parts) - 1,
        )


def _unfitted(parts: Iterable[Any]) -> list[Any]:
    """The parts that still need a fit."""
    return [part for part in parts if getattr(part, "fitted", True) is False]
