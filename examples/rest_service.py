r"""REST: TensorFlow Serving's `:predict` in JSON, a server.

    curl -d '{"instances": [[0.0, 1.0]]}' \
        http://127.0.0.1:8501/v1/models/model:predict

Rows are `instances` and `predictions`, columns `inputs` and `outputs`; files
are {"b64": "..."}.
"""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler
from http.server import ThreadingHTTPServer

import numpy as np

__all__ = ["start_rest"]

_PATH = "/v1/models/model"


def _answer(model, body):
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")
    if not {"instances", "inputs"} & set(body):
        raise ValueError("the body must have `instances` or `inputs`")
    name = body.get("signature_name", "")
    specs = model.specs(name)
    if "instances" in body:
        rows = body["instances"]
        if not isinstance(rows, list) or not rows:
            raise ValueError("`instances` must be a list of at least one")
        if not isinstance(rows[0], dict) or "b64" in rows[0]:
            rows = [dict.fromkeys(specs, row) for row in rows]
        inputs = {key: [row.get(key) for row in rows] for key in rows[0]}
    else:
        inputs = body["inputs"]
        if not isinstance(inputs, dict):
            inputs = dict.fromkeys(specs, inputs)
    if set(inputs) != set(specs):
        raise ValueError(f"inputs {sorted(inputs)}, not {sorted(specs)}")
    inputs = {
        key: np.array(_decode(value), specs[key].dtype.as_numpy_dtype)
        for key, value in inputs.items()
    }
    outputs = model.predict(inputs, name)
    outputs = {key: value.tolist() for key, value in outputs.items()}
    if "instances" not in body:
        return {"outputs": outputs}
    columns = zip(*outputs.values(), strict=True)
    return {
        "predictions": [dict(zip(outputs, row, strict=True)) for row in columns]
    }


def _decode(value):
    if isinstance(value, dict):
        return base64.b64decode(value["b64"])
    return [_decode(v) for v in value] if isinstance(value, list) else value


def start_rest(model, host="127.0.0.1", port=8501):
    """Serves a LoadedModel in the background.

    Returns:
        The server, and the port: a free one, if `port` is 0.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Else an answer waits 40 ms for the client to acknowledge its head.
        disable_nagle_algorithm = True

        def do_POST(self):  # noqa: N802, the base class's name
            text = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                if self.path != f"{_PATH}:predict":
                    raise LookupError(f"no {self.path}")
                status, answer = 200, _answer(model, json.loads(text))
            except LookupError as error:
                status, answer = 404, {"error": str(error)}
            except (TypeError, ValueError) as error:
                status, answer = 400, {"error": str(error)}
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer((host, port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, server.server_address[1]
