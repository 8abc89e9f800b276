"""Class activation maps are what their formulas say, in any model."""

import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

import keras_calib as kc
from keras_calib.analysis.activation_maps import class_activations

pytestmark = pytest.mark.portable

SIDE, FEATURES, CLASSES = 12, 4, 3
METHODS = ("grad_cam", "grad_cam++")


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(3)


def pictures(count=5, side=SIDE):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, side, side, 3)).astype("float32")


def convolution(**options):
    options = {"activation": "relu", "padding": "same", **options}
    return layers.Conv2D(
        FEATURES, 3, bias_initializer="random_normal", **options
    )


def known(model):
    """With the same weights on every backend."""
    rng = np.random.default_rng(3)
    model.set_weights([rng.normal(size=w.shape) / 2 for w in model.weights])
    return model


def pooled(activation=None, num_outputs=CLASSES):
    """conv, global average pooling, dense: where CAM is defined."""
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            convolution(name="conv"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(num_outputs, activation, name="head"),
        ]
    )
    return known(model)


def flattened():
    """A gradient that differs from place to place."""
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            convolution(name="conv", strides=2),
            layers.Flatten(),
            layers.Dense(CLASSES, name="head"),
        ]
    )
    return known(model)


def features_of(model, images):
    return ops.convert_to_numpy(model.get_layer("conv")(images))


def head_of(model):
    return ops.convert_to_numpy(model.get_layer("head").kernel)


def scaled(maps):
    top = maps.max(axis=(1, 2), keepdims=True)
    return np.divide(maps, top, out=np.zeros_like(maps), where=top > 0)


def assert_close(one, other, atol=1e-5):
    np.testing.assert_allclose(one, other, rtol=2e-4, atol=atol)


# Closed forms.


def test_grad_cam_behind_global_pooling_is_cam():
    model, images = pooled(), pictures()
    features, kernel = features_of(model, images), head_of(model)
    for k in range(CLASSES):
        cam = np.maximum(features @ kernel[:, k], 0.0)
        maps = kc.class_activation_maps(model, images, classes=k)
        assert maps.shape == (5, SIDE, SIDE)
        assert maps.dtype == np.float32
        assert cam.max() > 0
        assert_close(maps, scaled(cam))


def derivatives(score, slope):
    """First to third of exp(score + slope x) at 0, by differences."""
    h = 1e-2 / abs(slope)
    y = {k: np.exp(score + slope * k * h) for k in (-2, -1, 0, 1, 2)}
    first = (y[1] - y[-1]) / (2 * h)
    second = (y[1] - 2 * y[0] + y[-1]) / h**2
    third = (y[2] - 2 * y[1] + 2 * y[-1] - y[-2]) / (2 * h**3)
    return first, second, third


def by_hand(features, gradient, scores):
    """Grad-CAM++ of exp(score), place by place."""
    maps = np.zeros(features.shape[:3])
    for n, score in enumerate(scores.astype("float64")):
        for k in range(features.shape[-1]):
            total = features[n, ..., k].sum()
            weight = 0.0
            for slope in gradient[n, ..., k].ravel():
                first, second, third = derivatives(score, slope)
                alpha = second / (2 * second + total * third)
                weight += alpha * max(first, 0.0)
            maps[n] += weight * features[n, ..., k]
    return np.maximum(maps, 0.0)


@pytest.mark.parametrize("method", METHODS)
def test_maps_are_the_formula_where_gradients_differ_by_place(method):
    model, images = flattened(), pictures()
    features = features_of(model, images).astype("float64")
    kernel = head_of(model).astype("float64")
    logits = ops.convert_to_numpy(model(images))
    for k in range(CLASSES):
        gradient = np.broadcast_to(
            kernel[:, k].reshape(features.shape[1:]), features.shape
        )
        if method == "grad_cam":
            weight = gradient.mean((1, 2))
            small = np.einsum("nijk,nk->nij", features, weight).clip(0.0)
        else:
            small = by_hand(features, gradient, logits[:, k])
        maps = kc.class_activation_maps(model, images, classes=k, method=method)
        resized = ops.image.resize(
            small[..., None].astype("float32"),
            (SIDE, SIDE),
            interpolation="bilinear",
            data_format="channels_last",
        )
        assert_close(maps, scaled(ops.convert_to_numpy(resized)[..., 0]))


def test_a_map_follows_the_place_that_matters():
    # One bright pixel through a network that looks for brightness.
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(1, 1, activation="relu", kernel_initializer="ones"),
            layers.MaxPooling2D(2),
            layers.GlobalAveragePooling2D(),
            layers.Dense(2, kernel_initializer=keras.initializers.Ones()),
        ]
    )
    images = np.zeros((2, 8, 8, 1), "float32")
    images[0, 1, 6] = images[1, 5, 2] = 1.0
    for method in METHODS:
        maps = kc.class_activation_maps(model, images, classes=0, method=method)
        # Where the pixel was pooled with three others.
        assert maps[0, 0:2, 6:8].max() == maps[1, 4:6, 2:4].max() == 1.0
        assert maps[0, 4:].max() == maps[1, :2].max() == 0.0


# Classes and logits.


def test_predicted_classes_are_the_default():
    model, images = flattened(), pictures()
    ids = ops.convert_to_numpy(model(images)).argmax(-1)
    assert len(set(ids)) > 1
    default = kc.class_activation_maps(model, images)
    np.testing.assert_array_equal(
        default, kc.class_activation_maps(model, images, classes=ids)
    )
    other = kc.class_activation_maps(model, images, classes=(ids + 1) % CLASSES)
    assert np.abs(default - other).max() > 0.1


def same_at_the_end(linear, end):
    """The network with other last layers, of the same weights."""
    first = keras.Input((SIDE, SIDE, 3))
    *body, head = linear.layers
    return keras.Sequential([first, *body, *end(head)])


def dense_like(layer, activation):
    copy = layers.Dense.from_config(
        {**layer.get_config(), "activation": activation, "name": "copy"}
    )
    copy.build((None, FEATURES))
    copy.set_weights(layer.get_weights())
    return copy


@pytest.mark.parametrize(
    "end",
    [
        lambda head: [dense_like(head, "softmax")],
        lambda head: [dense_like(head, "softmax"), layers.Dropout(0.5)],
        lambda head: [head, layers.Softmax()],
        lambda head: [head, layers.Activation("softmax", dtype="float32")],
    ],
    ids=["dense", "dense and dropout", "Softmax", "Activation"],
)
def test_softmax_at_the_end_is_read_at_its_logits(end):
    linear, images = pooled(), pictures()
    model = same_at_the_end(linear, end)
    before = ops.convert_to_numpy(model(images))
    np.testing.assert_allclose(before.sum(-1), 1.0, rtol=1e-5)
    for method in METHODS:
        for k in range(CLASSES):
            options = {"classes": k, "method": method}
            assert_close(
                kc.class_activation_maps(model, images, **options),
                kc.class_activation_maps(linear, images, **options),
            )
    # The model is left as it was.
    np.testing.assert_array_equal(ops.convert_to_numpy(model(images)), before)
    assert not any("call" in vars(layer) for layer in model.layers)


def test_the_gradient_of_a_probability_would_be_another_map():
    # p_k(1 - p_k) dz_k is a factor only if two classes are left.
    linear, images = pooled(), pictures()
    features, kernel = features_of(linear, images), head_of(linear)
    probs = ops.convert_to_numpy(ops.softmax(linear(images)))
    of_log = kernel[:, 0] - probs @ kernel.T
    wrong = np.einsum("nijk,nk->nij", features, of_log).clip(0.0)
    model = same_at_the_end(linear, lambda head: [dense_like(head, "softmax")])
    maps = kc.class_activation_maps(model, images, classes=0)
    assert np.abs(maps - scaled(wrong)).max() > 0.05


def test_of_one_output_the_classes_pull_in_opposite_directions():
    linear, images = pooled(num_outputs=1), pictures()
    model = same_at_the_end(linear, lambda head: [dense_like(head, "sigmoid")])
    features, kernel = features_of(linear, images), head_of(linear)[:, 0]
    for k, sign in ((0, -1.0), (1, 1.0)):
        cam = scaled((sign * features @ kernel).clip(0.0))
        for each in (linear, model):
            maps = kc.class_activation_maps(each, images, classes=k)
            assert_close(maps, cam)
    read = class_activations(model, images)
    z = ops.convert_to_numpy(linear(images))[:, 0]
    assert_close(read.logits, np.stack([0.0 * z, z], -1))
    with pytest.raises(ValueError, match=r"`classes` must hold class ids in"):
        kc.class_activation_maps(model, images, classes=2)


class Averaged(keras.Model):
    """Probabilities from which no layer's logits can be read."""

    def __init__(self, returns_logits=None):
        super().__init__()
        self.conv = convolution()
        self.pool = layers.GlobalAveragePooling2D()
        self.head = layers.Dense(CLASSES)
        if returns_logits is not None:
            self.returns_logits = returns_logits

    def call(self, x):
        logits = self.head(self.pool(self.conv(x)))
        if getattr(self, "returns_logits", False):
            return 1.0 * logits
        return ops.softmax(logits)


def test_probabilities_without_logits_are_refused():
    images = pictures()
    model = Averaged(returns_logits=False)
    model(images)
    with pytest.raises(ValueError, match="must return logits, or end in a"):
        kc.class_activation_maps(model, images)
    model = Averaged()
    model(images)
    with pytest.raises(ValueError, match="`from_logits` must be True or False"):
        kc.class_activation_maps(model, images)
    with pytest.raises(ValueError, match="must return logits, or end in a"):
        kc.class_activation_maps(model, images, from_logits=False)
    softmax = pooled("softmax")
    with pytest.raises(ValueError, match="`from_logits` must be False or None"):
        kc.class_activation_maps(softmax, images, from_logits=True)


def test_models_without_a_graph_are_read():
    images = pictures()
    model = Averaged(returns_logits=True)
    model(images)
    features = ops.convert_to_numpy(model.conv(images))
    kernel = ops.convert_to_numpy(model.head.kernel)
    cam = scaled((features @ kernel[:, 1]).clip(0.0))
    assert_close(kc.class_activation_maps(model, images, classes=1), cam)


# Layers.


def backbone():
    inputs = keras.Input((SIDE, SIDE, 3))
    x = convolution(name="first")(inputs)
    y = convolution(name="second")(x)
    return keras.Model(inputs, layers.Add(name="sum")([x, y]), name="backbone")


def nested(inner):
    inputs = keras.Input((SIDE, SIDE, 3))
    x = layers.Rescaling(2.0)(inputs)
    x = layers.GlobalAveragePooling2D()(inner(x))
    return keras.Model(inputs, layers.Dense(CLASSES, name="head")(x))


def test_layers_inside_nested_models_are_found():
    inner = backbone()
    model, images = nested(inner), pictures()
    features = ops.convert_to_numpy(inner(2.0 * images))
    cam = scaled((features @ head_of(model)[:, 2]).clip(0.0))
    for layer in (None, "backbone", "sum", inner, inner.get_layer("sum")):
        maps = kc.class_activation_maps(model, images, classes=2, layer=layer)
        assert_close(maps, cam)
    # One branch of the sum: the other does not depend on it.
    features = keras.Model(inner.input, inner.get_layer("second").output)
    features = ops.convert_to_numpy(features(2.0 * images))
    cam = scaled((features @ head_of(model)[:, 2]).clip(0.0))
    maps = kc.class_activation_maps(model, images, classes=2, layer="second")
    assert_close(maps, cam)


def test_a_softmax_inside_a_nested_model_is_found():
    images, inner = pictures(), backbone()
    linear = nested(inner)
    inputs = keras.Input((FEATURES,))
    head = dense_like(linear.get_layer("head"), "softmax")
    head = keras.Model(inputs, head(inputs))
    inputs = keras.Input((SIDE, SIDE, 3))
    x = layers.GlobalAveragePooling2D()(inner(layers.Rescaling(2.0)(inputs)))
    model = keras.Model(inputs, head(x))
    assert_close(
        kc.class_activation_maps(model, images, classes=0),
        kc.class_activation_maps(linear, images, classes=0),
    )


def test_maps_pooled_to_one_place_are_passed_over():
    inputs = keras.Input((SIDE, SIDE, 3))
    x = convolution(name="conv")(inputs)
    x = layers.GlobalAveragePooling2D(keepdims=True)(x)
    x = layers.Conv2D(CLASSES, 1, name="head")(x)
    model, images = keras.Model(inputs, layers.Flatten()(x)), pictures()
    cam = features_of(model, images) @ head_of(model)[0, 0, :, 1]
    maps = kc.class_activation_maps(model, images, classes=1, from_logits=True)
    assert_close(maps, scaled(cam.clip(0.0)))


def test_of_a_layer_called_twice_the_last_call_counts():
    inputs = keras.Input((SIDE, SIDE, 3))
    relu = layers.ReLU(name="relu")
    x = relu(convolution(activation=None)(inputs))
    x = relu(convolution(activation=None)(x))
    last = keras.Model(inputs, x)
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(CLASSES, name="head")(x))
    images = pictures()
    features = ops.convert_to_numpy(last(images))
    cam = scaled((features @ head_of(model)[:, 0]).clip(0.0))
    for layer in (None, "relu"):
        maps = kc.class_activation_maps(model, images, classes=0, layer=layer)
        assert_close(maps, cam)


class PlaceByPlace(layers.Layer):
    """A 1 x 1 convolution, which some devices lack with channels first."""

    def __init__(self, data_format):
        super().__init__()
        self.data_format = data_format

    def build(self, shape):
        last = self.data_format == "channels_last"
        self.kernel = self.add_weight((shape[-1 if last else 1], FEATURES))

    def call(self, x):
        if self.data_format == "channels_last":
            return ops.relu(ops.einsum("nijc,cf->nijf", x, self.kernel))
        return ops.relu(ops.einsum("ncij,cf->nfij", x, self.kernel))


@pytest.mark.parametrize("method", METHODS)
def test_channels_first_gives_the_same_maps(method):
    # Of another height than width.
    images = pictures()[:, :8]
    last, first = (
        keras.Sequential(
            [
                keras.Input(shape),
                PlaceByPlace(f"channels_{order}"),
                layers.ReLU(),
                *turn,
                layers.Flatten(),
                layers.Dense(CLASSES),
            ]
        )
        for order, shape, turn in (
            ("last", (8, SIDE, 3), []),
            ("first", (3, 8, SIDE), [layers.Permute((2, 3, 1))]),
        )
    )
    first.set_weights(last.get_weights())
    turned = np.moveaxis(images, -1, 1)
    options = {"classes": 1, "method": method}
    for i in (None, 0, 1):
        one, other = (
            kc.class_activation_maps(
                model,
                x,
                layer=None if i is None else model.layers[i],
                **options,
            )
            for model, x in ((last, images), (first, turned))
        )
        assert one.shape == (5, 8, SIDE)
        assert_close(one, other)


# Laws.


@pytest.mark.parametrize("method", METHODS)
def test_batches_change_nothing(method):
    inputs = keras.Input((SIDE, SIDE, 3))
    x = convolution(activation=None)(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Dropout(0.5)(layers.MaxPooling2D()(x))
    model = keras.Model(inputs, layers.Dense(CLASSES)(layers.Flatten()(x)))
    images = pictures()
    weights = model.get_weights()
    whole = kc.class_activation_maps(model, images, method=method)
    for size in (1, 2):
        maps = kc.class_activation_maps(
            model, images, method=method, batch_size=size
        )
        assert_close(maps, whole)
    for one, other in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("method", METHODS)
def test_a_map_of_zero_gradient_is_zero(method):
    model, images = pooled(), pictures()
    head = model.get_layer("head")
    head.kernel.assign(np.zeros_like(head_of(model)))
    maps = kc.class_activation_maps(model, images, method=method)
    np.testing.assert_array_equal(maps, 0.0)
    # And one on which the score does not depend at all.
    inputs = keras.Input((SIDE, SIDE, 3))
    unused = convolution(name="conv")(inputs)
    x = layers.Dense(CLASSES)(layers.Flatten()(inputs))
    x = layers.Lambda(lambda pair: pair[0])([x, unused])
    model = keras.Model(inputs, x)
    maps = kc.class_activation_maps(
        model, images, layer="conv", method=method, from_logits=True
    )
    np.testing.assert_array_equal(maps, 0.0)


@pytest.mark.parametrize("method", METHODS)
def test_maps_lie_in_the_unit_interval_and_reach_one(method):
    model, images = flattened(), 100.0 * pictures()
    for k in range(CLASSES):
        maps = kc.class_activation_maps(model, images, classes=k, method=method)
        assert maps.min() >= 0.0
        tops = maps.max(axis=(1, 2))
        assert np.isin(tops, (0.0, 1.0)).all()
        assert tops.any()


def test_losses_of_layers_are_not_left_behind():
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            convolution(activity_regularizer="l2"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(CLASSES),
        ]
    )
    kc.class_activation_maps(model, pictures())
    assert model.losses == []


def test_a_model_that_fails_is_left_as_it_was():
    inputs = keras.Input((SIDE, SIDE, 3))
    x = layers.GlobalAveragePooling2D()(convolution(name="conv")(inputs))
    x = layers.Dense(CLASSES, "softmax", name="head")(x)
    model, images = keras.Model(inputs, x), pictures()
    before = ops.convert_to_numpy(model(images))
    # Of another size than the model was built for.
    with pytest.raises(ValueError, match="incompatible with the layer"):
        kc.class_activation_maps(model, images[..., :1])
    conv = model.get_layer("conv")
    calls = []

    def fails_later(x, call=conv.call):
        calls.append(x)
        if len(calls) > 2:
            raise RuntimeError("no more")
        return call(x)

    conv.call = fails_later
    with pytest.raises(RuntimeError, match="no more"):
        kc.class_activation_maps(model, images)
    assert conv.call is fails_later
    del conv.call
    assert model.get_layer("head").activation is keras.activations.softmax
    np.testing.assert_array_equal(ops.convert_to_numpy(model(images)), before)
    assert not any("call" in vars(layer) for layer in model.layers)


def test_half_precision_gives_nearly_the_same_maps():
    exact, images = pooled(), pictures()
    half = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            convolution(dtype="mixed_bfloat16"),
            layers.GlobalAveragePooling2D(dtype="mixed_bfloat16"),
            layers.Dense(CLASSES, "softmax", dtype="mixed_bfloat16"),
        ]
    )
    half.set_weights(exact.get_weights())
    assert_close(
        kc.class_activation_maps(half, images, classes=0),
        kc.class_activation_maps(exact, images, classes=0),
        atol=0.03,
    )


# Errors.

BAD = {
    "method": ({"method": "cam"}, ValueError, "`method` must be one of"),
    "batch size": ({"batch_size": 0}, ValueError, "`batch_size` must be >= 1"),
    "class": ({"classes": 3}, ValueError, r"`classes` must hold class ids in"),
    "negative class": ({"classes": -1}, ValueError, "`classes` must hold"),
    "fraction": ({"classes": 0.5}, TypeError, "`classes` must be integers"),
    "one-hot": ({"classes": [[1, 0, 0]] * 5}, ValueError, "one per image"),
    "too few": ({"classes": [0, 1]}, ValueError, "one per image"),
    "no name": ({"layer": "block9"}, ValueError, "name of one layer"),
    "no layer": ({"layer": 3}, TypeError, "a layer or the name of one"),
    "flat": ({"layer": "head"}, ValueError, "`layer` must return maps"),
    "not called": (
        {"layer": layers.Conv2D(1, 1)},
        ValueError,
        "one that the model calls",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_arguments_are_refused(bad):
    options, error, rule = BAD[bad]
    with pytest.raises(error, match=rule) as caught:
        kc.class_activation_maps(pooled(), pictures(), **options)
    assert "Received: " in str(caught.value)


def test_bad_images_and_models_are_refused():
    model, images = pooled(), pictures()
    with pytest.raises(ValueError, match="`images` must have shape"):
        kc.class_activation_maps(model, images[0])
    with pytest.raises(ValueError, match="`images` must not be empty"):
        kc.class_activation_maps(model, images[:0])
    with pytest.raises(ValueError, match="`model` must be built"):
        kc.class_activation_maps(Averaged(), images)
    flat = keras.Sequential(
        [keras.Input((SIDE, SIDE, 3)), layers.Flatten(), layers.Dense(2)]
    )
    with pytest.raises(ValueError, match="without a layer that returns maps"):
        kc.class_activation_maps(flat, images)
    dense = keras.Sequential([keras.Input((SIDE, SIDE, 3)), convolution()])
    with pytest.raises(ValueError, match="must have one output of shape"):
        kc.class_activation_maps(dense, images)
