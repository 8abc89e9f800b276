"""Small images with boxes and classifiers, for the tests of detectors."""

import json

import keras
import tensorflow as tf
import tensorflow_datasets as tfds
from data import detection as boxes_data
from examples_with_boxes import squares
from nets import detector as detectors
from nets.small_resnet import small_resnet
from runs import detection

SMALL = detectors.DETECTORS["retinanet_small"]


def store(folder, name, parts, part="objects"):
    """Writes a TFDS data set of images with objects, or what is called so."""
    objects = {
        "bbox": tfds.features.BBoxFeature(),
        "label": tfds.features.ClassLabel(num_classes=5),
    }

    def rows(count, seed, boxes):
        made = squares(count, side=20, seed=seed)
        for place in range(count):
            yield {
                "image": made["image"][place],
                part: {
                    "bbox": made["boxes"][place][:boxes],
                    "label": made["label"][place : place + 1][:boxes],
                },
            }

    signature = {
        "image": tf.TensorSpec((20, 20, 3), "uint8"),
        part: {
            "bbox": tf.TensorSpec((None, 4), "float32"),
            "label": tf.TensorSpec((None,), "int64"),
        },
    }
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version="1.0.0",
        features=tfds.features.FeaturesDict(
            {
                "image": tfds.features.Image(shape=(20, 20, 3)),
                part: tfds.features.Sequence(objects),
            }
        ),
        split_datasets={
            split: tf.data.Dataset.from_generator(
                lambda options=options: rows(*options),
                output_signature=signature,
            )
            for split, options in parts.items()
        },
        data_dir=folder,
        disable_shuffling=True,
    )


def write_run(folder, model):
    """A run of a classifier, as a detector reads it."""
    folder.mkdir(parents=True)
    flags = {"method": "cutmix", "setup": "some_images"}
    (folder / "flags.json").write_text(json.dumps(flags))
    if model is not None:
        model.save(folder / "model.keras")


def classifier(shape=(24, 24, 3), build=small_resnet):
    keras.utils.set_random_seed(3)
    inputs = keras.Input(shape)
    scaled = keras.layers.Normalization(
        mean=[100.0] * shape[-1], variance=[3000.0] * shape[-1]
    )(inputs)
    options = {"width": 4} if build is small_resnet else {}
    return keras.Model(inputs, build(shape, 5, **options)(scaled))


def trained(folder, setup, method, options):
    """Row of a run that begins with the small classifier, and its model."""
    data = boxes_data.load_boxes(setup, options)
    begin = folder / "runs" / "small"
    model = detection.detector(begin, setup, len(data.names), options)
    row = detection.run(model, data, setup, method, options, begin_with="small")
    return row, model
