"""Image, boxes and mask through one crop, resize and flip."""

import numpy as np
import pytest
from cases import BACKEND

import keras_calib as kc

if BACKEND != "tensorflow":
    pytest.skip("pipelines are TensorFlow's", allow_module_level=True)
import keras
import tensorflow as tf
from examples_with_boxes import jpeg
from examples_with_boxes import smooth_image

SEEDS = [(0, k) for k in range(30)]
# Corners on pixels of an image of 60 x 80.
BOXES = np.array([[12, 24, 36, 64], [30, 40, 54, 80]]) / [60, 80, 60, 80]
SIZE = (60, 80)


@pytest.fixture(scope="module")
def image():
    return smooth_image(np.random.default_rng(0), *SIZE)


def example(image, **more):
    mask = kc.boxes_to_mask(BOXES * [*SIZE, *SIZE], SIZE)
    boxes = BOXES.astype("float32")
    return {"image": image, "boxes": boxes, "mask": mask, "name": "a", **more}


def pixels(crop):
    """The window in pixels, whole numbers."""
    window = crop["window"].numpy() * [*SIZE, *SIZE]
    np.testing.assert_allclose(window, np.round(window), atol=1e-3)
    return np.round(window).astype(int)


# One crop for all.


@pytest.mark.parametrize("seed", SEEDS[:10])
def test_boxes_and_mask_agree_in_every_crop(image, seed):
    crop = kc.random_resized_crop(example(image), 32, seed=seed)
    by_mask = kc.random_resized_crop(
        example(image), 32, seed=seed, objects="mask"
    )
    share = crop["objectness"].numpy()
    assert abs(by_mask["objectness"].numpy() - share) <= 1e-6
    # The moved boxes cover as much of the result.
    moved = kc.objectness([0.0, 0.0, 1.0, 1.0], crop["boxes"]).numpy()
    assert abs(moved - share) <= 1e-6
    # The resized mask and the moved boxes lie in the same place.
    drawn = kc.boxes_to_mask(crop["boxes"] * 32, (32, 32)).numpy()
    differing = np.mean(drawn != crop["mask"].numpy())
    assert differing <= 4 * 2 * 32 / 32**2 * 0.5


@pytest.mark.parametrize("seed", SEEDS[:10])
def test_the_picture_shows_the_window(image, seed):
    crop = kc.random_resized_crop(example(image), (24, 40), seed=seed)
    top, left, bottom, right = pixels(crop)
    part = image[top:bottom, left:right].astype("float32")
    if crop["flipped"]:
        part = part[:, ::-1]
    expected = tf.image.resize(part, (24, 40))
    # Half a pixel's difference by the order of resizing and flipping.
    np.testing.assert_allclose(crop["image"], expected, atol=1e-2)
    assert crop["image"].dtype == "float32"
    assert crop["image"].shape == (24, 40, 3)


def test_crops_differ_in_place_shape_and_side(image):
    crops = [
        kc.random_resized_crop(example(image), 8, seed=seed) for seed in SEEDS
    ]
    windows = np.array([pixels(crop) for crop in crops])
    assert len(np.unique(windows, axis=0)) > 25
    flips = np.mean([bool(crop["flipped"]) for crop in crops])
    assert 0.2 < flips < 0.8
    extent = windows[:, 2:] - windows[:, :2]
    ratio = extent[:, 1] / extent[:, 0]
    assert ratio.min() > 0.7 and ratio.max() < 1.4
    area = extent.prod(1) / (60 * 80)
    assert area.min() > 0.06 and area.min() < 0.3 and area.max() > 0.6


def test_the_same_seed_makes_the_same_crop_eagerly_and_in_a_graph(image):
    crop = kc.random_resized_crop(example(image), 16, seed=(3, 4))
    in_graph = tf.function(lambda e, s: kc.random_resized_crop(e, 16, seed=s))(
        example(tf.constant(image)), tf.constant([3, 4], "int64")
    )
    for part in ("image", "boxes", "mask", "objectness", "window"):
        np.testing.assert_allclose(crop[part], in_graph[part], atol=1e-4)


def test_without_flip_nothing_is_mirrored(image):
    for seed in SEEDS[:8]:
        crop = kc.random_resized_crop(example(image), 8, seed=seed, flip=False)
        assert not crop["flipped"]


def test_scale_and_ratio_of_one_show_the_whole_of_a_square():
    square = np.zeros((40, 40, 3), "uint8")
    boxes = np.array([[0.0, 0.0, 0.5, 0.5]], "float32")
    crop = kc.random_resized_crop(
        {"image": square, "boxes": boxes}, 8, (1, 1), (1, 1), (0, 1)
    )
    np.testing.assert_allclose(crop["window"], [0, 0, 1, 1])
    assert crop["objectness"] == 0.25


def test_center_crop_shows_the_middle(image):
    crop = kc.center_crop(example(image), 30, 0.5)
    np.testing.assert_array_equal(pixels(crop), [15, 25, 45, 55])
    np.testing.assert_allclose(crop["image"], image[15:45, 25:55], atol=1e-3)
    wide = kc.center_crop(example(image), (30, 40), 1.0)
    np.testing.assert_array_equal(pixels(wide), [0, 0, 60, 80])


def test_what_else_an_example_has_is_kept(image):
    crop = kc.center_crop(example(image, label=3, weight=0.5), 8)
    assert crop["label"] == 3 and crop["weight"] == 0.5
    assert crop["name"] == b"a"


# Files.


@pytest.mark.parametrize("seed", SEEDS[:6])
def test_only_the_window_of_a_jpeg_is_decoded_and_it_is_the_same(image, seed):
    data = jpeg(image)
    whole = tf.io.decode_jpeg(data)
    by_file = kc.random_resized_crop(example(data), 32, seed=seed)
    by_pixels = kc.random_resized_crop(example(whole), 32, seed=seed)
    np.testing.assert_array_equal(by_file["window"], by_pixels["window"])
    # Chroma is interpolated from neighbours that a crop may not have.
    distance = np.abs(by_file["image"] - by_pixels["image"])
    assert distance[3:-3, 3:-3].max() < 1e-3 and distance.mean() < 0.2


def test_other_image_files_are_read_too(image):
    expected = kc.center_crop(example(image), 16)["image"]
    for encode in (
        tf.io.encode_png,
        lambda x: tf.io.encode_png(x) + b"more at the end",
    ):
        got = kc.center_crop(example(encode(image)), 16)["image"]
        np.testing.assert_allclose(got, expected, atol=1e-3)


@pytest.mark.parametrize("cut", [0, 1, 10, -40])
def test_a_file_that_is_no_image_is_named(image, cut):
    bad = {"image": jpeg(image)[:cut], "name": "bad.jpg"}
    with pytest.raises(Exception, match=r"readable.*bad\.jpg") as raised:
        kc.center_crop(bad, 8)
    assert isinstance(raised.value, ValueError | tf.errors.OpError)
    data = tf.data.Dataset.from_tensors(bad).map(lambda e: kc.center_crop(e, 8))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"bad\.jpg"):
        list(data)


# Painted over.


def test_painted_objects_leave_nothing_but_their_surroundings(image):
    rows = tf.data.Dataset.from_tensors(
        {k: v for k, v in example(image).items() if k != "mask"}
    )
    (bare,) = kc.context_examples(rows, fill=(1.0, 2.4, 3.6))
    assert bare["context"]
    for seed in SEEDS[:5]:
        crop = kc.random_resized_crop(bare, 32, seed=seed, flip=False)
        assert crop["objectness"] == 0
        top, left, bottom, right = pixels(crop)
        expected = image.copy()
        for ymin, xmin, ymax, xmax in np.round(BOXES * [*SIZE, *SIZE]).astype(
            int
        ):
            expected[ymin:ymax, xmin:xmax] = [1, 2, 4]
        part = expected[top:bottom, left:right].astype("float32")
        np.testing.assert_allclose(
            crop["image"], tf.image.resize(part, (32, 32)), atol=1e-2
        )


def test_a_mask_is_painted_over_like_boxes(image):
    parts = {k: v for k, v in example(image).items() if k != "boxes"}
    (by_mask,) = kc.context_examples(tf.data.Dataset.from_tensors(parts))
    parts = {k: v for k, v in example(image).items() if k != "mask"}
    (by_boxes,) = kc.context_examples(tf.data.Dataset.from_tensors(parts))
    for seed in SEEDS[:4]:
        first = kc.random_resized_crop(by_mask, 32, seed=seed)
        second = kc.random_resized_crop(by_boxes, 32, seed=seed)
        np.testing.assert_allclose(first["image"], second["image"], atol=1e-3)
        assert first["objectness"] == second["objectness"] == 0


def test_each_object_is_left_alone_once(image):
    parts = {k: v for k, v in example(image).items() if k != "mask"}
    parts["box_labels"] = np.array([4, 2])
    rows = tf.data.Dataset.from_tensors(parts)
    alone = list(kc.object_examples(rows, fill=(0.0, 0.0, 0.0)))
    assert [int(e["label"]) for e in alone] == [4, 2]
    inside = np.round(BOXES * [*SIZE, *SIZE]).astype(int)
    for place, one in enumerate(alone):
        crop = kc.center_crop(one, SIZE, 1.0)
        expected = image.copy()
        ymin, xmin, ymax, xmax = inside[1 - place]
        expected[ymin:ymax, xmin:xmax] = 0
        ymin, xmin, ymax, xmax = inside[place]
        expected[ymin:ymax, xmin:xmax] = image[ymin:ymax, xmin:xmax]
        np.testing.assert_allclose(crop["image"], expected, atol=1e-3)
        np.testing.assert_allclose(one["boxes"][0], BOXES[place], atol=1e-6)


def test_the_context_of_an_object_left_alone_has_neither(image):
    parts = {k: v for k, v in example(image).items() if k != "mask"}
    parts["box_labels"] = np.array([4, 2])
    rows = tf.data.Dataset.from_tensors(parts)
    both = kc.context_examples(kc.object_examples(rows))
    (plain,) = kc.context_examples(rows)
    expected = kc.center_crop(plain, 32)["image"]
    for one in both:
        got = kc.center_crop(one, 32)["image"]
        np.testing.assert_allclose(got, expected, atol=1e-3)


# Keras layers in between.


def test_layers_send_the_mask_where_the_image_goes(image):
    white = np.zeros((*SIZE, 3), "uint8")
    ymin, xmin, ymax, xmax = np.round(BOXES[0] * [*SIZE, *SIZE]).astype(int)
    white[ymin:ymax, xmin:xmax] = 255
    one = {"image": white, "boxes": BOXES[:1].astype("float32")}
    layers = [
        keras.layers.RandomRotation(0.2, fill_mode="constant", seed=1),
        keras.layers.RandomShear(0.2, 0.2, fill_mode="constant", seed=2),
    ]
    for seed in SEEDS[:5]:
        crop = kc.random_resized_crop(one, 48, (0.5, 1.0), seed=seed)
        moved = kc.apply_layers(crop, *layers)
        lit = moved["image"].numpy().mean(-1) > 127
        mask = moved["mask"].numpy()[..., 0] == 1
        outline = 4 * 48 * 2
        assert (lit != mask).sum() < outline * 0.5
        assert moved["objectness"].numpy() == np.float32(mask.mean())
        assert "boxes" not in moved


@pytest.mark.parametrize("fill", [0.0, 1.0, 100.0])
def test_every_layer_that_moves_objects_moves_their_mask_with_them(fill):
    layers = keras.layers
    filled = {"fill_value": fill, "seed": 1}
    constant = {"fill_mode": "constant", **filled}
    moving = [
        # Keras distorts masks otherwise than their images.
        layers.RandomElasticTransform((0.99, 1.0), (0.4, 1.0), **constant),
        layers.RandomPerspective(1.0, 0.5, **filled),
        layers.RandomRotation(0.3, **constant),
        layers.RandomShear(0.5, 0.5, **constant),
        layers.RandomTranslation(0.3, 0.3, **constant),
        layers.RandomZoom((0.1, 0.5), **constant),
    ]
    moving.append(layers.Pipeline([moving[2], moving[0]]))
    white = np.zeros((80, 100, 3), "uint8")
    white[20:50, 30:70] = 255
    box = np.array([[20 / 80, 0.3, 50 / 80, 0.7]], "float32")
    crop = kc.center_crop({"image": white, "boxes": box}, (80, 100), 1.0)
    for layer in moving:
        moved = kc.apply_layers(crop, layer)
        lit = moved["image"].numpy().mean(-1) > 127
        mask = moved["mask"].numpy()[..., 0] == 1
        # A quarter of the outline: edges are blurred twice in a row.
        assert (lit != mask).sum() <= 35, layer.name
        assert moved["objectness"].numpy() == np.float32(mask.mean())
        assert (mask[20:50, 30:70] == 0).any(), layer.name


def test_layers_of_colour_leave_objectness_as_it_is(image):
    crop = kc.random_resized_crop(example(image), 32, seed=(0, 1))
    layer = keras.layers.RandomBrightness(0.5, seed=3)
    coloured = kc.apply_layers(crop, layer, moves=False)
    assert coloured["objectness"] == crop["objectness"]
    assert "boxes" in coloured
    assert np.abs(coloured["image"] - crop["image"]).max() > 1


# Colours.


def test_jitter_of_no_strength_changes_nothing(image):
    images = image[None].astype("float32")
    got = kc.color_jitter(
        images, (0, 1), brightness=0, contrast=0, saturation=0
    )
    np.testing.assert_allclose(got, images, atol=1e-3)


def test_each_image_gets_its_own_brightness():
    images = np.full((50, 4, 4, 3), 100, "float32")
    got = kc.color_jitter(images, (0, 1), contrast=0, saturation=0).numpy()
    factors = got[:, 0, 0, 0] / 100
    assert np.ptp(got, axis=(1, 2, 3)).max() < 1e-4
    assert len(np.unique(factors)) == 50
    assert 0.6 <= factors.min() < 0.75 and 1.25 < factors.max() <= 1.4


def test_contrast_and_saturation_blend_with_grey():
    rng = np.random.default_rng(0)
    image = rng.uniform(60, 180, (6, 6, 3)).astype("float32")
    grey = image @ [0.299, 0.587, 0.114]
    got = kc.color_jitter(image, (0, 2), brightness=0, saturation=0).numpy()
    slope = (got - grey.mean()) / (image - grey.mean())
    np.testing.assert_allclose(slope, np.median(slope), rtol=1e-3)
    assert abs(np.median(slope) - 1) > 0.01
    got = kc.color_jitter(image, (0, 2), brightness=0, contrast=0).numpy()
    np.testing.assert_allclose(got @ [0.299, 0.587, 0.114], grey, rtol=1e-4)
    assert np.abs(got - image).max() > 1


# Bad input.


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"size": 0}, "`size` must be >= 1"),
        ({"size": (3, 4, 5)}, "`size` must be one integer or two"),
        ({"scale": (0.0, 1.0)}, r"`scale\[0\]` must be > 0"),
        ({"scale": (0.5, 0.2)}, r"`scale\[1\]` must be >= 0.5"),
        ({"scale": (0.5, 2.0)}, r"`scale\[1\]` must be <= 1"),
        ({"ratio": (1.0,)}, "`ratio` must be two numbers"),
        ({"seed": None}, "`seed` must be two integers"),
        ({"seed": 3}, "`seed` must be two integers"),
        ({"objects": "dots"}, "`objects` must be one of"),
    ],
)
def test_bad_arguments_are_refused(image, options, rule):
    options = {"size": 8, "seed": (0, 1), **options}
    with pytest.raises(ValueError, match=rule):
        kc.random_resized_crop(example(image), **options)


def test_objects_that_are_not_there_are_refused(image):
    with pytest.raises(ValueError, match="must have what `objects` names"):
        kc.center_crop({"image": image}, 8, objects="mask")


def test_a_mask_of_another_size_is_refused_by_name(image):
    bad = example(image, mask=np.zeros((60, 79, 1), "uint8"), name="b.jpg")
    with pytest.raises(ValueError, match=r"`mask` must have.*b\.jpg"):
        kc.center_crop(bad, 8)


def test_boxes_of_an_image_on_its_side_are_refused_by_name(image):
    bad = example(image, image_size=np.array([80, 60]), name="c.jpg")
    with pytest.raises(ValueError, match=r"image of the shape.*c\.jpg"):
        kc.center_crop(bad, 8)
    half = example(image, image_size=np.array([30, 40]))
    assert kc.center_crop(half, 8)["objectness"] > 0


def test_an_image_without_pixels_is_refused_by_name():
    bad = {"image": np.zeros((0, 4, 3), "uint8"), "name": "d.jpg"}
    with pytest.raises(ValueError, match=r"must have pixels.*d\.jpg"):
        kc.center_crop(bad, 8)


def test_an_example_without_objects_is_only_cropped(image):
    crop = kc.random_resized_crop({"image": image}, 8, seed=(0, 1))
    assert "objectness" not in crop
    assert crop["image"].shape == (8, 8, 3)


# What was wrong once.


@pytest.mark.parametrize(
    "box", [[5.0, 5.0, 20.0, 30.0], [0.0, 0.0, np.nan, 1.0], [0.5, 0, 0.2, 1]]
)
def test_what_is_no_box_is_named_before_it_is_cropped_or_painted(image, box):
    bad = {"image": image, "boxes": np.array([box], "float32"), "name": "e"}
    with pytest.raises(ValueError, match="Boxes must be.*example='e'"):
        kc.random_resized_crop(bad, 8, seed=(0, 1))
    (bare,) = kc.context_examples(tf.data.Dataset.from_tensors(bad))
    with pytest.raises(ValueError, match="Boxes must be.*example='e'"):
        kc.center_crop(bare, 8)


def test_a_mask_beside_boxes_is_painted_over_and_emptied_too(image):
    rows = tf.data.Dataset.from_tensors(example(image))
    (bare,) = kc.context_examples(rows)
    for objects in ("boxes", "mask"):
        crop = kc.center_crop(bare, 16, objects=objects)
        assert crop["objectness"] == 0
    labels = {"box_labels": np.array([1, 2])}
    rows = tf.data.Dataset.from_tensors(example(image, **labels))
    assert "mask" not in kc.object_examples(rows).element_spec


def test_what_is_painted_over_stays_so(image):
    parts = {k: v for k, v in example(image).items() if k != "boxes"}
    rows = tf.data.Dataset.from_tensors(parts)
    (once,) = kc.context_examples(rows)
    from keras_calib.data.transforms.painting import IMAGENET_MEAN
    from keras_calib.data.transforms.painting import without_objects

    twice = without_objects(once, IMAGENET_MEAN)
    first, second = (kc.center_crop(e, 16)["image"] for e in (once, twice))
    np.testing.assert_allclose(first, second)
    # A crop of a crop is not painted at the old place again.
    again = kc.center_crop(kc.center_crop(once, 60), 16)
    assert "painted_mask" not in again


def test_a_fill_must_fit_the_channels(image):
    grey = {"image": image[..., :1], "boxes": BOXES.astype("float32")}
    rows = tf.data.Dataset.from_tensors(grey)
    (bare,) = kc.context_examples(rows)
    with pytest.raises(ValueError, match="`fill` must have one value"):
        kc.center_crop(bare, 8)
    (bare,) = kc.context_examples(rows, fill=(90.0,))
    assert kc.center_crop(bare, 8)["image"].shape == (8, 8, 1)


@pytest.mark.parametrize(
    ("size", "scale", "ratio"),
    [
        ((64, 64), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((60, 80), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((60, 80), (0.3, 0.3), (1.0, 1.0)),
        ((40, 120), (0.5, 1.0), (3 / 4, 4 / 3)),
    ],
)
def test_areas_of_crops_are_drawn_evenly_until_they_fit(size, scale, ratio):
    crop = tf.function(
        lambda seed: kc.random_resized_crop(
            {"image": tf.zeros([*size, 1])}, 2, scale, ratio, seed
        )["window"]
    )
    windows = np.array([crop(tf.constant([k, 7])) for k in range(400)])
    extent = (windows[:, 2:] - windows[:, :2]) * size
    got = extent.prod(-1) / np.prod(size)
    # The rule of ImageNet recipes, in plain Python.
    rng = np.random.default_rng(0)
    expected = []
    for _ in range(4000):
        for _ in range(10):
            area = np.prod(size) * rng.uniform(*scale)
            shape = np.exp(rng.uniform(*np.log(ratio)))
            width = round(np.sqrt(area * shape))
            height = round(np.sqrt(area / shape))
            if 0 < height <= size[0] and 0 < width <= size[1]:
                break
        else:
            own = np.clip(size[1] / size[0], *ratio)
            width = min(round(size[0] * own), size[1])
            height = min(round(size[1] / own), size[0])
        expected.append(height * width / np.prod(size))
    error = 4 * np.std(expected) / np.sqrt(len(got))
    assert abs(np.mean(got) - np.mean(expected)) <= error + 1e-6
    shape = extent[:, 1] / extent[:, 0]
    rounding = 1.1
    assert ratio[0] / rounding <= shape.min() <= shape.max()
    assert shape.max() <= ratio[1] * rounding


def test_layers_move_those_objects_that_count():
    image = np.zeros((20, 20, 3), "uint8")
    boxes = np.array([[0, 0, 1, 0.5], [0, 0.5, 1, 1]], "float32")
    one = {"image": image, "boxes": boxes, "box_labels": np.array([0, 1])}
    still = keras.layers.RandomRotation(0.0)
    crop = kc.center_crop(one, 16, 1.0)
    assert kc.apply_layers(crop, still)["objectness"] == 1
    assert kc.apply_layers(crop, still, classes=(0,))["objectness"] == 0.5
    data = tf.data.Dataset.from_tensors({**one, "label": 0})
    for targets in ("pairs", "one_hot"):
        ((_, y),) = kc.training_pipeline(
            data,
            16,
            1,
            2,
            scale=(1.0, 1.0),
            ratio=(1.0, 1.0),
            targets=targets,
            classes=(0,),
            augment=lambda e: kc.apply_layers(e, still),
            epochs=1,
        )
        expected = [[0, 0.5]] if targets == "pairs" else [[1, 0]]
        np.testing.assert_allclose(y, expected, atol=1e-6)


def test_classes_of_masks_are_found_again_after_layers():
    mask = np.ones((20, 20, 1), "uint8")
    mask[10:] = 2
    one = {"image": np.zeros((20, 20, 3), "uint8"), "mask": mask, "label": 0}
    crop = kc.center_crop(one, 20, 1.0)
    still = keras.layers.Pipeline(
        [keras.layers.RandomRotation(0.0), keras.layers.RandomGrayscale(1.0)]
    )
    once = kc.apply_layers(crop, still, classes=(2,))
    again = kc.apply_layers(once, still, classes=(2,))
    assert once["objectness"] == again["objectness"] == 0.5
    own = kc.objectness_from_mask(again["mask"], classes=(2,))
    assert own == 0.5 and again["mask"].dtype == "uint8"
    examples = tf.data.Dataset.from_tensors(one)
    for inside, outside in (((2,), None), ((2,), (2,)), (None, (2,))):
        batches = kc.training_pipeline(
            examples,
            20,
            1,
            2,
            targets="pairs",
            scale=(1.0, 1.0),
            classes=outside,
            augment=lambda e, c=inside: kc.apply_layers(e, still, classes=c),
            epochs=1,
        )
        ((_, y),) = batches
        np.testing.assert_array_equal(y, [[0, 0.5]])
    with pytest.raises(ValueError, match="must be above 0"):
        kc.apply_layers(crop, still, classes=(0, 2))
    with pytest.raises(ValueError, match="must be above 0"):
        kc.training_pipeline(
            examples, 20, 1, 2, classes=(0,), augment=lambda e: e, epochs=1
        )
    # Boxes become a mask of their classes.
    boxed = {
        **one,
        "boxes": np.array([[0, 0, 1, 0.5]], "float32"),
        "box_labels": np.array([700]),
    }
    del boxed["mask"]
    crop = kc.center_crop(boxed, 20, 1.0)
    for _ in range(2):
        crop = kc.apply_layers(crop, still, classes=(5, 700))
        assert crop["objectness"] == 0.5


def test_classes_must_be_a_sequence():
    mask = np.ones((20, 20, 1), "uint8")
    box = np.array([[0, 0, 1, 0.5]], "float32")
    one = {"image": np.zeros((20, 20, 3), "uint8")}
    for objects in (
        {"mask": mask},
        {"boxes": box, "box_labels": np.array([2])},
    ):
        with pytest.raises(ValueError, match="a sequence of class ids"):
            kc.center_crop(one | objects, 20, classes=2)


def test_layers_that_take_no_masks_are_named():
    white = np.full((20, 20, 3), 255, "uint8")
    one = {"image": white, "boxes": np.array([[0, 0, 1, 0.5]], "float32")}
    crop = kc.center_crop(one, 20, 1.0)
    scaling = keras.layers.Rescaling(1 / 255)
    with pytest.raises(ValueError, match="Rescaling"):
        kc.apply_layers(crop, scaling)
    scaled = kc.apply_layers(crop, scaling, moves=False)
    assert np.max(scaled["image"]) == 1 and scaled["objectness"] == 0.5


def test_wide_crops_of_high_images_keep_their_shape():
    image = np.zeros((80, 60, 3), "uint8")
    crop = kc.center_crop({"image": image}, (30, 60), 1.0)
    window = crop["window"].numpy() * [80, 60, 80, 60]
    np.testing.assert_allclose(window, [25, 0, 55, 60], atol=1e-3)


@pytest.mark.parametrize("kind", ["uint8", "bool", "int32"])
def test_masks_may_be_of_any_whole_type(image, kind):
    parts = example(image)
    parts["mask"] = tf.cast(parts["mask"], kind)
    crop = kc.center_crop(parts, 16, objects="mask")
    expected = kc.center_crop(example(image), 16)
    assert abs(crop["objectness"] - expected["objectness"]) < 1e-6


def test_boxes_may_be_whole_or_double(image):
    for boxes in ([[0, 0, 1, 1]], np.array([[0.0, 0.0, 1.0, 1.0]])):
        crop = kc.center_crop({"image": image, "boxes": boxes}, np.int64(8))
        assert crop["objectness"] == 1
        assert crop["objectness"].dtype == "float32"


def test_a_mask_without_channel_is_refused(image):
    with pytest.raises(ValueError, match="`mask` must have shape"):
        kc.center_crop({"image": image, "mask": np.zeros(SIZE)}, 8)


def test_classes_of_boxes_need_their_labels(image):
    with pytest.raises(ValueError, match="must have 'box_labels'"):
        kc.center_crop({"image": image, "boxes": BOXES}, 8, classes=(1,))
