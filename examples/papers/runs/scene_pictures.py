"""Pictures of the confidence and the errors of a segmenter."""

import numpy as np

import keras_calib

_TITLES = ("image", "truth (white: none)", "prediction")


def draw_confidence(scenes, names, void, model, path):
    """Writes a row per image: itself, truth, prediction, confidence, errors.

    Args:
        scenes: A few dicts of `image` and `mask`, all of one size.
        names: Names of the classes.
        void: Class id of pixels without a class.
        model: Model with logits as its output.
        path: Path of the picture.
    """
    import matplotlib.pyplot as plt

    scenes = list(scenes.as_numpy_iterator())
    height, width = scenes[0]["mask"].shape[:2]
    size = 19.0, len(scenes) * max(2.6 * height / width + 1.0, 3.0) + 0.4
    figure, grid = plt.subplots(
        len(scenes), 7, figsize=size, squeeze=False, layout="constrained"
    )
    palette = plt.get_cmap("tab20")
    for axes, scene in zip(grid, scenes, strict=True):
        image = scene["image"].astype("float32")
        truth = scene["mask"][..., 0]
        logits = np.asarray(model.predict_on_batch(image[None]))[0]
        known = np.where(truth == void, np.nan, truth)
        shown = (image / 255.0, known, logits.argmax(-1))
        for ax, title, values in zip(axes, _TITLES, shown, strict=False):
            ax.imshow(
                values, palette, interpolation="nearest", vmin=-0.5, vmax=19.5
            )
            ax.set(xticks=[], yticks=[], title=title)
        answer = keras_calib.Predictions(
            truth[None], logits[None], from_logits=True, ignore_class=void
        )
        keras_calib.SegmentationDisplay(answer).plot(axes[3:])
    figure.legend(
        handles=[
            plt.Rectangle((0, 0), 1, 1, color=palette(k % 20), label=name)
            for k, name in enumerate(names)
        ],
        loc="outside lower center",
        ncols=min(len(names), 11),
        frameon=False,
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)
