"""Hostile clients get what they may, and no more."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_service import GrpcClient, start_grpc
from limits import Limits
from loaded_model import LoadedModel
from rest_client import RestClient
from rest_service import start_rest
from serving_cases import HEAD, Waits, post, said, until
from tensorflow_serving.apis import predict_pb2


def test_a_message_is_not_larger_than_what_was_sent(
    grpc_address, typed, monkeypatch
):
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


def test_an_image_is_not_decoded_beyond_its_limit(folder, images):
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


def test_grpc_refuses_what_is_too_much_at_once():
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


@pytest.mark.slow
def test_rest_refuses_what_is_too_much():
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
