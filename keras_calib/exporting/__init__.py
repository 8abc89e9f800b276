"""Export for serving: files that answer calibrated, or abstain.

Lives here: SavedModel, ONNX and LiteRT files and their verification. Not here:
servers (`examples/serving`).
Floor: above `selection`, beside `plots`.
"""

from keras_calib.exporting.recalibration import Recalibration
from keras_calib.exporting.recalibration import recalibrate_file
from keras_calib.exporting.writer import export

__all__ = ["Recalibration", "export", "recalibrate_file"]
