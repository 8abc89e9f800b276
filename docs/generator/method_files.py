"""What is written about each method, in `methods/*.toml`."""

import tomllib

import keras
from locations import DOCS
from public_things import public_things

import keras_calib

KINDS = {
    "losses": "Losses",
    "training": "Models that train or answer in their own way",
    "calibrators": "Calibrators and scores, fitted after training",
}
# Bases of other classes, and wrappers, not methods.
_BASES = {
    "BatchCoupledLoss",
    "Calibrator",
    "EpochModel",
    "MultiLabelLoss",
    "PerSampleLoss",
    "RecordingModel",
}


def methods():
    """Name of each kind to what its file says of each method."""
    folder = DOCS / "generator" / "methods"
    return {
        kind: tomllib.loads(
            (folder / f"{kind}.toml").read_text(encoding="utf-8")
        )["method"]
        for kind in KINDS
    }


def code_of(method, kind):
    """The lines that a page shows."""
    if "code" in method:
        return method["code"].strip()
    call = next(iter(method["curves"].values()))
    if kind == "losses":
        return f'model.compile("sgd", loss={call})'
    return f"calibrator = {call}.fit(labels, logits)"


def exported_methods():
    """Names that a page must be about."""
    kinds = (keras.losses.Loss, keras.Model, keras_calib.calibrators.Calibrator)
    return {
        name
        for name, (_, cls) in public_things().items()
        if isinstance(cls, type) and issubclass(cls, kinds)
    } - _BASES
