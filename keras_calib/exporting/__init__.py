"""Export for serving: an artefact that answers calibrated, or abstains.

Lives here: SavedModel, ONNX and LiteRT files and their verification. Not here:
servers (`examples/serving`).
Floor: above `selection`, beside `plots`.
"""

from keras_calib.exporting.writer import export

__all__ = ["export"]
