"""The networks of the recipes are those of the papers."""

import keras
import numpy as np
import pytest
from keras import ops
from nets.catalogue import NETS, SEGMENTERS, patch_size, stem
from nets.convolutions import convolution
from nets.fused import FusedBatchNormalization
from small_nets import (
    DEEPLABV3_RESNET50,
    SMALL,
    answers,
    build,
    build_small,
    features_model,
    random_inputs,
    trainable,
)

import keras_calib


@pytest.fixture
def mixed_precision():
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield
    keras.config.set_dtype_policy(policy)


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
        # `params` of keras_hub's vit_base_patch16_224_imagenet, and the head.
        ("vit_b16", (224, 224, 3), 1000, {}, 85_798_656 + 769 * 1000),
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


@pytest.mark.parametrize("name", SMALL)
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


def test_logits_are_float32_under_mixed_precision(mixed_precision):
    for name in SMALL:
        model = build_small(name)
        # Layers of the middle compute in fewer bits.
        middle = model.layers[len(model.layers) // 2]
        assert middle.compute_dtype == "bfloat16", name
        logits = model(random_inputs(model))
        assert keras.backend.standardize_dtype(logits.dtype) == "float32"
        assert np.all(np.isfinite(ops.convert_to_numpy(logits))), name


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


def test_a_step_of_two_begins_in_the_corner_as_that_of_torch():
    inputs = keras.Input((4, 4, 1))
    model = keras.Model(inputs, convolution(inputs, 1, stride=2))
    model.set_weights([np.ones((3, 3, 1, 1))])
    # Zeros above and to the left, so the image's last row is read.
    counts = answers(model, np.ones((1, 4, 4, 1)))[0, :, :, 0]
    np.testing.assert_allclose(counts, [[4, 6], [6, 9]])


def test_stem_and_patches_follow_the_size_of_the_image():
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


def test_dropout_is_between_the_stages_and_before_the_logits():
    plain = build_small("resnet50")
    model = build_small("resnet50", dropout=0.3)
    layers = [x for x in model.layers if isinstance(x, keras.layers.Dropout)]
    assert [layer.rate for layer in layers] == [0.3] * 4
    assert [layer.output.shape[-1] for layer in layers] == [8, 16, 32, 64]
    assert model.layers[-1].input is layers[-1].output
    model.set_weights(plain.get_weights())
    inputs = random_inputs(plain)
    expected = answers(plain, inputs)
    np.testing.assert_array_equal(answers(model, inputs), expected)


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


def test_a_network_can_train_as_a_class_of_this_library():
    model = build_small(
        "dense",
        model_class=keras_calib.SharpnessAwareModel,
        model_arguments={"rho": 0.1},
    )
    assert isinstance(model, keras_calib.SharpnessAwareModel)
    assert model.output_shape == (None, 5)


def test_catalogue_has_no_name_twice():
    assert not set(NETS) & set(SEGMENTERS)
    assert len(SEGMENTERS) == 6


def test_what_cannot_be_built_is_refused():
    for name, shape, options, message in (
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
    ):
        with pytest.raises(ValueError, match=message):
            build(name, shape, 5, **options)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="an operation of TensorFlow"
)
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_the_fused_normalization_is_that_of_keras(policy):
    import tensorflow as tf

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
