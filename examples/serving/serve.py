r"""Serves an exported SavedModel over gRPC and REST, as TF Serving does.

    pip install 'keras-calib[serving]'
    python examples/serving/serve.py --model=DIR

It prints its addresses and answers until you stop it:

    gRPC 127.0.0.1:8500
    REST 127.0.0.1:8501

It loads the model with TensorFlow only. examples/serving/demo.py is a client.
Load balancers can ask `GET /healthz`, or gRPC's own health check. After SIGTERM
or Ctrl-C it refuses new requests and answers those that run. It ends with
status 0, or with 1 if some did not end in time.

Use it to try out an exported model, and to test clients. It has no encryption,
no authentication, no batching and no versions of a model. In production serve
the same folder with TensorFlow Serving.
"""

import os
import signal
import threading
import time

from absl import app, flags
from grpc_service import start_grpc
from limits import Limits
from loaded_model import LoadedModel
from rest_service import start_rest

_MODEL = flags.DEFINE_string(
    "model", None, "Folder of the SavedModel to serve."
)
_HOST = flags.DEFINE_string("host", "127.0.0.1", "Address to listen on.")
_GRPC_PORT = flags.DEFINE_integer(
    "grpc_port", 8500, "Port for gRPC; 0 for a free one."
)
_REST_PORT = flags.DEFINE_integer(
    "rest_port", 8501, "Port for REST; 0 for a free one."
)
_LIMITS = Limits()


def _at_least_one(name, text):
    default = getattr(_LIMITS, name)
    return flags.DEFINE_integer(f"max_{name}", default, text, lower_bound=1)


_MAX = [
    _at_least_one("bytes", "Largest size of a request, in bytes."),
    _at_least_one("elements", "Largest number of elements of one input."),
    _at_least_one("rows", "Largest number of rows of one input."),
    _at_least_one("pixels", "Largest number of pixels of an encoded image."),
    _at_least_one(
        "calls", "Largest number of calls that run at once, for each protocol."
    ),
    _at_least_one(
        "connections", "Largest number of connections, for each protocol."
    ),
]
_SECONDS = flags.DEFINE_float(
    "seconds",
    _LIMITS.seconds,
    "Seconds for sending a request, for waiting for a turn, and for "
    "finishing at the end.",
    lower_bound=0.1,
)


def main(_):
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    limits = Limits(*(flag.value for flag in _MAX), _SECONDS.value)
    model = LoadedModel(_MODEL.value, limits)
    host = _HOST.value
    # Kept: a server that is collected stops.
    calls, port = start_grpc(model, host, _GRPC_PORT.value, limits)
    print(f"gRPC {host}:{port}", flush=True)
    requests, port = start_rest(model, host, _REST_PORT.value, limits)
    print(f"REST {host}:{port}", flush=True)
    ended.wait()
    end = time.monotonic() + limits.seconds
    stopped = calls.stop(limits.seconds)
    drained = requests.drain(limits.seconds)
    # Calls that did not end are cancelled at that time.
    stopped.wait()
    if not drained or time.monotonic() > end:
        # Threads that still run would keep the process.
        os._exit(1)


if __name__ == "__main__":
    flags.mark_flag_as_required("model")
    app.run(main)
