"""A log that is watched: answers from a file, labels and alarms by requests."""

import json
import threading
from pathlib import Path

import numpy as np
from bounded_server import as_json

import keras_calib
from keras_calib.backend.files import reading_npz, replacing

# Bytes of the log that are read at a time.
_BLOCK = 2**22
# What faulty lines and requests raise.
_FAULTS = (KeyError, RecursionError, TypeError, ValueError)


class WatchedLog:
    """A monitor with its place in the log, in one file that is replaced whole.

    Args:
        log: Path of the log, which grows. One that shrank is read anew.
        state: Path of the state, or where it will be.
        **kwargs: Arguments of `keras_calib.Monitor`.
    """

    def __init__(self, log, state, **kwargs):
        self.monitor = keras_calib.Monitor(**kwargs)
        self._log, self._state = Path(log), Path(state)
        self._lock = threading.Lock()
        # Bytes of the log that were read, and its lines that were refused.
        self._place, self._refused = 0, 0
        # Drawing takes long, and one drawing at a time.
        self._drawing = threading.Lock()
        if self._state.exists():
            rule = "`state` must be a file that this service wrote"
            with reading_npz(self._state, rule) as file:
                kept = {name: file.read(name) for name in file.names}
                place, refused = kept.pop("of_the_log").tolist()
                self.monitor.load_state_dict(kept)
            self._place, self._refused = int(place), int(refused)

    def get(self, path):
        """Status, type and content for a path of a GET."""
        with self._lock:
            self._read_on()
            found = self.monitor
            if path == "/picture.png":
                display = keras_calib.plots.MonitorDisplay(found)
            elif path == "/alarms":
                return as_json(200, alarms=[x.to_dict() for x in found.alarms])
            elif path == "/metrics":
                return as_json(
                    200,
                    counts={**found.counts, "refused": self._refused},
                    evidence=found.evidence,
                    limits=found.limits,
                    alarms=[alarm.name for alarm in found.alarms],
                )
            else:
                return as_json(404, error=f"no {path}")
        with self._drawing:
            return 200, "image/png", display.to_png()

    def post(self, path, content):
        """The same for a path and the bytes of a POST."""
        try:
            body = json.loads(content)
            if path not in ("/labels", "/restart"):
                return as_json(404, error=f"no {path}")
            with self._lock:
                self._read_on()
                before = self.monitor.state_dict()
                if path == "/restart":
                    self.monitor.restart(*body["names"])
                else:
                    self.monitor.update_labels(body["ids"], body["correct"])
                try:
                    self._save()
                except OSError:
                    # What is not on the disk must be sent again.
                    self.monitor.load_state_dict(before)
                    raise
                names = [alarm.name for alarm in self.monitor.alarms]
        except OSError as error:
            return as_json(500, error=str(error))
        except _FAULTS as error:
            text, status = str(error), 400
            if " repeated=" in text:
                status = 409
            elif " unknown=" in text:
                status = 404
            return as_json(status, error=text)
        return as_json(200, alarms=names)

    def _read_on(self):
        """Reads what is new in the log, whole lines alone."""
        while self._log.exists():
            if self._log.stat().st_size < self._place:
                self._place = 0
            with open(self._log, "rb") as file:
                file.seek(self._place)
                block = file.read(_BLOCK)
                if b"\n" not in block:
                    block += file.readline()
            if not (size := block.rfind(b"\n") + 1):
                return
            lines = block[:size].splitlines()
            try:
                self._add(lines)
            except _FAULTS:
                # Some line is at fault, and then nothing was added.
                for line in lines:
                    try:
                        self._add([line])
                    except _FAULTS:
                        self._refused += 1
            self._place += size
            self._save()

    def _add(self, lines):
        rows = [json.loads(line) for line in lines]
        columns = ("confidence", "accepted", "id")
        confidence, accepted, ids = ([r[k] for r in rows] for k in columns)
        self.monitor.update(confidence, accepted, ids=ids)

    def _save(self):
        state = self.monitor.state_dict()
        with replacing(self._state) as file:
            np.savez(file, of_the_log=[self._place, self._refused], **state)
