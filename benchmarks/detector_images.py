"""A small detector of real images: calibration error and precision, held out.

A network of seven layers learns from 3,200 images of `tiny_imagenet_boxes`, 64
pixels wide, with 16 classes and one box each. For each of 8 x 8 cells it finds
a class and a box; the peaks among them are its detections, at most five of an
image. It is a poor detector on purpose: what counts is whether its confidence
can be repaired, and whether a threshold keeps its promise.

The other 4,000 images are split anew for each draw: 1,300 to calibrate, 1,400
to choose a threshold at delta = 0.1, 1,300 to test. Errors are means over the
draws, on the test part. "Missed" is the share of draws in which a precision on
the test part is below what was certified, by the noise of that part or not.

    python benchmarks/detector_images.py --data_dir=DIR \
        --out=benchmarks/results/detector_images.md

It takes about three minutes of CPU time.
"""

import keras
import numpy as np
from absl import app, flags
from keras import layers, ops
from reporting import machine, markdown_table, publish

import keras_calib as kc

_DATA_DIR = flags.DEFINE_string("data_dir", None, "Of TFDS.", required=True)
_EPOCHS = flags.DEFINE_integer("epochs", 8, "Of training.")
_NUM_DRAWS = flags.DEFINE_integer("num_draws", 50, "Splits of held-out images.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

CELLS, CLASSES, MOST = 8, 16, 5
NUM_TRAIN = 3200
PARTS = 1300, 2700


def images_of(split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, boxes (left, top, right, bottom) in [0, 1] and class ids."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(
        f"{_DATA_DIR.value}/tiny_imagenet_boxes/1.0.0"
    )
    rows = tfds.as_numpy(builder.as_dataset(split=split))
    found = [(x["image"], *x["objects"].values()) for x in rows]
    images, boxes, labels = zip(*found, strict=True)
    boxes = np.array(boxes)[:, 0, [1, 0, 3, 2]]
    return np.array(images), boxes, np.array(labels)[:, 0]


def network() -> keras.Model:
    """Class logits and distances to four sides for each cell."""
    x = images = keras.Input((64, 64, 3))
    x = layers.Rescaling(1 / 127.5, -1.0)(x)
    for width, stride in ((16, 2), (32, 2), (48, 2), (48, 1), (48, 1)):
        x = layers.Conv2D(width, 3, stride, "same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Dropout(0.3)(x)
    prior = keras.initializers.Constant(-3.0)
    kinds = layers.Conv2D(CLASSES, 3, 1, "same", bias_initializer=prior)(x)
    sides = layers.Conv2D(4, 3, 1, "same", activation="sigmoid")(x)
    return keras.Model(images, layers.Concatenate()([kinds, sides]))


def centres() -> np.ndarray:
    """Middles of the cells (x, y, x, y) `(8, 8, 4)`."""
    y, x = (np.indices((CELLS, CELLS)) + 0.5) / CELLS
    return np.stack([x, y, x, y], axis=-1)


def targets(boxes: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """One-hot classes and a mask at the middle of each box, and its sides."""
    found = np.zeros((len(boxes), CELLS, CELLS, CLASSES + 5), "float32")
    sides = np.abs(boxes[:, None, None] - centres())
    found[..., CLASSES : CLASSES + 4] = sides
    middle = (boxes[:, :2] + boxes[:, 2:]) / 2 * CELLS
    x, y = np.minimum(middle.astype(int), CELLS - 1).T
    rows = np.arange(len(boxes))
    found[rows, y, x, labels] = 1.0
    found[rows, y, x, -1] = 1.0
    return found


def loss(y_true, y_pred):
    """Focal loss of the classes and absolute error of the sides, by image."""
    kinds, logits = y_true[..., :CLASSES], y_pred[..., :CLASSES]
    wrong = ops.abs(kinds - ops.sigmoid(logits))
    entropy = ops.softplus(logits) - kinds * logits
    weight = ops.where(kinds > 0, 1.0, 0.5) * wrong**2
    error = ops.abs(y_true[..., CLASSES:-1] - y_pred[..., CLASSES:])
    error = ops.sum(error, axis=-1) * y_true[..., -1]
    return ops.sum(weight * entropy, axis=(1, 2, 3)) + 2.0 * ops.sum(
        error, axis=(1, 2)
    )


def detections(outputs: np.ndarray) -> dict[str, np.ndarray]:
    """The surest peaks of each image, padded."""
    confidence = 1.0 / (1.0 + np.exp(-outputs[..., :CLASSES].max(axis=-1)))
    labels = outputs[..., :CLASSES].argmax(axis=-1)
    signs = np.array([-1.0, -1.0, 1.0, 1.0])
    boxes = centres() + signs * outputs[..., CLASSES:]
    peaks = ops.max_pool(confidence[..., None], 3, 1, "same")
    is_peak = confidence >= ops.convert_to_numpy(peaks)[..., 0]
    ranked = np.where(is_peak, confidence, -1.0).reshape(len(boxes), -1)
    order = np.argsort(-ranked, axis=1)[:, :MOST]
    inside = np.take_along_axis(ranked, order, axis=1) > 0.01
    labels = np.take_along_axis(labels.reshape(ranked.shape), order, axis=1)
    boxes = boxes.reshape(len(boxes), -1, 4)
    return {
        "boxes": np.take_along_axis(boxes, order[..., None], axis=1),
        "confidence": np.take_along_axis(ranked, order, axis=1),
        "labels": np.where(inside, labels, -1),
    }


def trained(images: np.ndarray, boxes: np.ndarray, labels: np.ndarray):
    """The network after training, on images and their mirror images."""
    mirrored = boxes[:, [2, 1, 0, 3]] * [-1, 1, -1, 1] + [1, 0, 1, 0]
    images = np.concatenate([images, images[:, :, ::-1]])
    y = targets(np.concatenate([boxes, mirrored]), np.tile(labels, 2))
    model = network()
    steps = _EPOCHS.value * -(-len(images) // 64)
    rate = keras.optimizers.schedules.CosineDecay(2e-3, steps)
    model.compile(keras.optimizers.Adam(rate), loss)
    model.fit(images, y, 64, _EPOCHS.value, verbose=2)
    return model


def matched(true: dict, found: dict, images: np.ndarray, least: float):
    """Records of some images."""
    parts = ({k: x[images] for k, x in part.items()} for part in (true, found))
    return kc.detection.match(*parts, box_format="rel_xyxy", min_overlap=least)


def measured(true: dict, found: dict, images: np.ndarray) -> dict[str, float]:
    """Errors of some images."""
    loose = matched(true, found, images, 0.1)
    return {
        "D-ECE": kc.detection.detection_ece(
            matched(true, found, images, 0.5)
        ).value,
        "LaECE": kc.detection.localization_aware_ece(loose, num_bins=10).value,
    }


def draws(true: dict, found: dict) -> tuple[list[list], list[list]]:
    """Rows of errors and of thresholds, means over splits of the images."""
    rng = np.random.default_rng(0)
    errors: dict[tuple, list] = {}
    chosen: dict[float, list] = {0.4: [], 0.5: [], 0.6: []}
    for _ in range(_NUM_DRAWS.value):
        order = rng.permutation(len(true["labels"]))
        cal, select, test = np.split(order, PARTS)
        # The overlap counts from 0.1 on, as LaECE counts it.
        records = {
            "correct": matched(true, found, cal, 0.5),
            "overlap": matched(true, found, cal, 0.1),
        }
        scaled = {"none": found}
        for method, target in (
            ("temperature", "correct"),
            ("platt", "correct"),
            ("platt", "overlap"),
        ):
            scaling = kc.detection.DetectionScaling(
                CLASSES, method=method, target=target
            )
            answers = scaling.fit(records[target])(found)
            scaled[f"{method}, {target}"] = {
                k: ops.convert_to_numpy(x) for k, x in answers.items()
            }
        for name, answers in scaled.items():
            for error, value in measured(true, answers, test).items():
                errors.setdefault((name, error), []).append(value)
        best = scaled["platt, correct"]
        for precision, rows in chosen.items():
            try:
                one = kc.detection.choose_detection_threshold(
                    matched(true, best, select, 0.5),
                    precision=precision,
                    delta=0.1,
                )
            except ValueError:
                continue
            kept = matched(true, best, test, 0.5)
            right = kept.correct[kept.confidence >= one.threshold]
            rows.append([right.mean(), right.sum() / len(test)])
    names = dict.fromkeys(name for name, _ in errors)
    table = [
        [name, *(f"{np.mean(errors[name, x]):.4f}" for x in ("D-ECE", "LaECE"))]
        for name in names
    ]
    kept_rows = []
    for precision, rows in chosen.items():
        shares = np.array(rows).reshape(-1, 2)
        facts = len(shares) / _NUM_DRAWS.value, *shares.mean(axis=0)
        facts = *facts, np.mean(shares[:, 0] < precision)
        kept_rows.append([precision, *(f"{x:.3f}" for x in facts)])
    return table, kept_rows


def main(_):
    keras.utils.set_random_seed(0)
    parts = [images_of(split) for split in ("train", "validation")]
    data = [np.concatenate(x) for x in zip(*parts, strict=True)]
    model = trained(*(x[:NUM_TRAIN] for x in data))
    images, boxes, labels = (x[NUM_TRAIN:] for x in data)
    found = detections(model.predict(images, verbose=0))
    true = {"boxes": boxes[:, None], "labels": labels[:, None]}
    whole = matched(true, found, np.arange(len(images)), 0.5)
    errors, thresholds = draws(true, found)
    text = [
        f"{machine()}. {_NUM_DRAWS.value} splits of {len(images):,} images.",
        f"{len(whole.label):,} boxes, of which {whole.correct.mean():.3f} are "
        f"right; they find {whole.correct.sum() / whole.num_true:.3f} of the "
        "true ones.",
        markdown_table(["scaling, target", "D-ECE", "LaECE"], errors),
        "Thresholds after Platt scaling, delta = 0.1:",
        markdown_table(
            ["precision", "certified", "precision of test", "recall", "missed"],
            thresholds,
        ),
    ]
    publish("\n\n".join(text), _OUT.value)


if __name__ == "__main__":
    app.run(main)
