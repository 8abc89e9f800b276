"""How labels and predictions are read, in one type for all readers."""

from typing import Any
from typing import NamedTuple

from keras_calib.inputs.checks import check_flag
from keras_calib.inputs.checks import check_integer

__all__ = ["ReadOptions", "check_reading"]


class ReadOptions(NamedTuple):
    """How labels and predictions are read.

    Attributes:
        from_logits: Whether predictions are logits. Confidences that round to
            1 in float32 differ only as logits.
        axis: The axis of the classes.
        ignore_class: Class id of labels that do not count, or None.
        objectness: Whether labels are pairs `(batch, ..., 2)` of class id
            and objectness, as `AdaptiveLabelSmoothing` takes them.
        pixels_per_image: How many pixels of each image of dense predictions
            to read, drawn among those that count; None for all.
        seed: Seed of that draw.
        output: The output of a model with several, or None.
    """

    from_logits: bool = False
    axis: int = -1
    ignore_class: int | None = None
    objectness: bool = False
    pixels_per_image: int | None = None
    seed: int = 0
    output: Any = None

    def of_metric(self) -> dict[str, Any]:
        """The arguments of a streaming metric that say the same."""
        named = self._asdict()
        del named["output"]
        if self.pixels_per_image is None:
            del named["pixels_per_image"], named["seed"]
        return named


def check_reading(
    axis: Any, ignore_class: Any, from_logits: Any = False
) -> None:
    """Raises TypeError unless they are whole numbers (or None) and a bool."""
    check_flag("from_logits", from_logits)
    check_integer("axis", axis)
    if ignore_class is not None:
        check_integer("ignore_class", ignore_class)
