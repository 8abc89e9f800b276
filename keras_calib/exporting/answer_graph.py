"""The graph from logits to answers, with a temperature and a threshold."""

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.calibrators import TemperatureScaling
from keras_calib.exporting.served_model import OUTPUT_NAMES, ServedModel
from keras_calib.selection import SelectiveClassifier

__all__ = [
    "PREFIX",
    "answer_graph",
    "check_kept",
    "check_marks",
    "names_of_constants",
    "read_constant",
]

# Before the names of tensors that a recalibration adds to a file.
PREFIX = "recalibration/"
# Converters fold, share and rename constants. These values occur nowhere else.
_TEMPERATURE, _THRESHOLD = 1.7320499, 0.61803377
_VALUES = {
    "temperature": _TEMPERATURE,
    "inverse_temperature": 1.0 / _TEMPERATURE,
    "threshold": _THRESHOLD,
}
_ROUNDING = 1e-6
_OTHERS = OUTPUT_NAMES[6:]
# Operators that converters and quantisers add and drop: they shape, copy or
# round values. The others tell one score from another.
_NEUTRAL = {
    *("QUANTIZE", "DEQUANTIZE", "CAST", "SHAPE", "BROADCAST_TO", "RESHAPE"),
    *("EXPAND_DIMS", "SQUEEZE", "FILL", "ZEROS_LIKE", "PACK", "CONCATENATION"),
    *("STRIDED_SLICE", "Cast", "Shape", "Expand", "Reshape", "Unsqueeze"),
    *("Squeeze", "ConstantOfShape", "Concat", "Slice", "Gather", "Identity"),
    *("Constant", "QuantizeLinear", "DequantizeLinear"),
}


def answer_graph(
    logits_shape: tuple,
    score: Any,
    write: Callable[[ServedModel, Path], None],
) -> bytes:
    """A file that answers for logits `(batch, ..., num_classes)`.

    Its temperature and threshold are values for `names_of_constants`.
    """
    scaling = TemperatureScaling(temperature=_TEMPERATURE)
    selector = SelectiveClassifier(
        calibrator=scaling, score=score, threshold=_THRESHOLD
    )
    given = keras.Input(logits_shape[1:], name="inputs")
    network = keras.Model(given, keras.layers.Identity()(given))
    served = ServedModel(network, selector, from_logits=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answers"
        write(served, path)
        return path.read_bytes()


def check_kept(graph: Any, msp: Any) -> None:
    """Raises ValueError if new answers by "msp" would be others than the old.

    Both graphs are of one format. Without `msp` any score may be replaced.
    """
    extra = graph.inputs_of("accept") - graph.inputs_of("logits")
    if extra:
        raise value_error(
            "`path` must have no thresholds by group, which new answers would "
            "not keep: export the model without `groups`",
            inputs=sorted(extra),
        )
    if msp is None:
        return
    if _arithmetic(graph) != _arithmetic(msp):
        raise value_error(
            '`score` must be given for a file whose score is not the "msp" of '
            'an export: name the score of its selector, as in `score="msp"`',
            score=None,
        )


def _arithmetic(graph: Any) -> Counter:
    """Number of operators of each kind from the logits to the score."""
    return Counter(x for x in graph.score_operators() if x not in _NEUTRAL)


def names_of_constants(values: dict[Any, float]) -> dict[str, Any]:
    """Temperature, or its inverse, and threshold among constants, by name."""
    found = {
        name: [
            key
            for key, value in values.items()
            if abs(value - wanted) <= _ROUNDING * wanted
        ]
        for name, wanted in _VALUES.items()
    }
    names = {name: keys[0] for name, keys in found.items() if len(keys) == 1}
    if "threshold" not in names or len(names) != 2:
        raise RuntimeError(
            "The converter must keep temperature and threshold as one "
            "constant each, and nothing was kept: choose another `score`. "
            f"Received: found={ {k: len(v) for k, v in found.items()} }"
        )
    return names


def read_constant(data: bytes) -> float:
    """The one float32 of a constant."""
    return float(np.frombuffer(data, np.float32)[0])


def check_marks(names: Any) -> None:
    """Raises ValueError unless outputs are those of an export."""
    missing = set(OUTPUT_NAMES[:6]) - set(names)
    if missing:
        raise value_error(
            "`path` must be a file that `export` wrote, or one quantised from "
            "it, with the outputs that `export` names",
            missing=sorted(missing),
            outputs=sorted(names),
        )
    if set(_OTHERS) & set(names):
        raise value_error(
            "`path` must have no intervals of `VennAbers` and no costs, which "
            "new answers would not keep: export the model with "
            "`TemperatureScaling` and without costs",
            outputs=sorted(names),
        )
