"""What was right: columns of flags, and labels beside what was predicted."""

import contextlib
import datetime
import re

import numpy as np

from keras_calib.backend.errors import warn
from keras_calib.predictions.tables import Table, plain

# What to do with grades between wrong and right.
_GRADES = (
    ". An answer is right or wrong here: turn a grade between 0 and 1 into "
    "one of them first, for example by grade >= 0.5"
)
_FLAGS = dict.fromkeys(("1", "true", "yes"), 1.0)
_FLAGS |= dict.fromkeys(("0", "-0", "false", "no"), 0.0)
_WITHOUT = ("", "nan", "none", "null")


def flags_of(
    file: Table, name: str, values: np.ndarray, start: int, gaps: bool = False
) -> np.ndarray:
    """Numbers 0 and 1; with `gaps` NaN for what is missing."""
    known, places = np.unique(values.astype(str), return_inverse=True)
    texts = [plain(x).lower() for x in known]
    found = np.array([_FLAGS.get(x, np.nan) for x in texts])
    bad = np.isnan(found)
    if gaps:
        bad &= ~np.isin(texts, _WITHOUT)
    if not bad[places].any():
        return found[places]
    row = int(np.argmax(bad[places]))
    rule = "must be 0, 1, true or false"
    rule += ", or nothing without a label" if gaps else " in every row"
    number = time_of(texts[places[row]]) or 0.0
    rule += _GRADES * (0.0 < number < 1.0)
    value = values[row : row + 1].tolist()[0]
    raise file.bad_value(name, rule, start + row, value=value)


def same_labels(
    labels: np.ndarray, predicted: np.ndarray, gaps: bool = False
) -> np.ndarray:
    """1 where two texts are spelt alike, where 1.0 is 1, else 0 `(n,)`.

    With `gaps` NaN where there is no label.
    """
    found = np.array((labels == predicted) & (labels != ""), "float64")
    for k in np.flatnonzero(found == 0.0):
        label, answer = plain(labels[k]), plain(predicted[k])
        # A class may be called None. Beside numbers `nan` is no class.
        is_number = label.lower() == "nan" and time_of(answer) is not None
        is_gap = gaps and (not label or is_number)
        found[k] = np.nan if is_gap else label == answer
    return found


def warn_of_gaps(file: str, unknown: np.ndarray) -> None:
    """Tells how many rows of a file have no label."""
    if unknown.any():
        warn(
            f"{file} has {unknown.sum():,} rows without a label, which count "
            "nowhere"
        )


def time_of(text: str) -> float | None:
    """Seconds of a number or of an ISO time, or None."""
    with contextlib.suppress(ValueError):
        number = float(text)
        return None if number != number else number
    with contextlib.suppress(ValueError):
        # Ten digits: times with nanoseconds have more than Python reads.
        text = re.sub(r"(\.\d{6})\d+", r"\1", text)
        moment = datetime.datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        return moment.timestamp()
    return None
