"""Which classes and labels a data set has."""

import numpy as np
import pytest
import tensorflow as tf
from examples_with_boxes import make_examples
from examples_with_boxes import rows_of_labels as rows

import keras_calib as kc
from keras_calib.data.validity import Cleaning, clean, policies

NAMES = ["animal", "cat", "kitten", "dog", "puppy", "car"]


def test_classes_are_merged_and_dropped():
    classes = kc.data.class_map(
        NAMES,
        merge={"kitten": "cat", "puppy": "dog"},
        drop=["animal"],
    )
    assert classes.ids.tolist() == [-1, 0, 0, 1, 1, 2]
    assert classes.class_names == ["cat", "dog", "car"]
    renamed = kc.data.class_map(NAMES, merge={"cat": "pet", "dog": "pet"})
    assert renamed.class_names == ["animal", "pet", "kitten", "puppy", "car"]


def test_only_leaves_are_left_of_a_hierarchy():
    def node(name, *below):
        return {"LabelName": name, "Subcategory": list(below)}

    cats, dogs = node("cat", node("kitten")), node("dog", node("puppy"))
    for hierarchy in (
        {"animal": ["cat", "dog"], "cat": ["kitten"], "dog": ["puppy"]},
        node("entity", node("animal", cats, dogs), {"LabelName": "car"}),
    ):
        classes = kc.data.class_map(NAMES, hierarchy=hierarchy)
        assert classes.class_names == ["kitten", "puppy", "car"]


def test_examples_and_boxes_of_dropped_classes_are_gone():
    classes = kc.data.class_map(NAMES, merge={"kitten": "cat"}, drop=["animal"])
    data = make_examples(rows([[1, 0, 2], [0, 1], [5], [3, 0]]))
    mapped = kc.data.map_classes(data, classes)
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
    classes = kc.data.class_map(NAMES, drop=["animal"])
    data = make_examples(rows([[99]]))
    (row,) = kc.data.map_classes(data, classes)
    assert row["label"] > len(NAMES)


def test_classes_are_capped_at_their_first_examples():
    labels = np.random.default_rng(0).integers(4, size=60)
    data = tf.data.Dataset.from_tensor_slices(
        {"label": labels, "place": np.arange(60)}
    )
    kept = [int(e["place"]) for e in kc.data.cap_classes(data, 5, 4)]
    expected = sorted(
        place for k in range(4) for place in np.flatnonzero(labels == k)[:5]
    )
    assert kept == expected
    again = [int(e["place"]) for e in kc.data.cap_classes(data, 5, 4)]
    assert again == kept


def test_the_largest_object_names_the_image():
    data = make_examples(
        [
            {k: v for k, v in row.items() if k != "label"}
            for row in rows([[3, 1], [], [2, 2, 5]])
        ]
    )
    found = list(kc.data.label_by_largest(data))
    assert [int(e["label"]) for e in found] == [3, 2]


def test_a_box_that_is_none_or_has_no_label_names_no_image():
    upside_down, unlabelled, several = rows([[3, 1], [2, 4], [1, 1]])
    upside_down["boxes"] = upside_down["boxes"][:, ::-1]
    unlabelled["box_labels"] = unlabelled["box_labels"][:1]
    data = make_examples([several, upside_down])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[0\]"):
        list(kc.data.label_by_largest(data))
    data = make_examples([several, unlabelled])
    classes = kc.data.class_map(NAMES, drop=["car"])
    for changed in (
        kc.data.label_by_largest(data),
        kc.data.object_examples(data),
        kc.data.map_classes(data, classes),
        kc.data.validation_pipeline(
            data, 8, 1, 6, labels="pairs", classes=(1, 2)
        ),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="one label"):
            list(changed)


def test_names_of_classes_stay_with_the_data_set():
    data = make_examples(rows([[1, 0], [2]]))
    data.class_names = NAMES
    for changed in (
        kc.data.object_examples(data),
        kc.data.context_examples(data),
        kc.data.with_index(data),
        kc.data.valid_examples(data),
        kc.data.cap_classes(data, 1, 6),
        kc.data.label_by_largest(data),
    ):
        assert changed.class_names == NAMES


def test_what_of_a_box_is_outside_does_not_make_it_larger():
    row = rows([[4, 5]])[0]
    row["boxes"] = [[0.0, 0.0, 0.5, 0.5], [-0.6, -0.6, 0.4, 0.4]]
    (found,) = kc.data.label_by_largest(make_examples([row]))
    assert found["label"] == 4


def test_rows_kept_without_boxes_are_not_named_by_them():
    data = make_examples(rows([[1], [], [2]]))
    how = policies("test", {"without_boxes": "keep"}, Cleaning)
    kept = clean(data, how)
    assert [int(e["label"]) for e in kc.data.label_by_largest(kept)] == [1, 2]
    classes = kc.data.class_map(NAMES, drop=["animal"])
    mapped = list(kc.data.map_classes(make_examples(rows([[1], [2]])), classes))
    assert [int(e["label"]) for e in mapped] == [0, 1]


def test_examples_whose_boxes_are_all_of_dropped_classes_are_counted():
    classes = kc.data.class_map(NAMES, drop=["animal", "car"])
    row = rows([[1, 0]])[0]
    row["box_labels"] = np.array([0, 5])
    data = make_examples([row, rows([[3]])[0]])
    tally = kc.data.Tally()
    (left,) = kc.data.map_classes(data, classes, tally=tally)
    assert left["label"] == 2 and tally.counts()["without boxes"] == 1
    kept = list(kc.data.map_classes(data, classes, without_boxes="keep"))
    assert [bool(e["boxed"]) for e in kept] == [False, True]
    assert kc.data.center_crop(kept[0], 8)["objectness"] == 1


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
    classes = kc.data.class_map(["car", "animal", "cat"], hierarchy=hierarchy)
    assert classes.class_names == ["car", "cat"]


def test_a_label_that_cannot_be_capped_is_named():
    data = make_examples(rows([[1], [9]]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="example=.*1"):
        list(kc.data.cap_classes(data, 5, 6))


def test_maps_that_lose_a_class_or_name_none_are_refused():
    lost, animal = "`merge` must not name", {"animal": ["cat"]}
    for options, rule in (
        ({"merge": {"kitten": "cat"}, "drop": ["cat"]}, lost),
        ({"merge": {"kitten": "animal"}, "hierarchy": animal}, lost),
        ({"merge": {"animal": "cat"}, "hierarchy": animal}, lost),
        ({"merge": {"kitten": "cat", "cat": "pet"}}, lost),
        ({"drop": ["horse"]}, "must name classes.*horse"),
        ({"drop": NAMES}, "must leave at least one class"),
        (
            {"hierarchy": {"Animal": ["Cat"]}},
            "`hierarchy` must have a parent class",
        ),
    ):
        with pytest.raises(ValueError, match=rule):
            kc.data.class_map(NAMES, **options)
    with pytest.raises(TypeError, match="`drop` must be several names"):
        kc.data.class_map(NAMES, drop="car")
    unlabelled = tf.data.Dataset.from_tensors({"boxes": [[0.0]]})
    with pytest.raises(ValueError, match="must have labels"):
        kc.data.map_classes(unlabelled, kc.data.class_map(NAMES))
    with pytest.raises(ValueError, match="must have 'label'"):
        kc.data.cap_classes(unlabelled, 5, 6)
    with pytest.raises(ValueError, match="must have 'box_labels'"):
        kc.data.label_by_largest(unlabelled)
