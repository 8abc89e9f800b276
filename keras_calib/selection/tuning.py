"""Held-out data, scored as a served model scores them."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_calib.backend.errors import invalid, value_error
from keras_calib.calibrators.fitted_layer import of_logits
from keras_calib.formulas.risk_coverage import aurc_of_groups
from keras_calib.functional.ranking import rank
from keras_calib.inputs.batch import Batch, standardize_logits, with_rows
from keras_calib.inputs.checks import check_above, check_any_weight, generator
from keras_calib.inputs.labels import is_ignored
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.inputs.rows import warn_of_probabilities
from keras_calib.inputs.top_label import hard_labels
from keras_calib.predictions.predictions import Predictions
from keras_calib.selection.rules import CostRule, ScoreRule, by_blocks

# Numbers in a block, and the memory that a pass over the rows takes.
_BLOCK = 2**21


def tuned(
    given: Predictions,
    places: np.ndarray | None,
    calibrator: Any,
    rules: Sequence[ScoreRule | CostRule],
    tune_fraction: float | None,
    seed: int,
    delta: float | None,
) -> tuple[Outcomes, int, int]:
    """Fits unfitted parts on a share of the rows, and chooses among the scores.

    `places` are those of groups, of the shape of the class ids, or None.
    Returns the outcomes that choose the threshold, by the rule of the least
    AURC, the place of this rule and the number of classes. `delta` is that of
    the threshold, or None.
    """
    tune = rest = given
    scores = [rule.function for rule in rules]
    if tune_fraction is None:
        check_nothing_to_tune([calibrator, *scores], delta)
    else:
        parts = drawn_parts(_count(given), tune_fraction, seed)
        tune, rest = (given[rows] for rows in parts)
        places = None if places is None else places[parts[1]]
    for part in _unfitted([calibrator]):
        part.fit(tune)
    place = 0
    if len(rules) > 1 or _unfitted(scores):
        for part in _unfitted(scores):
            rows = Batch(*_columns([*_calibrated(tune, calibrator)]))
            part.fit(rows.labels, rows.outputs, rows.weight)
        judged, _ = outcomes_of(tune, calibrator, rules)
        place = int(np.argmin([area(x) for x in judged]))
    (found,), classes = outcomes_of(rest, calibrator, rules[place:][:1])
    if places is not None:
        places = places.reshape(-1)
        if rest.ignore_class is not None:
            # Class ids were read, as they must where one is ignored.
            ids = rest.labels.reshape(-1)
            places = places[~is_ignored(ids, rest.ignore_class)]
        found = found._replace(group=places)
    return found, place, classes


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


def _count(given: Predictions) -> int:
    """The number of rows, which every column must have."""
    count = len(given.outputs)
    columns = {"labels": given.labels, "sample_weight": given.sample_weight}
    for name, array in columns.items():
        if array is not None and array.shape[:1] != (count,):
            raise value_error(
                f"`{name}` must have as many rows as `logits`",
                rows=count,
                **{f"{name}.shape": array.shape},
            )
    return count


def outcomes_of(
    given: Predictions, calibrator: Any, rules: Sequence[ScoreRule | CostRule]
) -> tuple[list[Outcomes], int]:
    """Outcomes `(n,)` of calibrated answers by each rule; number of classes.

    Groups are the true classes. The rows are read block by block.
    """
    found: list[list[Outcomes]] = [[] for _ in rules]
    for part in _calibrated(given, calibrator):
        for own, rule in zip(found, rules, strict=True):
            own.append(_judged(part, rule))
    whole = [Outcomes(*_columns(own)) for own in found]
    check_any_weight(whole[0].weight)
    return whole, part.outputs.shape[-1]


def _columns(parts: Sequence[tuple]) -> list[Any]:
    """The columns of all parts, arrays or None."""
    return [
        np.concatenate(x) if isinstance(x[0], np.ndarray) else x[0]
        for x in zip(*parts, strict=True)
    ]


def _calibrated(given: Predictions, calibrator: Any) -> Iterator[Batch]:
    """Blocks of rows that are not masked, with calibrated logits, checked."""
    logits = given.logits
    read = standardize_logits(
        given.labels,
        logits,
        sample_weight=given.sample_weight,
        ignore_class=given.ignore_class,
        drop=False,
        votes=given.votes,
    )._replace(facts=None, label_facts=None)
    plain = calibrator is None and logits.dtype == np.float32
    # The calibrator gets the shape of the logits, as it may look at neighbours.
    # One output becomes two classes, as when served.
    every = read.outputs.reshape(*logits.shape[:-1], -1)
    places = every[0].size // every.shape[-1]
    size, has_told = max(1, _BLOCK // every[0].size), False
    for start in range(0, len(every), size):
        block = every[start : start + size]
        rows = slice(start * places, (start + len(block)) * places)
        part = _rows(read, rows)
        with np.errstate(over="ignore"):
            # What becomes infinite is refused below.
            block = block.astype("float32", copy=False)
        if calibrator is not None:
            block = by_blocks(lambda x: of_logits(calibrator, x), block)
        part = part._replace(outputs=block.reshape(part.outputs.shape))
        if (mask := part.mask) is not None:
            part = _rows(part._replace(mask=None), mask)
        if not len(part.outputs):
            continue
        if not plain:
            outputs = part.outputs
            part = with_rows(part, outputs, "logits", None, log_odds=False)
        if calibrator is not None and not has_told:
            has_told = True
            warn_of_probabilities(part.outputs, "logits")
        yield part._replace(facts=None)


def _rows(read: Batch, rows: Any) -> Batch:
    return read.each(lambda x: x[rows])


def _judged(read: Batch, rule: ScoreRule | CostRule) -> Outcomes:
    """Outcomes of the answers to calibrated logits."""
    score = by_blocks(rule.score, read.outputs)
    if score.shape != read.outputs.shape[:1]:
        raise value_error(
            "`score` must return one value per sample",
            **{"score.shape": score.shape, "samples": len(read.outputs)},
        )
    truth = np.asarray(hard_labels(read.labels))
    correct, cost = rule.judge(read.outputs, truth)
    group = truth.astype("int64")
    return Outcomes(score, correct, cost, read.weight, group=group)


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
