"""Losses of images: labels around a pixel, and errors of each image."""

import itertools

import keras
import numpy as np
import pytest
from cases import BACKEND, HAS_FLOAT64, array, softmax
from keras import ops
from loss_batches import compiled
from paths import TESTS

import keras_calib as kc
from keras_calib.backend.gradients import value_and_grad

STORED = np.load(TESTS / "data" / "segmentation.npz")
OF_LOGITS = {"from_logits": True}
ALL, FORE = {}, {"include_background": False}
# Stored name, class, its hyperparameters, factor of the released loss.
AUTHORS = [
    ("svls/sigma1", kc.SVLS, {}, 1),
    ("svls/sigma2", kc.SVLS, {"sigma": 2.0}, 1),
    *(
        (
            f"nacl/{kernel}_{distance}_a{strength:g}_k{size}",
            kc.NACL,
            {
                "strength": strength,
                "kernel": kernel,
                "distance": distance,
                "kernel_size": size,
                "padding": "background",
            },
            1,
        )
        for kernel, distance, strength, size in (
            ("mean", "l1", 0.1, 3),
            ("mean", "l2", 0.3, 3),
            ("mean", "l1", 0.2, 5),
            ("gaussian", "l1", 0.1, 3),
            ("gaussian", "l2", 0.3, 3),
        )
    ),
    # The released loss takes half the term and half the cross entropy.
    ("l1_ace/b20_all", kc.L1ACE, ALL, 0.5),
    ("l1_ace/b5_all", kc.L1ACE, {"num_bins": 5}, 0.5),
    ("l1_ace/b20_fore", kc.L1ACE, FORE, 0.5),
]
LOSSES = {
    "SVLS": (kc.SVLS, {"kernel_size": 5, "sigma": 1.5}),
    "NACL": (kc.NACL, {"strength": 0.7}),
    "NACL-background": (kc.NACL, {"strength": 0.7, "padding": "background"}),
    "NACL-gaussian": (kc.NACL, {"kernel": "gaussian", "distance": "l2"}),
    "L1ACE": (kc.L1ACE, {"num_bins": 6}),
}
# One of each way to compute.
BY_XLA = ("SVLS", "NACL", "L1ACE")


def made(name, **options):
    cls, hyperparameters = LOSSES[name]
    return cls(**{**OF_LOGITS, **hyperparameters, **options})


def images(*space, num_classes=3, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(num_classes, size=(2, *space))
    logits = rng.normal(size=(2, *space, num_classes)).astype("float32") * 2
    return labels, logits


@pytest.mark.portable
@pytest.mark.parametrize("name, cls, options, factor", AUTHORS)
def test_values_and_gradients_are_the_authors(name, cls, options, factor):
    """Tolerances: 1e-9 in float64; in float32 1e-6, gradients 1e-5."""
    dtype = "float64" if HAS_FLOAT64 else "float32"
    relative, steepness = (1e-9, 1e-9) if HAS_FLOAT64 else (1e-6, 1e-5)
    loss = cls(**OF_LOGITS, dtype=dtype, **options)
    shapes = [d for d in ("2d", "3d") if f"{name}/{d}/value" in STORED]
    assert shapes
    for shape in shapes:
        labels = STORED[f"in/{shape}/labels"]
        # Keras takes means in float32 on torch.
        share = factor / labels.size
        value, gradient = value_and_grad(
            lambda z, y=labels, s=share: s * ops.sum(loss.call(y, z)),
            ops.convert_to_tensor(STORED[f"in/{shape}/logits"].astype(dtype)),
        )
        expected = STORED[f"{name}/{shape}/value"]
        np.testing.assert_allclose(float(value), expected, rtol=relative)
        slopes = STORED[f"{name}/{shape}/grad"]
        bound = steepness * np.abs(slopes).max()
        assert np.abs(array(gradient) - slopes).max() <= bound


# An oracle that visits each pixel and each of its neighbours.


def weights_of(name, space):
    """Weight of each offset in the box, and that of the centre."""
    size = LOSSES[name][1].get("kernel_size", 3)
    offsets = itertools.product(
        range(-(size // 2), size // 2 + 1), repeat=space
    )
    offsets = [np.array(x) for x in offsets]
    if name.startswith("NACL") and name != "NACL-gaussian":
        return [(x, 1.0) for x in offsets]
    sigma = LOSSES[name][1].get("sigma", 1.0)
    weights = [
        np.exp(-(x @ x) / (2 * sigma**2)) if x.any() else 0 for x in offsets
    ]
    around = sum(weights)
    return [
        (x, w / around if x.any() else 1.0)
        for x, w in zip(offsets, weights, strict=True)
    ]


def targets_of(name, labels, num_classes):
    """Targets of each pixel; 255 is no label."""
    targets = np.zeros((*labels.shape, num_classes))
    shape = np.array(labels.shape[1:])
    for place in np.ndindex(labels.shape):
        for offset, weight in weights_of(name, len(shape)):
            there = np.array(place[1:]) + offset
            inside = np.clip(there, 0, shape - 1)
            found = labels[(place[0], *inside)]
            if name == "NACL-background" and (inside != there).any():
                found = 0
            if found != 255:
                targets[(*place, found)] += weight
    return targets / targets.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("name", [x for x in LOSSES if x != "L1ACE"])
def test_targets_are_means_over_the_labelled_neighbours(name):
    for space in ((7,), (5, 4), (3, 4, 3)):
        labels, logits = images(*space)
        labels.reshape(-1)[::5] = 255
        kept = labels != 255
        targets = targets_of(name, labels, 3)
        log_probs = np.log(softmax(logits.astype("float64")))
        if name == "SVLS":
            expected = -np.sum(targets * log_probs, axis=-1)
        else:
            own = np.where(kept, labels, 0)[..., None]
            expected = -np.take_along_axis(log_probs, own, -1)[..., 0]
            cost = np.abs(logits - targets)
            cost = cost**2 if name == "NACL-gaussian" else cost
            strength = LOSSES[name][1].get("strength", 0.1)
            expected = expected + strength * cost.mean(axis=-1)
        logits[~kept] = np.nan
        loss = made(name, reduction="none", ignore_class=255)
        losses = array(loss(labels, logits))
        assert (losses[~kept] == 0).all()
        np.testing.assert_allclose(losses[kept], expected[kept], rtol=1e-5)
        # As the fidelity of a loss of the batch it reads the same mask.
        whole = kc.MDCA(
            0.0, fidelity=loss, **OF_LOGITS, reduction="none", ignore_class=255
        )
        np.testing.assert_allclose(array(whole(labels, logits)), losses)


def test_errors_of_images_are_a_mean_in_which_weights_are_repeats():
    labels, logits = images(6, 7)
    each = [
        float(kc.losses.l1_ace(np.eye(3)[y], z, num_bins=6, by="batch"))
        for y, z in zip(labels, logits, strict=True)
    ]
    assert abs(each[0] - each[1]) > 1e-3
    soft = np.eye(3, dtype="float32")[labels]
    for weight in (None, np.array([1.0, 3.0]), np.array([0.0, 2.0])):
        given = None
        if weight is not None:
            given = np.broadcast_to(weight[:, None, None], labels.shape)
        found = kc.losses.l1_ace(soft, logits, num_bins=6, sample_weight=given)
        expected = np.average(each, weights=weight)
        np.testing.assert_allclose(float(found), expected, rtol=1e-5)
    # An image without a label has no part.
    labels[0] = 255
    loss = made("L1ACE", ignore_class=255)
    alone = made("L1ACE")(labels[1:], logits[1:])
    np.testing.assert_allclose(
        float(loss(labels, logits)), float(alone), rtol=1e-6
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=pytest.mark.portable) if x in BY_XLA else x
        for x in LOSSES
    ],
)
def test_graphs_of_unknown_shapes_agree_with_eager_code(name):
    labels, logits = images(6, 7)
    labels[0, 1:3, 2] = 255
    loss = made(name, ignore_class=255)

    def run(y, z):
        return value_and_grad(lambda x: loss(y, x), z)

    expected = [array(x) for x in run(labels, logits)]
    options = [{}]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        unknown = [None, None, None]
        shapes = [
            tf.TensorSpec(unknown, "int64"),
            tf.TensorSpec([*unknown, 3], "float32"),
        ]
        options = [{"input_signature": shapes}]
        if name in BY_XLA:
            options.append({"jit_compile": True})
    for option in options:
        found = compiled(run, **option)(
            *map(ops.convert_to_tensor, (labels, logits))
        )
        for x, y in zip(map(array, found), expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7)
    half = ops.cast(logits, "bfloat16")
    value = loss(labels, half)
    assert keras.backend.standardize_dtype(value.dtype) == "float32"
    np.testing.assert_allclose(float(value), float(expected[0]), rtol=0.02)


@pytest.mark.parametrize("name", ["SVLS", "L1ACE"])
def test_a_segmenter_trains_and_is_saved(name, tmp_path):
    labels, logits = images(6, 7)
    labels[:, 0] = 255
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((6, 7, 3)), keras.layers.Conv2D(3, 3, padding="same")]
    )
    model.compile("sgd", made(name, ignore_class=255), run_eagerly=True)
    history = model.fit(logits, labels, epochs=2, verbose=0).history["loss"]
    assert history[1] < history[0]
    if BACKEND == "tensorflow":
        model.save(tmp_path / "model.keras")
        again = keras.models.load_model(tmp_path / "model.keras")
        assert again.loss.get_config() == model.loss.get_config()
        values = [m.evaluate(logits, labels, verbose=0) for m in (model, again)]
        assert values[0] == values[1]


@pytest.mark.parametrize("name", LOSSES)
def test_rows_of_pixels_without_their_places_are_refused(name):
    labels, logits = images(4, num_classes=3)
    loss = made(name)
    assert np.isfinite(float(loss(labels, logits)))
    with pytest.raises(ValueError, match="must have axes of space"):
        loss(labels[:, 0], logits[:, 0])


def test_what_makes_no_sense_for_images_is_refused():
    labels, logits = images(4, 4)
    with pytest.raises(ValueError, match="needs `from_logits=True`"):
        kc.NACL()
    with pytest.raises(ValueError, match="large enough to reach"):
        kc.SVLS(0.01, **OF_LOGITS)(labels, logits)
    with pytest.raises(TypeError, match="`include_background` must be True or"):
        kc.L1ACE(include_background=1)
