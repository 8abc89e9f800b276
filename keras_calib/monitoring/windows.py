"""A monitor over windows of a stream, on Apache Beam."""

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.inputs.checks import check_keys, check_number
from keras_calib.monitoring.monitor import Monitor
from keras_calib.numerics.arrays import check_numbers

__all__ = ["add_windows", "window_sums"]

_NAMES = ("confidence", "accepted", "correct")
# Answers that a worker reduces at a time: a single one costs as much.
_FEWEST, _MOST = 100, 4096


def window_sums(monitor: Monitor) -> Any:
    """A Beam transform from answers to the sums of each window.

    Use it where answers stream through Apache Beam. Workers see parts of a
    window in any order; `add_windows` gives the sums to one monitor. An
    element is

    *   `(confidence, accepted)` or `(confidence, accepted, correct)`,
    *   a batch of them, each `(n,)`, or
    *   a dict of these by name, and of nothing else.

    `correct` is 1 or 0, or None or NaN without a label. An answer counts once:
    join labels before, in a window that is long enough, as the choice of what
    gets a label must not depend on whether it is right.

    Args:
        monitor: A `Monitor` with the arguments of the one that gets the sums.

    Returns:
        A `PTransform`. It gives pairs of the end of a window in seconds and
        its sums `(num_sums,)`; a window without answers gives none.

    Raises:
        ImportError: If Apache Beam is absent.
        TypeError: If `monitor` is none.
        ValueError: In the workers, if a value is out of its range.

    Example:

    >>> import apache_beam as beam
    >>> from keras_calib import Monitor, window_sums
    >>> hourly = beam.WindowInto(beam.window.FixedWindows(3600))
    >>> sums = hourly | window_sums(Monitor(risk=0.1))

    Reference:
        Windows: https://beam.apache.org/documentation/programming-guide
    """
    _check_monitor(monitor)
    try:
        import apache_beam as beam
    except ImportError as error:
        raise ImportError(
            "`window_sums` needs Apache Beam: pip install 'keras-calib[beam]'"
        ) from error

    def with_end(sums: Any, window: Any = beam.DoFn.WindowParam) -> Any:
        return window.end.micros / 1e6, sums

    return (
        "Batch" >> beam.BatchElements(_FEWEST, _MOST)
        | "Sums" >> beam.Map(_sums_of, monitor)
        | "Add" >> beam.CombineGlobally(sum).without_defaults()
        | "Ends" >> beam.Map(with_end)
    )


def add_windows(
    monitor: Monitor, windows: Iterable[tuple[float, Any]]
) -> Monitor:
    """Adds the sums of windows in their order; returns the monitor.

    Use it where `window_sums` was written to a file or comes from a queue. If
    each call has all windows since the last one, the guarantee is that of
    `Monitor.add_sums`. The monitor keeps no times, so windows of an earlier
    call are not recognized.

    Args:
        monitor: The `Monitor` to add to.
        windows: Pairs of `window_sums`, in any order: the end of a window, a
            finite number, and its sums.

    Returns:
        The monitor.

    Raises:
        TypeError: If these are no pairs, or an end is no number.
        ValueError: If a window comes twice, as from triggers that fire again,
            or sums are not of this monitor. Nothing is added then.

    Example:

    >>> from keras_calib import Monitor, add_windows
    >>> monitor = Monitor(risk=0.1)
    >>> late = monitor.sums([0.9, 0.8], True, [1, 0])
    >>> early = monitor.sums([0.9], True, [1])
    >>> monitor = add_windows(monitor, [(7200.0, late), (3600.0, early)])
    >>> monitor.counts["answers"]
    3.0

    Reference:
        Ramdas et al., Game-Theoretic Statistics and Safe Anytime-Valid
        Inference, Statistical Science 2023, https://arxiv.org/abs/2210.01948
    """
    _check_monitor(monitor)
    pairs = sorted(_pairs(windows), key=operator.itemgetter(0))
    ends = [end for end, _ in pairs]
    twice = [a for a, b in zip(ends, ends[1:], strict=False) if a == b]
    if twice:
        raise value_error(
            "`windows` must have each window once: let triggers fire once, at "
            "the end of the window",
            twice=twice[:3],
        )
    # All of them first, so that nothing is added of faulty ones.
    for _, sums in pairs:
        monitor._check_sums(sums)
    for _, sums in pairs:
        monitor.add_sums(sums)
    return monitor


def _check_monitor(monitor: Any) -> None:
    if not isinstance(monitor, Monitor):
        raise type_error(
            "`monitor` must be a `Monitor`", monitor=type(monitor).__name__
        )


def _pairs(windows: Any) -> list[tuple[Any, Any]]:
    """Ends and sums of windows, checked."""
    found = []
    listed = [*windows] if isinstance(windows, Iterable) else [windows]
    for place, pair in enumerate(listed):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise type_error(
                "`windows` must be pairs of the end of a window and its sums",
                place=place,
                type=type(pair).__name__,
            )
        # An array without axes, as of a file, is a number too.
        end = pair[0][()] if isinstance(pair[0], np.ndarray) else pair[0]
        check_number(f"windows[{place}][0]", end)
        found.append((end, pair[1]))
    return found


def _sums_of(elements: list, monitor: Monitor) -> np.ndarray:
    """Sums of a batch of elements."""
    columns: list[list] = [[], [], []]
    for element in elements:
        found = _answers(element)
        for column, values in zip(columns, found, strict=True):
            column.append(values)
    confidence, accepted, correct = map(np.concatenate, columns)
    if monitor.tolerance is None:
        confidence = None
    return monitor.sums(confidence, accepted, correct)


def _answers(element: Any) -> list[np.ndarray]:
    """The three arrays `(n,)` of an element."""
    values = element
    if isinstance(element, Mapping):
        check_keys("element", element, _NAMES, _NAMES[:2])
        values = [element.get(name) for name in _NAMES]
    values = [*values, None][:3] if len(values) < 3 else [*values]
    if len(values) != 3:
        raise value_error(
            "an element must be `(confidence, accepted)` or `(confidence, "
            "accepted, correct)`, or a dict of these",
            element=element,
        )
    arrays = []
    for name, x in zip(_NAMES, values, strict=True):
        check_numbers(name, x, of_part=True)
        array = np.asarray(x)
        if array.dtype.kind == "c":
            check_numbers(name, array)
        # None becomes NaN.
        arrays.append(np.atleast_1d(array.astype("float64")))
    return list(np.broadcast_arrays(*arrays))
