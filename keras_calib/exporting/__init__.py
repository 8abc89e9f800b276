"""Export for serving: an artefact that answers calibrated, or abstains."""

from keras_calib.exporting.artefact import export

__all__ = ["export"]
