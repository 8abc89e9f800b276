"""Detectors are trained from their command line, and refused by name."""

import os
import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import app
from data import detection as boxes_data
from detection_cases import trained
from recipe_cases import PAPERS, RECIPES, killed_after_an_epoch
from results import runs as run_results
from runs import detection


@pytest.mark.slow
def test_a_detector_trains_on_coco(parse, picture, detection_folder, tmp_path):
    """On its features, with a crowd, and an image without boxes."""
    counts = (1, 3, 0, 2, 1, 1)

    def rows(builder, split, **_):
        random = np.random.default_rng(0)
        spec = builder.info.features.get_tensor_spec()

        def generate():
            for place, count in enumerate(counts):
                corners = np.sort(random.uniform(size=(count, 2, 2)), axis=1)
                numbers = np.arange(count)
                yield {
                    "image": tf.io.encode_jpeg(picture[: 60 + place]).numpy(),
                    "image/filename": f"{place}.jpg",
                    "image/id": place,
                    "objects": {
                        "area": 100 + numbers,
                        "bbox": corners.reshape(count, 4).astype("float32"),
                        "id": numbers,
                        # All that the fifth has.
                        "is_crowd": np.full(count, place == 4),
                        "label": 70 + numbers,
                    },
                }

        spec = {**spec, "image": tf.TensorSpec((), "string")}
        return tf.data.Dataset.from_generator(generate, output_signature=spec)

    setup, method, options = parse(
        "coco_retinanet_resnet50",
        "cross_entropy",
        "--image_size=32",
        "--net=retinanet_small",
        "--batch_size=2",
        "--epochs=1",
        "--decay_epochs=1",
        "--verbose=0",
        f"--workdir={tmp_path}",
    )
    detection.check_setup(setup, method)
    with tfds.testing.mock_data(as_dataset_fn=rows):
        data = boxes_data.load_boxes(setup, options)
        assert (data.count, len(data.names)) == (4, 80)
        tests = list(data.test.as_numpy_iterator())
        assert [len(row["labels"]) for row in tests] == list(counts)
        assert tests[4]["crowd"].all() and tests[1]["area"][2] == 102
        row, _ = trained(detection_folder, setup, method, options)
    assert row["epochs"] == 1 and not row["diverged"]
    assert 0 <= row["ap"] <= 1 and "ap_large" not in row
    assert run_results.read_row(
        tmp_path / "coco_retinanet_resnet50" / "cross_entropy" / "seed0"
    )["ap50"] == pytest.approx(row["ap50"])


@pytest.mark.slow
def test_a_run_on_two_devices_and_one_that_was_killed_are_that_on_one(
    begun, detection_folder, tmp_path, monkeypatch
):
    recipe = RECIPES / "setups" / "canvases_retinanet_small.flags"
    script = subprocess.Popen(
        [
            sys.executable,
            PAPERS / "train_detection.py",
            f"--flagfile={recipe}",
            "--data=canvases/boxed",
            f"--data_dir={detection_folder}",
            f"--begin_with={detection_folder / 'runs' / 'small'}",
            *("--image_size=64", "--batch_size=4", "--epochs=2"),
            *("--steps_per_epoch=2", "--decay_epochs=1", "--verbose=0"),
            *("--strategy=mirrored", "--logical_devices=2"),
            f"--workdir={tmp_path / 'two'}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    parts = begun("--noexport", f"--workdir={tmp_path / 'one'}")
    row, model = trained(detection_folder, *parts)
    # It begins with the same numbers.
    before = detection.detector(
        detection_folder / "runs" / "small", parts[0], 5, parts[2]
    )
    moved = {
        new.path: not np.array_equal(new, old)
        for new, old in zip(
            model.trainable_variables, before.trainable_variables, strict=True
        )
    }
    assert all(moved.values()), moved

    parts = begun("--noexport", f"--workdir={tmp_path / 'killed'}")
    with killed_after_an_epoch(monkeypatch):
        trained(detection_folder, *parts)
    *parts, options = parts
    again, other = trained(
        detection_folder, *parts, options._replace(resume=True)
    )
    assert again["ap"] == pytest.approx(row["ap"], abs=1e-6)
    for one, two in zip(model.weights, other.weights, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-7)
    other = parts[0]._replace(learning_rate=0.5)
    with pytest.raises(ValueError, match="'learning_rate'"):
        trained(detection_folder, other, parts[1], options)

    errors = script.communicate()[1]
    assert script.returncode == 0, errors[-3000:]
    (run,) = run_results.find_runs([tmp_path / "two"])
    assert run.parent.name == "cutmix_from_some_images"
    two = run_results.read_row(run)
    assert two["ap"] == pytest.approx(row["ap"], abs=1e-6)
    assert two["begin_with"] == str(detection_folder / "runs" / "small")
    # Weights and momenta too.
    (one,) = (tmp_path / "one").rglob("backup.npz")
    with np.load(one) as one, np.load(run / "backup.npz") as two:
        arrays = [name for name in one if one[name].dtype == "float32"]
        assert len(arrays) > len(model.weights)
        for name in arrays:
            np.testing.assert_allclose(
                one[name], two[name], rtol=1e-4, atol=1e-6, err_msg=name
            )
    assert (run / "serving" / "saved_model.pb").is_file()


# Errors.


@pytest.mark.parametrize(
    "more, begin, words",
    [
        ((), "none", "`--begin_with` must be the folder of a run, with"),
        ((), "unsaved", "with model.keras"),
        ((), "grey", "must take RGB images"),
        ((), "dense", "features of stride 4. Received: strides []"),
        (("--data=boxless",), "small", "must have boxes of objects"),
        (("--data=canvases/boxless",), "small", "must have boxes of objects"),
        (("--data=plain",), "small", "a feature `objects`"),
        (("--data=nothing",), "small", "name of a TFDS image data set"),
        (("--batch_size=99", "--steps_per_epoch=0"), "small", "24 images"),
        (("--loss=MbLS",), "small", "must have no loss among its flags"),
        (("--mix=cutmix",), "small", "must have no loss among its flags"),
        (("--validation=0.1",), "small", "{'validation': 0.1}"),
        (("--keep=best",), "small", "{'keep': 'best'}"),
        (("--image_size=40",), "small", "a multiple of 16"),
        (("--image_size=32,48",), "small", "must be one number"),
        (("--augment=crop",), "small", "must be none or flip"),
        (("--net=resnet50",), "small", "must be one of ['retinanet'"),
    ],
)
def test_what_cannot_be_detected_with_is_refused_by_name(
    more, begin, words, begun, detection_folder, tmp_path
):
    setup, method, options = begun(*more, f"--workdir={tmp_path}")
    method = method._replace(method="cross_entropy")
    begin = detection_folder / "runs" / begin
    with pytest.raises(app.UsageError) as error:
        detection.check_setup(setup, method)
        detection.backbone_names(begin)
        data = types.SimpleNamespace(names=[*"abcde"])
        if more and more[0].startswith(("--data", "--batch")):
            if setup.data != "boxed" and "--batch" in more[0]:
                setup = setup._replace(data="boxed")
            data = boxes_data.load_boxes(setup, options)
        model = detection.detector(begin, setup, len(data.names), options)
        detection.run(model, data, setup, method, options)
    assert words in str(error.value)
    # Nothing half written.
    assert not list(tmp_path.iterdir())
