"""The losses that the quickstart compares, with the papers' settings."""

import keras

import keras_calib

_OPTIONS = {"from_logits": True}


def seven_losses():
    """One of each idea: what `make demo` trains."""
    return {
        "cross entropy": keras.losses.SparseCategoricalCrossentropy(**_OPTIONS),
        "label smoothing": keras_calib.LabelSmoothing(alpha=0.05, **_OPTIONS),
        "MbLS": keras_calib.MbLS(margin=6.0, **_OPTIONS),
        "ACLS": keras_calib.ACLS(margin=6.0, **_OPTIONS),
        "focal": keras_calib.FocalLoss(gamma=3.0, **_OPTIONS),
        "label relaxation": keras_calib.LabelRelaxation(alpha=0.1, **_OPTIONS),
        "confidence penalty": keras_calib.ConfidencePenalty(0.1, **_OPTIONS),
    }


def all_losses():
    """Every loss that needs labels and logits alone."""
    focal = keras_calib.FocalLoss(gamma=1.0, **_OPTIONS)
    return {
        **seven_losses(),
        "ACLS as released": keras_calib.ACLS(
            margin=6.0, reference="zero", **_OPTIONS
        ),
        "FLSD": keras_calib.FLSD(**_OPTIONS),
        "inverse focal": keras_calib.InverseFocalLoss(gamma=2.0, **_OPTIONS),
        "L1 to uniform": keras_calib.UniformityPenalty(0.1, **_OPTIONS),
        "Brier": keras_calib.BrierLoss(**_OPTIONS),
        "CPC": keras_calib.CPC(**_OPTIONS),
        "MMCE": keras_calib.MMCE(1.0, **_OPTIONS),
        "MMCE weighted": keras_calib.MMCE(
            2.0, variant="weighted_released", **_OPTIONS
        ),
        "MDCA + focal": keras_calib.MDCA(1.0, fidelity=focal, **_OPTIONS),
        "DCA": keras_calib.DCA(1.0, **_OPTIONS),
    }
