"""Over REST clients get what the model says."""

import base64
import http.client
import socket
from contextlib import ExitStack

import numpy as np
import pytest
from exported import NAMES
from rest_client import RestClient
from rest_service import start_rest
from serving_cases import post


def test_inputs_have_the_names_that_clients_know(typed, typed_address):
    assert set(typed.specs("odd")) == {"1st", "2nd"}
    inputs = {"1st": [5.0], "2nd": [3.0]}
    assert typed.predict(inputs, "odd")["y"].tolist() == [2]
    client = RestClient(typed_address)
    assert client.predict(inputs, "odd")["y"].tolist() == [2]
    client.close()


def test_rest_serves_columns_and_rows(rest_address, requests, wanted):
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
        ("half", [1.0, float("nan"), 1e39], "NaN is not JSON"),
        ("two", [{"a": float("-inf"), "b": 1}], "-Infinity is not JSON"),
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


def test_many_clients_may_connect_at_once():
    server, port = start_rest(None, port=0)
    server.shutdown()
    with ExitStack() as stack:
        stack.callback(server.server_close)
        for _ in range(32):
            stack.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=0.5)
            )


def test_json_has_null_for_what_is_no_number(typed_address):
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


def test_rest_client_sends_files(rest_address, requests, wanted):
    client = RestClient(rest_address)
    (files,) = requests["serving_bytes"].values()
    for value in (files, list(files)):
        given = client.predict({"image_bytes": value}, "serving_bytes")
        np.testing.assert_array_equal(given["label"], wanted["label"])
    client.close()


def test_rest_client_asks_again_after_an_answer_that_did_not_come(
    typed_address, monkeypatch
):
    def wait(self):
        raise TimeoutError

    client = RestClient(typed_address)
    with monkeypatch.context() as patch:
        patch.setattr(http.client.HTTPConnection, "getresponse", wait)
        with pytest.raises(TimeoutError):
            client.predict({"half": [1]}, "half")
    assert client.predict({"half": [1]}, "half")["y"].tolist() == [2]
    client.close()
