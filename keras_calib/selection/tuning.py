"""Held-out data, scored as a served model scores them."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_calib.backend.errors import invalid, value_error
from keras_calib.formulas.risk_coverage import aurc_of_groups
from keras_calib.functional.ranking import rank
from keras_calib.inputs.batch import Batch, standardize_logits
from keras_calib.inputs.checks import check_above, generator
from keras_calib.inputs.readers import is_ignored
from keras_calib.inputs.top_label import hard_labels
from keras_calib.numerics.arrays import shape_of, to_numpy
from keras_calib.numerics.softmax import Top1, is_wrong, top1

__all__ = [
    "HeldOut",
    "apply_score",
    "area",
    "by_blocks",
    "check_nothing_to_tune",
    "drawn_parts",
    "tuned",
]

# Numbers in a block.
_BLOCK = 2**24


class HeldOut(NamedTuple):
    """Held-out data as given to `fit`, NumPy; logits before calibration."""

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

    def scored_places(
        self, tune_fraction: float | None, seed: int
    ) -> np.ndarray:
        """Places of the groups of the samples that `tuned` scores `(n,)`."""
        rest = self
        if tune_fraction is not None:
            _, rest = self.split(tune_fraction, seed)
        places = np.reshape(np.asarray(rest.places), -1)
        if self.ignore_class is None:
            return places
        # `tuned` read class ids, as it must where one is ignored.
        return places[~is_ignored(rest.labels.reshape(-1), self.ignore_class)]

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
            self.weight,
            self.ignore_class,
            drop=calibrator is None,
        )
        if calibrator is None:
            return read
        # One output becomes two classes, as when served. The calibrator gets
        # the shape of the logits, as it may look at neighbours.
        every = read.outputs.reshape(*logits.shape[:-1], -1)
        outputs = by_blocks(calibrator, every).reshape(read.outputs.shape)
        rows = slice(None) if read.mask is None else read.mask
        return standardize_logits(
            read.labels[rows],
            outputs[rows],
            None if read.weight is None else read.weight[rows],
            refuse_probabilities=False,
        )


@contextlib.contextmanager
def tuned(
    held_out: HeldOut,
    calibrator: Any,
    scores: Sequence[Any],
    tune_fraction: float | None,
    seed: int,
) -> Iterator[tuple[Top1, int]]:
    """Fits unfitted parts on a share of the rows, and chooses among the scores.

    Yields the rows that choose the threshold, scored by the score of the
    least AURC, and the place of this score. After an error, also one of the
    caller, it undoes these fits, so that other rows may fit them next time.
    """
    tune = rest = held_out
    if tune_fraction is not None:
        tune, rest = held_out.split(tune_fraction, seed)
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
            place = int(np.argmin([area(_scored(data, f)) for f in scores]))
        yield _scored(rest.calibrated(calibrator), scores[place]), place
    except BaseException:
        for part in fitted:
            part._fitted = False
        raise


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


def apply_score(function: Any, logits: Any) -> Any:
    """Scores `(...)` of logits; for `"msp"` log-odds, which never saturate."""
    if shape_of(logits)[-1] == 1:
        raise value_error(
            "`logits` must have all classes: pass [0, z] for one output z",
            **{"logits.shape": shape_of(logits)},
        )
    if function == "msp":
        # Finite, as what is accepted, for a class that is left alone.
        return ops.minimum(top1(logits, from_logits=True).score, 1e18)
    return ops.cast(function(logits), "float32")


def area(top: Top1) -> float:
    """Exact AURC, the mean over orders of tied samples."""
    return float(aurc_of_groups(rank(top)))


def by_blocks(function: Callable[[Any], Any], x: np.ndarray) -> np.ndarray:
    """Applies a function to blocks of rows; returns float32."""
    rows = max(1, _BLOCK // max(1, x[:1].size))
    parts = [
        to_numpy(function(ops.convert_to_tensor(x[i : i + rows])), "float32")
        for i in range(0, len(x), rows)
    ]
    return np.concatenate(parts)


def _unfitted(parts: Iterable[Any]) -> list[Any]:
    """The parts that still need a fit."""
    return [part for part in parts if getattr(part, "fitted", True) is False]


def _scored(read: Batch, function: Any) -> Top1:
    """Score and correctness of every prediction."""
    score = by_blocks(lambda z: apply_score(function, z), read.outputs)
    if score.shape != read.outputs.shape[:1]:
        raise value_error(
            "`score` must return one value per sample",
            **{"score.shape": score.shape, "samples": len(read.outputs)},
        )
    wrong = is_wrong(read.outputs, hard_labels(read.labels))
    correct = 1.0 - wrong.astype("float64")
    return Top1(score, score, correct, read.weight, rows=read)
