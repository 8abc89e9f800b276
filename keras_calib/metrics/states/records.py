"""Top-1 records: all that most metrics need of a prediction."""

from collections.abc import Iterable
from typing import Any
from typing import NamedTuple

from keras import ops

from keras_calib.inputs.batch import Batch
from keras_calib.inputs.top_label import hard_labels
from keras_calib.numerics.softmax import is_wrong
from keras_calib.numerics.softmax import top1

__all__ = [
    "Records",
    "blocks",
    "top1_of_batch",
]


class Records(NamedTuple):
    """One batch, reduced to the predicted classes; tensors `(n,)`.

    Where a prediction does not count, its values are 0.

    Attributes:
        confidence: Probability of the predicted class; None if only another
            score is known.
        score: What ranks: the log-odds of the confidence, or the other score.
        wrong: int32, 1 where the prediction is wrong.
        counted: bool, whether the prediction counts.
        weight: Weights, 0 where not counted; None where all that count
            weigh 1.
        rows: Labels and outputs of all classes; None if never given.
    """

    confidence: Any
    score: Any
    wrong: Any
    counted: Any
    weight: Any
    rows: Batch | None


def top1_of_batch(batch: Batch) -> Records:
    """Records of one batch, whose `mask` says what counts."""
    top = top1(batch.outputs, from_logits=batch.from_logits)
    labels = ops.cast(hard_labels(batch.labels), "int32")
    wrong = is_wrong(batch.outputs, labels)
    counted = batch.mask
    zero = ops.zeros_like(top.confidence)
    return Records(
        confidence=ops.where(counted, top.confidence, zero),
        score=ops.where(counted, top.log_odds, zero),
        wrong=ops.cast(wrong, "int32"),
        counted=counted,
        weight=batch.weight,
        rows=batch,
    )


def blocks(batch: Any, size: int) -> Iterable[Any]:
    """Parts of at most `size` rows of a Batch or Records."""
    fields = batch._asdict()
    rows = [x for x in fields.values() if hasattr(x, "shape")]
    count = rows[0].shape[0]
    if count is None or count <= size:
        yield batch
        return
    for start in range(0, count, size):
        part = slice(start, start + size)
        yield batch._replace(
            **{k: x[part] for k, x in fields.items() if hasattr(x, "shape")}
        )
