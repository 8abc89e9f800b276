"""Whether two files of predictions hold the same samples."""

import itertools

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.predictions import Predictions

# The other of two files may repeat this share of the smaller one.
_SAME = 0.2
# Fixed, as keys of different files are compared.
_SEED = 20
# Four standard deviations of the square root of a Poisson count.
_BEYOND_CHANCE = 2.0


def check_apart(files: dict[str, Predictions]) -> None:
    """Refuses data that were given twice, for which no guarantee holds.

    Takes predictions by the flag of their file.
    """
    keys = {
        flag: np.concatenate([_row_keys(part.outputs) for part in p.batches()])
        for flag, p in files.items()
    }
    for (one, first), (two, second) in itertools.combinations(keys.items(), 2):
        share = _shared_share(first, second)
        if share > _SAME:
            raise value_error(
                "--predictions, --calibration and --selection must be "
                "different data: what was fitted or chosen on the samples "
                "that it is judged by looks better than it is",
                files=(one, two),
                repeated=f"{100.0 * share:.1f} % of the smaller one at least",
            )


def check_ids_apart(ids: dict[str, np.ndarray | None]) -> None:
    """Refuses samples whose identifiers are in two files, which may lack."""
    told = {flag: x for flag, x in ids.items() if x is not None}
    for (one, first), (two, second) in itertools.combinations(told.items(), 2):
        if len(both := np.intersect1d(first, second)):
            raise value_error(
                "--predictions, --calibration and --selection must be "
                "different data, with other --ids",
                files=(one, two),
                in_both=len(both),
                first=str(both[0]),
            )


def _row_keys(outputs: np.ndarray) -> np.ndarray:
    """Numbers uint64 `(n,)`, equal where predictions are.

    They are of the values in float32, so that the same predictions have the
    same keys in files of different formats.
    """
    outputs = np.asarray(outputs).astype("float32", copy=False)
    # 0 and -0 are equal and differ in their bits.
    bits = (outputs.reshape(len(outputs), -1) + np.float32(0.0)).view("uint32")
    factors = np.random.default_rng(_SEED).integers(
        0, 2**63, bits.shape[1], "uint64"
    )
    # Overflow is wanted: unsigned integers of NumPy count modulo 2**64.
    return bits.astype("uint64") @ (factors * 2 + 1)


def _shared_share(keys: np.ndarray, others: np.ndarray) -> float:
    """At least this share of the smaller data set is in both, beyond chance.

    It counts keys that occur twice in all: in one data set, or once in each.
    Predictions of few digits give both by chance. By Cauchy and Schwarz, any
    two distributions give at most twice the geometric mean of the pairs within
    each as pairs of both, in expectation.
    """
    _, places = np.unique(np.concatenate([keys, others]), return_inverse=True)
    total = np.bincount(places)
    of_first = np.bincount(places[: len(keys)], minlength=len(total))
    in_second, in_both, in_first = np.bincount(
        of_first[total == 2], minlength=3
    )
    by_chance = 2.0 * np.prod(np.sqrt([in_first, in_second]) + _BEYOND_CHANCE)
    return (in_both - by_chance) / max(1, min(len(keys), len(others)))
