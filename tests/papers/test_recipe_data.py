"""Data of the papers: read, split, moved, and refused by name."""

import importlib
import json
import lzma
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import app
from data import datasets, large_images
from data import images as image_sets
from data import texts as text_sets
from PIL import Image
from runs import images as image_tasks

import keras_calib


def sets_of(count=60, num_classes=3):
    x = np.arange(count)[:, None, None, None] * np.ones((1, 4, 4, 1))
    y = np.arange(count) % num_classes
    part = (x.astype("uint8"), y)
    test = (part[0][:20] + 100, y[:20])
    return image_sets.ImageSets(part, None, test, num_classes)


@pytest.mark.parametrize("share, count", [(0.25, 15), (12, 12), (0, 0)])
@pytest.mark.parametrize("stratified", [False, True])
def test_a_split_shares_out_the_training_data(share, count, stratified):
    sets = sets_of()
    split = image_sets.split
    parts = split(sets, share, stratified=stratified, seed=1)
    if not count:
        assert parts.validation is None
        return
    held = parts.validation[0][:, 0, 0, 0]
    kept = parts.train[0][:, 0, 0, 0]
    assert len(held) == count
    assert sorted([*held, *kept]) == list(range(60))
    # Each image keeps its class.
    np.testing.assert_array_equal(parts.train[1], kept % 3)
    if stratified:
        assert np.bincount(parts.validation[1]).tolist() == [count // 3] * 3
    again = split(sets, share, stratified=stratified, seed=1)
    np.testing.assert_array_equal(again.validation[0], parts.validation[0])
    other = split(sets, share, stratified=stratified, seed=2)
    assert not np.array_equal(other.validation[0], parts.validation[0])


def test_resampled_data_are_the_same_data():
    sets = sets_of()
    found = image_sets.resampled(sets, 3)
    assert len(found.train[1]) == 60 and len(found.test[1]) == 20
    values = [x[:, 0, 0, 0] for x, _ in (found.train, found.test)]
    expected = [x[:, 0, 0, 0] for x, _ in (sets.train, sets.test)]
    assert sorted(np.concatenate(values)) == sorted(np.concatenate(expected))
    assert set(values[1]) & set(expected[0])


@pytest.mark.parametrize(
    "augment, reach",
    [
        ("none", 0),
        ("flip", 0),
        ("crop", 4),
        ("crop_flip", 4),
        ("shift_flip", 2),
    ],
)
def test_images_are_moved_within_reach(augment, reach, monkeypatch):
    height, width, count = 20, 22, 512
    reach = (reach, reach)
    image = np.random.default_rng(0).integers(1, 256, (height, width, 2))
    part = np.repeat(image[None].astype("uint8"), count, axis=0)
    part = part, np.arange(count)
    mode = "constant" if "crop" in augment else "edge"
    padded = np.pad(image, [*((r, r) for r in reach), (0, 0)], mode)
    possible = {
        padded[i : i + height, j : j + width][:, ::step].tobytes()
        for i in range(2 * reach[0] + 1)
        for j in range(2 * reach[1] + 1)
        for step in ((1, -1) if "flip" in augment else (1,))
    }
    # By NumPy, as on JAX and torch, and by TensorFlow.
    for backend in ("jax", "tensorflow"):
        with monkeypatch.context() as patch:
            patch.setattr(keras.backend, "backend", lambda b=backend: b)
            batches = image_sets.training_batches(
                part, count, augment=augment, seed=0
            )
        # `array_pipeline` makes batches in parallel.
        in_one_thread = isinstance(batches, keras_calib.data.EpochBatches)
        assert in_one_thread == (backend == "jax")
        images, y = next(iter(batches))
        images = np.asarray(images)
        assert images.dtype == "float32" and images.shape == part[0].shape
        np.testing.assert_array_equal(y["label"], y["index"])
        shown = {x.astype(image.dtype).tobytes() for x in images}
        assert shown <= possible
        assert len(shown) > 0.8 * len(possible)
    plain = image_sets.batches(part, count)
    np.testing.assert_array_equal(plain[0][0], part[0])


def test_words_get_numbers_by_their_frequency(tmp_path):
    np.savez(
        tmp_path / "vectors.npz",
        words=np.array(["b", "zebra"]),
        vectors=np.array([[1.0, 2.0], [3.0, 4.0]]),
    )
    matrix = text_sets.read_vectors(str(tmp_path / "vectors.npz"), ["a", "b"])
    assert matrix.shape == (4, 2)
    np.testing.assert_array_equal(matrix[[0, 3]], [[0, 0], [1, 2]])
    (tmp_path / "glove.txt").write_text("a 5 6\nb 7 8\n")
    matrix = text_sets.read_vectors(str(tmp_path / "glove.txt"), ["a", "b"])
    np.testing.assert_array_equal(matrix[2:], [[5, 6], [7, 8]])


def test_texts_are_numbered_as_keras_does(data_sets, tmp_path):
    from keras.src.legacy.preprocessing import text as keras_text

    texts = [
        "From: a head\nwith lines\n\nThe cat, the CAT's hat; and the_dog!",
        "no head: it's 12.5 the cat and and a mat",
        "Head\n\nhat hat hat and the mat",
    ]
    parts = ("train", "train", "test")
    rows = [
        {"split": part, "label": label, "text": text}
        for part, label, text in zip(parts, "abb", texts, strict=True)
    ]
    with lzma.open(tmp_path / "20news_bydate.jsonl.xz", "wt") as file:
        file.write("\n".join(map(json.dumps, rows)))
    tokenizer = keras_text.Tokenizer(num_words=5)
    bodies = [text[max(0, text.find("\n\n")) :] for text in texts]
    tokenizer.fit_on_texts(bodies)
    expected = keras.utils.pad_sequences(
        tokenizer.texts_to_sequences(bodies), maxlen=6
    )
    sets = text_sets.load_texts(tmp_path, length=6, num_words=5, tokens="keras")
    ids = np.concatenate([sets.train[0], sets.test[0]])
    assert (expected == 0).any()
    # One more: that of unknown words, which here are left out.
    np.testing.assert_array_equal(ids, np.where(expected, expected + 1, 0))
    assert len(sets.words) == 4
    matrix = text_sets.read_vectors(None, sets.words, seed=None)
    assert not matrix.any()


def test_a_share_of_all_texts_is_drawn_for_tests(data_sets, parse):
    setup, _, options = parse("newsgroups_gpcn", "cross_entropy")
    options = options._replace(data_dir=str(data_sets))
    sets = text_sets.read_texts(setup, options)
    drawn = image_sets.resampled(sets, 0, setup.test_share)
    # A fifth of 24 texts, rounded down, as the code does.
    assert [len(y) for _, y in (drawn.train, drawn.test)] == [20, 4]
    assert [int(0.2 * n) for n in (19_997, 18_846)] == [3_999, 3_769]
    rows = [
        sorted(map(tuple, np.concatenate([part.train[0], part.test[0]])))
        for part in (sets, drawn)
    ]
    assert rows[0] == rows[1]


def test_images_of_bicubic_recipes_are_those_of_pillow(parse):
    setup, *_ = parse(
        "imagenet_resnet50_lssc",
        "cross_entropy",
        "--image_size=40",
        "--resize=50",
        "--batch_size=1",
    )
    # Bright and dark stripes, so that the interpolation overshoots both ends;
    # of squares Pillow cuts rows off before it looks at columns.
    random = np.random.default_rng(0)
    stripes = 255 * random.integers(2, size=(1, 40, 3)).repeat(4, axis=1)
    image = stripes.repeat(120, axis=0).astype("uint8")
    data = tf.data.Dataset.from_tensors({"image": image, "label": 0})
    batches = large_images.evaluation_batches(data, setup, 2)
    images = next(iter(batches))[0][0].numpy()
    # The middle 96 of 120 rows become 40, and as many columns.
    window = Image.fromarray(image[12:108, 32:128])
    expected = window.resize((40, 40), Image.Resampling.BICUBIC)
    assert np.abs(images - np.asarray(expected, float)).max() < 1.5
    assert images.min() == 0 and images.max() == 255


def test_parts_read_from_disk_are_not_stratified():
    split_names = large_images.split_names
    fields = {
        "data": "imagenet2012",
        "test_split": None,
        "validation": 10000.0,
        "validation_of": "train",
    }
    setup = types.SimpleNamespace(**fields, stratified=False)
    info = types.SimpleNamespace(splits={"train": 1, "validation": 1})
    builder = types.SimpleNamespace(info=info)
    assert split_names(setup, builder) == {
        "train": "train[10000:]",
        "validation": "train[:10000]",
        "test": "validation",
    }
    setup.stratified = True
    with pytest.raises(app.UsageError, match="`--stratified` must be off"):
        split_names(setup, builder)


def test_a_prepared_tfds_data_set_is_read_split_and_scaled(tmp_path):
    images = np.random.default_rng(0).integers(256, size=(12, 4, 5, 1))
    examples = {"image": images.astype("uint8"), "label": np.arange(12) % 3}
    parts = tf.data.Dataset.from_tensor_slices(examples)
    tfds.dataset_builders.store_as_tfds_dataset(
        name="made_up",
        version="1.0.0",
        features=tfds.features.FeaturesDict(
            {
                "image": tfds.features.Image(shape=(4, 5, 1)),
                "label": tfds.features.ClassLabel(num_classes=3),
            }
        ),
        split_datasets={"train": parts, "test": parts},
        data_dir=tmp_path,
        disable_shuffling=True,
    )
    sets, num_classes = datasets.load_tfds("made_up", str(tmp_path))
    assert num_classes == 3
    assert [len(labels) for _, labels in sets] == [10, 2, 12]
    flat = images.reshape(12, 20) / 255
    for part, rows in zip(
        sets, (slice(10), slice(10, 12), slice(12)), strict=False
    ):
        np.testing.assert_allclose(part[0], flat[rows], rtol=1e-6)
        np.testing.assert_array_equal(part[1], np.arange(12)[rows] % 3)


def test_data_that_are_not_there_are_refused_by_name(tmp_path):
    folder = str(tmp_path)
    with pytest.raises(app.UsageError, match="must hold the prepared") as error:
        datasets.tfds_builder("fashion_mnist", folder)
    assert f"--data_dir={folder}" in str(error.value)
    with pytest.raises(app.UsageError, match="'digits' or the name of a TFDS"):
        datasets.tfds_builder("no_such_data", folder)
    assert not list(tmp_path.iterdir())


def test_what_needs_tensorflow_says_how_to_install_it(monkeypatch):
    # Trained on JAX, where nothing else needs it.
    for name in ("tensorflow", "tensorflow_datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("data.detection", "data.scenes", "data.boxed_digits"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.delattr(sys.modules["data"], name[5:], raising=False)
        importlib.import_module(name)
    images = np.zeros((2, 4, 4, 3), "float32")
    method = types.SimpleNamespace(mix="cutmix", mix_share=1)
    boxed_digits = sys.modules["data.boxed_digits"].boxed_digits
    for needs, extra in (
        (lambda: image_tasks._mixed(method, 3, images, [0, 1], None), "tensor"),
        (boxed_digits, "tensorflow"),
        (lambda: datasets.tfds_builder("cifar10"), "tfds"),
    ):
        with pytest.raises(
            ImportError, match=rf"install 'keras-calib\[{extra}"
        ):
            needs()
