"""Draws the pictures of the guides with the code that stands above them.

    KERAS_CALIB_DATA=DIR python docs/pictures/make_displays.py

A picture `pictures/displays/NAME.png` of a page of `docs` is the display `NAME`
of the block of code before it. The script runs these blocks on real data and
writes the files, in half a minute.

DIR has `logits/markus93_densenet40_cifar10.npz`, the logits of a DenseNet-40 on
CIFAR-10 that Kull et al. (2019) published.
"""

import io
import os
import re
import sys
from pathlib import Path

import keras
import numpy as np
from PIL import Image

import keras_calib

DOCS = Path(__file__).resolve().parents[1]
FOLDER = Path("pictures/displays")

_BLOCK = re.compile(r"^```python\n(.*?)^```\n(.*?)(?=^```|\Z)", re.M | re.S)
_PICTURE = re.compile(rf"!\[[^\]]*\]\({FOLDER}/(\w+)\.png\)")

CIFAR = "airplane automobile bird cat deer dog frog horse ship truck"
DOTS, COLOURS = 130, 128
# Names that blocks take as given, besides those of earlier blocks of a page.
GIVEN = {
    *("keras", "keras_calib", "np", "class_names", "temperature", "selector"),
    *("cal_labels", "cal_logits", "val_labels", "val_logits", "sel_labels"),
    *("sel_logits", "test_labels", "test_logits", "all_labels", "all_logits"),
    *("test", "segmenter", "image", "mask", "true_boxes", "found_boxes"),
}


def drawn_blocks():
    """Page, code and names of the pictures below it, in their order."""
    for page in sorted(DOCS.glob("*.md")):
        for code, below in _BLOCK.findall(page.read_text(encoding="utf-8")):
            # A picture belongs to the code if no heading lies between.
            names = _PICTURE.findall(re.split(r"^#", below, flags=re.M)[0])
            if names:
                yield page, code, names


def published_logits(folder):
    """A validation set, and the test set: all of it, and in two parts."""
    file = np.load(folder / "logits/markus93_densenet40_cifar10.npz")
    names = {"class_names": CIFAR.split()}
    for name, part, rows in (
        ("val", "val", slice(None)),
        ("all", "test", slice(None)),
        ("sel", "test", slice(4000)),
        ("test", "test", slice(4000, None)),
    ):
        names[f"{name}_labels"] = file[f"labels_{part}"][rows].astype("int32")
        names[f"{name}_logits"] = file[f"logits_{part}"][rows]
    return names | {
        "cal_labels": names["val_labels"],
        "cal_logits": names["val_logits"],
    }


def scene():
    """The segmenter of `examples/segmentation.py`, and an image with a mask."""
    sys.path.insert(0, str(DOCS.parent / "examples"))
    import segmentation

    train = segmentation.scenes(8, 0.5, 0)
    loss = keras.losses.SparseCategoricalCrossentropy(**segmentation.READ)
    images, masks = segmentation.scenes(1, 0.5, 2)
    return {
        "segmenter": segmentation.trained(loss, train, 60),
        "image": images[0],
        "mask": masks[0],
    }


def detections():
    """The made-up boxes that the guides have."""
    sys.path.insert(0, str(DOCS / "generator"))
    from given import BOXES

    space = {}
    exec(BOXES, space)
    return dict(
        zip(
            ("true_boxes", "found_boxes"),
            space["boxes_of"](1000, 0),
            strict=True,
        )
    )


def given(folder):
    """What the pages take as given, by name."""
    names = {"keras": keras, "keras_calib": keras_calib, "np": np}
    names |= published_logits(folder)
    temperature = keras_calib.TemperatureScaling()
    temperature.fit(names["cal_labels"], names["cal_logits"])
    selector = keras_calib.SelectiveClassifier(calibrator=temperature)
    selector.fit(
        names["sel_labels"], names["sel_logits"], risk=0.02, delta=0.05
    )
    test = keras_calib.Predictions(
        names["test_labels"], names["test_logits"], from_logits=True
    )
    names |= {"temperature": temperature, "selector": selector, "test": test}
    names |= scene() | detections()
    if names.keys() != GIVEN:
        raise ValueError(f"GIVEN must be {sorted(names)}")
    return names


def write(display, path):
    """Few colours make small files; nothing in them says when or by what."""
    image = Image.open(io.BytesIO(display.to_png(dpi=DOTS))).convert("RGB")
    image = image.quantize(COLOURS, dither=Image.Dither.NONE)
    image.save(path, optimize=True)


def main():
    names = given(Path(os.environ["KERAS_CALIB_DATA"]))
    whole = {f"test_{x}": names[f"all_{x}"] for x in ("labels", "logits")}
    spaces = {}
    for page, code, pictures in drawn_blocks():
        # This page chooses nothing on test images.
        own = names | (whole if page.name == "after_training.md" else {})
        space = spaces.setdefault(page, own)
        exec(compile(code, page.name, "exec"), space)
        for name in pictures:
            path = DOCS / FOLDER / f"{name}.png"
            write(space[name], path)
            print(f"{path.stat().st_size:7,} bytes  {page.name}  {name}")


if __name__ == "__main__":
    main()
