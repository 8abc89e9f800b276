"""Settings of the door: `keras_calib.config`."""

__all__ = ["validate", "validates"]

_VALIDATES = True


def validate(enabled: bool = True) -> None:
    """Switches the checks of values in eager use on or off.

    Without them nothing waits for the device. What is wrong is treated as in
    compiled code: an invalid label makes a loss NaN, and metrics count invalid
    samples in `num_invalid`. Shapes are always checked.

    Args:
        enabled: Whether losses and metrics look at values in eager use.

    Example:

    >>> validate(False)
    >>> validates()
    False
    >>> validate(True)
    """
    global _VALIDATES
    _VALIDATES = bool(enabled)


def validates() -> bool:
    """Whether values are checked in eager use."""
    return _VALIDATES
