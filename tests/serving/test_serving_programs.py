"""Servers and clients as programs of their own."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from exported import NAMES, assert_same
from grpc_service import GrpcClient
from serving_cases import HEAD, post, said

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_server_ends_when_told_to(folder, requests, wanted):
    command = [sys.executable, "examples/serving/serve.py", f"--model={folder}"]
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_threads_of_clients_get_what_the_model_predicts(tmp_path):
    printed = run(
        sys.executable,
        "examples/serving/demo.py",
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
