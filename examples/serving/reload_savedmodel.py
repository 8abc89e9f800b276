r"""Runs an exported model in a process that has neither Keras nor the package.

    python examples/serving/reload_savedmodel.py \
        MODEL_DIR IMAGES.npy PROBABILITIES.npy

It does what a server does: it loads the file, calls the signature and reads an
output by name.
"""

import sys

import numpy as np

_ABSENT = ("keras", "keras_calib", "tf_keras")


def main(model_dir, images_file, probabilities_file):
    for package in _ABSENT:
        # From here on, importing it fails as if it were not installed.
        sys.modules[package] = None
    import tensorflow as tf

    signature = tf.saved_model.load(model_dir).signatures["serving_default"]
    (name,) = signature.structured_input_signature[1]
    answer = signature(**{name: tf.constant(np.load(images_file))})
    np.save(probabilities_file, answer["probabilities"].numpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
