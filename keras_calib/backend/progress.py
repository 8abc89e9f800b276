"""Signs of life: a bar of Keras where something takes long.

A public callable with `verbose` is decorated by `shows_progress`. Loops below
it, `tracked` or counted by `tick`, are then shown after two seconds.
"""

import contextvars
import functools
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ParamSpec, TypeVar

import keras

from keras_calib.backend.errors import value_error

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")
# Seconds after which something is shown.
_PATIENCE = 2.0


class _Life:
    """What one call shows: the bar of its outermost loop."""

    def __init__(self, verbose: int):
        self.verbose = verbose
        self.begun = time.monotonic()
        self.has_loop = False
        self.ticks = 0
        self.bar: Any = None

    def show(self, done: int, total: int | None) -> None:
        """Updates the bar, once there has been nothing to see for a while."""
        if time.monotonic() - self.begun >= _PATIENCE:
            self.bar = self.bar or keras.utils.Progbar(total, self.verbose)
            self.bar.update(done, finalize=False)

    def end(self, done: int) -> None:
        """Ends the bar, and its line."""
        if self.bar is not None:
            self.bar.update(done, finalize=True)
        self.bar = None


_LIFE: contextvars.ContextVar[_Life | None] = contextvars.ContextVar(
    "life", default=None
)


def level_of(verbose: Any) -> int:
    """The level of Keras: "auto" is 1 in a terminal or notebook, else 0."""
    if verbose not in ("auto", 0, 1, 2):
        raise value_error(
            '`verbose` must be "auto", 0, 1 or 2', verbose=verbose
        )
    if verbose != "auto":
        return int(verbose)
    # As Keras decides whether it rewrites a line.
    is_seen = getattr(sys.stdout, "isatty", bool)()
    others = "ipykernel" in sys.modules, "PYCHARM_HOSTED" in os.environ
    return int(is_seen or any(others))


def shows_progress(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Makes a function show its outermost loop, as its `verbose` says."""
    known = inspect.signature(function).parameters
    default = known["verbose"].default if "verbose" in known else "auto"

    @functools.wraps(function)
    def shown(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        level = level_of(kwargs.get("verbose", default))
        life = _Life(level) if level else None
        token = _LIFE.set(life)
        try:
            return function(*args, **kwargs)
        finally:
            _LIFE.reset(token)
            if life is not None:
                life.end(life.ticks)

    return shown


def tracked(items: Iterable[_T], total: int | None = None) -> Iterator[_T]:
    """The same items; those of an outermost loop move the bar of the call."""
    life = _LIFE.get()
    if life is None or life.has_loop:
        yield from items
        return
    done, life.has_loop = 0, True
    try:
        for done, item in enumerate(items, start=1):
            yield item
            life.show(done, total)
    finally:
        life.has_loop = False
        life.end(done)


def tick() -> None:
    """Counts a step of something whose length nobody knows."""
    life = _LIFE.get()
    if life is not None and not life.has_loop:
        life.ticks += 1
        life.show(life.ticks, None)


def with_progress(
    items: Iterable[_T], total: int | None, verbose: Any = "auto"
) -> Iterator[_T]:
    """The same items with a bar of Keras from the first one on."""
    # Keras 3.12 takes the logarithm of the total.
    bar = keras.utils.Progbar(total or None, verbose=level_of(verbose))
    done = 0
    for done, item in enumerate(items, start=1):
        yield item
        bar.update(done, finalize=False)
    bar.update(done, finalize=True)
