"""How the tests of servers ask, and a model that answers when it is let."""

import contextlib
import http.client
import json
import threading
import time

import numpy as np

HEAD = b"POST /v1/models/model:predict HTTP/1.1\r\nHost: it\r\n"


def post(address, body, path="/v1/models/model:predict"):
    connection = http.client.HTTPConnection(address, timeout=60)
    body = body if isinstance(body, str) else json.dumps(body)
    connection.request("POST", path, body)
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


class Waits:
    """A model that answers when it is let."""

    def __init__(self):
        self.running = threading.Semaphore(0)
        self.let = threading.Event()

    def specs(self, name=""):
        import tensorflow as tf

        return {"x": tf.TensorSpec((None,), "float32")}

    def predict(self, inputs, name="", only=()):
        self.running.release()
        assert self.let.wait(60)
        return {"y": np.asarray(inputs["x"])}


def until(condition):
    """Waits for at most a minute."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def said(connection):
    """What a server answers, until it closes the connection."""
    with connection, contextlib.suppress(ConnectionError):
        return connection.makefile("rb").read()
    return b""
