"""Losses by name, read and drawn."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_calib.inputs.checks import check_loss
from keras_calib.losses import BatchCoupledLoss
from keras_calib.plots.display import COLORS
from keras_calib.plots.display import DASHES
from keras_calib.plots.texts import plain

__all__ = ["NUM_POINTS", "draw_curves", "named_losses", "read_each"]

# Points of a curve.
NUM_POINTS = 241


def named_losses(losses: Any) -> dict[str, Any]:
    """A dict as it is, a loss under the name of its class."""
    if isinstance(losses, dict):
        return losses
    check_loss(losses)
    is_loss = isinstance(losses, keras.losses.Loss)
    name = None if is_loss else getattr(losses, "__name__", None)
    return {name or type(losses).__name__: losses}


def read_each(
    loss: Any, read: Callable[[Any, Any], np.ndarray], logits: np.ndarray
) -> np.ndarray:
    """What is read of each row, whose label is 0."""
    labels = np.zeros(len(logits), "int32")
    if not isinstance(loss, BatchCoupledLoss):
        return read(labels, logits)
    rows = range(len(logits))
    return np.concatenate([read(labels[:1], logits[i : i + 1]) for i in rows])


def draw_curves(ax: Any, x: np.ndarray, curves: dict[str, np.ndarray]) -> None:
    """Lines that differ in colour and dashes."""
    for i, (name, values) in enumerate(curves.items()):
        ax.plot(
            x,
            values,
            color=COLORS[i % len(COLORS)],
            linestyle=DASHES[i % len(DASHES)],
            linewidth=1.5,
            label=plain(name),
        )
