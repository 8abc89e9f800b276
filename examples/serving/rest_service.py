r"""A server of TensorFlow Serving's `:predict` over REST, in JSON.

    curl -d '{"instances": [[0.0, 1.0]]}' \
        http://127.0.0.1:8501/v1/models/model:predict

Rows are `instances` and `predictions`, columns `inputs` and `outputs`; files
are {"b64": "..."}. Integers may stand for floats; other types must match.
JSON has no NaN and no infinity. A request with them is refused, and an answer
has null instead. GET /healthz answers 200 while the server serves.
"""

import base64
import json
import reprlib
import threading

import numpy as np
from bounded_server import BoundedServer, as_json
from limits import Limits, brief

_PATH = "/v1/models/model"


def _answer(model, body):
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")
    if len({"instances", "inputs"} & set(body)) != 1:
        raise ValueError("the body must have either `instances` or `inputs`")
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
    outputs = {key: _in_json(value) for key, value in outputs.items()}
    if "instances" not in body:
        return {"outputs": outputs}
    columns = zip(*outputs.values(), strict=True)
    return {
        "predictions": [dict(zip(outputs, row, strict=True)) for row in columns]
    }


def _in_json(value):
    """Lists, with None for values that are not finite."""
    # NumPy does not know that bfloat16 is a float.
    if value.dtype.kind not in "biuSUO":
        finite = np.isfinite(value)
        if not finite.all():
            value = np.where(finite, value.astype(object), None)
    return value.tolist()


def _no_number(text):
    raise ValueError(f"{text} is not JSON: send finite numbers")


def _named(value, specs):
    """Values by name; a signature of one input needs no name."""
    if not isinstance(value, dict) or _is_file(value):
        if len(specs) != 1:
            raise ValueError(f"values must have the names {sorted(specs)}")
        return dict.fromkeys(specs, value)
    if set(value) != set(specs):
        raise ValueError(f"inputs must be {sorted(specs)}, not {sorted(value)}")
    return value


def _is_file(value):
    return (
        isinstance(value, dict)
        and set(value) == {"b64"}
        and isinstance(value["b64"], str)
    )


def _array(value, dtype):
    """An array of the type; ValueError if a value does not fit."""
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
        if not fit([value]):
            raise ValueError(f"{reprlib.repr(value)} is not {dtype.name}")
        return value

    return np.array(read(value), dtype.as_numpy_dtype)


def start_rest(model, host="127.0.0.1", port=8501, limits=None):
    """Serves a LoadedModel in the background.

    Args:
        model: A LoadedModel.
        host: Address to listen at.
        port: 0 for a free one.
        limits: Limits; None for the default ones.

    Returns:
        The server, and the port. `server.drain(seconds)` refuses new
        requests and lets those that run finish.

    Raises:
        OSError: If another server listens there, or the host is elsewhere.
    """
    limits = limits or Limits()
    turns = threading.Semaphore(limits.calls)

    def get(path):
        if path != "/healthz":
            return as_json(404, error=brief(f"no {path}"))
        return as_json(200, status="SERVING")

    def post(path, content):
        if path != f"{_PATH}:predict":
            return as_json(404, error=brief(f"no {path}"))
        if not turns.acquire(timeout=server.limits.seconds):
            return as_json(503, error="too many calls, try again later")
        try:
            body = json.loads(content, parse_constant=_no_number)
            return as_json(200, **_answer(model, body))
        except LookupError as error:
            status, text = 404, brief(error)
        except (RecursionError, ValueError) as error:
            status, text = 400, brief(error)
        except Exception as error:
            status, text = 500, brief(error)
        finally:
            turns.release()
        return as_json(status, error=text)

    server = BoundedServer((host, port), limits, get, post)
    return server, server.server_address[1]
