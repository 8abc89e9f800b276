"""Displays of activation maps hold the right arrays."""

import io

import keras
import matplotlib as mpl
import numpy as np
import pytest
from keras import layers, ops
from noisy_predictions import softmax

import keras_calib as kc

mpl.use("Agg")
CLASSES = 4


def drawn(display):
    from matplotlib.image import imread

    return imread(io.BytesIO(display.to_png()))


SIDE = 8


def classifier(activation=None, num_outputs=CLASSES):
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            layers.Conv2D(6, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(num_outputs, activation),
        ]
    )


def images_and_boxes():
    rng = np.random.default_rng(2)
    images = rng.random((3, SIDE, SIDE, 3)).astype("float32")
    # The second of the first image pads; the last ones have no area inside.
    boxes = np.array(
        [
            [[0.25, 0.0, 0.75, 0.5], [-3e38] * 4],
            [[0.0, 0.0, 1.0, 1.0], [-0.5, 0.5, 0.5, 2.0]],
            [[0.5, 0.5, 0.5, 0.9], [1.2, 0.0, 1.5, 1.0]],
        ]
    )
    return images, boxes


@pytest.mark.parametrize(
    "activation", [None, pytest.param("softmax", marks=pytest.mark.portable)]
)
def test_a_model_gives_maps_and_confidences(activation):
    model = classifier(activation)
    images, boxes = images_and_boxes()
    outputs = ops.convert_to_numpy(model(images))
    probs = outputs if activation else softmax(outputs)
    display = kc.ClassActivationDisplay.from_model(
        model, images, boxes, [0, 1, 2], list("abcd"), method="grad_cam++"
    )
    np.testing.assert_allclose(display.probs, probs, rtol=1e-5)
    np.testing.assert_array_equal(
        display.maps,
        kc.class_activation_maps(model, images, method="grad_cam++"),
    )
    for i, row in enumerate(probs):
        order = sorted(range(CLASSES), key=lambda k, row=row: -row[k])[:3]
        names = [name for name, _ in display.top_classes(i)]
        assert names == ["abcd"[k] for k in order]
        shares = [share for _, share in display.top_classes(i)]
        np.testing.assert_allclose(shares, row[order], rtol=1e-5)


def test_of_one_output_both_classes_are_named():
    images, _ = images_and_boxes()
    for activation in (None, "sigmoid"):
        model = classifier(activation, num_outputs=1)
        p = ops.convert_to_numpy(model(images))[:, 0]
        p = p if activation else 1.0 / (1.0 + np.exp(-p))
        display = kc.ClassActivationDisplay.from_model(model, images)
        np.testing.assert_allclose(
            display.probs, np.stack([1.0 - p, p], -1), rtol=1e-5
        )
        assert {name for name, _ in display.top_classes(0)} == {"0", "1"}


def test_columns_show_image_map_boxes_and_classes():
    images, boxes = images_and_boxes()
    model = classifier()
    probs = softmax(ops.convert_to_numpy(model(images)))
    ids = probs.argmax(-1)
    labels = [ids[0], (ids[1] + 1) % CLASSES, ids[2]]
    display = kc.ClassActivationDisplay.from_model(
        model, images, boxes, labels, list("abcd"), name="net"
    ).plot()
    assert len(display.axes_) == 6
    for i in range(3):
        above, below = display.axes_[2 * i : 2 * i + 2]
        shown = above.images[-1].get_array()
        np.testing.assert_allclose(shown, images[i], rtol=1e-6)
        np.testing.assert_array_equal(
            below.images[-1].get_array(), display.maps[i]
        )
        assert above.get_title().endswith("abcd"[labels[i]])
        assert below.get_title() == "map of " + "abcd"[ids[i]]
        words = [text.get_text() for text in below.texts]
        assert words == [f"{k} {p:.2f}" for k, p in display.top_classes(i)]
        bold = [
            t.get_text()[0] for t in below.texts if t.get_weight() != "normal"
        ]
        assert bold == [w[0] for w in words if w[0] == "abcd"[labels[i]]]
    assert display.ax_.get_title().startswith("net\n")
    colors = [display.axes_[k].texts[0].get_color() for k in (1, 3)]
    assert colors[0] != colors[1]
    # Each box twice, on both panels; none where it has no area inside.
    assert [len(ax.patches) for ax in display.axes_] == [2, 2, 4, 4, 0, 0]
    box = display.axes_[0].patches[0].get_bbox()
    assert (box.ymin, box.ymax) == (0.25 * SIDE - 0.5, 0.75 * SIDE - 0.5)
    assert (box.xmin, box.xmax) == (-0.5, 0.5 * SIDE - 0.5)
    cut = display.axes_[2].patches[2].get_bbox()
    assert (cut.ymin, cut.xmax) == (-0.5, SIDE - 0.5)


def test_channels_first_images_are_turned():
    images, _ = images_and_boxes()
    inputs = keras.Input((3, SIDE, SIDE))
    x = layers.GlobalAveragePooling2D(data_format="channels_first")
    y = layers.ZeroPadding2D(1, data_format="channels_first")(inputs)
    model = keras.Model(inputs, layers.Dense(CLASSES)(x(y)))
    display = kc.ClassActivationDisplay.from_model(
        model, np.moveaxis(images, -1, 1)
    )
    for one, other in zip(display.images, images, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert display.maps.shape == (3, SIDE, SIDE)


def test_the_class_of_a_map_is_named():
    images, _ = images_and_boxes()
    model = classifier()
    display = kc.ClassActivationDisplay.from_model(
        model, images, class_names=list("abcd"), classes=[3, 0, 2]
    ).plot()
    names = [ax.get_title() for ax in display.axes_[1::2]]
    assert names == ["map of d", "map of a", "map of c"]
    np.testing.assert_array_equal(
        display.maps, kc.class_activation_maps(model, images, classes=[3, 0, 2])
    )


def test_images_alone_are_enough():
    images, _ = images_and_boxes()
    display = kc.ClassActivationDisplay.from_model(classifier(), images[:1])
    display.plot()
    assert display.ax_.get_title() == "image"
    assert all(t.get_color() == "black" for t in display.axes_[1].texts)
    assert np.ptp(drawn(display)[..., :3]) > 0.9
    with pytest.raises(ValueError, match="`ax` must be 2 axes"):
        display.plot(mpl.figure.Figure().add_subplot())


BAD = {
    "maps": ({"maps": np.zeros((2, SIDE, SIDE))}, "`maps` must have shape"),
    "size": ({"maps": np.zeros((3, 4, 4))}, "`maps` must have shape"),
    "probs": ({"probs": np.ones((2, 4))}, "`probs` must have shape"),
    "flat": ({"probs": np.ones(3)}, "`probs` must have shape"),
    "classes": ({"classes": [0, 1]}, "`classes` must have shape"),
    "class": ({"classes": [0, 1, 4]}, "`classes` must hold class ids"),
    "labels": ({"labels": [0, 1]}, "`labels` must have shape"),
    "range": ({"labels": [0, 1, 4]}, "`labels` must hold class ids"),
    "boxes": ({"boxes": np.ones((3, 4))}, "`boxes` must have shape"),
    "names": ({"class_names": ["a"]}, "`class_names` must have shape"),
}


def test_arrays_that_do_not_fit_are_refused():
    good = {
        "images": images_and_boxes()[0],
        "maps": np.zeros((3, SIDE, SIDE)),
        "probs": np.full((3, CLASSES), 0.25),
    }
    assert kc.ClassActivationDisplay(**good).top.shape == (3, 3)
    for options, rule in BAD.values():
        with pytest.raises(ValueError, match=rule + ".*Received: "):
            kc.ClassActivationDisplay(**{**good, **options})
