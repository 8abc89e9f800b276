"""Values that `fit` and `evaluate` show, without a result at each step.

A value takes longer to compute than an update. So between two refreshes a
progress bar shows the values of the last one. Values that anything else reads,
also `train_on_batch`, are those of the step.
"""

import threading
from typing import Any
from typing import NamedTuple

import numpy as np
from keras import backend
from keras import ops

from keras_calib.backend.compiled import one_process
from keras_calib.backend.compiled import value_read_later
from keras_calib.backend.compiled import values_of_host
from keras_calib.backend.keras_internals import is_at_batch_end
from keras_calib.backend.keras_internals import is_building
from keras_calib.backend.keras_internals import is_only_displayed

__all__ = ["Display"]

# Keras reads values of JAX in threads.
_LOCK = threading.Lock()


class _Cadence(NamedTuple):
    """Counts of steps at which values are refreshed.

    After `last` the count goes back to `then`, so that float32 can hold it.
    """

    due: tuple[int, ...]
    last: int
    then: int


def _cadence(refresh_every: int | None) -> _Cadence:
    """1, 2, 4, ..., 32 and every 32nd; or the first of `refresh_every`."""
    if refresh_every is None:
        return _Cadence((1, 2, 4, 8, 16, 32, 64), 64, 32)
    return _Cadence((1,), refresh_every, 0)


class Display:
    """What `fit` and `evaluate` show of a metric.

    On TensorFlow a variable holds the values, and the step asks the host for
    new ones, or computes them where XLA compiles it. On JAX a step returns the
    state, and the values are computed when Keras reads them.

    Args:
        metric: Metric with `host_values(sums, flags)` and `traced_values()`.
        num_values: Number of its values.
        refresh_every: Steps between refreshes; None for 1, 2, 4, ..., 32 and
            every 32nd.
    """

    def __init__(self, metric: Any, num_values: int, refresh_every: int | None):
        self._metric = metric
        self._num_values = num_values
        self._cadence = _cadence(refresh_every)
        self._held: Any = None
        if backend.backend() == "tensorflow":
            # The count of steps, and the values.
            self._held = metric.add_variable(
                (1 + num_values,), "zeros", dtype="float32", name="displayed"
            )
        # The state that the last step on JAX returned.
        self.latest: Any = None
        self.restart()

    def restart(self) -> None:
        """Forget the values of earlier epochs."""
        self._count = 0
        self._seen: Any = None
        self._values: list[Any] | None = None
        self._is_fresh = False

    def values(self) -> list[Any] | None:
        """What a step that is being traced returns; None for new values."""
        if is_building():
            return [ops.zeros(())] * self._num_values
        if not is_only_displayed():
            return None
        if backend.backend() == "tensorflow":
            return self._of_graph()
        if backend.backend() == "jax" and one_process():
            return self._of_jit()
        return None

    def _of_graph(self) -> list[Any]:
        held = ops.convert_to_tensor(self._held)
        count = held[0] + 1.0
        due, last, then = self._cadence
        is_due = ops.any(ops.equal(count, np.array(due, "float32")))
        values = ops.cond(is_due, self._fresh, lambda: held[1:])
        count = ops.where(count >= last, float(then), count)
        self._held.assign(ops.concatenate([count[None], values]))
        return ops.unstack(values, self._num_values)

    def _fresh(self) -> Any:
        metric = self._metric
        state = [*map(ops.convert_to_tensor, (metric.sums, metric.flags))]
        values = values_of_host(metric.host_values, state, self._num_values)
        return ops.stack(metric.traced_values()) if values is None else values

    def _of_jit(self) -> list[Any]:
        sums, flags = self._metric.sums, self._metric.flags
        state = ops.concatenate([ops.ravel(sums), ops.ravel(flags)])
        shown = value_read_later()
        # One of them carries the state, as each output takes time.
        return [
            shown(self, i, state if i == 0 else None)
            for i in range(self._num_values)
        ]

    def read(self, index: int) -> float:
        """The value at `index`, of the last step or of the last refresh."""
        with _LOCK:
            if self.latest is not self._seen:
                self._seen, self._is_fresh = self.latest, False
                self._count += 1
                due, last, then = self._cadence
                if self._count in due:
                    self._values = None
                self._count = then if self._count >= last else self._count
            late = not self._is_fresh and not is_at_batch_end()
            if self._values is None or late:
                self._values, self._is_fresh = self._computed(), True
            return float(self._values[index])

    def _computed(self) -> list[Any]:
        state, shape = np.asarray(self._seen), self._metric.sums.shape
        sums, flags = np.split(state, [int(np.prod(shape))])
        return self._metric.host_values(sums.reshape(shape), flags)
