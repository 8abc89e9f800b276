"""What a selector answers, in operations that every format can serve."""

from typing import Any

from keras import ops

__all__ = ["answers_of", "interval_of_label"]


def answers_of(logits: Any, score: Any, threshold: Any) -> dict[str, Any]:
    """The answers to calibrated logits `(..., num_classes)` and their scores.

    `SelectiveClassifier.call` says what they are.
    """
    probabilities = ops.softmax(logits, axis=-1)
    # Among ties the first class wins, as in `fit`; ops.top_k may take another.
    # Neither ONNX nor LiteRT can run ops.argmax.
    classes = ops.arange(logits.shape[-1], dtype="float32")
    largest = ops.max(logits, axis=-1, keepdims=True)
    last = ops.full_like(logits, logits.shape[-1] - 1)
    label = ops.min(ops.where(logits >= largest, classes, last), axis=-1)
    return {
        "logits": logits,
        "probabilities": probabilities,
        "confidence": ops.max(probabilities, axis=-1),
        "score": score,
        "accept": score >= threshold,
        "label": ops.cast(label, "int32"),
    }


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
