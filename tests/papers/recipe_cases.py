"""Small data, runs and set-ups, for the tests of the papers' program."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from data import images as image_sets
from data import scenes as scene_sets
from data import texts as text_sets
from PIL import Image
from results import runs as run_results
from runs import images as image_tasks
from runs import scenes as scene_tasks
from runs import texts as text_tasks
from runs import training

import keras_calib

ROOT = Path(__file__).parents[2]
PAPERS = ROOT / "examples" / "papers"
RECIPES = PAPERS / "recipes"


SETUPS, LOSSES, SWEEPS = (
    sorted((RECIPES / folder).glob("*.flags"))
    for folder in ("setups", "losses", "sweeps")
)
# They train no classifier of images, pixels or texts.
DETECTORS = [x for x in SETUPS if "--task=detection\n" in x.read_text("utf-8")]


SIZE = (90, 120)
NUM_IMAGES = 8


# Of a set-up, what is too large for a test: its steps, its images where the
# network takes any, weights to fetch, convolutions with holes of 12 to 36
# pixels, which take TensorFlow 80 s without a GPU, and the larger transformer,
# which differs in its sizes alone; and a warm-up, whose first rate is zero.
# All else is as published.
def smaller(setup):
    side = 72 if (setup.image_size or [0])[0] >= 224 else None
    return setup._replace(
        batch_size=2,
        net=setup.net.replace("vit_b16", "vit_s16"),
        validation=min(setup.validation, 0.25),
        weights=None,
        warmup_epochs=0,
        output_stride=16,
        image_size=[side] * len(setup.image_size) if side else setup.image_size,
        resize=side and 80,
        sequence_length=min(setup.sequence_length, 40),
    )


def task_of(setup, method, options):
    if setup.task == "segmentation":
        scenes = scene_sets.load_scenes(setup, options)
        setup = setup._replace(ignore_class=scenes.void)
        task = scene_tasks.scene_task(scenes, setup, method, options)
        return setup, task
    if setup.task == "text":
        sets = text_sets.read_texts(setup, options)
        sets = image_sets.split(sets, setup.validation)
        return setup, text_tasks.text_task(sets, setup, options)
    task = image_tasks.image_task(setup, method, options)
    return setup, task


def one_step(setup, method, options, task):
    """Loss of one step, weights before and after it."""
    model = training.build(task, setup, method, options)
    # Once only: tracing would take longer than the step.
    model.run_eagerly = True
    before = [v.numpy() for v in model.trainable_variables]
    batches = task.train(0)
    steps = None if hasattr(batches, "set_epoch") else 1
    history = model.fit(batches, steps_per_epoch=steps, verbose=0)
    after = [v.numpy() for v in model.trainable_variables]
    return history.history["loss"][0], before, after


def fake_runs(folder, shifts):
    """Runs of two seeds with predictions of known accuracy."""
    for method, shift in shifts.items():
        for seed in range(2):
            random = np.random.default_rng(seed)
            labels = random.integers(4, size=300)
            logits = random.normal(size=(300, 4)).astype("float32")
            logits[np.arange(300), labels] += shift
            run = folder / "fake" / method / f"seed{seed}"
            run.mkdir(parents=True)
            for part in ("validation", "test"):
                run_results.save_predictions(run, part, labels, logits)
            row = {
                "setup": "fake",
                "method": method,
                "options": "",
                "seed": seed,
                "diverged": False,
                "tuned": "",
                **run_results.measures(labels, logits),
            }
            run_results.write_row(run, row)
    return run_results.find_runs([folder])


@contextlib.contextmanager
def killed_after_an_epoch(monkeypatch):
    """A training that is interrupted once its first backup is written."""
    saved = keras_calib.training.ResumableBackup.on_epoch_end

    def killed(self, epoch, logs=None):
        saved(self, epoch, logs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(
            keras_calib.training.ResumableBackup, "on_epoch_end", killed
        )
        with pytest.raises(KeyboardInterrupt):
            yield


def scenes_of(images, masks, void=255):
    data = tf.data.Dataset.from_tensor_slices({"image": images, "mask": masks})
    return scene_sets.Scenes(data, None, data, ["a", "b"], void, len(images))


def marked_scenes(count=5, size=(40, 60)):
    """Images whose pixels say what their mask says."""
    masks = np.random.default_rng(0).integers(0, 2, (count, *size, 1))
    masks = np.kron(masks[:, ::10, ::10], np.ones((1, 10, 10, 1), int))
    images = np.repeat(100 * masks, 3, axis=-1).astype("uint8")
    return scenes_of(images, masks.astype("int32"))


def write_segmentation(folder, picture):
    """VOC's, with images of two sizes."""
    names = [f"image_{place}" for place in range(NUM_IMAGES)]
    for part in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (folder / part).mkdir(parents=True)
    for place, name in enumerate(names):
        image = picture[: 60 + 10 * (place % 2)]
        mask = np.full(image.shape[:2], place % 21, "uint8")
        mask[:5] = 255
        Image.fromarray(image).save(folder / "JPEGImages" / f"{name}.jpg")
        write_mask(mask, folder / "SegmentationClass" / f"{name}.png")
    for part in ("train", "trainaug", "val"):
        path = folder / "ImageSets" / "Segmentation" / f"{part}.txt"
        path.write_text("\n".join(names))


def write_mask(mask, path):
    image = Image.fromarray(mask, mode="P")
    # Without one for all 256 it would be written with fewer bits.
    image.putpalette(list(range(256)) * 3)
    image.save(path)


def write_tiny_imagenet(folder, picture):
    image = Image.fromarray(picture[:64, :64])
    rows = []
    for place in range(NUM_IMAGES):
        name = f"n{place % 2}"
        path = folder / "train" / name / "images" / f"{name}_{place}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
        rows.append(f"val_{place}.JPEG\t{name}\t0\t0\t62\t57")
    (folder / "val" / "images").mkdir(parents=True)
    for place in range(NUM_IMAGES):
        image.save(folder / "val" / "images" / f"val_{place}.JPEG")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(rows))


def comment(path):
    """The comments of a flag file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return " ".join(line for line in lines if line.startswith("#"))
