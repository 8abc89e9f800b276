"""How labels and predictions are read: one type for batches, one for arrays."""

import functools
import inspect
from collections.abc import Callable
from typing import Any
from typing import NamedTuple
from typing import ParamSpec
from typing import TypedDict
from typing import TypeVar

from keras_calib.backend.errors import type_error
from keras_calib.inputs.checks import check_flag
from keras_calib.inputs.checks import check_integer

__all__ = ["ArrayOptions", "ReadOptions", "check_reading", "reads_arrays"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class ArrayOptions(TypedDict, total=False):
    """Options of every exact function of whole arrays.

    Attributes:
        from_logits: Whether the predictions are logits. Confidences that
            round to 1 in float32 differ only as logits. Defaults to False.
        sample_weight: Weights `(n, ...)` of the shape of the class ids, or
            `(n,)`; finite and at least 0. Whole numbers count as repeats of
            the sample, others as its share of the mass. None counts each 1.
        ignore_class: Class id of the samples that do not count, or None.
    """

    from_logits: bool
    sample_weight: Any
    ignore_class: int | None


def reads_arrays(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Refuses, in the name of a function, what is none of its options."""
    known = {*inspect.signature(function).parameters}
    known |= {*ArrayOptions.__annotations__}

    @functools.wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for name in kwargs.keys() - known:
            raise type_error(
                f"`{name}` must be an argument of `{function.__name__}`",
                arguments=sorted(known - {"options"}),
            )
        return function(*args, **kwargs)

    return checked


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
