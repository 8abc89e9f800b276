"""Values that Keras shows during an epoch, without a result at each step."""

import threading
from collections.abc import Callable
from typing import Any

from keras_calib.backend.compiled import read_later
from keras_calib.backend.keras_internals import is_at_batch_end, logged_name

__all__ = ["Display", "late_values"]

# Keras may read values in threads.
_LOCK = threading.Lock()


class Display:
    """What the logs of batches show of a metric under one name.

    Args:
        refresh_every: Steps between two refreshes. None for refreshes at steps
            1, 2, 4, ..., 32 and at every 32nd.
    """

    def __init__(self, refresh_every: int | None):
        self._refresh_every = refresh_every
        self._step = 0
        self._values: dict[str, float] = {}

    def read(self, compute: Callable[[], dict[str, Any]]) -> dict[str, float]:
        """Values for the callbacks of a batch, or new ones for all else."""
        with _LOCK:
            at_batch_end = is_at_batch_end()
            self._step += at_batch_end
            if not at_batch_end or not self._values or self._is_due():
                self._values = {k: float(x) for k, x in compute().items()}
            return self._values

    def _is_due(self) -> bool:
        if self._refresh_every is not None:
            return (self._step - 1) % self._refresh_every == 0
        return self._step % 32 == 0 or self._step & (self._step - 1) == 0


def late_values(
    metric: Any, read: Callable, state: Callable
) -> dict[str, Any] | None:
    """What a step returns of a metric whose value only the logs get.

    None says that the step computes the value. `read` and `state` are as in
    `read_later`.
    """
    name = None if metric.refresh_every == 1 else logged_name()
    return None if name is None else read_later(metric, name, read, state)
