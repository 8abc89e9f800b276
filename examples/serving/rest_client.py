"""A client of TensorFlow Serving's `:predict` over REST, in JSON."""

import base64
import contextlib
import http.client
import json
import threading

import numpy as np

_PATH = "/v1/models/model:predict"


class RestClient:
    """Asks a server by REST; each thread has its own connection.

    Args:
        address: Such as "127.0.0.1:8501".
    """

    def __init__(self, address):
        self._address = address
        self._local = threading.local()
        self._connections = []

    def predict(self, inputs, signature_name=""):
        """Outputs by name, as arrays, for arrays by name.

        Outputs that are not finite come as NaN.

        Raises:
            ValueError: If the server refuses, with its message, or inputs are
                not finite.
        """
        body = {"signature_name": signature_name, "inputs": inputs}
        body = json.dumps(body, default=_in_json, allow_nan=False)
        status, answer = self._asked(body)
        if status != 200:
            raise ValueError(_words(status, answer))
        outputs = json.loads(answer)["outputs"]
        return {k: _array(v) for k, v in outputs.items()}

    def _asked(self, body):
        """Status and content of the answer."""
        if not hasattr(self._local, "connection"):
            connection = http.client.HTTPConnection(self._address, timeout=60)
            self._local.connection = connection
            self._connections.append(connection)
        connection = self._local.connection
        # The server ends a connection that was idle: then ask once more.
        for last in (connection.sock is None, True):
            try:
                # One that has no place for us answers before it has read all.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.request("POST", _PATH, body)
                response = connection.getresponse()
                return response.status, response.read()
            except ConnectionError:
                connection.close()
                if last:
                    raise
            except BaseException:
                # Else the answer that is still under way blocks the next one.
                connection.close()
                raise
        return None

    def close(self):
        """Ends the connections."""
        for connection in self._connections:
            connection.close()


def _words(status, answer):
    """The server's reason to refuse; a proxy may give none."""
    try:
        return json.loads(answer)["error"]
    except (LookupError, TypeError, ValueError):
        return f"HTTP status {status}"


def _array(value):
    array = np.asarray(value)
    if array.dtype == object:
        # JSON has null for what is no finite number.
        array = array.astype("float64")
    return array


def _in_json(value):
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    return np.asarray(value).tolist()
