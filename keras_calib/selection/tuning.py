"""What is fitted before a threshold, on rows of its own."""

import contextlib
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.backend.errors import invalid
from keras_calib.backend.errors import value_error
from keras_calib.inputs.batch import Batch
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.checks import check_above
from keras_calib.numerics.softmax import Top1
from keras_calib.selection.scoring import area
from keras_calib.selection.scoring import by_blocks
from keras_calib.selection.scoring import scored

__all__ = ["HeldOut", "check_nothing_to_tune", "tuned"]


class HeldOut(NamedTuple):
    """Held-out data as a fit gets them, NumPy.

    Attributes:
        labels: Class ids or soft labels.
        logits: Not calibrated.
        weight: Weights, or None.
        ignore_class: Class id that does not count, or None.
    """

    labels: np.ndarray
    logits: np.ndarray
    weight: np.ndarray | None
    ignore_class: int | None

    def rows(self, part: Any) -> "HeldOut":
        """Some of the rows."""
        weight = None if self.weight is None else self.weight[part]
        return self._replace(
            labels=self.labels[part], logits=self.logits[part], weight=weight
        )

    def calibrated(self, calibrator: Any) -> Batch:
        """Calibrated logits, labels and weights, read and checked."""
        logits = self.logits.astype("float32", copy=False)
        read = standardize_arrays(
            self.labels,
            logits,
            from_logits=True,
            sample_weight=self.weight,
            ignore_class=self.ignore_class,
            name="logits",
            drop=calibrator is None,
            refuse_probabilities=True,
        )
        if calibrator is None:
            return read
        # Of every class, as served; in the shape of the logits, for layers
        # that look at neighbours.
        every = read.outputs.reshape(*logits.shape[:-1], -1)
        outputs = by_blocks(calibrator, every).reshape(read.outputs.shape)
        rows = slice(None) if read.mask is None else read.mask
        return standardize_arrays(
            read.labels[rows],
            outputs[rows],
            from_logits=True,
            sample_weight=None if read.weight is None else read.weight[rows],
            name="logits",
        )


@contextlib.contextmanager
def tuned(
    held_out: HeldOut,
    calibrator: Any,
    scores: Sequence[Any],
    tune_fraction: float | None,
    seed: int,
) -> Iterator[tuple[Top1, int]]:
    """What chooses the threshold, once the parts that waited are fitted.

    After an error, also one of the caller, they wait again, so that other
    rows may fit them next time.

    Args:
        held_out: All data.
        calibrator: Fitted or not, or None.
        scores: Functions or layers of logits.
        tune_fraction: Share of the rows that fits and chooses, or None.
        seed: Seed of the split.

    Yields:
        The rows that choose the threshold, scored by the score of the least
        AURC, and the place of this score.
    """
    tune = rest = held_out
    if tune_fraction is not None:
        labels, logits, weight, _ = held_out
        _check_lengths(logits, labels=labels, sample_weight=weight)
        parts = _split_rows(len(logits), tune_fraction, seed)
        tune, rest = map(held_out.rows, parts)
    fitted = []
    try:
        for part in _unfitted([calibrator]):
            part.fit(*tune[:3], ignore_class=held_out.ignore_class)
            fitted.append(part)
        place = 0
        if len(scores) > 1 or _unfitted(scores):
            data = tune.calibrated(calibrator)
            for part in _unfitted(scores):
                part.fit(data.labels, data.outputs, data.weight)
                fitted.append(part)
            place = int(np.argmin([area(scored(data, f)) for f in scores]))
        yield scored(rest.calibrated(calibrator), scores[place]), place
    except BaseException:
        for part in fitted:
            part._fitted = False
        raise


def _check_lengths(logits: np.ndarray, **others: np.ndarray | None) -> None:
    """Raises ValueError unless all have as many rows as the logits."""
    for name, array in others.items():
        if array is not None and array.shape[:1] != logits.shape[:1]:
            raise value_error(
                f"`{name}` must have as many rows as `logits`",
                **{
                    f"{name}.shape": array.shape,
                    "logits.shape": logits.shape,
                },
            )


def check_nothing_to_tune(
    calibrator: Any, scores: Sequence[Any], delta: float | None
) -> None:
    """Raises if something must be tuned and has no data of its own."""
    waiting = _unfitted([calibrator, *scores])
    if waiting:
        raise RuntimeError(
            invalid(
                "`calibrator` and `score` must be fitted on other data, or "
                "`tune_fraction` given to fit them on a share of this",
                unfitted=[type(part).__name__ for part in waiting],
            )
        )
    if delta is not None and len(scores) > 1:
        raise value_error(
            "`delta` with several scores needs a `tune_fraction`: the "
            "data that choose the score guarantee nothing",
            delta=delta,
            scores=len(scores),
        )


def _unfitted(parts: Iterable[Any]) -> list[Any]:
    """Those of the parts that wait for a fit."""
    return [part for part in parts if getattr(part, "fitted", True) is False]


def _split_rows(
    count: int, fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows to tune on, and the rest: a random split."""
    check_above("tune_fraction", fraction, 0.0)
    num_tune = round(count * fraction)
    if not 0 < num_tune < count:
        raise value_error(
            "`tune_fraction` must leave rows on both sides",
            tune_fraction=fraction,
            rows=count,
        )
    order = np.random.default_rng(seed).permutation(count)
    # In the order given: which rows are where is all that is random.
    return np.sort(order[:num_tune]), np.sort(order[num_tune:])
