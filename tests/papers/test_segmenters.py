"""Segmenters are those of the papers."""

import keras
import numpy as np
import pytest
from nets import imagenet
from nets.resnet import RESNET50
from small_nets import (
    DEEPLABV3_RESNET50,
    answers,
    build,
    build_small,
    features_model,
    trainable,
)


def test_decoder_of_deeplabv3plus_has_48_low_channels_and_256():
    low = 256 * 48 + 2 * 48
    refined = 9 * (256 + 48) * 256 + 2 * 256
    plus = build("deeplabv3plus_resnet50", (None, None, 3), 21)
    assert trainable(plus) == DEEPLABV3_RESNET50 + low + refined


@pytest.mark.parametrize("name", ["deeplabv3_small", "deeplabv3plus_small"])
def test_images_of_any_size_get_a_row_of_logits_for_each_pixel(name):
    model = build(name, (None, None, 3), 5)
    for size in ((33, 50), (32, 48)):
        images = np.zeros((1, *size, 3), "float32")
        assert model(images).shape == (1, *size, 5)


@pytest.mark.parametrize("output_stride", [8, 16])
def test_logits_before_interpolation_have_the_size_of_features(output_stride):
    options = {"output_stride": output_stride, "resize": False}
    plain = build("deeplabv3_small", (180, 240, 3), 11, **options)
    height, width = (-(-side // output_stride) for side in (180, 240))
    assert plain.output_shape == (None, height, width, 11)
    plus = build("deeplabv3plus_small", (180, 240, 3), 11, **options)
    assert plus.output_shape == (None, 45, 60, 11)


@pytest.mark.parametrize("output_stride", [8, 16])
def test_pyramid_reads_at_the_papers_rates(output_stride):
    model = build(
        "deeplabv3_small", (64, 64, 3), 5, output_stride=output_stride
    )
    rates = [
        layer.dilation_rate[0]
        for layer in model.layers
        if isinstance(layer, keras.layers.Conv2D)
        and "backbone" not in layer.name
        and layer.dilation_rate[0] > 1
    ]
    assert rates == [rate * 16 // output_stride for rate in (6, 12, 18)]


def test_only_the_backbone_of_a_segmenter_is_called_so():
    model = build_small("deeplabv3plus_small")
    named = ["backbone" in v.path for v in model.trainable_variables]
    backbone = features_model((33, 50, 3), (1, 1, 1, 1), width=16)
    assert sum(named) == len(backbone.trainable_variables)
    assert not any(named[sum(named) :])
    for variable in build_small("resnet50").variables:
        assert "backbone" not in variable.path


@pytest.mark.parametrize("size", [(64, 64), (45, 70)])
def test_dilated_features_are_the_others_at_more_places(size):
    images = np.random.default_rng(0).normal(size=(1, *size, 3))
    features = {}
    weights = None
    for stride in (32, 16, 8):
        model = features_model(
            (*size, 3), (1, 2, 1, 2), width=2, output_stride=stride
        )
        weights = weights or model.get_weights()
        model.set_weights(weights)
        features[stride] = answers(model, images)
    for stride in (16, 8):
        step = 32 // stride
        low, high = features[stride]
        np.testing.assert_allclose(low, features[32][0], rtol=1e-5)
        np.testing.assert_allclose(
            high[:, ::step, ::step], features[32][1], rtol=1e-4, atol=1e-5
        )


def test_weights_of_imagenet_give_the_features_of_keras(monkeypatch):
    source = keras.applications.ResNet50(
        include_top=False, weights=None, input_shape=(64, 64, 3)
    )
    rng = np.random.default_rng(0)
    for layer in source.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            shape = layer.gamma.shape
            low, high = np.array([[0.5, -1, -1, 0.5], [1, 1, 1, 2]])
            layer.set_weights(rng.uniform(low, high, (*shape, 4)).T)
        elif isinstance(layer, keras.layers.Conv2D):
            kernel, bias = layer.get_weights()
            layer.set_weights([kernel, rng.normal(size=bias.shape)])
    sources = {RESNET50: lambda **options: source}
    monkeypatch.setattr(imagenet, "_SOURCES", sources)
    images = rng.normal(size=(1, 64, 64, 3)).astype("float32")
    # BGR with its means taken away, in 255 levels.
    levels = (255 * np.array([0.229, 0.224, 0.225]) * images)[..., ::-1]
    expected = answers(source, levels)
    # With stages that step, and one that is dilated.
    model = features_model(
        (64, 64, 3), RESNET50, weights="imagenet", output_stride=16
    )
    _, high = answers(model, images)
    np.testing.assert_allclose(
        high[:, ::2, ::2], expected, rtol=1e-3, atol=1e-4 * np.max(expected)
    )
