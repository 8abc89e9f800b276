"""Where a logger writes epochs: a table, pictures, TensorBoard, trackers."""

import contextlib
import csv
import importlib
import importlib.util
import os
import socket
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from keras_calib.backend.errors import invalid, type_error, value_error
from keras_calib.backend.files import path_of, replacing, safe_cell, write_csv
from keras_calib.backend.late import tensorflow as tf
from keras_calib.backend.locks import PathLock
from keras_calib.monitoring.evaluation import LoggedEpoch
from keras_calib.plots import ReliabilityDisplay
from keras_calib.plots.display import matplotlib_module


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


class _EpochTracker:
    """Sends epochs to a tracker: values, and the diagram where it takes one."""

    def __init__(self, tracker: Any, prefix: str):
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

    def put(self, entry: LoggedEpoch, png: bytes | None) -> None:
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


class EpochFiles:
    """All files of a logger, opened as training begins."""

    def __init__(
        self,
        names: list[str],
        *,
        prefix: str,
        csv_path: Any,
        log_dir: Any,
        picture_dir: Any,
        tracker: Any = None,
    ):
        # Each takes an epoch and its diagram, which is None if there is none.
        self._writers: list[Callable[[LoggedEpoch, bytes | None], None]] = []
        last = [] if tracker is None else [_EpochTracker(tracker, prefix).put]
        self._draws = log_dir is not None or picture_dir is not None
        if self._draws:
            matplotlib_module("figure")
        with contextlib.ExitStack() as opened:
            if csv_path is not None:
                table = EpochTable(csv_path, names)
                opened.callback(table.close)
                self._writers.append(
                    lambda entry, png: table.put(entry.epoch, entry.values)
                )
            if picture_dir is not None:
                self._writers.append(_EpochPictures(picture_dir, prefix).put)
            if log_dir is not None:
                events = _EventFile(log_dir, prefix)
                opened.callback(events.close)
                self._writers.append(events.put)
            self.close = opened.pop_all().close
        self._writers += last

    def put(self, entry: LoggedEpoch) -> None:
        """Writes an epoch, with a warning for each file that fails."""
        png = None
        if self._draws and entry.bins is not None:
            name = f"epoch {entry.epoch}"
            with _told(entry):
                png = ReliabilityDisplay(entry.bins, name=name).to_png()
        for write in self._writers:
            with _told(entry):
                write(entry, png)


@contextlib.contextmanager
def _told(entry: LoggedEpoch) -> Iterator[None]:
    """Turns an error into a warning."""
    try:
        yield
    except Exception as error:
        warnings.warn(
            "`CalibrationLogger` could not draw or write the values of epoch "
            f"{entry.epoch}; training goes on: {error!r}",
            RuntimeWarning,
            stacklevel=5,
        )


class _EpochPictures:
    """Diagrams as files of a folder."""

    def __init__(self, folder: Any, prefix: str):
        # A prefix such as "cal/" makes a group in TensorBoard.
        name = f"{prefix.replace('/', '_')}reliability"
        self._path = path_of(folder, "picture_dir") / name
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Permissions do not always tell whether one can write.
        probe = self._path.with_name(f"{name}_probe.png")
        probe.touch()
        probe.unlink()

    def put(self, entry: LoggedEpoch, png: bytes | None) -> None:
        """Writes the diagram of an epoch."""
        if png is not None:
            name = f"{self._path.name}_{entry.epoch:04d}.png"
            with replacing(self._path.with_name(name)) as file:
                file.write(png)


class EpochTable:
    """A CSV file with one row per epoch, locked for this process until `close`.

    Each change replaces the whole file. An existing table is continued; raises
    ValueError if its columns differ.
    """

    def __init__(self, path: Any, columns: list[str]):
        self.path = path_of(path, "csv_path")
        self.columns = ["epoch", *map(safe_cell, columns)]
        self._lock = PathLock("csv_path", path)
        self._lock.acquire()
        try:
            self.rows = self._read()
            # Better to fail now than after an epoch.
            self._write()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Releases the lock."""
        self._lock.release()

    def put(self, epoch: int, values: dict[str, float]) -> None:
        """Adds the row of an epoch, and removes rows from that epoch on."""
        self.rows = [x for x in self.rows if int(x["epoch"]) < epoch]
        named = {safe_cell(name): value for name, value in values.items()}
        self.rows.append({"epoch": epoch, **named})
        self._write()

    def _read(self) -> list[dict[str, Any]]:
        if self.path.is_dir():
            raise value_error(
                "`csv_path` must name a file, not a folder",
                csv_path=str(self.path),
            )
        if not self.path.exists():
            return []
        with open(self.path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            found, rows = list(reader.fieldnames or []), list(reader)
        columns = found in ([], self.columns)
        if not columns or not all(x["epoch"].isdecimal() for x in rows):
            raise value_error(
                "`csv_path` must be a new file, or one that this logger wrote "
                f"with the columns {self.columns} and an epoch in each row",
                csv_path=str(self.path),
                columns=found,
            )
        return rows

    def _write(self) -> None:
        with replacing(self.path, text=True) as file:
            rows = ([row.get(x, "") for x in self.columns] for row in self.rows)
            write_csv(file, [self.columns, *rows])


class _EventFile:
    """A file of events in a folder, for TensorBoard.

    `tf.summary` would run operations of TensorFlow, which take the memory of
    an accelerator on which another backend trains.
    """

    def __init__(self, log_dir: Any, prefix: str):
        self._prefix = prefix
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}"
        path = os.path.join(log_dir, f"{name}.{os.getpid()}.v2")
        try:
            tf.io.gfile.makedirs(os.fspath(log_dir))
            self._file = tf.io.TFRecordWriter(path)
            self._add(file_version="brain.Event:2")
            self._file.flush()
        except tf.errors.OpError as error:
            raise OSError(
                invalid(
                    "`log_dir` must be a folder that can be written",
                    log_dir=os.fspath(log_dir),
                )
            ) from error
        self.close = self._file.close

    def put(self, entry: LoggedEpoch, png: bytes | None) -> None:
        """Writes all values of an epoch."""
        step = entry.epoch
        for name, value in entry.values.items():
            self._put(name, np.float32(value), step, "scalars", 1)
        if entry.regularizer is not None:
            edges, counts = entry.regularizer.edges, entry.regularizer.counts
            bars = np.stack([edges[:-1], edges[1:], counts], axis=-1)
            name = f"{self._prefix}regularizer"
            self._put(name, bars.astype("float64"), step, "histograms", 2)
        if png is not None:
            sides = struct.unpack(">II", png[16:24])
            parts = [*(str(side).encode() for side in sides), png]
            name = f"{self._prefix}reliability"
            self._put(name, np.array(parts, object), step, "images", 3)
        self._file.flush()

    def _put(self, tag, value, step, plugin, data_class):
        """Writes one value; `data_class` is 1 scalar, 2 tensor or 3 blobs."""
        metadata = tf.compat.v1.SummaryMetadata(data_class=data_class)
        metadata.plugin_data.plugin_name = plugin
        entry = tf.compat.v1.Summary.Value(
            tag=tag, metadata=metadata, tensor=tf.make_tensor_proto(value)
        )
        self._add(step=step, summary=tf.compat.v1.Summary(value=[entry]))

    def _add(self, **content):
        event = tf.compat.v1.Event(wall_time=time.time(), **content)
        self._file.write(event.SerializeToString())
