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
none of the request is counted. What was answered with 200 survives a kill.
Sizes, seconds and connections have limits, as those of `serve.py`. Do not use
it in production: it has no encryption and no authentication.
"""

import argparse
import threading

from bounded_server import BoundedServer
from limits import Limits
from watched_log import WatchedLog

# A request names some thousand answers.
_LIMITS = Limits(bytes=2**20)


def start(watched, host="127.0.0.1", port=8600, limits=_LIMITS):
    """Serves a WatchedLog in the background; returns the server."""
    return BoundedServer((host, port), limits, watched.get, watched.post)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--state", required=True)
    parser.add_argument("--risk", type=float, required=True)
    parser.add_argument("--delta", type=float, default=0.05)
    parser.add_argument("--tolerance", type=float, default=0.01)
    parser.add_argument("--port", type=int, default=8600)
    given = vars(parser.parse_args())
    port = given.pop("port")
    server = start(WatchedLog(**given), port=port)
    print("Listening at", f"127.0.0.1:{server.server_address[1]}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
