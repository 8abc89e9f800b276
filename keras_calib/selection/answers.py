"""What a selector answers, in operations that every format can serve."""

from typing import Any

from keras import ops

from keras_calib.numerics.softmax import is_ruled_out

__all__ = ["accepted", "answers_of", "has_confidence", "interval_of_label"]


def answers_of(logits: Any, score: Any, threshold: Any) -> dict[str, Any]:
    """The answers to calibrated logits `(..., num_classes)` and their scores.

    `SelectiveClassifier.call` says what they are.
    """
    probabilities = ops.softmax(logits, axis=-1)
    # Among ties the first class wins, as in `fit`; ops.top_k may take another.
    # Neither ONNX nor LiteRT can run ops.argmax.
    size = logits.shape[-1]
    if size is None:
        size = ops.shape(logits)[-1]
    classes = ops.arange(size, dtype="float32")
    largest = ops.max(logits, axis=-1, keepdims=True)
    last = ops.full_like(logits, size - 1)
    label = ops.min(ops.where(logits >= largest, classes, last), axis=-1)
    return {
        "logits": logits,
        "probabilities": probabilities,
        "confidence": ops.max(probabilities, axis=-1),
        "score": score,
        "accept": accepted(score, threshold, logits),
        "label": ops.cast(label, "int32"),
    }


def accepted(score: Any, threshold: Any, logits: Any) -> Any:
    """Where finite scores `(...)` reach the threshold, with a confidence."""
    reached = ops.logical_and(score >= threshold, has_confidence(logits))
    return ops.logical_and(reached, ops.abs(score) < float("inf"))


def has_confidence(logits: Any) -> Any:
    """Whether logits `(..., num_classes)` have a softmax, bool `(...)`.

    A network that overflows gives NaN or infinity. Some classes may be ruled
    out, but not all.
    """
    # A sum keeps NaN, which a maximum may drop, and does not overflow so.
    total = ops.sum(1e-9 * logits, axis=-1)
    found = ops.logical_and(
        total < float("inf"),
        ops.logical_not(is_ruled_out(ops.max(logits, axis=-1))),
    )
    if logits.shape[-1] is None:
        # One output that is not known to be alone is read as one class.
        found = ops.logical_and(found, ops.shape(logits)[-1] > 1)
    return found


def interval_of_label(label: Any, ends: tuple[Any, Any]) -> dict[str, Any]:
    """Both ends of the interval of the predicted class `(...)`.

    `label` is int32 `(...)`, and `ends` are those of all classes
    `(..., num_classes)`.
    """
    classes = ops.arange(ends[0].shape[-1], dtype="int32")
    chosen = ops.equal(ops.expand_dims(label, -1), classes)
    low, high = (
        ops.sum(ops.where(chosen, x, ops.zeros_like(x)), axis=-1) for x in ends
    )
    return {"probability_low": low, "probability_high": high}
