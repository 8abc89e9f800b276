"""Export: a complete and verified file or folder, or nothing."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, Unpack

import keras

from keras_calib.backend.errors import invalid, value_error
from keras_calib.backend.files import path_of
from keras_calib.backend.late import tensorflow as tf
from keras_calib.backend.progress import shows_progress, tracked
from keras_calib.calibrators import Calibrator
from keras_calib.detection.scaling import DetectionScaling
from keras_calib.detection.selector import DetectionSelector
from keras_calib.ensembles.base import check_classifier, input_structure
from keras_calib.exporting.certificates import certificate_of, check_certifiable
from keras_calib.exporting.formats import (
    check_replaced,
    exact_float32,
    file_format,
    format_of,
    written_whole,
)
from keras_calib.exporting.hub_detectors import export_detector, is_detector
from keras_calib.exporting.hub_tasks import image_reader, whole_model
from keras_calib.exporting.served_model import ServedModel, selector_to_serve
from keras_calib.exporting.statement import statement_path, write_statement
from keras_calib.exporting.verification import check_answers, probes
from keras_calib.inputs.checks import check_flag
from keras_calib.inputs.options import filled
from keras_calib.labels.calibrator import MultiLabelCalibrator
from keras_calib.labels.selector import MultiLabelSelector
from keras_calib.predictions.outputs import (
    ChosenOutput,
    choose_output,
    from_logits_of,
    reads_logits,
)
from keras_calib.selection import SelectiveClassifier


class ServingOptions(TypedDict, total=False):
    """How `export` reads a model, and compares what was written.

    Attributes:
        from_logits: Whether the model returns logits.
        output: Name or position of the output to serve, of several.
        image_preprocessing: Function or layer of decoded images.
        image_size: Height and width of decoded images.
        sample_inputs: Inputs for the comparison of answers.
    """

    from_logits: bool | None
    output: str | int | None
    image_preprocessing: Callable[[Any], Any] | None
    image_size: tuple[int, int] | None
    sample_inputs: Any


@shows_progress
def export(
    model: keras.Model,
    path: str | os.PathLike,
    calibrator: (
        Calibrator | MultiLabelCalibrator | DetectionScaling | None
    ) = None,
    selector: (
        SelectiveClassifier | MultiLabelSelector | DetectionSelector | None
    ) = None,
    *,
    format: str | None = None,
    overwrite: bool = False,
    certificate: bool = False,
    verbose: str | int = "auto",
    **options: Unpack[ServingOptions],
) -> Path:
    """Writes a model for serving, with calibrated answers and abstention.

    Use it to serve a model with its calibrator and selector. The file needs
    neither Keras nor this package. It answers a batch of any size with named
    outputs: `logits` (calibrated) and `probabilities`
    `(batch, ..., num_classes)`; `confidence`, the probability of the
    predicted class, `score`, `accept` (bool) and `label` (int32)
    `(batch, ...)`. Without a selector it accepts every sample. With
    `VennAbers` there are also `probability_low` and `probability_high`, the
    interval of the predicted class `(batch, ...)`; with costs, `label` is the
    cheapest answer, and `expected_cost` its cost `(batch, ...)`.

    A selector with thresholds by group takes one more input, `group`
    `(batch,)`, int32: the ids of the fit, or places of names in
    `selector.groups`. It rejects unknown groups.

    With a `MultiLabelCalibrator` or `MultiLabelSelector` the outputs are of
    several labels `(batch, ..., labels)`. `labels` (int32, 0 or 1) takes the
    place of `label`, and `score` and `accept` are by label or by example.

    A SavedModel has up to three signatures:

    - `serving_default` takes the model's inputs by name: `inputs` for one
      without a name, `input_class` for a name that a format does not take.
    - `serving_logits` takes `logits` that a client computed: outputs of the
      network, or the logits of its probabilities.
    - `serving_bytes` takes `image_bytes`, JPEG or PNG files `(batch,)`, if
      `image_preprocessing` is given.

    A task of KerasHub brings its preprocessing into a SavedModel:
    `serving_default` takes `text`, strings `(batch,)`, or `images` of any
    size, and `serving_bytes` files that the task's converter resizes. Import
    `tensorflow_text` before you load a task of texts.

    An object detector of KerasHub answers `boxes` `(batch, boxes, 4)`,
    `confidence`, `labels` and `accept` `(batch, boxes)` and `num_detections`
    `(batch,)`, as its `predict` does: calibrated and selected by its
    `CalibratedDecoder`, or by a `DetectionSelector`. Boxes are in pixels of
    the resized image. Only a SavedModel holds it.

    Images are decoded, and resized to `image_size`, a height and a width, or
    to those of the model's input. `image_preprocessing` is a function or layer
    of such images `(batch, height, width, channels)`, float32 in [0, 255]. It
    returns the model's input: `keras.layers.Rescaling(1 / 255)`, or
    `keras.layers.Identity()` for a model that scales by itself.

    After `tf.saved_model.load` you can read and replace variables, in the
    lists `calibration`, `threshold` and `score`. A threshold is for the scores
    of one calibrator. ONNX and LiteRT have `serving_default` only, and
    constants instead of variables.

    `export` loads the file again and compares its answers with those of the
    Keras model. It deletes a file that answers differently. `sample_inputs`
    are inputs for that, as the model takes them or by name; None takes random
    numbers, of which integers are 0 or 1, and uint8 of any value. For a
    KerasHub task of pairs of texts it is a tuple of two lists of strings.

    Args:
        model: A functional or sequential model that returns
            `(batch, ..., num_classes)`, or `(batch, ..., 1)` for the second
            of two classes, which is served as two.
        path: Local folder (SavedModel) or file to create. It must not exist
            unless `overwrite` is True. A file ends in `.onnx` or `.tflite`, a
            folder in neither.
        calibrator: A fitted calibrator, or None for that of `selector`.
        selector: A fitted selective classifier, or None to accept all. A
            `DetectionSelector` for a detector.
        format: "savedmodel", "onnx" or "litert"; None takes it from the
            ending of the path.
        overwrite: Whether to replace an earlier export at `path`, once the
            new one is written and verified. Anything else there is refused.
        certificate: Whether to write a certificate of the guarantee, which
            `check_certificate` computes again: `assets.extra/certificate.json`
            in a SavedModel, `model.onnx.certificate.json` beside `model.onnx`.
            It needs a selector that was fitted with `delta`, and may have
            thresholds by group. With costs and no `delta` it tells the facts
            of Chow's rule.
        verbose: `"auto"` or 1 for a progress bar after two seconds, 2 for a
            line at the end, 0 for silence.
        **options: How the model is read. `from_logits` says whether it returns
            logits; None takes it from the loss that it was compiled with.
            `output` is the name or position of the output to serve, for a
            model that has several. The others are described above.

    Returns:
        The path.

    Raises:
        ValueError: If the path exists and `overwrite` is False, or what is
            there is no export of this format. If the path has the ending of
            another format. If the model has no fixed inputs, or probabilities
            that do not sum to 1, or `from_logits` is unknown. If the
            calibrator is not that of `selector` or is in the model already, or
            the model does not take the images or samples. If the file cannot
            hold the preprocessing of a KerasHub task.
        TypeError: If an argument is of the wrong kind or unknown, or the model
            has several outputs and `output` is None.
        ImportError: If the packages of the format are not installed.
        RuntimeError: If the calibrator or selector is not fitted, or the
            backend is not TensorFlow or has several replicas. If the model
            cannot be converted, or the file answers differently.

    Reference:
        https://www.tensorflow.org/guide/saved_model, https://onnx.ai,
        https://ai.google.dev/edge/litert
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            invalid(
                "`export` needs the TensorFlow backend: set "
                "KERAS_BACKEND=tensorflow",
                backend=keras.backend.backend(),
            )
        )
    if tf.distribute.get_strategy().num_replicas_in_sync > 1:
        raise RuntimeError(
            invalid(
                "`export` must be called outside of `strategy.scope()`",
                strategy=type(tf.distribute.get_strategy()).__name__,
            )
        )
    check_flag("overwrite", overwrite)
    check_flag("certificate", certificate)
    given = filled("export", options, ServingOptions)
    path = path_of(path)
    made = file_format(format_of(path, format))
    if os.path.lexists(path):
        check_replaced(path, made.name, overwrite)
    if is_detector(model):
        refused = {
            "from_logits": given.from_logits,
            "output": given.output,
            "image_preprocessing": given.image_preprocessing,
            "certificate": certificate or None,
        }
        for name, value in refused.items():
            if value is not None:
                raise value_error(
                    f"`{name}` must be left out for an object detector",
                    **{name: value},
                )
        return export_detector(
            model,
            path,
            made,
            calibrator=calibrator,
            selector=selector,
            image_size=given.image_size,
            sample_inputs=given.sample_inputs,
            overwrite=overwrite,
        )
    if certificate:
        check_certifiable(selector)
    selector = selector_to_serve(calibrator, selector)
    _check_calibrated_once(model, selector.calibrator)
    chosen = choose_output(model, given.output)
    one = _of_output(model, chosen)
    several = isinstance(selector, MultiLabelSelector)
    told = from_logits_of(model, given.from_logits, given.output, selector)
    logits = reads_logits(model, told, chosen, several)
    preprocessing = given.image_preprocessing
    network, samples, converter = whole_model(
        one, given.sample_inputs, made.name, preprocessing is not None
    )
    served = ServedModel(network, selector, logits)
    images = image_reader(
        served, one, converter, preprocessing, given.image_size, made.name
    )
    with exact_float32():
        found = probes(
            served, samples, images, client_logits=made.name == "savedmodel"
        )
        # The first probe comes before the write, so that errors cost little.
        found = tracked(itertools.chain([next(found)], found))

        def write(to: Path) -> None:
            made.write(served, to, images)

        costs = getattr(selector, "costs", None)
        files = written_whole(path, made, overwrite, write)
        with files as (runners, written):
            check_answers(runners, found, selector.threshold, costs)
            if certificate:
                variables = network.variables
                told = certificate_of(selector, variables, written, made.name)
                write_statement(statement_path(written), told)
    return path


def _of_output(model: keras.Model, chosen: ChosenOutput | None) -> keras.Model:
    """The model, or that of one of several outputs."""
    if chosen is None or len(getattr(model, "outputs", None) or ()) < 2:
        check_classifier(model, "model")
        return model
    output = chosen.of(model.output, "outputs")
    return keras.Model(input_structure(model), output, name=model.name)


def _check_calibrated_once(model: keras.Model, calibrator: Any) -> None:
    if calibrator is None:
        return
    last = model
    while isinstance(last, keras.Model) and last.layers:
        last = last.layers[-1]
    known = {id(variable) for variable in model.variables}
    applied = any(id(variable) in known for variable in calibrator.variables)
    if applied or isinstance(last, Calibrator | MultiLabelCalibrator):
        raise value_error(
            "`model` must be the network alone, without the calibrator; "
            "or leave `calibrator` out",
            calibrator=type(calibrator).__name__,
            last_layer=type(last).__name__,
        )
