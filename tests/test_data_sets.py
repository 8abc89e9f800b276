"""Which examples and classes a data set has."""

import numpy as np
import pytest
from cases import BACKEND

import keras_calib as kc

if BACKEND != "tensorflow":
    pytest.skip("pipelines are TensorFlow's", allow_module_level=True)
import tensorflow as tf
from examples_with_boxes import make_examples
from examples_with_boxes import squares

NAMES = ["animal", "cat", "kitten", "dog", "puppy", "car"]
GREY = np.full((10, 20, 3), 90, "uint8")


def rows(labels):
    """Examples with the boxes of these lists of labels, the first largest."""
    made = []
    for place, own in enumerate(labels):
        sides = 0.5 / (1 + np.arange(len(own)))
        boxes = np.stack([0 * sides, 0 * sides, sides, sides], axis=1)
        made.append(
            {
                "image": GREY,
                "label": own[0] if own else 0,
                "boxes": boxes,
                "box_labels": np.array(own, "int64"),
                "name": str(place),
            }
        )
    return made


# Classes.


def test_classes_are_merged_and_dropped():
    classes = kc.class_map(
        NAMES,
        merge={"kitten": "cat", "puppy": "dog"},
        drop=["animal"],
    )
    assert classes.ids.tolist() == [-1, 0, 0, 1, 1, 2]
    assert classes.class_names == ["cat", "dog", "car"]
    renamed = kc.class_map(NAMES, merge={"cat": "pet", "dog": "pet"})
    assert renamed.class_names == ["animal", "pet", "kitten", "puppy", "car"]


@pytest.mark.parametrize(
    "hierarchy",
    [
        {"animal": ["cat", "dog"], "cat": ["kitten"], "dog": ["puppy"]},
        {
            "LabelName": "entity",
            "Subcategory": [
                {
                    "LabelName": "animal",
                    "Subcategory": [
                        {
                            "LabelName": "cat",
                            "Subcategory": [{"LabelName": "kitten"}],
                        },
                        {
                            "LabelName": "dog",
                            "Subcategory": [{"LabelName": "puppy"}],
                        },
                    ],
                },
                {"LabelName": "car"},
            ],
        },
    ],
    ids=["parents", "nested"],
)
def test_only_leaves_are_left_of_a_hierarchy(hierarchy):
    classes = kc.class_map(NAMES, hierarchy=hierarchy)
    assert classes.class_names == ["kitten", "puppy", "car"]


def test_names_of_no_class_are_refused():
    with pytest.raises(ValueError, match="must name classes.*horse"):
        kc.class_map(NAMES, drop=["horse"])
    with pytest.raises(ValueError, match="A class must be left"):
        kc.class_map(NAMES, drop=NAMES)


def test_examples_and_boxes_of_dropped_classes_are_gone():
    classes = kc.class_map(NAMES, merge={"kitten": "cat"}, drop=["animal"])
    data = make_examples(rows([[1, 0, 2], [0, 1], [5], [3, 0]]))
    mapped = kc.map_classes(data, classes)
    assert mapped.class_names == ["cat", "dog", "puppy", "car"]
    found = list(mapped)
    assert [int(e["label"]) for e in found] == [0, 3, 1]
    assert [e["box_labels"].numpy().tolist() for e in found] == [
        [0, 0],
        [3],
        [1],
    ]
    assert [len(e["boxes"]) for e in found] == [2, 1, 1]


def test_an_unknown_class_stays_one():
    classes = kc.class_map(NAMES, drop=["animal"])
    data = make_examples(rows([[99]]))
    (row,) = kc.map_classes(data, classes)
    assert row["label"] > len(NAMES)


def test_classes_are_capped_at_their_first_examples():
    labels = np.random.default_rng(0).integers(4, size=60)
    data = tf.data.Dataset.from_tensor_slices(
        {"label": labels, "place": np.arange(60)}
    )
    kept = [int(e["place"]) for e in kc.cap_classes(data, 5, 4)]
    expected = sorted(
        place for k in range(4) for place in np.flatnonzero(labels == k)[:5]
    )
    assert kept == expected
    again = [int(e["place"]) for e in kc.cap_classes(data, 5, 4)]
    assert again == kept


def test_the_largest_object_names_the_image():
    data = make_examples(
        [
            {k: v for k, v in row.items() if k != "label"}
            for row in rows([[3, 1], [], [2, 2, 5]])
        ]
    )
    found = list(kc.label_by_largest(data))
    assert [int(e["label"]) for e in found] == [3, 2]
    with pytest.raises(ValueError, match="'boxes' and 'box_labels'"):
        kc.label_by_largest(tf.data.Dataset.from_tensors({"boxes": [[0.0]]}))


def test_a_box_that_is_none_or_has_no_label_names_no_image():
    upside_down, unlabelled, several = rows([[3, 1], [2, 4], [1, 1]])
    upside_down["boxes"] = upside_down["boxes"][:, ::-1]
    unlabelled["box_labels"] = unlabelled["box_labels"][:1]
    data = make_examples([several, upside_down])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[0\]"):
        list(kc.label_by_largest(data))
    data = make_examples([several, unlabelled])
    classes = kc.class_map(NAMES, drop=["car"])
    for changed in (
        kc.label_by_largest(data),
        kc.object_examples(data),
        kc.map_classes(data, classes),
        kc.training_pipeline(data, 8, 1, 6, epochs=1, classes=(1, 2)),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="one label"):
            list(changed)


# What there is.


def test_a_data_set_is_described(capsys):
    data = make_examples(rows([[1, 0, 2], [1], [], [3]]))
    summary = kc.describe(data, NAMES)
    assert summary.num_examples == 4 and summary.without_boxes == 1
    assert summary.num_boxes == 5 and summary.max_boxes == 3
    assert summary.counts == dict(zip(NAMES, [1, 2, 0, 1, 0, 0], strict=True))
    # All boxes lie in the first, a quarter of the image.
    assert abs(summary.mean_objectness - 0.25) < 1e-7
    printed = capsys.readouterr().out
    assert "kitten" in printed and "0.2500" in printed
    assert printed.strip() == str(summary)


def test_rows_kept_without_boxes_do_not_count_as_objects():
    bare = {"boxes": np.array([[[0.0, 0.0, 1.0, 1.0]]] * 2, "float32")}
    data = tf.data.Dataset.from_tensor_slices(
        {**bare, "label": [0, 1], "boxed": [True, False]}
    )
    summary = kc.describe(data)
    assert summary.without_boxes == 1 and summary.counts == {0: 1, 1: 1}


def test_masks_are_described_too():
    masks = np.zeros((3, 4, 4, 1), "uint8")
    masks[1, :2], masks[2, 0] = 1, 2
    data = tf.data.Dataset.from_tensor_slices({"mask": masks})
    summary = kc.describe(data)
    assert summary.without_boxes == 1 and not summary.counts
    assert abs(summary.mean_objectness - 0.375) < 1e-7
    assert kc.describe(data, classes=(2,)).without_boxes == 2


def test_an_empty_data_set_or_a_label_without_a_name_is_refused():
    data = make_examples(rows([[1], [5]]))
    with pytest.raises(ValueError, match="must have examples"):
        kc.describe(data.take(0))
    assert kc.describe(data, NAMES[:3]).counts["(no class)"] == 1


def test_the_pixel_mean_is_that_of_all_pixels():
    rng = np.random.default_rng(0)
    images = [
        rng.integers(0, 256, (size, 7, 3)).astype("uint8") for size in (3, 9)
    ]
    data = make_examples([{"image": image} for image in images])
    pixels = np.concatenate([image.reshape(-1, 3) for image in images])
    np.testing.assert_allclose(kc.pixel_mean(data), pixels.mean(0), rtol=1e-12)
    first = kc.pixel_mean(data, max_examples=1)
    np.testing.assert_allclose(first, images[0].mean((0, 1)), rtol=1e-12)
    with pytest.raises(ValueError, match="must have images"):
        kc.pixel_mean(data.take(0))


def test_objects_that_are_not_there_cannot_be_painted():
    plain = tf.data.Dataset.from_tensor_slices({"image": GREY[None]})
    with pytest.raises(ValueError, match="must have 'boxes'"):
        kc.object_examples(plain)
    with pytest.raises(ValueError, match="must have 'mask'"):
        kc.context_examples(plain)


def test_valid_examples_are_left_as_they_are():
    made = squares(10)
    data = tf.data.Dataset.from_tensor_slices(made)
    tally = kc.Tally()
    kept = list(kc.valid_examples(data, num_classes=5, tally=tally))
    assert len(kept) == 10 and sum(tally.counts().values()) == 0
    for place, row in enumerate(kept):
        np.testing.assert_array_equal(row["boxes"], made["boxes"][place])


def test_masks_of_another_size_and_empty_images_are_left_out():
    made = [
        {"image": GREY, "mask": np.zeros((10, 20, 1), "uint8"), "name": "a"},
        {"image": GREY, "mask": np.zeros((20, 10, 1), "uint8"), "name": "b"},
        {"image": GREY[:0], "mask": np.zeros((0, 20, 1), "uint8"), "name": "c"},
    ]
    tally = kc.Tally()
    kept = list(kc.valid_examples(make_examples(made), tally=tally))
    assert [row["name"] for row in kept] == [b"a"]
    assert tally.counts()["bad mask"] == tally.counts()["unreadable image"] == 1


# What was wrong once.


def test_names_of_classes_stay_with_the_data_set():
    data = make_examples(rows([[1, 0], [2]]))
    data.class_names = NAMES
    for changed in (
        kc.object_examples(data),
        kc.context_examples(data),
        kc.with_index(data),
        kc.valid_examples(data),
        kc.cap_classes(data, 1, 6),
        kc.label_by_largest(data),
    ):
        assert changed.class_names == NAMES


def test_what_of_a_box_is_outside_does_not_make_it_larger():
    row = rows([[4, 5]])[0]
    row["boxes"] = [[0.0, 0.0, 0.5, 0.5], [-0.6, -0.6, 0.4, 0.4]]
    (found,) = kc.label_by_largest(make_examples([row]))
    assert found["label"] == 4


def test_rows_kept_without_boxes_are_not_named_by_them():
    data = make_examples(rows([[1], [], [2]]))
    from keras_calib.data.transforms.validity import clean

    kept = clean(data, without_boxes="keep", tally=None)
    assert [int(e["label"]) for e in kc.label_by_largest(kept)] == [1, 2]
    classes = kc.class_map(NAMES, drop=["animal"])
    mapped = list(kc.map_classes(make_examples(rows([[1], [2]])), classes))
    assert [int(e["label"]) for e in mapped] == [0, 1]


def test_examples_whose_boxes_are_all_of_dropped_classes_are_counted():
    classes = kc.class_map(NAMES, drop=["animal", "car"])
    row = rows([[1, 0]])[0]
    row["box_labels"] = np.array([0, 5])
    data = make_examples([row, rows([[3]])[0]])
    tally = kc.Tally()
    (left,) = kc.map_classes(data, classes, tally=tally)
    assert left["label"] == 2 and tally.counts()["without boxes"] == 1
    kept = list(kc.map_classes(data, classes, without_boxes="keep"))
    assert [bool(e["boxed"]) for e in kept] == [False, True]
    assert kc.center_crop(kept[0], 8)["objectness"] == 1


@pytest.mark.parametrize(
    "options",
    [
        {"merge": {"kitten": "cat"}, "drop": ["cat"]},
        {"merge": {"kitten": "animal"}, "hierarchy": {"animal": ["cat"]}},
        {"merge": {"animal": "cat"}, "hierarchy": {"animal": ["cat"]}},
        {"merge": {"kitten": "cat", "cat": "pet"}},
    ],
)
def test_merges_that_lose_a_class_are_refused(options):
    with pytest.raises(ValueError, match="`merge` must not name"):
        kc.class_map(NAMES, **options)


def test_hierarchies_of_other_names_and_single_texts_are_refused():
    with pytest.raises(ValueError, match="`hierarchy` must have classes"):
        kc.class_map(NAMES, hierarchy={"Animal": ["Cat"]})
    with pytest.raises(TypeError, match="`drop` must be several names"):
        kc.class_map(NAMES, drop="car")


def test_kinds_of_parts_are_leaves_and_their_kind_is_not():
    hierarchy = {
        "LabelName": "entity",
        "Subcategory": [
            {
                "LabelName": "car",
                "Part": [
                    {
                        "LabelName": "animal",
                        "Subcategory": [{"LabelName": "cat"}],
                    }
                ],
            },
        ],
    }
    classes = kc.class_map(["car", "animal", "cat"], hierarchy=hierarchy)
    assert classes.class_names == ["car", "cat"]


def test_a_label_that_cannot_be_capped_is_named():
    data = make_examples(rows([[1], [9]]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="example=.*1"):
        list(kc.cap_classes(data, 5, 6))


def test_a_summary_tells_bad_boxes_and_equal_names(capsys):
    bad = rows([[1]])[0]
    bad["boxes"] = [[5.0, 5.0, 20.0, 30.0]]
    summary = kc.describe(make_examples([bad, *rows([[0], [2]])]), "aba")
    assert summary.bad_boxes == 1
    assert summary.counts == {"a (0)": 1, "b": 1, "a (2)": 1}
    assert abs(summary.mean_objectness - 0.25) < 1e-7
    assert "with bad boxes" in capsys.readouterr().out


@pytest.mark.parametrize(
    "change", [lambda d: d.batch(2), lambda d: d.map(lambda e: (e, 1))]
)
def test_what_is_no_data_set_of_examples_is_refused(change):
    data = change(tf.data.Dataset.from_tensor_slices(squares(4)))
    with pytest.raises(ValueError, match="must be one class id|must be dicts"):
        kc.describe(data)
    with pytest.raises(ValueError, match="must be one class id|must be dicts"):
        kc.training_pipeline(data, 8, 2, 5)


def test_labels_of_boxes_are_looked_at_too():
    made = rows([[1], [2, 3], [5]])
    made[1]["box_labels"] = np.array([2, 99])
    tally = kc.Tally()
    kept = kc.valid_examples(make_examples(made), num_classes=6, tally=tally)
    assert [int(e["label"]) for e in kept] == [1, 5]
    assert tally.counts()["bad label"] == 1


def test_objects_are_separated_before_they_are_numbered():
    data = kc.with_index(make_examples(rows([[1, 2]])))
    with pytest.raises(ValueError, match="numbered after"):
        kc.object_examples(data)
