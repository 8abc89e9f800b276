r"""REST: TensorFlow Serving's `:predict` in JSON, a server.

    curl -d '{"instances": [[0.0, 1.0]]}' \
        http://127.0.0.1:8501/v1/models/model:predict

Rows are `instances` and `predictions`, columns `inputs` and `outputs`; files
are {"b64": "..."}. Integers may stand for floats; nothing else is converted.
"""

import base64
import json
import math
import reprlib
import threading
from http.server import BaseHTTPRequestHandler
from http.server import ThreadingHTTPServer

import numpy as np

__all__ = ["start_rest"]

_PATH = "/v1/models/model"


def _answer(model, body):
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")
    if len({"instances", "inputs"} & set(body)) != 1:
        raise ValueError("the body must have `instances` or `inputs`, not both")
    name = body.get("signature_name", "")
    if not isinstance(name, str):
        raise ValueError("`signature_name` must be a string")
    specs = model.specs(name)
    if "instances" in body:
        rows = body["instances"]
        if not isinstance(rows, list) or not rows:
            raise ValueError("`instances` must be a list of at least one")
        rows = [_named(row, specs) for row in rows]
        inputs = {key: [row[key] for row in rows] for key in specs}
    else:
        inputs = _named(body["inputs"], specs)
    inputs = {
        key: _array(value, specs[key].dtype) for key, value in inputs.items()
    }
    outputs = model.predict(inputs, name)
    outputs = {key: value.tolist() for key, value in outputs.items()}
    if "instances" not in body:
        return {"outputs": outputs}
    columns = zip(*outputs.values(), strict=True)
    return {
        "predictions": [dict(zip(outputs, row, strict=True)) for row in columns]
    }


def _named(value, specs):
    """Values by name; a signature of one input needs no name."""
    if not isinstance(value, dict) or _is_file(value):
        if len(specs) != 1:
            raise ValueError(f"values without the names {sorted(specs)}")
        return dict.fromkeys(specs, value)
    if set(value) != set(specs):
        raise ValueError(f"inputs {sorted(value)}, not {sorted(specs)}")
    return value


def _is_file(value):
    return (
        isinstance(value, dict)
        and set(value) == {"b64"}
        and isinstance(value["b64"], str)
    )


def _array(value, dtype):
    """An array of what the type holds as it is."""
    types, low, high = set(), None, None
    if dtype.is_floating:
        types, low, high = {int, float}, float(dtype.min), float(dtype.max)
    elif dtype.is_integer:
        types, low, high = {int}, int(dtype.min), int(dtype.max)
    elif dtype.is_bool:
        types = {bool}
    elif dtype == "string":
        types = {str}

    def fit(values):
        return set(map(type, values)) <= types and (
            low is None or (low <= min(values) and max(values) <= high)
        )

    def read(value):
        if isinstance(value, list):
            # Rows of numbers at once: an image has many.
            if value and fit(value):
                return value
            return [read(part) for part in value]
        if str in types and _is_file(value):
            return base64.b64decode(value["b64"])
        finite = type(value) is not float or math.isfinite(value)
        if not fit([value]) and (finite or float not in types):
            raise ValueError(f"{reprlib.repr(value)} is no {dtype.name}")
        return value

    return np.array(read(value), dtype.as_numpy_dtype)


class _Server(ThreadingHTTPServer):
    # As many clients may connect at once; the default is 5.
    request_queue_size = 128


def _error(error):
    return json.dumps({"error": str(error)})


def start_rest(model, host="127.0.0.1", port=8501):
    """Serves a LoadedModel in the background.

    Returns:
        The server, and the port: a free one, if `port` is 0.

    Raises:
        OSError: If another server listens there, or the host is elsewhere.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Else an answer waits 40 ms for the client to acknowledge its head.
        disable_nagle_algorithm = True

        def do_POST(self):  # noqa: N802, the base class's name
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal():
                self.answer(411, _error("the request must have its length"))
                return
            try:
                body = self.rfile.read(int(length))
                if self.path != f"{_PATH}:predict":
                    raise LookupError(f"no {self.path}")
                answer = json.dumps(_answer(model, json.loads(body)))
            except LookupError as error:
                self.answer(404, _error(error))
            except (RecursionError, ValueError) as error:
                self.answer(400, _error(error))
            except Exception as error:
                self.answer(500, _error(error))
            else:
                self.answer(200, answer)

        def answer(self, status, text):
            content = text.encode()
            self.send_response(status)
            if status > 404:
                # The body may be unread: the next request is out of reach.
                self.send_header("Connection", "close")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    server = _Server((host, port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, server.server_address[1]
