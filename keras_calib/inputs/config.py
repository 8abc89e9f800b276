"""Settings of the library: `keras_calib.config`."""

_VALIDATES = True


def validate(enabled: bool = True) -> None:
    """Switch the checks of values in eager mode on or off.

    Use it to speed up eager training: without the checks nothing waits for the
    device. Invalid values are then treated as in compiled code. An invalid
    label makes a loss NaN, and metrics count invalid samples in `num_invalid`.
    Shapes are always checked.

    Args:
        enabled: Whether losses, metrics, calibrators and selectors check
            values in eager mode.

    Example:

    >>> validate(False)
    >>> validates()
    False
    >>> validate(True)
    """
    global _VALIDATES
    _VALIDATES = bool(enabled)


def validates() -> bool:
    """Return whether values are checked in eager mode."""
    return _VALIDATES
