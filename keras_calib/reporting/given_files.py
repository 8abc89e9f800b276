"""Files that a command was given: opened, looked at, and kept apart."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.inputs.rows import check_no_probabilities
from keras_calib.inputs.values import check_probabilities
from keras_calib.reporting.prediction_files import PredictionFile

__all__ = ["GivenFile", "blamed", "check_apart", "row_keys"]

# Rows that are looked at before anything is computed.
_FIRST = 100
# The share of the smaller of two files that the other one may repeat.
_SAME = 0.2
# Of the multipliers of the classes: keys of two files must be comparable.
_SEED = 20
# Of the grids that see through rounding: how many directions they have, and
# how wide their cells are, where all predictions lie on a sphere of radius 1.
_DIRECTIONS = 4
_WIDTHS = (3e-2, 3e-3, 3e-4, 3e-5)
# Four standard deviations of the square root of a count.
_BEYOND_CHANCE = 2.0


class GivenFile(PredictionFile):
    """A file that a flag has, opened and looked at.

    Errors of it name the flag. Beside those of `PredictionFile`, ValueError
    if values are not what they are called, or the flag needs others.

    Attributes:
        flag: The argument that it was given for, and its path.
        num_classes: Of its predictions.
        pixels: Whether a sample has several predictions.
    """

    def __init__(self, flag: str, path: Any):
        self.flag = f"{flag}={path}"
        with blamed(self.flag):
            super().__init__(path)
            outputs = next(self.batches(_FIRST)).outputs
            if self.from_logits:
                check_no_probabilities(outputs, "logits")
            else:
                check_probabilities(outputs, "probs")
            self.pixels = outputs.ndim > 2
            # One column is the second of two classes.
            self.num_classes = max(2, outputs.shape[-1])
            if self.pixels and flag == "--selection":
                raise value_error(
                    "a threshold with a guarantee needs one prediction for "
                    "each sample: pixels of an image are not independent",
                    shape=outputs.shape,
                )
            names = self.class_names
            if names is not None and len(names) != self.num_classes:
                raise value_error(
                    "`class_names` must have a name for each class",
                    names=len(names),
                    classes=self.num_classes,
                )


@contextlib.contextmanager
def blamed(flag: str) -> Iterator[None]:
    """Says which file is at fault."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        raise ValueError(f"{flag}: {error}") from error


def check_apart(keys: dict[str, np.ndarray]) -> None:
    """Refuses data that were given twice: nothing holds for them.

    Takes `row_keys` by the flag of their file.
    """
    for (one, first), (two, second) in itertools.combinations(keys.items(), 2):
        share = max(map(_shared_share, first.T, second.T))
        if share > _SAME:
            raise value_error(
                "--predictions, --calibration and --selection must be "
                "different data: what was fitted or chosen on the samples "
                "that it is judged by looks better than it is",
                files=(one, two),
                repeated=f"{100.0 * share:.1f} % of the smaller one at least, "
                "digits and form aside",
            )


def row_keys(outputs: np.ndarray, from_logits: bool) -> np.ndarray:
    """Numbers uint64 `(n, num_keys)`, equal where predictions are, or nearly.

    The first is of the values in float32, so that the same predictions have
    the same keys in files of different formats. The others are of the cells
    of grids, from coarse to fine, in which the probabilities lie.
    """
    outputs = np.asarray(outputs).astype("float32", copy=False)
    # 0 and -0 are equal and differ in their bits.
    bits = (outputs.reshape(len(outputs), -1) + np.float32(0.0)).view("uint32")
    with np.errstate(all="ignore"):
        places = np.nan_to_num(_places(outputs, from_logits))
    cells = [np.rint(places / np.float32(width)) for width in _WIDTHS]
    cells = [cell.astype("int64").view("uint64") for cell in cells]
    return np.stack([_hashed(x) for x in (bits.astype("uint64"), *cells)], 1)


def _hashed(rows: np.ndarray) -> np.ndarray:
    random = np.random.default_rng(_SEED)
    factors = random.integers(0, 2**63, rows.shape[1], "uint64") * 2 + 1
    # Modulo 2**64, as unsigned integers of NumPy are.
    return rows @ factors


def _places(outputs: np.ndarray, from_logits: bool) -> np.ndarray:
    """A few numbers for each sample, near where probabilities are near.

    Of their square roots: rounding moves small and large ones alike.
    """
    if outputs.shape[-1] == 1:
        other = np.zeros_like(outputs) if from_logits else 1 - outputs
        outputs = np.concatenate([other, outputs], axis=-1)
    rows = outputs.reshape(-1, outputs.shape[-1])
    if from_logits:
        roots = np.exp(0.5 * (rows - rows.max(axis=-1, keepdims=True)))
    else:
        roots = np.sqrt(np.maximum(rows, 0))
    random = np.random.default_rng(_SEED)
    directions = random.normal(size=(rows.shape[-1], _DIRECTIONS))
    places = roots @ directions.astype("float32")
    places /= np.linalg.norm(roots, axis=-1, keepdims=True)
    # Of an image, the mean over its pixels.
    return places.reshape(len(outputs), -1, _DIRECTIONS).mean(axis=1)


def _shared_share(keys: np.ndarray, others: np.ndarray) -> float:
    """At least this share of the smaller data set is in both, beyond chance.

    Keys that occur twice in all tell: in one data set or once in each. Few
    digits give both by chance. Of two distributions, whatever they are, no
    more pairs are expected in both than twice the geometric mean of those
    within each, by Cauchy and Schwarz.
    """
    _, places = np.unique(np.concatenate([keys, others]), return_inverse=True)
    total = np.bincount(places)
    of_first = np.bincount(places[: len(keys)], minlength=len(total))
    in_second, in_both, in_first = np.bincount(
        of_first[total == 2], minlength=3
    )
    by_chance = 2.0 * np.prod(np.sqrt([in_first, in_second]) + _BEYOND_CHANCE)
    return (in_both - by_chance) / max(1, min(len(keys), len(others)))
