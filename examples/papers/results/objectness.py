"""What `train_objectness.py` measures, prints and draws."""

import numpy as np

import keras_calib

__all__ = ["COLUMNS", "draw_crops", "measure", "table"]

COLUMNS = (
    "acc",
    "conf",
    "over",
    "under",
    "ECE15",
    "ECE100",
    "MCE",
    "dev",
    "acc",
    "conf",
    "over",
    "under",
)


def measure(model, validation, context):
    """The columns for one model: validation set, then without objects."""
    row = []
    for batches in (validation, context):
        pairs = np.concatenate([y for _, y in batches.as_numpy_iterator()])
        labels, objectness = pairs[:, 0].astype("int64"), pairs[:, 1]
        images = batches.map(lambda x, _: x)
        steps = sum(1 for _ in images)
        given = labels, model.predict(images, steps=steps, verbose=0)
        row += [
            np.mean(given[1].argmax(-1) == labels),
            keras_calib.mean_confidence(*given, from_logits=True),
            keras_calib.overconfidence(*given, from_logits=True),
            keras_calib.underconfidence(*given, from_logits=True),
        ]
        if batches is validation:
            row += [
                keras_calib.ece(*given, num_bins=15, from_logits=True),
                keras_calib.ece(*given, num_bins=100, from_logits=True),
                keras_calib.mce(*given, num_bins=15, from_logits=True),
                keras_calib.objectness_deviation(
                    *given, objectness, from_logits=True
                ),
            ]
    return [float(value) for value in row]


def table(rows):
    """Text of `{method: columns}`."""
    width = max(map(len, rows)) + 2
    title = f"{'':{width}}{'validation set':^56}{'objects painted out':^28}"
    lines = [title.rstrip()]
    lines.append(f"{'':{width}}" + "".join(f"{c:>7}" for c in COLUMNS))
    for name, values in rows.items():
        cells = "".join(f"{value:7.3f}" for value in values)
        lines.append(f"{name:{width}}{cells}")
    return "\n".join(lines)


def draw_crops(examples, path, *, size, scale, names, fill):
    """Images in rows: whole, three crops, alone with its context painted out.

    Args:
        examples: A few examples with `boxes`.
        path: The picture to write.
        size: Height and width of the crops.
        scale: Of the crops, as in `random_resized_crop`.
        names: Names of the classes.
        fill: The pixel mean.
    """
    import matplotlib.pyplot as plt

    examples = list(examples)
    figure, axes = plt.subplots(
        len(examples),
        5,
        figsize=(11, 2.35 * len(examples)),
        layout="constrained",
        squeeze=False,
    )
    for row, example in enumerate(examples):
        views = {"whole": keras_calib.center_crop(example, size, 1.0)}
        for k in range(3):
            views[f"crop {k + 1}"] = keras_calib.random_resized_crop(
                example, size, scale, seed=(row, k)
            )
        (bare,) = keras_calib.context_examples(_alone(example), fill=fill)
        views["context"] = keras_calib.center_crop(bare, size, 1.0)
        for ax, (view, crop) in zip(axes[row], views.items(), strict=True):
            _draw_crop(ax, crop, view, names)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _alone(example):
    import tensorflow as tf

    return tf.data.Dataset.from_tensors(example)


def _draw_crop(ax, crop, view, names):
    from matplotlib.patches import Rectangle

    image = np.clip(np.array(crop["image"]) / 255, 0, 1)
    height, width = image.shape[:2]
    ax.imshow(image, extent=(0, width, height, 0))
    for ymin, xmin, ymax, xmax in np.array(crop["boxes"]):
        corner = (xmin * width, ymin * height)
        extent = ((xmax - xmin) * width, (ymax - ymin) * height)
        if min(extent) > 0:
            ax.add_patch(
                Rectangle(corner, *extent, fill=False, color="#E69F00", lw=2)
            )
    label, share = int(crop["label"]), np.array(crop["objectness"])
    context = "context" in crop
    target = keras_calib.objectness_targets(
        np.array([label]), share[None], len(names), context=np.array([context])
    )
    ax.set_title(
        f"{names[label]}, {view}\nobjectness {share:.2f}\n"
        f"target {target[0, label]:.2f}",
        fontsize=8,
    )
    ax.set_xticks([])
    ax.set_yticks([])
