"""An HTTP server that no client fills: connections, sizes and seconds are few.

Requests beyond its `Limits` get 503, 408 or 413, whatever the service is.
"""

import contextlib
import io
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from limits import brief

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


def as_json(status, /, **facts):
    """Status, type and content of an answer in JSON."""
    content = json.dumps(facts, allow_nan=False).encode()
    return status, "application/json", content


def _error(status, text):
    return as_json(status, error=brief(text))


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
        self.answer(*self.server.get(self.path))

    def do_POST(self):  # noqa: N802, the base class's name
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or "Transfer-Encoding" in self.headers:
            self.answer(*_error(411, "the request must have its length"))
            _read_on(self.connection)
            return
        if len(length) > 18 or int(length) > self.server.limits.bytes:
            most = self.server.limits.bytes
            self.answer(*_error(413, f"the body has over {most} bytes"))
            _read_on(self.connection)
            return
        try:
            content = self.rfile.read(int(length))
        except TimeoutError:
            self.answer(*_error(408, "the body did not come in time"))
            return
        if len(content) < int(length):
            self.close_connection = True
            return
        self.answer(*self.server.post(self.path, content))

    def answer(self, status, kind, content):
        if status > 404 or self.server.draining:
            # The body may be unread: the next request is out of reach.
            self.close_connection = True
        self.connection.settimeout(self.server.limits.seconds)
        self.send_response(status)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


class BoundedServer(ThreadingHTTPServer):
    """Answers GET and POST by two functions, in the background.

    Args:
        address: Host and port; 0 for a free one.
        limits: A `Limits`.
        get: Function of the path of a GET that returns status, type and
            content of the answer.
        post: The same of the path and the bytes of a POST.
    """

    # As many clients may connect at once; the default is 5.
    request_queue_size = 128

    def __init__(self, address, limits, get, post):
        self.limits, self.get, self.post = limits, get, post
        self.draining = False
        self._places = threading.Semaphore(limits.connections)
        self._leaving = threading.Semaphore(_LEAVING)
        self._handlers = set()
        self._changed = threading.Condition()
        super().__init__(address, _Handler)
        # Looks every 50 ms whether it is to stop, not every half second.
        threading.Thread(
            target=self.serve_forever, args=(0.05,), daemon=True
        ).start()

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
