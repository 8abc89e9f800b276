"""Where a callback stands among those of one `fit`."""

import inspect

import keras

__all__ = ["neighbours"]


def neighbours(
    callback: keras.callbacks.Callback,
) -> tuple[list[keras.callbacks.Callback], list[keras.callbacks.Callback]]:
    """The callbacks before and after one in its list, while the list calls it.

    Keras shows a callback nothing of the others, so they are looked for where
    the list calls.

    Args:
        callback: The one that is called.

    Returns:
        `(before, after)`, both empty where no list calls.
    """
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.callbacks.CallbackList):
            places = [x is callback for x in caller.callbacks]
            if True in places:
                place = places.index(True)
                return caller.callbacks[:place], caller.callbacks[place + 1 :]
        frame = frame.f_back
    return [], []
