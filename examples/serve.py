r"""Serves an exported SavedModel over gRPC and REST, as TF Serving does.

    pip install 'keras-calib[serving]'
    python examples/serve.py --model=DIR

prints where it listens and answers until it is stopped:

    gRPC 127.0.0.1:8500
    REST 127.0.0.1:8501

It loads the model with TensorFlow alone. examples/serving_demo.py asks it.
"""

from absl import app
from absl import flags
from grpc_service import start_grpc
from loaded_model import LoadedModel
from rest_service import start_rest

_MODEL = flags.DEFINE_string("model", None, "SavedModel to serve.")
_HOST = flags.DEFINE_string("host", "127.0.0.1", "Address to listen at.")
_GRPC_PORT = flags.DEFINE_integer("grpc_port", 8500, "0 for a free one.")
_REST_PORT = flags.DEFINE_integer("rest_port", 8501, "0 for a free one.")


def main(_):
    model = LoadedModel(_MODEL.value)
    # Kept: a server that is collected stops.
    server, port = start_grpc(model, _HOST.value, _GRPC_PORT.value)
    print(f"gRPC {_HOST.value}:{port}", flush=True)
    _, port = start_rest(model, _HOST.value, _REST_PORT.value)
    print(f"REST {_HOST.value}:{port}", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    flags.mark_flag_as_required("model")
    app.run(main)
