"""Weights of ImageNet are read from the files that are published."""

import hashlib
import sys

import h5py
import keras
import numpy as np
import pytest
from keras.src.applications import resnet as keras_resnet
from keras.src.legacy.saving import legacy_h5_format
from nets import imagenet
from nets.resnet import RESNET50
from small_nets import answers, build, features_model

# Red, green and blue of an image in [0, 255], as Keras and torchvision do.
LEVELS = np.array([103.939, 116.779, 123.68])
MEANS = np.array([0.485, 0.456, 0.406])
DEVIATIONS = np.array([0.229, 0.224, 0.225])


def published(name, source, folder, monkeypatch):
    """The weights of a network as the file that Keras would download."""
    rng = np.random.default_rng(0)
    for layer in source.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            low, high = np.array([[0.5, -1, -1, 0.5], [1, 1, 1, 2]])
            shape = layer.gamma.shape
            layer.set_weights(rng.uniform(low, high, (*shape, 4)).T)
    path = folder / "models" / f"{name}_weights_tf_dim_ordering_tf_kernels"
    path = path.with_name(f"{path.name}_notop.h5")
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        legacy_h5_format.save_weights_to_hdf5_group(file, source)
    digest = hashlib.md5(path.read_bytes()).hexdigest()
    hashes = {**keras_resnet.WEIGHTS_HASHES, name: ("", digest)}
    monkeypatch.setattr(keras_resnet, "WEIGHTS_HASHES", hashes)
    return path


@pytest.fixture
def home(monkeypatch, tmp_path):
    """KERAS_HOME, on a machine without a network."""

    def no_network(*_):
        raise OSError("no network")

    files = "keras.src.utils.file_utils"
    monkeypatch.setattr(f"{files}.config.keras_home", lambda: str(tmp_path))
    monkeypatch.setattr(f"{files}.urlretrieve", no_network)
    return tmp_path


def test_a_published_file_gives_the_answers_of_keras(home, monkeypatch):
    shape = (64, 64, 3)
    source = keras.applications.ResNet50(
        include_top=False, weights=None, input_shape=shape
    )
    published("resnet50", source, home, monkeypatch)
    model = features_model(shape, RESNET50, weights="imagenet")
    pixels = np.random.default_rng(1).integers(0, 256, (2, *shape))
    # With means of the one in both: they differ by a third of a level.
    expected = answers(source, pixels[..., ::-1] - 255.0 * MEANS[::-1])
    _, found = answers(model, (pixels / 255.0 - MEANS) / DEVIATIONS)
    largest = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5 * largest)
    assert np.abs(255 * MEANS[::-1] - LEVELS).max() < 0.5
    narrow = features_model(shape, RESNET50, width=2)
    with pytest.raises(ValueError, match="sizes of the one of `weights`"):
        imagenet.convert(source, narrow, "backbone")


def test_weights_that_are_not_the_published_are_refused(home, monkeypatch):
    asked = None, RESNET50, "imagenet", "backbone"
    with pytest.raises(OSError, match="must be downloaded once.*no network"):
        imagenet.load_imagenet(*asked)
    # Another network under the name of the first.
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    path = published("resnet50", other, home, monkeypatch)
    with pytest.raises(OSError, match=r"ends in _notop\.h5.*layers"):
        imagenet.load_imagenet(*asked)
    path.write_bytes(b"not a file of weights")
    with pytest.raises(OSError, match="must be downloaded once"):
        imagenet.load_imagenet(*asked)


# Transformers.


def small_vit(**options):
    sizes = {"width": 12, "depth": 2, "heads": 3, "patch_size": 8}
    return build("vit_b16", (16, 24, 3), 5, **sizes | options)


def test_a_transformer_of_keras_hub_answers_alike(monkeypatch):
    hub = pytest.importorskip("keras_hub")
    keras.utils.set_random_seed(0)
    source = hub.models.ViTBackbone(
        image_shape=(16, 24, 3),
        patch_size=8,
        num_layers=2,
        num_heads=3,
        hidden_dim=12,
        mlp_dim=48,
    )
    rng = np.random.default_rng(0)
    source.set_weights([rng.normal(size=w.shape) for w in source.weights])
    asked = []
    monkeypatch.setattr(
        hub.models.ViTBackbone,
        "from_preset",
        lambda name: asked.append(name) or source,
    )
    model = small_vit(weights="imagenet")
    (preset,) = asked
    metadata = hub.models.ViTBackbone.presets[preset]["metadata"]
    assert metadata["params"] == 85_798_656
    pixels = rng.uniform(size=(2, 16, 24, 3))
    expected = answers(source, 2 * pixels - 1)[:, 0]
    features = keras.Model(model.input, model.layers[-1].input)
    found = answers(features, (pixels - MEANS) / DEVIATIONS)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="as deep as the one of `weights`"):
        small_vit(weights="imagenet", depth=1)
    with pytest.raises(ValueError, match="sizes of the one of `weights`"):
        small_vit(weights="imagenet", patch_size=4)

    def no_network(name):
        raise ConnectionError("no network")

    monkeypatch.setattr(hub.models.ViTBackbone, "from_preset", no_network)
    with pytest.raises(OSError, match="KAGGLEHUB_CACHE.*no network"):
        small_vit(weights="imagenet")
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    with pytest.raises(ImportError, match="pip install .*pretrained"):
        small_vit(weights="imagenet")
    with pytest.raises(ValueError, match="None or 'imagenet'"):
        small_vit(weights="imagenet21k")
