"""Small images with objects, for the tests of the pipelines."""

import numpy as np
import tensorflow as tf

import keras_calib as kc

CLASSES = 5


def smooth_image(rng, height, width):
    coarse = rng.uniform(0, 256, (4, 5, 3)).astype("float32")
    image = tf.image.resize(coarse, (height, width), "bicubic")
    return tf.cast(tf.clip_by_value(image, 0, 255), "uint8").numpy()


def jpeg(image):
    return tf.io.encode_jpeg(image, quality=95).numpy()


def squares(count=40, num_classes=5, side=20, seed=0):
    """Grey images with one white square each, and where it is.

    Returns:
        A dict of arrays with as many rows as images.
    """
    rng = np.random.default_rng(seed)
    images = np.full((count, side, side, 3), 90, "uint8")
    boxes = np.zeros((count, 1, 4), "float32")
    for image, box in zip(images, boxes, strict=True):
        top, left = rng.integers(0, side // 2, 2)
        height, width = rng.integers(4, side // 2, 2)
        image[top : top + height, left : left + width] = 255
        box[0] = np.array([top, left, top + height, left + width]) / side
    return {
        "image": images,
        "label": rng.integers(num_classes, size=count),
        "boxes": boxes,
        "name": np.array([f"square {i}" for i in range(count)]),
    }


def numbered_squares(count=40):
    rows = squares(count, CLASSES)
    return kc.data.with_index(tf.data.Dataset.from_tensor_slices(rows))


def square_batches(dataset=None, **options):
    """`training_pipeline` of small images; of 40 squares by default."""
    options = {"size": 16, "batch_size": 8, "num_classes": CLASSES} | options
    dataset = numbered_squares() if dataset is None else dataset
    return kc.data.training_pipeline(dataset, **{"epochs": 1, **options})


def arrays_of(dataset):
    """Images, labels and indices of all batches."""
    parts = [
        (x, y["label"], y["index"]) for x, y in dataset.as_numpy_iterator()
    ]
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def make_examples(rows):
    """A data set of dicts, from dicts whose boxes differ in number."""
    spec = {
        "image": tf.TensorSpec((None, None, 3), "uint8"),
        "label": tf.TensorSpec((), "int64"),
        "boxes": tf.TensorSpec((None, 4), "float32"),
        "box_labels": tf.TensorSpec((None,), "int64"),
        "mask": tf.TensorSpec((None, None, 1), "uint8"),
        "name": tf.TensorSpec((), "string"),
    }
    if isinstance(rows[0]["image"], bytes):
        spec["image"] = tf.TensorSpec((), "string")
    spec = {k: v for k, v in spec.items() if k in rows[0]}

    def generate():
        for row in rows:
            row = {k: row[k] for k in spec}
            if "boxes" in row:
                row["boxes"] = np.reshape(row["boxes"], (-1, 4))
            yield row

    return tf.data.Dataset.from_generator(generate, output_signature=spec)


def rows_of_labels(labels):
    """Examples with the boxes of these lists of labels, the first largest."""
    made = []
    for place, own in enumerate(labels):
        sides = 0.5 / (1 + np.arange(len(own)))
        boxes = np.stack([0 * sides, 0 * sides, sides, sides], axis=1)
        made.append(
            {
                "image": np.full((10, 20, 3), 90, "uint8"),
                "label": own[0] if own else 0,
                "boxes": boxes,
                "box_labels": np.array(own, "int64"),
                "name": str(place),
            }
        )
    return made


def coherent(picture, counts=(2, 0, 1)):
    """An `as_dataset` whose boxes are boxes, and as many as their labels.

    Args:
        picture: Each image, resized where the data set has images of one
            size.
        counts: How many boxes each row has.
    """
    import tensorflow_datasets as tfds

    rng = np.random.default_rng(1)
    size = picture.shape[:2]

    def rows(builder):
        for place, count in enumerate(counts):
            row = {"image": picture, "label": place % 3}
            corners = np.sort(rng.uniform(size=(count, 2, 2)), axis=1)
            row["sequence"] = corners.reshape(count, 4)
            row["mask"] = (np.indices(size).sum(0) < 20 + place)[..., None]
            row["file"] = f"{builder.name}_{place}.jpg"
            yield row

    def fill(feature, path, row):
        kinds = tfds.features
        if isinstance(feature, kinds.FeaturesDict):
            return {k: fill(f, (*path, k), row) for k, f in feature.items()}
        if isinstance(feature, kinds.Sequence):
            return fill(feature.feature, path, {**row, "many": True})
        many = row.get("many", False)
        count = len(row["sequence"])
        if isinstance(feature, kinds.BBoxFeature):
            box = row["sequence"] if many else np.array([0.1, 0.2, 0.6, 0.9])
            return box.astype("float32")
        if isinstance(feature, kinds.Image):
            height, width, channels = feature.shape
            values = row["mask"] if channels == 1 else row["image"]
            if height is not None and width is not None:
                values = np.resize(values, feature.shape)
            return values.astype("uint8")
        if isinstance(feature, kinds.Text):
            return row["file"]
        number = row["label"]
        dtype = feature.np_dtype
        return np.full(count if many else (), number, dtype)

    def as_dataset(builder, split, **_):
        spec = builder.info.features.get_tensor_spec()
        made = [fill(builder.info.features, (), r) for r in rows(builder)]
        if len(set(counts)) == 1:
            stacked = tf.nest.map_structure(lambda *x: np.stack(x), *made)
            return tf.data.Dataset.from_tensor_slices(stacked)
        return tf.data.Dataset.from_generator(
            lambda: made, output_signature=spec
        )

    return as_dataset


def write_voc(path, objects, size=(30, 40)):
    """A Pascal VOC file.

    Args:
        path: The file; its folder is made.
        objects: Names and boxes, left, top, right, bottom.
        size: Height and width of the image.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    marks = "".join(
        f"<object><name>{name}</name><bndbox><xmin>{box[0]}</xmin>"
        f"<ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax>"
        "</bndbox></object>"
        for name, box in objects
    )
    path.write_text(
        f"<annotation><size><width>{size[1]}</width>"
        f"<height>{size[0]}</height><depth>3</depth></size>{marks}</annotation>"
    )
