"""A monitor as a service: labels, alarms, faulty requests, a kill."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from limits import Limits
from monitor_service import start
from serving_cases import post, until
from watched_log import WatchedLog

from keras_calib import Monitor
from keras_calib.plots import MonitorDisplay

ROOT = Path(__file__).parents[2]


def get(address, path):
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", path)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    if response.headers["Content-Type"] == "application/json":
        content = json.loads(content)
    return response.status, content


def label(address, ids, correct):
    return post(address, {"ids": ids, "correct": correct}, "/labels")


def announce(address, length):
    """Says how long a body will be, and sends none."""
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.putrequest("POST", "/labels")
    connection.putheader("Content-Length", str(length))
    connection.endheaders()
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def write(path, ids, confidence, accepted=True):
    with open(path, "a") as file:
        for name, value in zip(ids, confidence, strict=True):
            row = {"id": name, "confidence": value, "accepted": accepted}
            file.write(json.dumps(row) + "\n")


@contextlib.contextmanager
def serving(folder, **options):
    watched = WatchedLog(folder / "log.jsonl", folder / "state.npz", risk=0.1)
    server = start(watched, port=0, **options)
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_labels_raise_alarms_that_outlive_the_service(tmp_path):
    rng = np.random.default_rng(0)
    ids = [f"a{i}" for i in range(2000)]
    confidence = rng.uniform(0.9, 1.0, 2000)
    correct = np.where(rng.random(2000) < confidence - 0.2, 1.0, 0.0)
    write(tmp_path / "log.jsonl", ids, confidence)
    monitor = Monitor(risk=0.1).update(confidence, True, ids=ids)
    for half in (slice(0, 1000), slice(1000, 2000)):
        with serving(tmp_path) as address:
            status, answer = label(address, ids[half], correct[half].tolist())
            monitor.update_labels(ids[half], correct[half])
            names = [alarm.name for alarm in monitor.alarms]
            assert (status, answer) == (200, {"alarms": names})
    with serving(tmp_path) as address:
        _, found = get(address, "/metrics")
        assert found["counts"] == pytest.approx(
            {**monitor.counts, "refused": 0}
        )
        assert found["evidence"] == pytest.approx(monitor.evidence)
        (first, *_) = get(address, "/alarms")[1]["alarms"]
        assert first["message"] == monitor.alarms[0].message
        status, picture = get(address, "/picture.png")
        assert status == 200 and picture.startswith(b"\x89PNG")
        assert post(address, {"names": ["risk"]}, "/restart")[0] == 200
        left = [x["name"] for x in get(address, "/alarms")[1]["alarms"]]
        assert left == names[1:]


def test_faulty_requests_change_nothing(tmp_path):
    write(tmp_path / "log.jsonl", "abc", [0.9, 0.9, 0.9])
    with serving(tmp_path) as address:
        assert label(address, ["a"], [1])[0] == 200
        refused = {
            409: [
                label(address, ["a"], [1]),
                label(address, ["b", "b"], [1, 1]),
            ],
            404: [
                label(address, ["b", "z"], [1, 1]),
                get(address, "/nothing"),
                post(address, {}, "/nothing"),
            ],
            400: [
                post(address, "{", "/labels"),
                post(address, "[]", "/labels"),
                post(address, "[" * 9999, "/labels"),
                post(address, {"ids": ["b"]}, "/labels"),
                label(address, ["b"], [2]),
                label(address, ["b", "c"], [1]),
                label(address, ["b"], ["yes"]),
                post(address, {"names": ["x"]}, "/restart"),
            ],
            413: [announce(address, 2**20 + 1)],
        }
        for status, answers in refused.items():
            assert [x for x, _ in answers] == [status] * len(answers)
            assert all("error" in x for _, x in answers)
        assert get(address, "/metrics")[1]["counts"]["labelled"] == 1


def test_only_whole_and_right_lines_of_the_log_count(tmp_path):
    log = tmp_path / "log.jsonl"
    with serving(tmp_path) as address:
        assert get(address, "/metrics")[1]["counts"]["answers"] == 0
        write(log, "ab", [0.9, 1.5])
        with open(log, "a") as file:
            file.write('null\n{"id": 7}\n{"id": "a", "confid')
        counts = get(address, "/metrics")[1]["counts"]
        assert (counts["answers"], counts["refused"]) == (1, 3)
        with open(log, "a") as file:
            file.write('ence": 0.9, "accepted": true}\n')
        with open(log, "a") as file:
            # Longer than what is read at a time.
            file.write("x" * 2**23 + "\n")
        write(log, "c", [0.9])
        counts = get(address, "/metrics")[1]["counts"]
        # The id `a` came before.
        assert (counts["answers"], counts["refused"]) == (2, 5)
        # Rotated.
        log.unlink()
        write(log, "d", [0.9])
        assert get(address, "/metrics")[1]["counts"]["answers"] == 3


def test_labels_that_were_not_kept_may_be_sent_again(tmp_path):
    log, folder = tmp_path / "log.jsonl", tmp_path / "kept"
    folder.mkdir()
    watched = WatchedLog(log, folder / "state.npz", risk=0.1)

    class Locked(Monitor):
        @property
        def alarms(self):
            assert watched._lock.locked()
            return super().alarms

    watched.monitor.__class__ = Locked
    write(log, "a", [0.9])
    assert watched.get("/alarms")[0] == 200
    folder.rename(tmp_path / "away")
    folder.touch()
    labels = json.dumps({"ids": ["a"], "correct": [1]})
    assert watched.post("/labels", labels)[0] == 500
    folder.unlink()
    (tmp_path / "away").rename(folder)
    assert watched.post("/labels", labels)[0] == 200
    assert watched.post("/labels", labels)[0] == 409


def test_half_sent_requests_hold_few_threads_and_not_for_long(tmp_path):
    limits = Limits(connections=3, seconds=0.2)
    with serving(tmp_path, limits=limits) as address:
        host, port = address.split(":")
        before = threading.active_count()
        half = b"POST /labels HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"
        held = [socket.create_connection((host, port)) for _ in range(40)]
        for connection in held:
            with contextlib.suppress(ConnectionError):
                connection.sendall(half)
        # Those that are told so leave within a second.
        assert threading.active_count() - before <= 3 + 32
        until(lambda: get(address, "/metrics")[0] == 200)
        for connection in held:
            connection.close()


def test_a_drawing_stops_nobody(tmp_path, monkeypatch):
    begun, let = threading.Event(), threading.Event()

    def draws(display):
        begun.set()
        assert let.wait(60)
        return b"picture"

    monkeypatch.setattr(MonitorDisplay, "to_png", draws)
    write(tmp_path / "log.jsonl", "a", [0.9])
    with serving(tmp_path) as address, ThreadPoolExecutor() as pool:
        picture = pool.submit(get, address, "/picture.png")
        assert begun.wait(60)
        assert label(address, ["a"], [1])[0] == 200
        assert get(address, "/metrics")[1]["counts"]["labelled"] == 1
        let.set()
        assert picture.result() == (200, b"picture")


@pytest.mark.slow
def test_a_killed_service_goes_on(tmp_path):
    log, state = tmp_path / "log.jsonl", tmp_path / "state.npz"
    write(log, [f"a{i}" for i in range(50)], [0.9] * 50)
    command = [sys.executable, "examples/serving/monitor_service.py"]
    options = [f"--log={log}", f"--state={state}", "--risk=0.1", "--port=0"]
    environment = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    for turn in range(2):
        with subprocess.Popen(
            [*command, *options],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        ) as process:
            try:
                address = process.stdout.readline().split()[-1]
                assert label(address, [f"a{turn}"], [1])[0] == 200
                assert label(address, ["a0"], [1])[0] == 409
                counts = get(address, "/metrics")[1]["counts"]
            finally:
                process.send_signal(signal.SIGKILL)
        assert counts["answers"] == 50 and counts["labelled"] == turn + 1
