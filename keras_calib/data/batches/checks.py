"""What a pipeline must be given, and examples must have."""

from typing import Any

from keras_calib.backend.errors import invalid
from keras_calib.inputs.checks import check_integer

__all__ = [
    "check_common",
    "check_count",
    "check_label",
    "check_parts",
    "read_spec",
]

_HINTS = {
    "label": "; `object_examples` and `label_by_largest` make one of boxes",
    "boxes": " or 'mask', to say where objects are",
}


def check_common(
    batch_size: int, num_classes: int, num_parallel_calls: int | None
) -> None:
    check_integer("batch_size", batch_size, 1)
    check_integer("num_classes", num_classes, 2)
    if num_parallel_calls is not None:
        check_integer("num_parallel_calls", num_parallel_calls, 1)


def check_parts(spec: dict, *names: str) -> None:
    for name in names:
        if name not in spec:
            hint = _HINTS.get(name, "")
            raise ValueError(
                invalid(f"Examples must have {name!r}{hint}", parts=[*spec])
            )


def read_spec(dataset: Any) -> dict:
    spec = getattr(dataset, "element_spec", type(dataset).__name__)
    if not isinstance(spec, dict):
        raise ValueError(
            invalid(
                "Examples must be dicts, in a tf.data.Dataset",
                element_spec=str(spec),
            )
        )
    return dict(spec)


def check_label(label: Any) -> None:
    if not label.dtype.is_integer or label.shape.rank not in (0, None):
        raise ValueError(
            invalid(
                "`label` of an example must be one class id, an integer",
                dtype=label.dtype.name,
                shape=label.shape,
            )
        )


def check_count(dataset: Any, least: int) -> None:
    """Raises if an epoch has no batch, and without end would have none."""
    count = int(dataset.cardinality())
    if 0 <= count < least:
        raise ValueError(
            invalid(
                "`dataset` must have examples for a batch",
                examples=count,
                batch_size=least,
            )
        )
