"""Where a segmenter is sure, and where it is wrong."""

import keras
import numpy as np

__all__ = ["draw_confidence"]


def draw_confidence(scenes, names, void, model, path):
    """Writes a row per image: itself, truth, prediction, confidence, errors.

    Args:
        scenes: A few dicts of `image` and `mask`, all of one size.
        names: Of the classes.
        void: Class id of pixels without a class.
        model: With logits as its output.
        path: Of the file to write.
    """
    import matplotlib.pyplot as plt

    rows = []
    for scene in scenes.as_numpy_iterator():
        image = scene["image"].astype("float32")
        logits = np.asarray(model.predict_on_batch(image[None]))[0]
        probs = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
        rows.append((image / 255, scene["mask"][..., 0], probs))
    titles = (
        "image",
        "truth (white: none)",
        "prediction",
        "confidence",
        "confidence where wrong, else 0",
    )
    height, width = rows[0][0].shape[:2]
    size = 13, len(rows) * 2.5 * height / width + 1.1
    figure, grid = plt.subplots(
        len(rows), len(titles), figsize=size, squeeze=False, layout="compressed"
    )
    palette = plt.get_cmap("tab20")
    colors = {"cmap": palette, "vmin": -0.5, "vmax": 19.5}
    shades = {"cmap": "viridis", "vmin": 0.0, "vmax": 1.0}
    for place, (image, truth, probs) in enumerate(rows):
        known = truth != void
        label, confidence = probs.argmax(-1), probs.max(-1)
        wrong = known & (label != truth)
        panels = (
            (image, {}),
            (np.where(known, truth, np.nan), colors),
            (label, colors),
            (confidence, shades),
            (np.where(known, wrong * confidence, np.nan), shades),
        )
        for ax, title, (values, style) in zip(
            grid[place], titles, panels, strict=True
        ):
            drawn = ax.imshow(values, interpolation="nearest", **style)
            ax.set(xticks=[], yticks=[])
            if place == 0:
                ax.set_title(title, fontsize=10)
    bar = figure.colorbar(drawn, ax=grid[:, 3:], shrink=0.7)
    bar.set_label("probability of the predicted class")
    figure.legend(
        handles=[
            plt.Rectangle((0, 0), 1, 1, color=palette(k % 20), label=name)
            for k, name in enumerate(names)
        ],
        loc="outside lower center",
        ncols=min(len(names), 11),
        frameon=False,
        fontsize=9,
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)
