"""What is fitted before a threshold, on rows of its own."""

from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_calib.checks import check_above
from keras_calib.checks import invalid

__all__ = [
    "check_lengths",
    "check_nothing_to_tune",
    "split_rows",
    "unfitted",
]


def check_lengths(logits: np.ndarray, **others: np.ndarray | None) -> None:
    """Raises ValueError unless all have as many rows as the logits."""
    for name, array in others.items():
        if array is not None and array.shape[:1] != logits.shape[:1]:
            raise ValueError(
                invalid(
                    f"`{name}` must have as many rows as `logits`",
                    **{
                        f"{name}.shape": array.shape,
                        "logits.shape": logits.shape,
                    },
                )
            )


def check_nothing_to_tune(
    calibrator: Any, scores: Sequence[Any], delta: float | None
) -> None:
    """Raises if something must be tuned and has no data of its own."""
    waiting = unfitted([calibrator, *scores])
    if waiting:
        raise RuntimeError(
            invalid(
                "`calibrator` and `score` must be fitted on other data, or "
                "`tune_fraction` given to fit them on a share of this",
                unfitted=[type(part).__name__ for part in waiting],
            )
        )
    if delta is not None and len(scores) > 1:
        raise ValueError(
            invalid(
                "`delta` with several scores needs a `tune_fraction`: the "
                "data that choose the score guarantee nothing",
                delta=delta,
                scores=len(scores),
            )
        )


def unfitted(parts: Iterable[Any]) -> list[Any]:
    """Those of the parts that wait for a fit."""
    return [part for part in parts if getattr(part, "fitted", True) is False]


def split_rows(
    count: int, fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows to tune on, and the rest: a random split."""
    check_above("tune_fraction", fraction, 0.0)
    num_tune = round(count * fraction)
    if not 0 < num_tune < count:
        raise ValueError(
            invalid(
                "`tune_fraction` must leave rows on both sides",
                tune_fraction=fraction,
                rows=count,
            )
        )
    order = np.random.default_rng(seed).permutation(count)
    # In the order given: which rows are where is all that is random.
    return np.sort(order[:num_tune]), np.sort(order[num_tune:])
