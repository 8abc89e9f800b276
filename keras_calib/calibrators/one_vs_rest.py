"""Binary calibrators, one for each class against the rest."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.calibrators.base import Calibrator
from keras_calib.calibrators.columns import fit_columns, tables
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.softmax import is_ruled_out, top1

__all__ = ["OneVsRest", "ROWS", "log_odds_of_classes"]

# The first size of a table.
ROWS = "1 or num_classes"
# Probabilities held in memory while fitting.
_HELD = 2**23
# Logits per call of the backend, large as each operation has overhead.
_BLOCK = 2**18


class OneVsRest(Calibrator):
    """Abstract: calibrates each class against the rest, then normalises.

    Two classes are one binary problem, that of the second class.
    """

    # Whether a column has the least NLL, which may have no optimum.
    is_likelihood = False

    def fit_samples(self, samples: FittingData) -> None:
        rows = fit_columns(
            self.column_fit(samples),
            self.columns(samples),
            self.name if self.is_likelihood else None,
        )
        fillers = {k: v.filler for k, v in self.fitted_values.items()}
        self.set_fitted(samples.num_classes, **tables(rows, fillers))

    def column_fit(self, samples: FittingData) -> Callable[..., Any]:
        """The `fit` of `fit_columns` for one column of the samples."""
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

    def calibrate(self, logits: Any) -> Any:
        """log q_k; its softmax is q_k / sum_j q_j."""
        features = self.features(logits)
        if logits.shape[-1] == 2:
            yes, no = self.both_log_probs(features[..., 1:])
            return ops.concatenate([no, yes], axis=-1)
        return self.both_log_probs(features)[0]

    def num_parameters(self, num_classes: int) -> int:
        """Two, the least there are: the samples decide where a map bends."""
        return 2

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
