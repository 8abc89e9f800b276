"""Names of classes, carried along where a data set is changed."""

from typing import Any

__all__ = ["class_names_of", "named_like"]


def class_names_of(dataset: Any) -> list[str] | None:
    """The attribute `class_names` that builders set, if it is there."""
    return getattr(dataset, "class_names", None)


def named_like(result: Any, dataset: Any) -> Any:
    """`result` with the `class_names` of `dataset`."""
    names = class_names_of(dataset)
    if names is not None:
        result.class_names = names
    return result
