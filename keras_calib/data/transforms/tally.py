"""How many examples were left out, why, and what they are called."""

from typing import Any

import numpy as np

from keras_calib.backend.optional import tensorflow as tf
from keras_calib.data.transforms.examples import as_bytes
from keras_calib.inputs.checks import check_in

__all__ = ["Tally"]

_REASONS = (
    "without boxes",
    "bad boxes",
    "bad label",
    "bad mask",
    "bad record",
    "unreadable image",
    "unknown class",
)
# Names that are kept for each reason.
_MOST_NAMES = 1000


class Tally:
    """Counts what is left out, or kept without boxes, as data are read.

    Counts grow each time the data set is read. Those of one pass are right
    after it has been read to its end. Annotation files are read and counted
    once, when the data set is built. Where a strategy distributes the data
    set to several workers, each worker counts its own.

    Args:
        None.

    Example:

    >>> tally = Tally()
    >>> print(tally.counts()["bad boxes"], tally.names()["bad boxes"])
    0 []

    Reference:
        Krothapalli and Abbott, Adaptive Label Smoothing, 2020, section 4.1
        (62 % of ImageNet's images have no boxes),
        https://arxiv.org/abs/2009.06432
    """

    def __init__(self):
        self._variables = {
            reason: tf.Variable(0, dtype="int64", trainable=False)
            for reason in _REASONS
        }
        # Keys alone: each name once, in order.
        self._names: dict[str, dict] = {reason: {} for reason in _REASONS}

    def add(self, reason: str, condition: Any, name: Any = None) -> None:
        """Counts one more where `condition` holds.

        Args:
            reason: One of the reasons.
            condition: A bool scalar.
            name: What the example is called, a string scalar; not kept if
                None or empty.
        """
        check_in("reason", reason, _REASONS)
        self._variables[reason].assign_add(tf.cast(condition, "int64"))
        if name is None:
            return

        def note(name: Any) -> np.int64:
            text = as_bytes(name).decode(errors="replace")
            names = self._names[reason]
            if text and len(names) < _MOST_NAMES:
                names[text] = None
            return np.int64(0)

        tf.cond(
            tf.convert_to_tensor(condition),
            lambda: tf.numpy_function(
                note, [tf.convert_to_tensor(name)], tf.int64
            ),
            lambda: tf.constant(0, "int64"),
        )

    def counts(self) -> dict[str, int]:
        """Number of examples (of objects: `unknown class`) by reason."""
        return {k: int(v.numpy()) for k, v in self._variables.items()}

    def names(self) -> dict[str, list[str]]:
        """What those left out are called, by reason: the first 1000.

        Files are named by their path, records without a name by file and
        place. Examples without boxes and objects of unknown classes are only
        counted: nothing is wrong with them.
        """
        return {reason: [*names] for reason, names in self._names.items()}

    def reset(self) -> None:
        """Starts again from 0."""
        for variable in self._variables.values():
            variable.assign(0)
        for names in self._names.values():
            names.clear()
