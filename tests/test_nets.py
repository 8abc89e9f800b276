"""The networks of the examples are those of the papers."""

import math
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib

EXAMPLES = Path(__file__).parents[1] / "examples"

# As small as the builders allow: input shape and options.
SMALL = {
    "dense": ((4, 4, 1), {"width": 8}),
    "densenet_bc_100_12": ((8, 8, 3), {"depth": 10, "growth": 2}),
    "gpcn": ((21,), {"vectors": np.eye(30, 6), "width": 8}),
    "resnet20": ((8, 8, 3), {"width": 2}),
    "resnet50": ((32, 32, 3), {"width": 2}),
    "resnet56_v2": ((8, 8, 3), {"depth": 11, "width": 2}),
    "small_resnet": ((8, 8, 3), {"width": 2}),
    "vgg16": ((32, 32, 3), {"width": 2}),
    "vit_s16": ((8, 8, 3), {"width": 12, "depth": 2, "heads": 3}),
    "deeplabv3_small": ((33, 50, 3), {}),
    "deeplabv3plus_small": ((33, 50, 3), {"output_stride": 8}),
}
# `num_params` in torchvision/models/segmentation/deeplabv3.py, less those of
# its auxiliary classifier: 3 x 3 from 1024 channels to 256, normalized, and
# the logits.
DEEPLABV3_RESNET50 = 42_004_074 - (9 * 1024 * 256 + 2 * 256 + 257 * 21)

each_small_net = pytest.mark.parametrize("name", SMALL)


@pytest.fixture(autouse=True)
def _examples_are_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))


@pytest.fixture
def mixed_precision():
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield
    keras.config.set_dtype_policy(policy)


def build(name, *args, **options):
    from nets import catalogue

    return catalogue.build(name, *args, **options)


def build_small(name, **options):
    shape, small = SMALL[name]
    return build(name, shape, 5, **small, **options)


def random_inputs(model, batch=2):
    rng = np.random.default_rng(0)
    shape = (batch, *model.input_shape[1:])
    if model.input.dtype == "int32":
        return rng.integers(30, size=shape)
    return rng.normal(size=shape).astype("float32")


def answers(model, inputs):
    return keras.tree.map_structure(
        ops.convert_to_numpy, model(inputs, training=False)
    )


def trainable(model):
    return sum(math.prod(v.shape) for v in model.trainable_variables)


def features_model(shape, blocks, **options):
    from nets.resnet import features

    inputs = keras.Input(shape)
    return keras.Model(inputs, features(inputs, blocks, **options))


# Sizes that others have published.


@pytest.mark.parametrize(
    ("name", "shape", "num_classes", "options", "expected"),
    [
        # 1024 units twice, each with a bias.
        ("dense", (28, 28, 1), 10, {}, 785 * 1024 + 1025 * (1024 + 10)),
        # "0.27M" in He et al., table 6; exact: CIFAR ResNets with option A.
        ("resnet20", (32, 32, 3), 10, {}, 269_722),
        # torch models for CIFAR-10 have the first number, of 13 convolutions
        # and the logits.
        ("vgg16", (32, 32, 3), 10, {}, 14_728_266 + 2 * 513 * 512),
        ("resnet50", (32, 32, 3), 10, {}, 23_520_842),
        # `num_params` in torchvision/models/resnet.py.
        ("resnet50", (224, 224, 3), 1000, {}, 25_557_032),
        ("resnet101", (224, 224, 3), 1000, {}, 44_549_160),
        # "0.8M" in Huang et al., table 2.
        ("densenet_bc_100_12", (32, 32, 3), 10, {}, 769_162),
        # timm and DeiT, "22M" in Touvron et al., table 1.
        ("vit_s16", (224, 224, 3), 1000, {}, 22_050_664),
        (
            "deeplabv3_resnet50",
            (None, None, 3),
            21,
            {"output_stride": 8},
            DEEPLABV3_RESNET50,
        ),
    ],
)
def test_network_has_the_published_number_of_parameters(
    name, shape, num_classes, options, expected
):
    model = build(name, shape, num_classes, **options)
    assert trainable(model) == expected
    assert model.output_shape == (
        (None, None, None, num_classes)
        if shape[0] is None
        else (None, num_classes)
    )


def test_resnet56_v2_has_six_bottlenecks_of_each_width():
    def convolution(size, inputs, outputs):
        return (size**2 * inputs + 1) * outputs

    expected = convolution(3, 3, 16) + 2 * 16
    inputs = inner = 16
    for outer in (64, 128, 256):
        expected += convolution(1, inputs, outer)
        for block in range(6):
            expected += convolution(1, inputs, inner) + 2 * inputs
            expected += convolution(3, inner, inner) + 2 * inner
            expected += convolution(1, inner, outer) + 2 * inner
            # What enters the first one is normalized once.
            expected -= 2 * 16 if outer == 64 and not block else 0
            inputs = outer
        inner = outer
    expected += 2 * 256 + 257 * 10
    assert trainable(build("resnet56_v2", (32, 32, 3), 10)) == expected


def test_decoder_of_deeplabv3plus_has_48_low_channels_and_256():
    low = 256 * 48 + 2 * 48
    refined = 9 * (256 + 48) * 256 + 2 * 256
    plus = build("deeplabv3plus_resnet50", (None, None, 3), 21)
    assert trainable(plus) == DEEPLABV3_RESNET50 + low + refined


# What every network keeps to.


@each_small_net
def test_a_step_of_training_is_finite_and_changes_the_network(name):
    model = build_small(name)
    # Weight decay is the optimizer's.
    assert not model.losses or name == "small_resnet"
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, run_eagerly=True)
    before = [ops.convert_to_numpy(v) for v in model.trainable_variables]
    labels = np.ones((2, *model.output_shape[1:-1]), "int32")
    assert np.isfinite(model.train_on_batch(random_inputs(model), labels))
    after = [ops.convert_to_numpy(v) for v in model.trainable_variables]
    assert all(np.all(np.isfinite(values)) for values in after)
    changed = [np.any(a != b) for a, b in zip(after, before, strict=True)]
    assert np.mean(changed) > 0.8


@each_small_net
def test_logits_are_float32_under_mixed_precision(name, mixed_precision):
    model = build_small(name)
    # Layers of the middle compute in fewer bits.
    assert model.layers[len(model.layers) // 2].compute_dtype == "bfloat16"
    logits = model(random_inputs(model))
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    assert np.all(np.isfinite(ops.convert_to_numpy(logits)))


@pytest.mark.parametrize(
    "name", ["gpcn", "resnet20", "vit_s16", "deeplabv3plus_small"]
)
def test_a_saved_network_answers_as_before(name, tmp_path):
    model = build_small(name)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    inputs = random_inputs(model)
    np.testing.assert_allclose(
        answers(loaded, inputs), answers(model, inputs), rtol=1e-5, atol=1e-6
    )


def test_normalizations_forget_as_those_of_torch():
    model = build_small("resnet50")
    layers = [
        layer
        for layer in model.layers
        if isinstance(layer, keras.layers.BatchNormalization)
    ]
    assert len(layers) == 53
    assert {(v.momentum, v.epsilon) for v in layers} == {(0.9, 1e-5)}


# How images enter.


def test_a_step_of_two_begins_in_the_corner_as_that_of_torch():
    from nets.convolutions import convolution

    inputs = keras.Input((4, 4, 1))
    model = keras.Model(inputs, convolution(inputs, 1, stride=2))
    model.set_weights([np.ones((3, 3, 1, 1))])
    # Zeros above and to the left, so the image's last row is read.
    counts = answers(model, np.ones((1, 4, 4, 1)))[0, :, :, 0]
    np.testing.assert_allclose(counts, [[4, 6], [6, 9]])


def test_stem_and_patches_follow_the_size_of_the_image():
    from nets.catalogue import patch_size
    from nets.catalogue import stem

    sides = (28, 32, 33, 64, 65, 224)
    stems = ["cifar"] * 2 + ["tiny_imagenet"] * 2 + ["imagenet"] * 2
    assert [stem((side, side, 3)) for side in sides] == stems
    sides = (32, 64, 127, 128, 224)
    patches = [patch_size((side, side, 3)) for side in sides]
    assert patches == [4, 4, 4, 16, 16]


@pytest.mark.parametrize(
    ("stem", "kernel", "sizes"),
    [
        ("cifar", (3, 3), (32, 4)),
        ("tiny_imagenet", (3, 3), (32, 4)),
        ("imagenet", (7, 7), (8, 1)),
    ],
)
def test_stem_decides_the_size_of_features(stem, kernel, sizes):
    model = features_model((32, 32, 3), (1, 1, 1, 1), stem=stem, width=2)
    assert model.get_layer("backbone_conv1_conv").kernel_size == kernel
    assert tuple(shape[1] for shape in model.output_shape) == sizes


def test_tiny_imagenet_is_averaged_over_quarters():
    model = build_small("resnet50", stem="tiny_imagenet")
    assert model.layers[-1].input.shape == (None, 4 * 32 * 2)


def test_patches_are_cut_in_rows():
    model = build("vit_s16", (16, 32, 3), 5, width=12, depth=1, heads=3)
    assert model.layers[1].output.shape == (None, 4, 8, 12)
    assert model.layers[3].output.shape == (None, 1 + 4 * 8, 12)


def test_vectors_of_words_are_given_and_kept():
    vectors = SMALL["gpcn"][1]["vectors"]
    for trains in (False, True):
        model = build_small("gpcn", trainable=trains)
        assert model.layers[1].trainable == trains
        np.testing.assert_array_equal(model.layers[1].get_weights()[0], vectors)


# Dense prediction.


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
    from nets import imagenet
    from nets.resnet import RESNET50

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


# The catalogue.


def test_a_network_can_train_as_a_class_of_this_library():
    model = build_small(
        "dense",
        model_class=keras_calib.SharpnessAwareModel,
        model_arguments={"rho": 0.1},
    )
    assert isinstance(model, keras_calib.SharpnessAwareModel)
    assert model.output_shape == (None, 5)


def test_catalogue_has_no_name_twice():
    from nets.catalogue import NETS
    from nets.catalogue import SEGMENTERS

    assert not set(NETS) & set(SEGMENTERS)
    assert len(SEGMENTERS) == 6


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("resnet", (8, 8, 3), {}, "`name` must be one of"),
        ("densenet_bc_100_12", (8, 8, 3), {"depth": 40 + 1}, "6 n [+] 4"),
        ("resnet56_v2", (8, 8, 3), {"depth": 2}, "9 n [+] 2"),
        ("resnet50", (8, 8, 3), {"stem": "mnist"}, "`stem` must be one of"),
        ("resnet50", (40, 40, 3), {}, "multiples of 16"),
        ("resnet50", (32, 32, 3), {"weights": "imagenet"}, "`stem` must be"),
        ("vit_s16", (130, 130, 3), {}, "multiples of `patch_size`"),
        ("vit_s16", (32, 32, 3), {"heads": 5}, "a multiple of `heads`"),
        ("deeplabv3_small", (8, 8, 3), {"output_stride": 32}, "8 or 16"),
        ("deeplabv3_small", (8, 8, 3), {"weights": "voc"}, "None or 'image"),
        ("deeplabv3_small", (8, 8, 3), {"weights": "imagenet"}, "`blocks`"),
    ],
)
def test_what_cannot_be_built_is_refused(name, shape, options, message):
    with pytest.raises(ValueError, match=message):
        build(name, shape, 5, **options)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="an operation of TensorFlow"
)
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_the_fused_normalization_is_that_of_keras(policy):
    import tensorflow as tf
    from nets.fused import FusedBatchNormalization

    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(3.0, 2.0, (4, 5, 6, 3)), "float32")
    upstream = tf.constant(rng.normal(size=x.shape), "float32")
    found = []
    for kind in (keras.layers.BatchNormalization, FusedBatchNormalization):
        layer = kind(momentum=0.9, epsilon=1e-5, dtype=policy)
        layer.build(x.shape)
        layer.gamma.assign([0.5, 1.0, 2.0])
        layer.beta.assign([1.0, 0.0, -1.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.cast(layer(x, training=True), "float32")
            loss = tf.reduce_sum(y * upstream)
        variables = [v.value for v in layer.trainable_variables]
        gradients = tape.gradient(loss, [x, *variables])
        state = (layer.moving_mean, layer.moving_variance)
        inference = layer(x, training=False)
        found.append([y, *gradients, *state, inference])
    tolerance = 2e-5 if policy == "float32" else 5e-2
    for plain, fused in zip(*found, strict=True):
        plain, fused = (
            ops.convert_to_numpy(ops.cast(v, "float32")) for v in (plain, fused)
        )
        np.testing.assert_allclose(fused, plain, tolerance, tolerance)
