r"""Watches the log of a server: labels come by POST, alarms go by GET.

    python examples/serving/monitor_service.py --log=answers.jsonl \
        --state=monitor.npz --risk=0.01
    curl -d '{"ids": ["a7"], "correct": [1]}' http://127.0.0.1:8600/labels
    curl http://127.0.0.1:8600/alarms

The server that answers appends one JSON object with `id`, `confidence` and
`accepted` to the log, in a line of its own. GET /metrics has counts and
evidence, /picture.png draws them. POST /restart forgets alarms after a repair,
those of the hypotheses in `names`.

A label gets 404 for an unknown id and 409 if the answer has one already; then
none of the request is counted. What was answered with 200 survives a kill. Do
not use it in production: it has no encryption and no authentication.
"""

import argparse
import threading
from http.server import BaseHTTPRequestHandler
from http.server import ThreadingHTTPServer

from watched_log import WatchedLog
from watched_log import as_json

__all__ = ["start"]

_MOST_BYTES = 2**20


def start(watched, host="127.0.0.1", port=8600):
    """Serves a WatchedLog in the background; returns the server."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 30.0

        def do_GET(self):  # noqa: N802, the base class's name
            self.answer(*watched.get(self.path))

        def do_POST(self):  # noqa: N802, the base class's name
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > _MOST_BYTES:
                self.answer(*as_json(413, error=f"at most {_MOST_BYTES} bytes"))
            else:
                content = self.rfile.read(int(length))
                self.answer(*watched.post(self.path, content))

        def answer(self, status, kind, content):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer((host, port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--state", required=True)
    parser.add_argument("--risk", type=float, required=True)
    parser.add_argument("--alpha", type=float, default=0.05)
    parser.add_argument("--tolerance", type=float, default=0.01)
    parser.add_argument("--port", type=int, default=8600)
    given = vars(parser.parse_args())
    port = given.pop("port")
    server = start(WatchedLog(**given), port=port)
    print("Listening at", f"127.0.0.1:{server.server_address[1]}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
