"""Export for serving: a SavedModel that answers calibrated."""

import os
import shutil
import tempfile
from pathlib import Path

import keras
from keras import ops

from keras_calib.calibrators.base import Calibrator
from keras_calib.checks import invalid
from keras_calib.inputs import read_predictions
from keras_calib.model_outputs import reads_logits
from keras_calib.numerics import to_logits

__all__ = ["export"]


def export(
    model: keras.Model,
    path: str | os.PathLike,
    calibrator: Calibrator | None = None,
    *,
    from_logits: bool | None = None,
) -> Path:
    """Writes a SavedModel with the calibrator inside.

    It serves without Keras and without this package. Its signature
    `serving_default` takes the model's inputs and returns a dict of float32
    tensors: `logits` (calibrated) and `probabilities`
    `(batch, ..., num_classes)`, and `confidence` `(batch, ...)`, the
    probability of the predicted class.

    Args:
        model: A functional or sequential model with one output
            `(batch, ..., num_classes)`, or `(batch, ..., 1)` for the second
            of two classes, which is served as two.
        path: Folder to make; it must not exist.
        calibrator: A fitted calibrator, or None for the model as it is.
        from_logits: Whether the model returns logits. None takes it from the
            loss that the model was compiled with.

    Returns:
        The path of the folder.

    Raises:
        ValueError: If the folder exists, the model has no fixed inputs or
            several outputs, or `from_logits` can not be known.
        TypeError: If `calibrator` is not a calibrator.
        RuntimeError: If the calibrator is not fitted, or the backend is not
            TensorFlow.

    Reference:
        https://www.tensorflow.org/guide/saved_model
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            invalid(
                "`export` needs the TensorFlow backend: set "
                "KERAS_BACKEND=tensorflow",
                backend=keras.backend.backend(),
            )
        )
    path = Path(path)
    if path.exists() or path.is_symlink():
        raise ValueError(invalid("`path` must not exist", path=str(path)))
    if calibrator is not None:
        if not isinstance(calibrator, Calibrator):
            raise TypeError(
                invalid(
                    "`calibrator` must be a Calibrator",
                    calibrator=type(calibrator).__name__,
                )
            )
        calibrator.check_fitted()
    served = _served_model(model, calibrator, reads_logits(model, from_logits))
    # Into a folder beside it, then renamed: a crash leaves no half model.
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".export-", dir=path.parent))
    try:
        served.export(scratch / "model", format="tf_saved_model", verbose=False)
        os.rename(scratch / "model", path)
    finally:
        shutil.rmtree(scratch)
    return path


def _served_model(
    model: keras.Model, calibrator: Calibrator | None, from_logits: bool
) -> keras.Model:
    if not getattr(model, "inputs", None):
        raise ValueError(
            invalid(
                "`model` must have fixed inputs: a functional or sequential "
                "model that is built",
                model=type(model).__name__,
            )
        )
    if len(model.outputs) != 1:
        raise ValueError(
            invalid("`model` must have one output", outputs=len(model.outputs))
        )
    # A sequential model that was never called has inputs but no `input`.
    sequential = isinstance(model, keras.Sequential)
    inputs = model.inputs[0] if sequential else model.input
    logits = ops.cast(model(inputs), "float32")
    logits = read_predictions(logits, from_logits=from_logits)
    if not from_logits:
        logits = to_logits(logits)
    if calibrator is not None:
        logits = calibrator(logits)
    probabilities = ops.softmax(logits, axis=-1)
    outputs = {
        "logits": logits,
        "probabilities": probabilities,
        "confidence": ops.max(probabilities, axis=-1),
    }
    return keras.Model(inputs, outputs)
