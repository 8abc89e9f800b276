"""gRPC: TensorFlow Serving's PredictionService, a server and a client.

The messages are those of the package tensorflow-serving-api, so that each
half also talks to TensorFlow Serving itself. The server also answers gRPC's
standard health check, `grpc.health.v1.Health/Check`.
"""

import math
from concurrent.futures import ThreadPoolExecutor

import grpc
import tensorflow as tf
from limits import Limits, brief
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

_NAME = "model"
# Of a client: gRPC refuses messages of 4 MB and more unless told.
_OPTIONS = [("grpc.max_receive_message_length", -1)]
_HEALTH = "grpc.health.v1.Health"
# A HealthCheckResponse of status SERVING.
_SERVING = b"\x08\x01"
_SERVICES = ("", _NAME, "tensorflow.serving.PredictionService")


class _Service(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, model, limits):
        self._model = model
        self._limits = limits

    def Predict(self, request, context):  # noqa: N802, the protocol's name
        try:
            return self._answer(request)
        except LookupError as error:
            code, text = grpc.StatusCode.NOT_FOUND, brief(error)
        except ValueError as error:
            code, text = grpc.StatusCode.INVALID_ARGUMENT, brief(error)
        except Exception as error:
            code, text = grpc.StatusCode.INTERNAL, brief(error)
        return context.abort(code, text)

    def _answer(self, request):
        name = request.model_spec.name
        if not name:
            raise ValueError(
                "the request must name a model: set `model_spec.name`"
            )
        if name != _NAME:
            raise LookupError(f"there is no model {name!r}, only {_NAME!r}")
        specs = self._model.specs(request.model_spec.signature_name)
        if set(request.inputs) != set(specs):
            names = sorted(request.inputs)
            raise ValueError(f"inputs must be {sorted(specs)}, not {names}")
        outputs = self._model.predict(
            {k: _array(k, t, self._limits) for k, t in request.inputs.items()},
            request.model_spec.signature_name,
            request.output_filter,
        )
        response = predict_pb2.PredictResponse(model_spec=request.model_spec)
        for name, value in outputs.items():
            response.outputs[name].CopyFrom(tf.make_tensor_proto(value))
        return response


def _array(name, tensor, limits):
    """The array of a message, if it holds as many values as it says."""
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.tensor_shape.unknown_rank or min(shape, default=0) < 0:
        raise ValueError(f"`{name}` is not a tensor: its shape is not known")
    limits.check(name, shape)
    if not tensor.tensor_content:
        # `make_ndarray` fills the shape with the last of the values.
        values = [
            len(value)
            for field, value in tensor.ListFields()
            if field.name.endswith("_val")
        ]
        parts = 2 if "complex" in tf.as_dtype(tensor.dtype or 1).name else 1
        if sum(values) != parts * math.prod(shape):
            raise ValueError(
                f"`{name}` is not a tensor: {sum(values)} values for the "
                f"shape {shape}"
            )
    try:
        return tf.make_ndarray(tensor)
    except Exception as error:  # of many kinds, all for what was sent
        raise ValueError(f"`{name}` is not a tensor: {error}") from error


def _check_health(request, context):
    # A HealthCheckRequest has one field, the name of a service.
    for name in _SERVICES:
        text = name.encode()
        if request in (text, b"\n" + bytes([len(text)]) + text):
            return _SERVING
    return context.abort(grpc.StatusCode.NOT_FOUND, "no such service")


def start_grpc(model, host="127.0.0.1", port=8500, limits=None):
    """Serves a LoadedModel in the background, under the name "model".

    Args:
        model: A LoadedModel.
        host: Address to listen at.
        port: 0 for a free one.
        limits: Limits; None for the default ones.

    Returns:
        The server, and the port. `server.stop(seconds)` refuses new calls
        and lets those that run finish.

    Raises:
        OSError: If another server listens there, or the host is elsewhere.
    """
    limits = limits or Limits()
    milliseconds = max(1, int(1000 * limits.seconds))
    options = [
        # Else two servers share a port, and each gets some of the requests.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", limits.bytes),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.max_concurrent_streams", limits.connections),
        # Whoever does not send what was begun is cut off; others connect anew.
        ("grpc.max_connection_age_ms", milliseconds),
        ("grpc.max_connection_age_grace_ms", milliseconds),
        ("grpc.server_handshake_timeout_ms", milliseconds),
    ]
    server = grpc.server(
        ThreadPoolExecutor(limits.calls),
        options=options,
        maximum_concurrent_rpcs=limits.connections,
    )
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        _Service(model, limits), server
    )
    check = grpc.unary_unary_rpc_method_handler(_check_health)
    health = grpc.method_handlers_generic_handler(_HEALTH, {"Check": check})
    server.add_generic_rpc_handlers((health,))
    try:
        port = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise OSError(
            f"{host}:{port} is taken, or is no address of this machine"
        ) from error
    server.start()
    return server, port


class GrpcClient:
    """Asks a server of PredictionService; threads may share it.

    Args:
        address: Such as "127.0.0.1:8500".
        model_name: The name under which the server knows the model.
    """

    def __init__(self, address, model_name=_NAME):
        self._name = model_name
        self._channel = grpc.insecure_channel(address, _OPTIONS)
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(
            self._channel
        )

    def predict(self, inputs, signature_name="", only=(), timeout=60.0):
        """Outputs by name, as arrays, for arrays by name."""
        request = predict_pb2.PredictRequest(output_filter=only)
        request.model_spec.name = self._name
        request.model_spec.signature_name = signature_name
        for name, value in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
        response = self._stub.Predict(request, timeout=timeout)
        return {k: tf.make_ndarray(v) for k, v in response.outputs.items()}

    def close(self):
        """Ends the connection."""
        self._channel.close()
