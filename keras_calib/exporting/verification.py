"""Every written file is loaded again and must answer as Keras did."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_calib.backend.errors import invalid
from keras_calib.exporting.formats import Signatures
from keras_calib.exporting.probes import Probe

__all__ = ["check_answers"]


def check_answers(
    signatures: Signatures, probes: Iterable[Probe], threshold: float
) -> None:
    """Raises RuntimeError unless a loaded file answers as Keras did.

    Args:
        signatures: The functions of the file.
        probes: Of signatures that it must have.
        threshold: Score from which a sample is accepted.
    """
    for probe in probes:
        name, wanted = probe.signature, probe.expected
        try:
            given = signatures[name](**probe.inputs)
        except Exception as error:
            raise _wrong(name, error=str(error)[:400]) from error
        if set(given) != set(wanted):
            raise _wrong(name, outputs=sorted(given))
        for output, value in wanted.items():
            kind = value.shape, value.dtype.name
            got = given[output].shape, given[output].dtype.name
            if got != kind:
                raise _wrong(name, output=output, expected=kind, answered=got)
        for output, wrong in _wrong_answers(given, probe, threshold).items():
            if wrong.any():
                facts = {"wrong": int(wrong.sum()), "compared": wrong.size}
                raise _wrong(name, output=output, **facts)


def _wrong_answers(
    given: dict[str, np.ndarray], probe: Probe, threshold: float
) -> dict[str, np.ndarray]:
    """Where each output is wrong."""
    wanted, tolerance = probe.expected, probe.tolerance
    wrong = {
        output: ~_close(given[output], wanted[output], slack)
        for output, slack in tolerance.items()
    }
    # At the threshold, and between classes that tie, either is right.
    apart = ~_close(wanted["score"], threshold, tolerance["score"])
    wrong["accept"] = apart & (given["accept"] != wanted["accept"])
    logits, ids = given["logits"], given["label"][..., None].astype("int64")
    exists = (ids >= 0) & (ids < logits.shape[-1])
    of_label = np.take_along_axis(logits, np.where(exists, ids, 0), axis=-1)
    slack = tolerance["logits"].min(axis=-1, keepdims=True)
    ties = _close(of_label, logits.max(axis=-1, keepdims=True), slack)
    wrong["label"] = ~(exists & ties)
    return wrong


def _wrong(signature: str, **facts: Any) -> RuntimeError:
    return RuntimeError(
        invalid(
            "The written file must answer as the model does; nothing is kept",
            signature=signature,
            **facts,
        )
    )


def _close(a: Any, b: Any, slack: Any) -> np.ndarray:
    """Equal within a slack; NaN is NaN and infinity is infinity."""
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        return same | (np.abs(np.subtract(a, b)) <= slack)
