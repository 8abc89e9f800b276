"""The kinds of labels that `train_objectness.py` compares, and its models."""

from functools import partial

import keras
from data.boxed_digits import boxed_digits
from nets.small_resnet import small_resnet

import keras_calib

__all__ = ["METHODS", "build", "compile_model", "load"]

# What differs between the methods: options of the pipeline.
METHODS = {
    "hard labels": {"targets": "one_hot"},
    "label smoothing": {"targets": "one_hot"},
    "CutMix": {"targets": "one_hot", "mix": keras_calib.cutmix},
    **{
        f"adaptive, beta {beta:g}{' + context' if share else ''}": {
            "beta": beta,
            "context_share": share,
        }
        for share in (0.0, 0.15)
        for beta in (1.0, 0.75, 0.25)
    },
}


def load(data, data_dir, annotations):
    """Training and validation set, and the names of the classes."""
    if data == "digits":
        return *boxed_digits(), [str(digit) for digit in range(10)]
    read = partial(
        keras_calib.from_tfds, data_dir=data_dir, annotations=annotations
    )
    train, validation = (read(data, s) for s in ("train", "validation"))
    return train, validation, train.class_names


def build(net, size, *, num_classes, width):
    if net == "resnet50":
        return keras.applications.ResNet50(
            weights=None,
            input_shape=(size, size, 3),
            classes=num_classes,
            classifier_activation=None,
        )
    return small_resnet((size, size, 3), num_classes, width=width)


def compile_model(model, method, steps, rate):
    """Compiles a model for so many steps; in the scope that it was made in."""
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    if method == "label smoothing":
        loss = keras_calib.LabelSmoothing(alpha=0.1, from_logits=True)
    schedule = keras.optimizers.schedules.CosineDecay(rate, steps)
    sgd = keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True)
    model.compile(optimizer=sgd, loss=loss)
