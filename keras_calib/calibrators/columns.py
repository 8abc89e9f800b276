"""One fit for each column: a class against the rest, a label, a class of boxes.

A column has two outcomes: a score of each sample, such as its log-odds, and a
label. Calibrators of classes make a column of each class, and normalise.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from keras import ops

from keras_calib.backend.errors import invalid, value_error, warn
from keras_calib.backend.progress import tracked
from keras_calib.calibrators.base import Calibrator
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.separation import (
    has_threshold,
    is_separated,
    platt_targets,
)
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.softmax import is_ruled_out, top1

# The first size of a table.
ROWS = "1 or num_classes"
# Probabilities held in memory while fitting.
_HELD = 2**23
# Logits per call of the backend, large as each operation has overhead.
_BLOCK = 2**18


def fit_columns(
    fit: Callable[..., Any],
    columns: Iterable[tuple | None],
    what: str | None = None,
) -> list[tuple]:
    """A row of each fitted value for each column.

    A column that is None takes the first fit: that of all data, where they are
    the first column. `what` names a fit of least NLL in warnings. Such a `fit`
    maps scores, labels and weights `(n,)` to a row of each value and the mean
    NLL. It takes Platt's targets where a threshold parts the outcomes.
    """
    found: list[tuple | None] = []
    separated = num_fits = samples = 0
    for column in tracked(columns):
        row = None
        if column is not None and what is None:
            row = fit(*column)
        elif column is not None:
            row, has_optimum = _least_or_supported(fit, *column)
            num_fits, samples = num_fits + 1, len(column[0])
            separated += not has_optimum
        found.append(row)
    if separated:
        warn(
            invalid(
                f"The data have no optimal {what}, as a threshold puts every "
                "sample of a class on the right side: the more confident, the "
                "better. Each label is taken as right with probability "
                "(n + 1) / (n + 2) instead. Fit on more held-out samples, some "
                "of which are wrong",
                samples=samples,
                errors=0,
                problems=f"{separated} of {num_fits}",
            )
        )
    first = next(row for row in found if row is not None)
    return [first if row is None else row for row in found]


def _least_or_supported(
    fit: Callable, scores: np.ndarray, labels: np.ndarray, weight: Any
) -> tuple[tuple, bool]:
    """The fit of least NLL, if there is one, else that of Platt's targets."""
    if not has_threshold(scores, labels, weight):
        row, loss = fit(scores, labels, weight)
        both = 0 < labels.sum() < len(labels)
        if not (both and is_separated(loss, labels, weight)):
            return row, True
    row, _ = fit(scores, platt_targets(labels, weight), weight)
    return row, False


def tables(
    rows: Sequence[tuple], names: Iterable[str]
) -> dict[str, np.ndarray]:
    """Fitted values by name, a row for each column; rows repeat their last."""
    found = {}
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        table = np.empty((len(values), max(map(np.size, values))))
        for line, value in zip(table, map(np.ravel, values), strict=True):
            line[: len(value)] = value
            line[len(value) :] = value[-1]
        # Numbers have no axis but that of the columns.
        found[name] = table if np.ndim(values[0]) else table[:, 0]
    return found


class OneVsRest(Calibrator):
    """Abstract: calibrates each class against the rest, then normalises.

    Two classes are one binary problem, that of the second class.
    """

    # Whether a column has the least NLL, which may have no optimum.
    is_likelihood = False

    def fit_samples(self, samples: FittingData) -> None:
        rows = fit_columns(
            partial(self.fit_column, samples),
            self.columns(samples),
            self.name if self.is_likelihood else None,
        )
        found = tables(rows, self.fitted_values)
        self.set_fitted(samples.num_classes, **found)

    def fit_column(self, samples: FittingData, *column: Any) -> tuple:
        """The row of one of the `columns` of samples, as `fit_columns` asks."""
        raise NotImplementedError

    def columns(
        self, samples: FittingData
    ) -> Iterator[tuple[np.ndarray, np.ndarray, Any]]:
        """The values, labels and weights of each binary problem, `(n,)`.

        They leave out samples in which the class or all others are ruled out.
        """
        count = samples.num_classes
        rows, weight = len(samples.logits), samples.weight
        if samples.valid is not None:
            rows = int(samples.valid.sum())
            weight = None if weight is None else weight[samples.valid]
        group = max(1, _HELD // max(1, rows))
        for start in range(1 if count == 2 else 0, count, group):
            classes = np.arange(start, min(start + group, count))
            values = np.empty((len(classes), rows), "float32")
            soft = samples.labels.ndim == 2
            labels = np.empty(values.shape, "float64" if soft else "bool")
            keep = np.empty(values.shape, bool)
            end = 0
            for block in samples.blocks(_BLOCK):
                part = slice(end, end := end + len(block.logits))
                features = self.features(ops.convert_to_tensor(block.logits))
                values[:, part] = to_numpy(features)[:, classes].T
                if soft:
                    labels[:, part] = block.soft_labels()[:, classes].T
                else:
                    labels[:, part] = classes[:, None] == block.labels
                allowed = ~is_ruled_out(block.logits)
                allowed &= allowed.sum(axis=-1, keepdims=True) > 1
                keep[:, part] = allowed[:, classes].T
            for value, label, kept in zip(values, labels, keep, strict=True):
                kept |= not kept.any()
                w = None if weight is None else weight[kept]
                yield value[kept], label[kept], w

    def features(self, logits: Any) -> Any:
        """The inputs of the binary calibrators, `(..., num_classes)`."""
        return ops.softmax(ops.cast(logits, "float32"), axis=-1)

    def both_log_probs(self, features: Any) -> tuple[Any, Any]:
        """log q_k and log(1 - q_k) for the classes that were fitted."""
        raise NotImplementedError

    def map_logits(self, logits: Any) -> Any:
        """log q_k; its softmax is q_k / sum_j q_j."""
        features = self.features(logits)
        if logits.shape[-1] == 2:
            yes, no = self.both_log_probs(features[..., 1:])
            return ops.concatenate([no, yes], axis=-1)
        return self.both_log_probs(features)[0]

    def known_classes(self, sizes: Mapping[str, int]) -> int | None:
        """Number of classes of tables; one row is for two."""
        if sizes[ROWS] == 2:
            raise value_error(
                "tables must have a row for each class, and one row for two "
                "classes",
                rows=2,
            )
        return max(2, sizes[ROWS])


def log_odds_of_classes(logits: Any) -> Any:
    """log p_k / (1 - p_k) of each class, float32, which does not saturate."""
    logits = ops.cast(logits, "float32")
    if logits.shape[-1] == 2:
        second = logits[..., 1:] - logits[..., :1]
        return ops.concatenate([-second, second], axis=-1)
    log_p = ops.log_softmax(logits, axis=-1)
    p = ops.exp(log_p)
    largest = ops.expand_dims(top1(logits, from_logits=True)[1], -1)
    # Only the largest p can exceed one half.
    return ops.where(p > 0.5, largest, log_p - ops.log1p(-ops.minimum(p, 0.5)))
