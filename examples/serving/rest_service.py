r"""A server of TensorFlow Serving's `:predict` over REST, in JSON.

    curl -d '{"instances": [[0.0, 1.0]]}' \
        http://127.0.0.1:8501/v1/models/model:predict

Rows are `instances` and `predictions`, columns `inputs` and `outputs`; files
are {"b64": "..."}. Integers may stand for floats; other types must match.
JSON has no NaN and no infinity. A request with them is refused, and an answer
has null instead. GET /healthz answers 200 while the server serves.
"""

import base64
import contextlib
import io
import json
import reprlib
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler
from http.server import ThreadingHTTPServer

import numpy as np
from limits import Limits
from limits import brief

__all__ = ["start_rest"]

_PATH = "/v1/models/model"
_WHY_BUSY = b'{"error": "too many connections, try again later"}'
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n"
    b"Retry-After: 1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_WHY_BUSY), _WHY_BUSY)
)
# Connections beyond the limit that are read on, so that their clients get the
# answer; more are closed at once.
_LEAVING = 32
# For how long at most.
_LEAVING_SECONDS = 1.0


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


def _read_on(connection):
    """Reads the rest of a request for a while, after the answer.

    A connection closed with unread bytes is reset. A client that is still
    sending would then not see the answer.
    """
    end = time.monotonic() + _LEAVING_SECONDS
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        while (left := end - time.monotonic()) > 0:
            connection.settimeout(left)
            if not connection.recv(65536):
                break


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


class _TimedReader(io.RawIOBase):
    """Reads a connection until a deadline, however slowly bytes come."""

    def __init__(self, connection):
        super().__init__()
        self._connection = connection
        self.deadline = 0.0

    def readable(self):
        return True

    def readinto(self, buffer):
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Else an answer waits 40 ms for the client to acknowledge its head.
    disable_nagle_algorithm = True
    # Whether a request has begun: else the connection may be closed.
    busy = False

    def setup(self):
        super().setup()
        self._timed = _TimedReader(self.connection)
        self.rfile = io.BufferedReader(self._timed)

    def handle_one_request(self):
        seconds = self.server.limits.seconds
        self._timed.deadline = time.monotonic() + seconds
        if not self.server.begin(self):
            self.close_connection = True
            return
        try:
            super().handle_one_request()
        finally:
            self.server.end(self)

    def parse_request(self):
        self.busy = True
        return super().parse_request()

    def do_GET(self):  # noqa: N802, the base class's name
        # A body would stay unread.
        self.close_connection |= "Content-Length" in self.headers
        self.close_connection |= "Transfer-Encoding" in self.headers
        if self.path == "/healthz":
            self.answer(200, json.dumps({"status": "SERVING"}))
        else:
            self.answer(404, _error(f"no {self.path}"))

    def do_POST(self):  # noqa: N802, the base class's name
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or "Transfer-Encoding" in self.headers:
            self.answer(411, _error("the request must have its length"))
            _read_on(self.connection)
            return
        if len(length) > 18 or int(length) > self.server.limits.bytes:
            most = self.server.limits.bytes
            self.answer(413, _error(f"the body has over {most} bytes"))
            _read_on(self.connection)
            return
        try:
            content = self.rfile.read(int(length))
        except TimeoutError:
            self.answer(408, _error("the body did not come in time"))
            return
        if len(content) < int(length):
            self.close_connection = True
            return
        self.answer(*self.server.answer(self.path, content))

    def answer(self, status, text):
        content = text.encode()
        if status > 404 or self.server.draining:
            # The body may be unread: the next request is out of reach.
            self.close_connection = True
        self.connection.settimeout(self.server.limits.seconds)
        self.send_response(status)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


class _Server(ThreadingHTTPServer):
    # As many clients may connect at once; the default is 5.
    request_queue_size = 128

    def __init__(self, address, model, limits):
        self.limits = limits
        self.draining = False
        self._model = model
        self._places = threading.Semaphore(limits.connections)
        self._leaving = threading.Semaphore(_LEAVING)
        self._turns = threading.Semaphore(limits.calls)
        self._handlers = set()
        self._changed = threading.Condition()
        super().__init__(address, _Handler)

    def answer(self, path, content):
        """Status and body, for the body of a request."""
        if path != f"{_PATH}:predict":
            return 404, _error(f"no {path}")
        if not self._turns.acquire(timeout=self.limits.seconds):
            return 503, _error("too many calls, try again later")
        try:
            body = json.loads(content, parse_constant=_no_number)
            answer = _answer(self._model, body)
            return 200, json.dumps(answer, allow_nan=False)
        except LookupError as error:
            return 404, _error(error)
        except (RecursionError, ValueError) as error:
            return 400, _error(error)
        except Exception as error:
            return 500, _error(error)
        finally:
            self._turns.release()

    def process_request(self, request, client_address):
        if not self._places.acquire(blocking=False):
            self._turn_away(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            # No thread was started.
            self._places.release()
            raise

    def _turn_away(self, request):
        """Answers that the server is full, without waiting for the client."""
        with contextlib.suppress(OSError):
            request.setblocking(False)
            request.sendall(_BUSY)
            if self._leaving.acquire(blocking=False):
                leave = threading.Thread(
                    target=self._leave, args=(request,), daemon=True
                )
                try:
                    leave.start()
                    return
                except RuntimeError:
                    # No thread was started.
                    self._leaving.release()
        self.shutdown_request(request)

    def _leave(self, request):
        try:
            _read_on(request)
        finally:
            self.shutdown_request(request)
            self._leaving.release()

    def process_request_thread(self, request, client_address):
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request, client_address):
        """Ignores errors of clients that go away."""

    def begin(self, handler):
        """Called before a request; returns whether it is still accepted."""
        with self._changed:
            handler.busy = False
            if not self.draining:
                self._handlers.add(handler)
            return not self.draining

    def end(self, handler):
        """Called after the answer."""
        with self._changed:
            self._handlers.discard(handler)
            self._changed.notify_all()

    def drain(self, seconds):
        """Refuses new requests, finishes others; returns whether it could."""
        with self._changed:
            self.draining = True
        self.shutdown()
        self.server_close()
        end = time.monotonic() + seconds
        with self._changed:
            for handler in self._handlers:
                if not handler.busy:
                    with contextlib.suppress(OSError):
                        handler.connection.shutdown(socket.SHUT_RD)
            return self._changed.wait_for(
                lambda: not self._handlers, max(0.0, end - time.monotonic())
            )


def _error(error):
    return json.dumps({"error": brief(error)})


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
    server = _Server((host, port), model, limits or Limits())
    # Looks every 50 ms whether it is to stop, not every half second.
    threading.Thread(
        target=server.serve_forever, args=(0.05,), daemon=True
    ).start()
    return server, server.server_address[1]
