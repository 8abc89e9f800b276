"""Serving: clients get what the model says, over every protocol."""

import base64
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import keras
import numpy as np
import pytest
from cases import BACKEND
from cases import array
from exported import NAMES
from exported import assert_same
from exported import expected
from exported import selector

import keras_calib as kc

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)
ROOT = Path(__file__).parents[1]
THRESHOLD = 0.3


@pytest.fixture(scope="module")
def network():
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((4, 4, 3), name="image"),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]
    return keras.Sequential(layers)


@pytest.fixture(scope="module")
def folder(network, tmp_path_factory):
    return kc.export(
        network,
        tmp_path_factory.mktemp("models") / "1",
        selector=selector(THRESHOLD),
        from_logits=True,
        image_preprocessing=keras.layers.Rescaling(1 / 255),
    )


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    return rng.integers(256, size=(5, 4, 4, 3), dtype="uint8")


@pytest.fixture(scope="module")
def wanted(network, images):
    logits = array(network(images.astype("float32") / 255))
    return expected(logits, 2.5, THRESHOLD)


@pytest.fixture(scope="module")
def requests(network, images):
    """Inputs of every signature that mean the same images."""
    import tensorflow as tf

    x = images.astype("float32") / 255
    files = [tf.io.encode_png(image).numpy() for image in images]
    return {
        "": {"image": x},
        "serving_default": {"image": x},
        "serving_logits": {"logits": array(network(x))},
        "serving_bytes": {"image_bytes": np.array(files, object)},
    }


@pytest.fixture
def examples(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))


@pytest.fixture
def grpc_address(examples, folder):
    from grpc_service import start_grpc
    from loaded_model import LoadedModel

    server, port = start_grpc(LoadedModel(folder), port=0)
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture
def ask_grpc(grpc_address):
    from grpc_service import GrpcClient

    client = GrpcClient(grpc_address)
    yield client.predict
    client.close()


@pytest.fixture(scope="module")
def typed_folder(tmp_path_factory):
    """Signatures that differ in the names and types of their inputs."""
    import tensorflow as tf

    def signature(function, **inputs):
        specs = [
            tf.TensorSpec((None, *shape), dtype, name.removeprefix("_"))
            for name, (dtype, *shape) in inputs.items()
        ]
        return tf.function(function, input_signature=specs)

    module = tf.Module()
    module.whole = signature(lambda p: {"y": p}, pix=("uint8", 2))
    module.truth = signature(lambda t: {"y": t}, truth=("bool",))
    module.half = signature(lambda h: {"y": h + 1}, half=("bfloat16",))
    module.two = signature(
        lambda a, b: {"y": a - b}, a=("float32",), b=("float32",)
    )
    module.odd = signature(
        lambda a, b: {"y": a - b}, _1st=("float32",), _2nd=("float32",)
    )
    module.pooled = signature(
        lambda x: {"y": tf.reduce_mean(x, (1, 2))}, x=("float32", 8, 8)
    )
    names = ("whole", "truth", "half", "two", "odd", "pooled")
    path = tmp_path_factory.mktemp("models") / "typed"
    signatures = {name: getattr(module, name) for name in names}
    tf.saved_model.save(module, str(path), signatures)
    return path


@pytest.fixture
def typed(examples, typed_folder):
    from loaded_model import LoadedModel

    return LoadedModel(typed_folder)


@pytest.fixture
def serve_rest(examples):
    from rest_service import start_rest

    with ExitStack() as stack:

        def start(model):
            server, port = start_rest(model, port=0)
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            return f"127.0.0.1:{port}"

        yield start


@pytest.fixture
def rest_address(serve_rest, folder):
    from loaded_model import LoadedModel

    return serve_rest(LoadedModel(folder))


@pytest.fixture
def typed_address(serve_rest, typed):
    return serve_rest(typed)


def post(address, body, path="/v1/models/model:predict"):
    connection = http.client.HTTPConnection(address, timeout=60)
    body = body if isinstance(body, str) else json.dumps(body)
    connection.request("POST", path, body)
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


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
    import grpc

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
    import grpc
    from grpc_service import GrpcClient

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
    import grpc
    from tensorflow_serving.apis import predict_pb2
    from tensorflow_serving.apis import prediction_service_pb2_grpc

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
    from grpc_service import start_grpc

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


def test_inputs_have_the_names_that_clients_know(typed, typed_address):
    from rest_client import RestClient

    assert set(typed.specs("odd")) == {"1st", "2nd"}
    inputs = {"1st": [5.0], "2nd": [3.0]}
    assert typed.predict(inputs, "odd")["y"].tolist() == [2]
    client = RestClient(typed_address)
    assert client.predict(inputs, "odd")["y"].tolist() == [2]
    client.close()


def test_rest_serves_columns_and_rows(rest_address, requests, wanted):
    from rest_client import RestClient

    client = RestClient(rest_address)
    x = requests[""]["image"].tolist()
    given = client.predict(requests["serving_logits"], "serving_logits")
    others = client.predict(requests[""])
    client.close()
    for columns in (given, others):
        for name in NAMES:
            np.testing.assert_allclose(
                columns[name], wanted[name], rtol=1e-4, atol=1e-5
            )
    for rows in (x, [{"image": row} for row in x]):
        status, answer = post(rest_address, {"instances": rows})
        assert status == 200
        for i, row in enumerate(answer["predictions"]):
            assert row["label"] == wanted["label"][i]
            assert row["accept"] == wanted["accept"][i]
            np.testing.assert_allclose(
                row["probabilities"], wanted["probabilities"][i], rtol=1e-4
            )


def test_rest_takes_encoded_images(rest_address, requests, wanted):
    files = [
        {"b64": base64.b64encode(file).decode()}
        for file in requests["serving_bytes"]["image_bytes"]
    ]
    status, answer = post(
        rest_address, {"signature_name": "serving_bytes", "instances": files}
    )
    assert status == 200
    labels = [row["label"] for row in answer["predictions"]]
    assert labels == wanted["label"].tolist()


def test_rest_names_what_is_wrong(rest_address):
    for body, status, text in (
        ({"signature_name": "no_such", "instances": [1]}, 404, "no_such"),
        ({"instances": [[1.0, 2.0]]}, 400, "shape"),
        ({"inputs": {"images": [[1.0]]}}, 400, "images"),
        ({"instances": [{"images": 1.0}]}, 400, "images"),
        ({"instances": [["a"]]}, 400, "float"),
        ({"instances": []}, 400, "at least one"),
        ([], 400, "JSON object"),
        ({}, 400, "`instances` or `inputs`"),
    ):
        given, answer = post(rest_address, body)
        assert given == status
        assert text in answer["error"]
    assert post(rest_address, {}, "/v1/models/other:predict")[0] == 404


def test_rest_takes_numbers_that_the_type_holds(typed_address):
    for signature, rows in (
        ("whole", [[0, 255], [1, 2]]),
        ("truth", [True, False]),
        ("half", [1, 2.5]),
        ("two", [{"a": 1, "b": 3e38}, {"b": 0.5, "a": -2}]),
    ):
        body = {"signature_name": signature, "instances": rows}
        status, answer = post(typed_address, body)
        assert status == 200, answer
        assert len(answer["predictions"]) == 2


def test_rest_converts_nothing_else(typed_address):
    ab = {"a": 1, "b": 1}
    for signature, instances, text in (
        ("whole", [[300, 0]], "300"),
        ("whole", [[-1, 0]], "-1"),
        ("whole", [[1.7, 0]], "1.7"),
        ("whole", [["7", 0]], "'7'"),
        ("whole", [[True, 0]], "True"),
        ("whole", [[1], [2, 3]], "inhomogeneous"),
        ("whole", [{"b64": "AAAA"}], "b64"),
        ("truth", [1], "bool"),
        ("half", [1e39], "bfloat16"),
        ("half", [[{"x": 1}]], "bfloat16"),
        ("two", [{"a": 10**400, "b": 1}], "float32"),
        ("two", [{"a": 1e39, "b": 1}], "float32"),
        ("half", [1.0, float("nan"), 1e39], "NaN is no JSON"),
        ("two", [{"a": float("-inf"), "b": 1}], "-Infinity is no JSON"),
        ("two", [{"a": 1, "b": None}], "None"),
        ("two", [ab, {"a": 1}], "['a']"),
        ("two", [ab, {**ab, "c": 1}], "'c'"),
        ("two", [ab, 5], "'b'"),
        ("two", [5], "'b'"),
        (["two"], [ab], "`signature_name`"),
    ):
        body = {"signature_name": signature, "instances": instances}
        status, answer = post(typed_address, body)
        assert (status, text in answer["error"]) == (400, True), answer
    for body in (
        {"instances": [ab], "inputs": {"a": [1], "b": [1]}},
        {"inputs": [1]},
        {"inputs": {"a": {"x": 1}, "b": [1]}},
    ):
        status, _ = post(typed_address, {"signature_name": "two", **body})
        assert status == 400


def test_rest_answers_whatever_it_is_asked(serve_rest, rest_address):
    for body in ("[" * 100_000, '{"inputs": ' + "[" * 700 + "]" * 700 + "}"):
        assert post(rest_address, body)[0] == 400
    assert post(serve_rest(None), {"inputs": []})[0] == 500
    host, port = rest_address.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(
            b"POST /v1/models/model:predict HTTP/1.1\r\nHost: it\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        )
        assert client.recv(100).startswith(b"HTTP/1.1 411 ")


def test_many_clients_may_connect_at_once(examples):
    from rest_service import start_rest

    server, port = start_rest(None, port=0)
    server.shutdown()
    with ExitStack() as stack:
        stack.callback(server.server_close)
        for _ in range(32):
            stack.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=0.5)
            )


def test_json_has_null_for_what_is_no_number(typed_address):
    from rest_client import RestClient

    rows = [{"a": 3e38, "b": -3e38}, {"a": 1, "b": 0.5}]
    body = {"signature_name": "two", "instances": rows}
    status, answer = post(typed_address, body)
    assert status == 200
    assert [row["y"] for row in answer["predictions"]] == [None, 0.5]
    client = RestClient(typed_address)
    given = client.predict({"half": [3.38e38, 1]}, "half")
    assert given["y"].dtype.kind == "f"
    columns = {"a": [3e38, 1], "b": [-3e38, 0.5]}
    np.testing.assert_array_equal(
        client.predict(columns, "two")["y"], [np.nan, 0.5]
    )
    with pytest.raises(ValueError, match="JSON"):
        client.predict({"half": [np.nan]}, "half")
    client.close()


# Hostile clients.


class Waits:
    """A model that answers when it is let."""

    def __init__(self):
        self.running = threading.Semaphore(0)
        self.let = threading.Event()

    def specs(self, name=""):
        import tensorflow as tf

        return {"x": tf.TensorSpec((None,), "float32")}

    def predict(self, inputs, name="", only=()):
        self.running.release()
        assert self.let.wait(60)
        return {"y": np.asarray(inputs["x"])}


def test_a_message_is_not_larger_than_what_was_sent(
    grpc_address, typed, monkeypatch
):
    import grpc
    import tensorflow as tf
    from grpc_service import GrpcClient
    from serving_limits import Limits
    from tensorflow_serving.apis import predict_pb2

    def filled(*arguments):
        pytest.fail("an array was made")

    monkeypatch.setattr(tf, "make_ndarray", filled)
    client = GrpcClient(grpc_address)
    for shape, fields, text in (
        ([700_000_000], {"float_val": [1.0]}, "over 8388608 elements"),
        ([2**62, 2**62, 0, 3], {"dtype": 1}, "over 32768 rows"),
        ([2**62, 2**62], {"float_val": [1.0]}, "over 8388608 elements"),
        ([1000, 48], {"float_val": [1.0]}, "1 values for the shape"),
        ([1000, 48], {"string_val": [b"x" * 99], "dtype": 7}, "1 values for"),
        ([3], {"dtype": 8, "scomplex_val": [1.0]}, "1 values for"),
        ([-1], {"float_val": [1.0]}, "shape is not known"),
        (None, {"float_val": [1.0]}, "shape is not known"),
    ):
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "model"
        tensor = request.inputs["image"]
        tensor.dtype = fields.pop("dtype", 1)
        tensor.tensor_shape.unknown_rank = shape is None
        for size in shape or ():
            tensor.tensor_shape.dim.add().size = size
        for name, values in fields.items():
            getattr(tensor, name).extend(values)
        assert request.ByteSize() < 200
        with pytest.raises(grpc.RpcError) as raised:
            client._stub.Predict(request, timeout=60)
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert text in raised.value.details()
    # An answer fits into the head of a message, whatever it repeats.
    for name in ("n" * 100_000, "\U0001f600" * 50_000, "\n" * 100_000):
        with pytest.raises(grpc.RpcError) as raised:
            client.predict({"image": np.zeros(1)}, name)
        assert raised.value.code() == grpc.StatusCode.NOT_FOUND
        assert 900 < len(raised.value.details()) <= 1000
    with pytest.raises(grpc.RpcError) as raised:
        client.predict({"image": np.zeros(2**22)})
    assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    client.close()
    typed._limits = Limits(rows=2)
    with pytest.raises(ValueError, match="`half` has over 2 rows"):
        typed.predict({"half": [1.0] * 3}, "half")


def test_an_image_is_not_decoded_beyond_its_limit(examples, folder, images):
    import tensorflow as tf
    from loaded_model import LoadedModel
    from serving_limits import Limits

    small = LoadedModel(folder, Limits(pixels=15))
    large = LoadedModel(folder)
    png = tf.io.encode_png(images[0]).numpy()
    bomb = png[:16] + b"\0\1\0\0\0\1\0\0" + png[24:]
    bmp = b"BM" + bytes(16) + b"\4\0\0\0\xfc\xff\xff\xff" + bytes(9)
    gif = b"GIF89a\4\0\4\0" + bytes(9)
    for file in (png, tf.io.encode_jpeg(images[0]).numpy(), gif, bmp):
        array = np.array([file], object)
        with pytest.raises(ValueError, match="over 15 pixels"):
            small.predict({"image_bytes": array}, "serving_bytes")
    with pytest.raises(ValueError, match="over 33554432 pixels"):
        large.predict(
            {"image_bytes": np.array([bomb], object)}, "serving_bytes"
        )
    for file in (png[:12], b"\xff\xd8\xff", b""):
        with pytest.raises(ValueError):
            small.predict({"image_bytes": np.array([file])}, "serving_bytes")
    large.predict({"image_bytes": np.array([png], object)}, "serving_bytes")


def test_grpc_refuses_what_is_too_much_at_once(examples):
    import grpc
    from grpc_service import GrpcClient
    from grpc_service import start_grpc
    from serving_limits import Limits

    model = Waits()
    limits = Limits(calls=2, connections=3)
    server, port = start_grpc(model, port=0, limits=limits)
    address = f"127.0.0.1:{port}"
    client = GrpcClient(address)
    channel = grpc.insecure_channel(address)
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    for request in (b"", b"\n\5model"):
        assert check(request, timeout=60) == b"\x08\x01"
    with pytest.raises(grpc.RpcError) as raised:
        check(b"\n\5other", timeout=60)
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND
    with ThreadPoolExecutor() as pool:
        calls = [pool.submit(client.predict, {"x": [1.0]}) for _ in range(2)]
        for _ in calls:
            assert model.running.acquire(timeout=60)
        # One more waits, and the others are refused.
        more = [check.future(b"", timeout=60) for _ in range(3)]
        until(lambda: sum(call.done() for call in more) >= 2)
        refused = [call for call in more if call.done()]
        model.let.set()
        for call in calls:
            assert call.result()["y"].tolist() == [1]
        for call in more:
            if call in refused:
                assert call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            else:
                assert call.result() == b"\x08\x01"
    # Calls that never send their request lose their connection.
    quick = limits._replace(seconds=0.5)
    impatient, other = start_grpc(model, port=0, limits=quick)
    stalled = grpc.insecure_channel(f"127.0.0.1:{other}")
    never = stalled.stream_unary(
        "/tensorflow.serving.PredictionService/Predict"
    )
    end = threading.Event()
    silent = [never.future(iter(end.wait, True)) for _ in range(3)]
    for call in silent:
        assert call.code() == grpc.StatusCode.UNAVAILABLE, call
    end.set()
    stalled.close()
    # Connections that say nothing: the last is one too many.
    with ExitStack() as stack:
        for _ in range(quick.connections + 1):
            place = ("127.0.0.1", other)
            last = socket.create_connection(place, timeout=60)
            stack.enter_context(last)
        assert said(last) == b""
    impatient.stop(None).wait()
    # At the end what runs is finished, and what is new refused.
    model.let.clear()
    model.running = threading.Semaphore(0)
    with ThreadPoolExecutor() as pool:
        last = pool.submit(client.predict, {"x": [3.0]})
        assert model.running.acquire(timeout=60)
        stopped = server.stop(30)
        with pytest.raises(grpc.RpcError) as raised:
            GrpcClient(address).predict({"x": [1.0]}, timeout=5)
        # A connection may be there before the port is closed, and is cut then.
        assert raised.value.code() in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
            grpc.StatusCode.CANCELLED,
        )
        model.let.set()
        assert last.result()["y"].tolist() == [3]
    stopped.wait(30)
    for each in (client, channel):
        each.close()


HEAD = b"POST /v1/models/model:predict HTTP/1.1\r\nHost: it\r\n"


def until(condition):
    """Waits for at most a minute."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def said(connection):
    """What a server answers, until it closes the connection."""
    with connection, contextlib.suppress(ConnectionError):
        return connection.makefile("rb").read()
    return b""


def test_rest_refuses_what_is_too_much(examples):
    from rest_client import RestClient
    from rest_service import start_rest
    from serving_limits import Limits

    model = Waits()
    limits = Limits(bytes=1000, calls=1, connections=3, seconds=2.0)
    server, port = start_rest(model, port=0, limits=limits)

    def connect(content=b""):
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        connection.sendall(content)
        return connection

    healthy = b"GET /healthz HTTP/1.1\r\nHost: it\r\nConnection: close\r\n\r\n"
    assert said(connect(healthy)).endswith(b'{"status": "SERVING"}')
    # Too long, of two lengths, with none, and an error that repeats it all.
    for more, status in (
        (b"Content-Length: 1001\r\n\r\n", b"413"),
        (b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", b"413"),
        (b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", b"411"),
        (b"Content-Length: -1\r\n\r\n", b"411"),
    ):
        assert said(connect(HEAD + more)).startswith(b"HTTP/1.1 " + status)
    # A client that sends all before it reads gets the answer, too.
    status, answer = post(f"127.0.0.1:{port}", {"inputs": "x" * 4_000_000})
    assert status == 413 and "over 1000 bytes" in answer["error"]
    long = b"GET /" + b"x" * 60_000 + b" HTTP/1.1\r\nConnection: close\r\n\r\n"
    assert len(said(connect(long))) < 1500
    # Slowly: a head and a body that never come to an end.
    until(lambda: server._places._value == 3)
    begun = time.monotonic()
    slow = [
        connect(HEAD[:20]),
        connect(HEAD + b"Content-Length: 9\r\n\r\n{"),
        connect(),
    ]
    # No place is left for a fourth, which is told so while it is sending.
    assert said(connect()).startswith(b"HTTP/1.1 503 ")
    address = f"127.0.0.1:{port}"
    for size in (30, 200_000):
        status, answer = post(address, {"inputs": [1.0], "pad": "x" * size})
        assert status == 503 and "too many connections" in answer["error"]
        with pytest.raises(ValueError, match="too many connections"):
            RestClient(address).predict({"x": [1.0] * (size // 4)})
    ends = [said(connection)[:12] for connection in slow]
    assert ends == [b"", b"HTTP/1.1 408", b""]
    assert 1.9 < time.monotonic() - begun < 20
    until(lambda: server._places._value == 3)
    client = RestClient(address)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(client.predict, {"x": [1.0]})
        assert model.running.acquire(timeout=60)
        status, answer = post(address, {"inputs": [1.0]})
        assert status == 503 and "too many calls" in answer["error"]
        # One that runs and one that is half sent, as the server ends.
        server.limits = limits._replace(seconds=60)
        until(lambda: server._places._value == 2)
        body = b'{"inputs": [4]}'
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        half = connect(HEAD + length + body[:4])
        idle = connect()
        until(lambda: len(server._handlers) == 3)
        until(lambda: sum(each.busy for each in server._handlers) == 2)
        drained = pool.submit(server.drain, 30)
        assert said(idle) == b""
        with pytest.raises(ConnectionError):
            connect()
        model.let.set()
        half.sendall(body[4:])
        assert said(half).endswith(b'{"outputs": {"y": [4.0]}}')
        assert first.result()["y"].tolist() == [1]
        assert drained.result()
    assert not server._handlers
    # An idle connection that the server ended is opened anew.
    server, again = start_rest(model, port=port)
    assert again == port
    assert client.predict({"x": [5.0]})["y"].tolist() == [5]
    client.close()
    assert server.drain(30)


def test_the_server_ends_when_told_to(folder, requests, wanted, examples):
    from grpc_service import GrpcClient

    command = [sys.executable, "examples/serve.py", f"--model={folder}"]
    options = ["--grpc_port=0", "--rest_port=0", "--max_rows=4"]
    with subprocess.Popen(
        [*command, *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    ) as process:
        try:
            lines = [process.stdout.readline().split() for _ in range(2)]
            (_, calls), (_, rest) = lines
            status, answer = post(rest, {"inputs": [0.0] * 5})
            assert status == 400 and "over 4 rows" in answer["error"]
            body = json.dumps(
                {
                    "signature_name": "serving_logits",
                    "inputs": requests["serving_logits"]["logits"][:2].tolist(),
                }
            ).encode()
            host, port = rest.split(":")
            half = socket.create_connection((host, int(port)), timeout=60)
            length = b"Content-Length: %d\r\n\r\n" % len(body)
            half.sendall(HEAD + length)
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            with pytest.raises(ConnectionError):
                while True:
                    socket.create_connection((host, int(port))).close()
                    time.sleep(0.01)
            client = GrpcClient(calls)
            with pytest.raises(Exception, match="UNAVAILABLE"):
                client.predict(requests[""], timeout=30)
            client.close()
            half.sendall(body)
            answer = said(half)
            assert answer.startswith(b"HTTP/1.1 200 ")
            outputs = json.loads(answer.partition(b"\r\n\r\n")[2])["outputs"]
            assert outputs["label"] == wanted["label"][:2].tolist()
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_rest_client_sends_files(rest_address, requests, wanted):
    from rest_client import RestClient

    client = RestClient(rest_address)
    (files,) = requests["serving_bytes"].values()
    for value in (files, list(files)):
        given = client.predict({"image_bytes": value}, "serving_bytes")
        np.testing.assert_array_equal(given["label"], wanted["label"])
    client.close()


def test_rest_client_asks_again_after_an_answer_that_did_not_come(
    typed_address, monkeypatch
):
    from rest_client import RestClient

    def wait(self):
        raise TimeoutError

    client = RestClient(typed_address)
    with monkeypatch.context() as patch:
        patch.setattr(http.client.HTTPConnection, "getresponse", wait)
        with pytest.raises(TimeoutError):
            client.predict({"half": [1]}, "half")
    assert client.predict({"half": [1]}, "half")["y"].tolist() == [2]
    client.close()


def run(*command):
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_tool_of_tensorflow_shows_and_runs_it(
    folder, tmp_path, requests, wanted
):
    tool = Path(sys.executable).with_name("saved_model_cli")
    model = (f"--dir={folder}", "--tag_set=serve")
    shown = run(tool, "show", *model, "--signature_def=serving_default")
    assert set(re.findall(r"outputs\['(\w+)'\]", shown)) == set(NAMES)
    assert re.findall(r"inputs\['(\w+)'\]", shown) == ["image"]
    np.save(tmp_path / "x.npy", requests[""]["image"])
    run(
        tool,
        "run",
        *model,
        "--signature_def=serving_default",
        f"--inputs=image={tmp_path / 'x.npy'}",
        f"--outdir={tmp_path}",
    )
    given = {name: np.load(tmp_path / f"{name}.npy") for name in NAMES}
    assert_same(given, wanted)


def test_threads_of_clients_get_what_the_model_predicts(tmp_path):
    printed = run(
        sys.executable,
        "examples/serving_demo.py",
        "--requests=200",
        f"--workdir={tmp_path}",
    )
    for name in ("gRPC", "REST"):
        found = re.search(
            rf"{name}: 200 requests from 8 threads .* 0 labels and 0 "
            r"decisions differ, other outputs by (\S+) at most",
            printed,
        )
        assert found, printed
        # Scores are up to 20 and more; float32 rounds them by 1e-6.
        assert float(found[1]) < 2e-5
