"""What `train_objectness.py` measures, prints and draws."""

import numpy as np

import keras_calib
from keras_calib.backend.late import tensorflow as tf
from results.runs import (
    measures,
    predict,
    read_predictions,
    save_predictions,
    write_row,
)

# Of the printed table, by the names of `results.csv`.
_COLUMNS = {
    "accuracy": "acc",
    "confidence": "conf",
    "overconfidence": "over",
    "underconfidence": "under",
    "ece": "ECE15",
    "ece100": "ECE100",
    "mce": "MCE",
    "objectness_deviation": "dev",
    "accuracy_on_context": "acc",
    "confidence_on_context": "conf",
    "overconfidence_on_context": "over",
    "underconfidence_on_context": "under",
}
# As in the paper's figure 2, and label smoothing.
_PANELS = ("hard labels", "label smoothing")
_PANELS += tuple(f"adaptive, beta {beta}" for beta in ("0.25", "0.75", "1"))


def save_measures(model, views, row, folder):
    """Writes predictions and measures of a model as a run's.

    Args:
        model: With logits as its output.
        views: `test` and `context`: batches with pairs as labels.
        row: What the row of `results.csv` begins with.
        folder: Folder of the run.

    Returns:
        The row.
    """
    found = {view: predict(model, data) for view, data in views.items()}
    for view, (pairs, logits) in found.items():
        save_predictions(folder, view, pairs[:, 0].astype("int32"), logits)
    finite = all(np.isfinite(logits).all() for _, logits in found.values())
    row = {**row, "diverged": not finite}
    if finite:
        for view, (pairs, logits) in found.items():
            labels, objectness = pairs[:, 0].astype("int32"), pairs[:, 1]
            row_of_view = measures(labels, logits)
            if view != "test":
                write_row(folder, row_of_view, f"evaluation_{view}.csv")
                continue
            row |= row_of_view
            row["objectness_deviation"] = (
                keras_calib.functional.objectness_deviation(
                    labels, logits, objectness=objectness, from_logits=True
                )
            )
    # The last: a run that has it is done.
    write_row(folder, row)
    return row


def table(methods):
    """Text of `{method: {seed: row}}`: means over the seeds."""
    seeds = sorted({seed for rows in methods.values() for seed in rows})
    corner = f"mean of {len(seeds)} seeds" if len(seeds) > 1 else ""
    width = max(map(len, [corner, *methods])) + 2
    names = "".join(f"{c:>7}" for c in _COLUMNS.values())
    title = f"{corner:{width}}{'validation set':^56}{'objects painted out':^28}"
    lines = [title.rstrip()]
    lines.append(f"{'':{width}}{names}")
    for name, rows in methods.items():
        made = [row for row in rows.values() if not row["diverged"]]
        cells = ["diverged" for _ in rows if not made][:1]
        if made:
            means = (np.mean([row[c] for row in made]) for c in _COLUMNS)
            cells = [f"{mean:7.3f}" for mean in means]
        if 0 < len(made) < len(seeds):
            cells.append(f"  ({len(made)} of {len(seeds)})")
        lines.append(f"{name:{width}}{''.join(cells)}")
    return "\n".join(lines)


def draw_reliability(folders, path):
    """Reliability diagrams in a row: what the labels do to the confidence.

    Args:
        folders: `{method: folder of a run}`; those of the figure are drawn.
        path: The picture to write.
    """
    import matplotlib.pyplot as plt

    shown = [name for name in _PANELS if name in folders]
    if not shown:
        return
    figure, axes = plt.subplots(
        2,
        len(shown),
        figsize=(1.2 + 3.2 * len(shown), 4.6),
        height_ratios=(4, 1),
        sharex=True,
        sharey="row",
        layout="constrained",
        squeeze=False,
    )
    displays = [
        keras_calib.ReliabilityDisplay(
            keras_calib.Predictions(
                *read_predictions(folders[name], "test"), from_logits=True
            ),
            name=name,
        ).plot(column)
        for name, column in zip(shown, axes.T, strict=True)
    ]
    # Where labels are smoothed most, the corner of the legend is empty.
    for display in displays[:-1]:
        display.ax_.get_legend().remove()
    most = max(display.sums.weight.max() for display in displays)
    axes[1, 0].set_ylim(top=2 * most)
    for ax in axes[1]:
        ax.set_xlabel("confidence")
    for ax in axes[:, 1:].flat:
        ax.set_ylabel("")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_crops(examples, path, *, size, scale, names, fill):
    """Images in rows: whole, three crops, alone with its context painted out.

    Args:
        examples: A few examples with `boxes`.
        path: The picture to write.
        size: Height and width of the crops.
        scale: Scale of the crops, as in `random_resized_crop`.
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
        views = {"whole": keras_calib.data.center_crop(example, size, 1.0)}
        for k in range(3):
            views[f"crop {k + 1}"] = keras_calib.data.random_resized_crop(
                example, size, scale, seed=(row, k)
            )
        (bare,) = keras_calib.data.context_examples(_alone(example), fill=fill)
        views["context"] = keras_calib.data.center_crop(bare, size, 1.0)
        for ax, (view, crop) in zip(axes[row], views.items(), strict=True):
            _draw_crop(ax, crop, view, names)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _alone(example):
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
    target = keras_calib.losses.objectness_targets(
        np.array([label]), share[None], len(names), context=np.array([context])
    )
    ax.set_title(
        f"{names[label]}, {view}\nobjectness {share:.2f}\n"
        f"target {target[0, label]:.2f}",
        fontsize=8,
    )
    ax.set_xticks([])
    ax.set_yticks([])
