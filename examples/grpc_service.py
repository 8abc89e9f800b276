"""gRPC: TensorFlow Serving's PredictionService, a server and a client.

The messages are those of the package tensorflow-serving-api, so that each
half also talks to TensorFlow Serving itself.
"""

from concurrent.futures import ThreadPoolExecutor

import grpc
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2
from tensorflow_serving.apis import prediction_service_pb2_grpc

__all__ = ["GrpcClient", "start_grpc"]

_NAME = "model"
# gRPC refuses messages of 4 MB and more unless told.
_OPTIONS = [("grpc.max_receive_message_length", -1)]


class _Service(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, model):
        self._model = model

    def Predict(self, request, context):  # noqa: N802, the protocol's name
        name = request.model_spec.name
        try:
            if not name:
                raise ValueError("the request names no model")
            if name != _NAME:
                raise LookupError(f"no model {name!r}, only {_NAME!r}")
            outputs = self._model.predict(
                {key: _array(key, t) for key, t in request.inputs.items()},
                request.model_spec.signature_name,
                request.output_filter,
            )
        except LookupError as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except ValueError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        response = predict_pb2.PredictResponse(model_spec=request.model_spec)
        for name, value in outputs.items():
            response.outputs[name].CopyFrom(tf.make_tensor_proto(value))
        return response


def _array(name, tensor):
    try:
        return tf.make_ndarray(tensor)
    except Exception as error:  # of many kinds, all for what was sent
        raise ValueError(f"`{name}` is not a tensor: {error}") from error


def start_grpc(model, host="127.0.0.1", port=8500, threads=8):
    """Serves a LoadedModel in the background, under the name "model".

    Returns:
        The server, and the port: a free one, if `port` is 0.

    Raises:
        OSError: If another server listens there, or the host is elsewhere.
    """
    # Else two servers share a port, and each gets some of the requests.
    options = [*_OPTIONS, ("grpc.so_reuseport", 0)]
    server = grpc.server(ThreadPoolExecutor(threads), options=options)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        _Service(model), server
    )
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
