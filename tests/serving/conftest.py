"""Served models, and addresses that answer for them."""

import sys
from contextlib import ExitStack
from pathlib import Path

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from exported import expected, selector

import keras_calib as kc

# As when one of its scripts runs.
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "serving"))
# Export needs TensorFlow.
collect_ignore_glob = [] if BACKEND == "tensorflow" else ["test_*"]
THRESHOLD = 0.3


@pytest.fixture(scope="session")
def network():
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((4, 4, 3), name="image"),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]
    return keras.Sequential(layers)


@pytest.fixture(scope="session")
def folder(network, tmp_path_factory):
    return kc.export(
        network,
        tmp_path_factory.mktemp("models") / "1",
        selector=selector(THRESHOLD),
        from_logits=True,
        image_preprocessing=keras.layers.Rescaling(1 / 255),
    )


@pytest.fixture(scope="session")
def images():
    rng = np.random.default_rng(0)
    return rng.integers(256, size=(5, 4, 4, 3), dtype="uint8")


@pytest.fixture(scope="session")
def wanted(network, images):
    logits = array(network(images.astype("float32") / 255))
    return expected(logits, 2.5, THRESHOLD)


@pytest.fixture(scope="session")
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
def grpc_address(folder):
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


@pytest.fixture(scope="session")
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
def typed(typed_folder):
    from loaded_model import LoadedModel

    return LoadedModel(typed_folder)


@pytest.fixture
def serve_rest():
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
