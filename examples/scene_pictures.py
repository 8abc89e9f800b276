"""Where a segmenter is sure, and where it is wrong."""

import keras
import numpy as np

__all__ = ["draw_confidence"]


def draw_confidence(scenes, void, model, folder, name="confidence.png"):
    """Writes a row per image: itself, truth, prediction, confidence, errors.

    Args:
        scenes: A few dicts of `image` and `mask`.
        void: Class id of pixels without a class.
        model: With logits as its output.
        folder: Where to write.
        name: Of the file.

    Returns:
        The path of the picture.
    """
    import matplotlib.pyplot as plt

    rows = []
    for scene in scenes.as_numpy_iterator():
        image = scene["image"].astype("float32")
        logits = np.asarray(model.predict_on_batch(image[None]))[0]
        probs = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
        rows.append((image / 255, scene["mask"][..., 0], probs))
    titles = ("image", "truth", "prediction", "confidence", "sure and wrong")
    figure, grid = plt.subplots(
        len(rows),
        len(titles),
        figsize=(13, 2.1 * len(rows) + 0.7),
        squeeze=False,
        layout="constrained",
    )
    colors = {"cmap": "tab20", "vmin": -0.5, "vmax": 19.5}
    shades = {"cmap": "viridis", "vmin": 0.0, "vmax": 1.0}
    for axes, (image, truth, probs) in zip(grid, rows, strict=True):
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
            axes, titles, panels, strict=True
        ):
            drawn = ax.imshow(values, interpolation="nearest", **style)
            ax.set(xticks=[], yticks=[])
            if axes is grid[0]:
                ax.set_title(title, fontsize=10)
    bar = figure.colorbar(drawn, ax=grid[:, 3:], shrink=0.7)
    bar.set_label("probability of the predicted class")
    path = folder / name
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
