"""Binary calibrators, one for each class against the rest."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.calibrators.base import Calibrator
from keras_calib.calibrators.columns import fit_columns, tables
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.softmax import is_ruled_out, top1

__all__ = ["OneVsRest", "log_odds_of_classes"]

# Probabilities held in memory while fitting.
_HELD = 2**23
# Logits per call of the backend, large as each operation has overhead.
_BLOCK = 2**18


class OneVsRest(Calibrator):
    """Abstract: calibrates each class against the rest, then normalises.

    Two classes are one binary problem, that of the second class.
    """

    # How many columns a table must have, by its name.
    columns_of: dict[str, int] = {}
    # What fills shorter rows of a table; others repeat their last entry.
    fillers: dict[str, float] = {}
    # Whether a column has the least NLL, which may have no optimum.
    is_likelihood = False

    def fit_samples(self, samples: FittingData) -> None:
        rows = fit_columns(
            self.column_fit(samples),
            self.columns(samples),
            self.name if self.is_likelihood else None,
        )
        found = tables(self.fitted_values, rows, self.fillers)
        self.set_fitted(samples.num_classes, **found)

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

    def set_known_rows(self, *, alike: bool = True, **tables: Any) -> None:
        """Sets tables given to the constructor; one row is for two classes.

        With `alike` they must have the same shape, not only as many rows.
        """
        arrays = self.given_arrays(tables)
        shapes = {k: v.shape for k, v in arrays.items()}
        if any(len(x) != 2 or x[0] == 2 or 0 in x for x in shapes.values()):
            raise value_error(
                "tables must have a row for each class, and one row for two "
                "classes",
                **shapes,
            )
        for name, (_, size) in shapes.items():
            if size != self.columns_of.get(name, size):
                raise value_error(
                    f"`{name}` must have {self.columns_of[name]} columns",
                    **{f"{name}.shape": shapes[name]},
                )
        if alike and len(set(shapes.values())) > 1:
            raise value_error("tables must have the same shape", **shapes)
        self.set_known(**arrays)
        if self._num_classes == 1:
            self._num_classes = 2


def log_odds_of_classes(logits: Any) -> Any:
    """log p_k / (1 - p_k) of each class, float32, which does not saturate."""
    logits = ops.cast(logits, "float32")
    if logits.shape[-1] == 2:
        second = logits[..., 1:] - logits[..., :1]
        return ops.concatenate([-second, second], axis=-1)
    log_p = ops.log_softmax(logits, axis=-1)
    p = ops.exp(log_p)
    largest = ops.expand_dims(top1(logits, from_logits=True).score, -1)
    # Only the largest p can exceed one half.
    return ops.where(p > 0.5, largest, log_p - ops.log1p(-ops.minimum(p, 0.5)))
