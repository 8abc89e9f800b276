"""Every written file is loaded again and must answer as Keras did."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_calib.backend.errors import invalid
from keras_calib.exporting.formats import Signatures
from keras_calib.exporting.probes import Probe
from keras_calib.exporting.probes import either_way
from keras_calib.exporting.probes import scales
from keras_calib.exporting.served_model import OUTPUT_NAMES
from keras_calib.exporting.served_model import ServedModel
from keras_calib.selection import SelectiveClassifier

__all__ = ["check_answers"]

# What logits may differ by, relative to their scale: a hundred times what
# runtimes of a deep network do in float32. A wrong file differs by as much as
# the logits.
_LOGITS_TOLERANCE = {"float32": 1e-3, "half": 5e-2}
# What follows from the logits follows in float32.
_ANSWER_TOLERANCE = 1e-4
_ROUNDING = 1e-6


def check_answers(
    served: ServedModel, signatures: Signatures, asked: Iterable[Probe]
) -> None:
    """Asks a loaded file, and raises unless it answers as Keras did.

    Logits are compared with those of Keras. The other outputs are compared
    with what follows from the file's own logits, which shows an error however
    small it is beside the network's rounding.

    Args:
        served: The model that was written.
        signatures: The functions of the file.
        asked: Questions about signatures that it must have.

    Raises:
        RuntimeError: If the file does not answer, or not as Keras did.
    """
    half = "half" if served.computes_in_half else "float32"
    judge = SelectiveClassifier(
        score=served.selector.score, threshold=served.selector.threshold
    )
    for question in asked:
        name, expected = question.signature, question.expected
        try:
            given = signatures[name](**question.inputs)
        except Exception as error:
            raise _wrong(name, error=str(error)[:400]) from error
        if set(given) != set(OUTPUT_NAMES):
            raise _wrong(name, outputs=sorted(given))
        for output in OUTPUT_NAMES:
            wanted = (expected[output].shape, expected[output].dtype.name)
            got = (given[output].shape, given[output].dtype.name)
            if got != wanted:
                raise _wrong(name, output=output, expected=wanted, answered=got)
        slack = _LOGITS_TOLERANCE[half] * scales(expected["logits"])
        slack += question.movement
        right = _close(given["logits"], expected["logits"], slack)
        _raise_where(~right, name, "logits")
        _check_what_follows(name, given, judge)


def _check_what_follows(
    name: str, given: dict, judge: SelectiveClassifier
) -> None:
    def scores(logits):
        return keras.ops.convert_to_numpy(judge.score_of(logits))

    logits = given["logits"]
    follows = {
        k: keras.ops.convert_to_numpy(v) for k, v in judge(logits).items()
    }
    for output in ("probabilities", "confidence"):
        right = _close(given[output], follows[output], _ANSWER_TOLERANCE)
        _raise_where(~right, name, output)
    score = follows["score"]
    # Some scores divide by what nearly vanishes.
    steps = _ROUNDING * scales(logits)
    slack = _ANSWER_TOLERANCE * np.maximum(np.abs(score), 1.0)
    slack += either_way(scores, logits, steps)
    _raise_where(~_close(given["score"], score, slack), name, "score")
    # At the threshold, and between classes that tie, either is right.
    apart = ~_close(score, judge.threshold, slack)
    differs = given["accept"] != follows["accept"]
    _raise_where(apart & differs, name, "accept")
    ids = given["label"][..., None].astype("int64")
    if np.any((ids < 0) | (ids >= logits.shape[-1])):
        raise _wrong(name, output="label", largest=int(ids.max()))
    of_label = np.take_along_axis(logits, ids, axis=-1)[..., 0]
    # Of the largest logit, whose scale is that of its row.
    right = _close(of_label, logits.max(axis=-1), steps.min(axis=-1))
    _raise_where(~right, name, "label")


def _raise_where(wrong: np.ndarray, signature: str, output: str) -> None:
    if np.any(wrong):
        raise _wrong(
            signature,
            output=output,
            wrong=int(np.sum(wrong)),
            compared=int(np.size(wrong)),
        )


def _wrong(signature: str, **facts: Any) -> RuntimeError:
    return RuntimeError(
        invalid(
            "The written file must answer as the model does; nothing is kept",
            signature=signature,
            **facts,
        )
    )


def _close(a: Any, b: Any, slack: Any) -> np.ndarray:
    """Equal within a slack; NaN is NaN and infinity is infinity."""
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        return same | (np.abs(np.subtract(a, b)) <= slack)
