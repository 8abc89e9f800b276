"""What a logger leaves on disk: a table, pictures, events for TensorBoard."""

import csv
import os
import socket
import struct
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from keras_calib.backend.errors import invalid
from keras_calib.backend.errors import value_error
from keras_calib.backend.files import replacing
from keras_calib.backend.locks import PathLock
from keras_calib.backend.optional import tensorflow as tf
from keras_calib.monitoring.evaluation import LoggedEpoch
from keras_calib.plots import ReliabilityDisplay
from keras_calib.plots.display import figure_and_canvas

__all__ = ["EpochFiles", "EpochTable", "EventFile"]


class EpochFiles:
    """All files of a logger, opened as training begins.

    Those whose path is None are not written. Raises ImportError, OSError and
    RuntimeError as `CalibrationLogger` says.
    """

    def __init__(
        self,
        names: list[str],
        *,
        prefix: str,
        csv_path: Any,
        log_dir: Any,
        picture_dir: Any,
    ):
        self._prefix = prefix
        self._draws = log_dir is not None or picture_dir is not None
        self._table = self._events = self._pictures = None
        if self._draws:
            figure_and_canvas()
        if csv_path is not None:
            self._table = EpochTable(csv_path, names)
        try:
            self._open(picture_dir, log_dir)
        except BaseException:
            self.close()
            raise

    def _open(self, picture_dir: Any, log_dir: Any) -> None:
        if picture_dir is not None:
            self._pictures = Path(picture_dir)
            self._pictures.mkdir(parents=True, exist_ok=True)
            # Permissions alone do not tell whether one can write.
            probe = self._picture("probe")
            probe.touch()
            probe.unlink()
        if log_dir is not None:
            self._events = EventFile(log_dir, self._prefix)

    def put(self, entry: LoggedEpoch) -> None:
        """Writes what was found, with a warning for each file that fails.

        Training is worth more than what is written of it.
        """
        png = None
        if self._draws and entry.bins is not None:
            png = self._tried(
                entry,
                lambda: ReliabilityDisplay(
                    entry.bins, name=f"epoch {entry.epoch}"
                ).to_png(),
            )
        if self._table is not None:
            self._tried(entry, self._table.put, entry.epoch, entry.values)
        if self._pictures is not None and png is not None:
            self._tried(entry, self._put_picture, entry.epoch, png)
        if self._events is not None:
            self._tried(entry, self._events.put, entry, png)

    def _put_picture(self, epoch: int, png: bytes) -> None:
        with replacing(self._picture(f"{epoch:04d}")) as file:
            file.write(png)

    def close(self) -> None:
        """Ends the files."""
        if self._events is not None:
            self._events.close()
        if self._table is not None:
            self._table.close()

    def _picture(self, what: str) -> Path:
        # A prefix may make a group of TensorBoard: "cal/".
        prefix = self._prefix.replace("/", "_")
        return self._pictures / f"{prefix}reliability_{what}.png"

    def _tried(self, entry, function, *args):
        try:
            return function(*args)
        except Exception as error:
            warnings.warn(
                "`CalibrationLogger` could not draw or write what it found "
                f"in epoch {entry.epoch}: {error!r}",
                RuntimeWarning,
                stacklevel=4,
            )
            return None


class EpochTable:
    """A CSV file with one row per epoch, whole at any time.

    Each change writes the file anew beside the old one and puts it in its
    place: whoever is killed leaves the one or the other. Until `close` the
    file is kept for this process. One that is there is continued; ValueError
    if it has other columns, or an epoch that is no number.
    """

    def __init__(self, path: Any, columns: list[str]):
        self.path = Path(path)
        self.columns = ["epoch", *columns]
        self._lock = PathLock("csv_path", path)
        self._lock.acquire()
        try:
            self.rows = self._read()
            # Now, not after an epoch, is the time to learn that it cannot be.
            self._write()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Lets others write the file."""
        self._lock.release()

    def put(self, epoch: int, values: dict[str, float]) -> None:
        """Adds the row of an epoch, in place of it and of later ones.

        Rows of later epochs are of a run that was taken up before them.
        """
        texts = {name: repr(value) for name, value in values.items()}
        row = {"epoch": str(epoch), **texts}
        self.rows = [x for x in self.rows if int(x["epoch"]) < epoch]
        self.rows.append(row)
        self._write()

    def _read(self) -> list[dict[str, str]]:
        if not self.path.exists():
            return []
        with open(self.path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            found = list(reader.fieldnames or [])
            rows = list(reader)
        if found not in ([], self.columns):
            raise value_error(
                "`csv_path` must be a new file, or one that this logger "
                f"wrote with the columns {self.columns}",
                csv_path=str(self.path),
                columns=found,
            )
        for line, row in enumerate(rows, start=2):
            if not row["epoch"].isdecimal():
                raise value_error(
                    "`csv_path` must have the number of an epoch in each "
                    "row; mend it, or name a new file",
                    csv_path=str(self.path),
                    line=line,
                    epoch=row["epoch"],
                )
        return rows

    def _write(self) -> None:
        with replacing(self.path, text=True) as file:
            writer = csv.DictWriter(file, self.columns, restval="")
            writer.writeheader()
            writer.writerows(self.rows)


class EventFile:
    """A file of events that TensorBoard reads, in a folder.

    The records are put together here: `tf.summary.scalar` and its siblings
    need the package of TensorBoard, and running TensorFlow's operations
    would take the memory of an accelerator on which another backend trains.
    """

    def __init__(self, log_dir: Any, prefix: str = ""):
        self._prefix = prefix
        now = time.time()
        name = f"events.out.tfevents.{now:.6f}.{socket.gethostname()}"
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

    def put(self, entry: LoggedEpoch, png: bytes | None) -> None:
        """Everything of an epoch."""
        for name, value in entry.values.items():
            self._put(name, np.float32(value), entry.epoch, "scalars", 1)
        if entry.regularizer is not None:
            counts, edges, _ = entry.regularizer
            bars = np.stack([edges[:-1], edges[1:], counts], axis=-1)
            name = f"{self._prefix}regularizer"
            bars = bars.astype("float64")
            self._put(name, bars, entry.epoch, "histograms", 2)
        if png is not None:
            width, height = struct.unpack(">II", png[16:24])
            parts = [str(width).encode(), str(height).encode(), png]
            name = f"{self._prefix}reliability"
            parts = np.array(parts, object)
            self._put(name, parts, entry.epoch, "images", 3)
        self._file.flush()

    def close(self) -> None:
        """Ends the file."""
        self._file.close()

    def _put(self, tag, value, step, plugin, data_class):
        """One value for a plugin; of class scalar, tensor or blobs, 1 to 3."""
        metadata = tf.compat.v1.SummaryMetadata(data_class=data_class)
        metadata.plugin_data.plugin_name = plugin
        entry = tf.compat.v1.Summary.Value(
            tag=tag, metadata=metadata, tensor=tf.make_tensor_proto(value)
        )
        summary = tf.compat.v1.Summary(value=[entry])
        self._add(step=step, summary=summary)

    def _add(self, **content):
        event = tf.compat.v1.Event(wall_time=time.time(), **content)
        self._file.write(event.SerializeToString())
