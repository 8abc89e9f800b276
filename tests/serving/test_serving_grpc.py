"""Over gRPC clients get what the model says."""

import grpc
import numpy as np
import pytest
from exported import assert_same
from grpc_service import GrpcClient, start_grpc
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc


def test_grpc_serves_every_signature(ask_grpc, requests, wanted):
    for signature, inputs in requests.items():
        assert_same(ask_grpc(inputs, signature), wanted)
    one = {k: v[:1] for k, v in requests[""].items()}
    assert_same(ask_grpc(one), {k: v[:1] for k, v in wanted.items()})


def test_grpc_returns_only_what_is_asked_for(ask_grpc, requests, wanted):
    given = ask_grpc(requests[""], only=["accept", "confidence"])
    assert set(given) == {"accept", "confidence"}
    np.testing.assert_array_equal(given["accept"], wanted["accept"])


def test_grpc_takes_more_than_four_megabytes(ask_grpc, requests, wanted):
    x = np.tile(requests[""]["image"], (5000, 1, 1, 1))
    given = ask_grpc({"image": x})
    assert x.nbytes > 2**22
    np.testing.assert_array_equal(given["label"][-5:], wanted["label"])


def test_grpc_names_what_is_wrong(ask_grpc, requests):
    x = requests[""]["image"]
    for arguments, code in (
        (({"image": x}, "no_such"), grpc.StatusCode.NOT_FOUND),
        (({"image": x}, "", ["no_such"]), grpc.StatusCode.NOT_FOUND),
        (({"images": x},), grpc.StatusCode.INVALID_ARGUMENT),
        (({"image": x[0]},), grpc.StatusCode.INVALID_ARGUMENT),
        (
            ({"image_bytes": np.array([b"no"], object)}, "serving_bytes"),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ):
        with pytest.raises(grpc.RpcError) as raised:
            ask_grpc(*arguments)
        assert raised.value.code() == code


def test_grpc_serves_no_model_of_another_name(grpc_address, requests):
    for name, code in (
        ("other", grpc.StatusCode.NOT_FOUND),
        ("", grpc.StatusCode.INVALID_ARGUMENT),
    ):
        client = GrpcClient(grpc_address, name)
        with pytest.raises(grpc.RpcError) as raised:
            client.predict(requests[""])
        client.close()
        assert raised.value.code() == code


def test_grpc_refuses_what_is_no_tensor(grpc_address):
    channel = grpc.insecure_channel(grpc_address)
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    for fields in (
        {},
        {"dtype": 1, "tensor_content": b"123"},
        {"dtype": 4, "int_val": [300]},
        {"dtype": 20},
    ):
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "model"
        tensor = request.inputs["image"]
        for name, value in fields.items():
            if isinstance(value, list):
                getattr(tensor, name).extend(value)
                tensor.tensor_shape.dim.add().size = len(value)
            else:
                setattr(tensor, name, value)
        with pytest.raises(grpc.RpcError) as raised:
            stub.Predict(request, timeout=60)
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "`image` is not a tensor" in raised.value.details()
    channel.close()


def test_two_servers_do_not_share_a_port(grpc_address):
    port = grpc_address.partition(":")[2]
    with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
        start_grpc(None, port=int(port))


def test_a_loaded_model_takes_only_what_its_signature_says(typed):
    for signature, name, value, text in (
        ("pooled", "x", np.zeros((1, 16, 16), "float32"), "shape"),
        ("pooled", "x", np.zeros((8, 8), "float32"), "shape"),
        ("pooled", "x", np.full((1, 8, 8), None), "float32"),
        ("whole", "pix", [[1.7, 0.0]], "uint8"),
        ("whole", "pix", [[300, 0]], "uint8"),
    ):
        with pytest.raises(ValueError, match=f"`{name}`.*{text}"):
            typed.predict({name: value}, signature)
    for name, value in (("pooled", np.ones((2, 8, 8))), ("half", [1.5, 2])):
        (key,) = typed.specs(name)
        assert len(typed.predict({key: value}, name)["y"]) == 2
