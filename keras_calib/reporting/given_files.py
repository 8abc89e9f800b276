"""Files that a command was given: opened, looked at, and kept apart."""

import contextlib
import itertools
import math
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.inputs.rows import check_no_probabilities
from keras_calib.inputs.values import check_probabilities
from keras_calib.reporting.prediction_files import PredictionFile
from keras_calib.reporting.prediction_files import open_predictions

__all__ = [
    "GivenFile",
    "blamed",
    "check_alike",
    "check_apart",
    "open_given",
    "row_keys",
]

# Rows that are looked at before anything is computed.
_FIRST = 100
# Of the smaller of two files, that the other one repeats: refused above the
# first, told above the second.
_SAME, _ALIKE = 0.2, 0.01
# Level at which it must be more than what chance repeats of coarse outputs.
_SURE = 0.9999
# Of the multipliers of the classes: keys of two files must be comparable.
_SEED = 20
# Of the grids that see through rounding: how many directions they have, and
# how wide their cells are, where all predictions lie on a sphere of radius 1.
_DIRECTIONS = 4
_WIDTHS = (3e-2, 3e-3, 3e-4, 3e-5)
# Seven standard deviations of the square root of a count.
_BEYOND_CHANCE = 3.5


class GivenFile(NamedTuple):
    """A file that was opened and looked at.

    Attributes:
        flag: The argument that it was given for, and its path.
        file: To read.
        num_classes: Of its predictions.
        pixels: Whether a sample has several predictions.
    """

    flag: str
    file: PredictionFile
    num_classes: int
    pixels: bool


def open_given(flag: str, text: str) -> GivenFile:
    """Opens the file at a path that a flag has, and looks at its first samples.

    Raises ValueError if it is not there, has another form or no samples, its
    values are not what they are called, or its flag needs others; ImportError
    if what reads it is not installed.
    """
    flag = f"{flag}={text}"
    with blamed(flag):
        file = open_predictions(text)
        rows = next(file.batches(_FIRST), None)
        if rows is None:
            raise value_error("the file must have samples", path=str(file.path))
        _check_kind(rows.outputs, file.from_logits)
    pixels = rows.outputs.ndim > 2
    if pixels and flag.startswith("--selection"):
        raise ValueError(
            f"{flag}: a threshold with a guarantee needs one prediction for "
            "each sample: pixels of an image are not independent. "
            f"Received: predictions of shape {rows.outputs.shape[1:]}"
        )
    # One column is the second of two classes.
    num_classes = max(2, rows.outputs.shape[-1])
    names = file.class_names
    if names is not None and len(names) != num_classes:
        raise ValueError(
            f"{flag}: `class_names` must have a name for each class. "
            f"Received: {len(names)} names, {num_classes} classes"
        )
    return GivenFile(flag, file, num_classes, pixels)


def _check_kind(outputs: np.ndarray, from_logits: bool) -> None:
    """Raises if predictions are not what they are called."""
    called, other = ("logit", "prob") if from_logits else ("prob", "logit")
    try:
        if from_logits:
            check_no_probabilities(outputs, "logits")
        else:
            check_probabilities(outputs, "probs")
    except ValueError as error:
        kinds = {"logit": "logits", "prob": "probabilities"}
        raise value_error(
            f"these are no {kinds[called]}: call the array or the column "
            f"`{other}s`, columns of classes `{other}_0`, `{other}_1`, "
            f"... if they are {kinds[other]}",
            first=np.round(outputs[0], 4).tolist()[:10],
        ) from error


def check_alike(opened: list[GivenFile], predictions: list[GivenFile]) -> None:
    """Raises ValueError unless files are of one kind of predictions.

    Args:
        opened: All files, which must have the same number of classes.
        predictions: Those of the models, all logits or all probabilities.
    """
    first = predictions[0]
    for other in predictions:
        if other.file.from_logits != first.file.from_logits:
            raise ValueError(
                "All --predictions must hold logits, or all probabilities. "
                f"Received: {first.flag} and {other.flag}"
            )
    for other in opened:
        if other.num_classes != first.num_classes:
            raise ValueError(
                "All files must have predictions of the same classes. "
                f"Received: {first.num_classes} classes in {first.flag}, "
                f"{other.num_classes} in {other.flag}"
            )


def check_apart(keys: dict[str, np.ndarray]) -> None:
    """Refuses data that were given twice: nothing holds for them.

    Takes `row_keys` by the flag of their file. A file that repeats a little of
    another one is a UserWarning, more than a little a ValueError.
    """
    for (one, first), (two, second) in itertools.combinations(keys.items(), 2):
        share = _shared_share(first[:, 0], second[:, 0])
        how = ""
        if share <= _SAME:
            # The same predictions with other digits, or in another form.
            near = max(map(_near_share, first.T[1:], second.T[1:]))
            if near > share:
                share, how = near, ", but for their digits or form"
        if share <= _ALIKE:
            continue
        fact = (
            f"{one} and {two}, of which {100.0 * share:.1f} % of the smaller "
            f"one is in both{how}"
        )
        rule = (
            "--predictions, --calibration and --selection must be different "
            "data: what was fitted or chosen on the samples that it is judged "
            "by looks better than it is"
        )
        if share > _SAME:
            raise ValueError(f"{rule}. Received: {fact}")
        warnings.warn(f"{rule}. Received: {fact}", UserWarning, stacklevel=2)


@contextlib.contextmanager
def blamed(flag: str) -> Iterator[None]:
    """Says which file is at fault."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        raise ValueError(f"{flag}: {error}") from error


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
        roots = rows - rows.max(axis=-1, keepdims=True)
        roots *= 0.5
        np.exp(roots, out=roots)
    else:
        roots = np.maximum(rows, 0)
        np.sqrt(roots, out=roots)
    random = np.random.default_rng(_SEED)
    directions = random.normal(size=(rows.shape[-1], _DIRECTIONS))
    places = roots @ directions.astype("float32")
    places /= np.sqrt(np.einsum("nk,nk->n", roots, roots))[:, None]
    # Of an image, the mean over its pixels.
    return places.reshape(len(outputs), -1, _DIRECTIONS).mean(axis=1)


def _pairs(keys: np.ndarray, others: np.ndarray) -> list[int]:
    """How many keys occur twice: in the first, in each once, in the second."""
    _, places = np.unique(np.concatenate([keys, others]), return_inverse=True)
    places = places.reshape(-1)
    total = np.bincount(places)
    of_first = np.bincount(places[: len(keys)], minlength=len(total))
    return np.bincount(of_first[total == 2], minlength=3).tolist()[::-1]


def _near_share(keys: np.ndarray, others: np.ndarray) -> float:
    """At least this share of the smaller data set is in both, rounding aside.

    By Cauchy and Schwarz, of two distributions whatever they are, no more
    pairs are expected in both than twice the geometric mean of those within
    each.
    """
    in_first, in_both, in_second = _pairs(keys, others)
    by_chance = 2.0 * math.prod(
        math.sqrt(count) + _BEYOND_CHANCE for count in (in_first, in_second)
    )
    return max(0.0, in_both - by_chance) / max(1, min(len(keys), len(others)))


def _shared_share(keys: np.ndarray, others: np.ndarray) -> float:
    """The share of the smaller data set that is in both, beyond chance.

    Only rows that occur exactly twice in both data sets together tell: once
    in each, or twice in one of them. Predictions of few digits give both by
    chance, and how many of the second kind there are says how many of the
    first kind to expect; what was copied is of the first kind alone.
    """
    sizes = len(keys), len(others)
    if not min(sizes):
        return 0.0
    # In any order.
    if np.array_equal(np.sort(keys), np.sort(others)):
        return 1.0
    in_first, in_both, in_second = _pairs(keys, others)
    within = in_first + in_second
    # How many in both there are for each within one: of one distribution, by
    # the sizes; of two, at most as many as Cauchy and Schwarz allow.
    ratio = 2.0 * sizes[0] * sizes[1] / (sizes[0] ** 2 + sizes[1] ** 2)
    if within:
        ratio = max(ratio, 2.0 * math.sqrt(in_first * in_second) / within)
    least, _ = clopper_pearson(in_both, in_both + within, level=_SURE)
    if least <= ratio / (1.0 + ratio):
        return 0.0
    return (in_both - ratio * within) / min(sizes)
