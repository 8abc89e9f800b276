"""REST: TensorFlow Serving's `:predict` in JSON, a client."""

import base64
import http.client
import json
import threading

import numpy as np

__all__ = ["RestClient"]


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

        Raises:
            ValueError: If the server refuses; its words.
        """
        body = {"signature_name": signature_name, "inputs": inputs}
        body = json.dumps(body, default=_in_json)
        if not hasattr(self._local, "connection"):
            connection = http.client.HTTPConnection(self._address, timeout=60)
            self._local.connection = connection
            self._connections.append(connection)
        connection = self._local.connection
        try:
            connection.request("POST", "/v1/models/model:predict", body)
            response = connection.getresponse()
            answer = response.read()
        except BaseException:
            # Else the answer that is still under way blocks the next request.
            connection.close()
            raise
        answer = json.loads(answer)
        if response.status != 200:
            raise ValueError(answer["error"])
        return {k: np.asarray(v) for k, v in answer["outputs"].items()}

    def close(self):
        """Ends the connections."""
        for connection in self._connections:
            connection.close()


def _in_json(value):
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    return np.asarray(value).tolist()
