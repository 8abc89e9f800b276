"""Experiment trackers, known by their methods: MLflow, Weights & Biases."""

import importlib
import importlib.util
from typing import Any

from keras_calib.backend.errors import type_error
from keras_calib.monitoring.evaluation import LoggedEpoch
from keras_calib.plots import ReliabilityDisplay
from keras_calib.plots.display import matplotlib_module

__all__ = ["EpochTracker", "check_tracker"]


def check_tracker(tracker: Any) -> None:
    """Raises TypeError unless an object logs values by step."""
    if not any(
        callable(getattr(tracker, x, None)) for x in ("log_metrics", "log")
    ):
        raise type_error(
            "`tracker` must have `log_metrics(values, step=)`, as the module "
            "mlflow, or `log(values, step=)`, as a run of wandb",
            tracker=type(tracker).__name__,
        )


class EpochTracker:
    """Sends epochs to a tracker: values, and the diagram where it takes one."""

    def __init__(self, tracker: Any, prefix: str):
        check_tracker(tracker)
        self._tracker = tracker
        self._name = f"{prefix}reliability"
        self._by_metrics = callable(getattr(tracker, "log_metrics", None))
        # Diagrams are left out without matplotlib.
        self._draws = importlib.util.find_spec("matplotlib") is not None
        self._image = None
        if not self._by_metrics:
            # A run is of the package whose `Image` it takes.
            of = getattr(tracker, "__name__", type(tracker).__module__)
            module = importlib.import_module(of.partition(".")[0])
            self._image = getattr(module, "Image", None)

    def put(self, entry: LoggedEpoch) -> None:
        """Sends the values of an epoch, and its diagram."""
        values, step = dict(entry.values), entry.epoch
        draws = self._draws and entry.bins is not None
        if self._by_metrics:
            self._tracker.log_metrics(values, step=step)
            if draws and hasattr(self._tracker, "log_figure"):
                name = f"{self._name.replace('/', '_')}_{step:04d}.png"
                self._tracker.log_figure(_figure(entry.bins, step), name)
            return
        if draws and self._image is not None:
            values[self._name] = self._image(_figure(entry.bins, step))
        self._tracker.log(values, step=step)


def _figure(bins: Any, epoch: int) -> Any:
    figure = matplotlib_module("figure").Figure()
    display = ReliabilityDisplay(bins, name=f"epoch {epoch}")
    display.plot(figure.subplots())
    return figure
