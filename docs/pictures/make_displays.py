"""Draws the pictures of the guides with the code that stands above them.

    KERAS_CALIB_DATA=DIR python docs/pictures/make_displays.py

A picture `pictures/displays/NAME.png` of a page of `docs` is the display `NAME`
of the block of code before it. The script runs these blocks on real data and
writes the files, in about two minutes on two cores.

DIR has `logits/markus93_densenet40_cifar10.npz`, the logits of a DenseNet-40 on
CIFAR-10 that Kull et al. (2019) published, and the IDX files of Fashion-MNIST
in `fashion_mnist`, packed with xz.
"""

import io
import lzma
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
FASHION = "T-shirt trousers pullover dress coat sandal shirt sneaker bag boot"
SIDE, DOTS, COLOURS = 40, 130, 128


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


def fashion(folder, split):
    def read(kind, offset):
        path = folder / f"fashion_mnist/{split}-{kind}-ubyte.xz"
        return np.frombuffer(lzma.open(path).read(), "uint8", offset=offset)

    images = read("images-idx3", 16).reshape(-1, 28, 28) / 255
    return images.astype("float32"), read("labels-idx1", 8).astype("int32")


def trained(layers, optimizer, loss, data, epochs):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(layers)
    model.compile(optimizer, loss)
    model.fit(*data, batch_size=256, epochs=epochs, verbose=0)
    return model


def smoothed(train, test):
    """Predictions of a network that was trained with label smoothing."""
    dense = keras.layers.Dense
    layers = [keras.Input((28, 28)), keras.layers.Flatten()]
    layers += [dense(512, "relu"), dense(512, "relu"), dense(10)]
    loss = keras_calib.LabelSmoothing(alpha=0.2, from_logits=True)
    sgd = keras.optimizers.SGD(0.1, momentum=0.9)
    model = trained(layers, sgd, loss, train, 15)
    logits = model.predict(test[0], batch_size=1000, verbose=0)
    return {"smoothed_labels": test[1], "smoothed_logits": logits}


def placed(images, seed):
    """Garments somewhere on a grey background, and their boxes."""
    rng = np.random.default_rng(seed)
    canvases = rng.uniform(0.1, 0.5, (len(images), 1, 1))
    canvases = np.tile(canvases, (1, SIDE, SIDE))
    corners = rng.integers(0, SIDE - 28, (len(images), 2))
    for canvas, image, (top, left) in zip(
        canvases, images, corners, strict=True
    ):
        part = canvas[top : top + 28, left : left + 28]
        part[:] = np.where(image > 0.05, image, part)
    boxes = np.concatenate([corners, corners + 28], axis=1) / SIDE
    return canvases[..., None].astype("float32"), boxes[:, None]


def garments(train, test):
    """A classifier of garments on larger images, and a few of these."""
    conv, pool = keras.layers.Conv2D, keras.layers.GlobalAveragePooling2D
    layers = [keras.Input((SIDE, SIDE, 1))]
    for filters, strides in ((16, 2), (32, 1), (32, 2), (64, 1)):
        layers.append(conv(filters, 3, strides, "same", activation="relu"))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    data = placed(train[0][:15_000], 0)[0], train[1][:15_000]
    images, boxes = placed(test[0][:4], 1)
    adam = keras.optimizers.Adam(2e-3)
    return {
        "classifier": trained(
            [*layers, pool(), keras.layers.Dense(10)], adam, loss, data, 12
        ),
        "images": images,
        "boxes": boxes,
        "image_labels": test[1][:4],
        "garments": FASHION.split(),
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
    names |= {"temperature": temperature, "selector": selector}
    train, test = fashion(folder, "train"), fashion(folder, "t10k")
    names |= smoothed(train, test) | garments(train, test) | scene()
    return names | detections()


def write(display, path):
    """Few colours make small files; nothing in them says when or by what."""
    image = Image.open(io.BytesIO(display.to_png(dpi=DOTS))).convert("RGB")
    image = image.quantize(COLOURS, dither=Image.Dither.NONE)
    image.save(path, optimize=True)


def main():
    names = given(Path(os.environ["KERAS_CALIB_DATA"]))
    whole = {f"test_{x}": names[f"all_{x}"] for x in ("labels", "logits")}
    for page, code, pictures in drawn_blocks():
        # This page chooses nothing on test images.
        space = names | (whole if page.name == "after_training.md" else {})
        exec(compile(code, page.name, "exec"), space)
        names |= {"losses": space.get("losses")}
        for name in pictures:
            path = DOCS / FOLDER / f"{name}.png"
            write(space[name], path)
            print(f"{path.stat().st_size:7,} bytes  {page.name}  {name}")


if __name__ == "__main__":
    main()
