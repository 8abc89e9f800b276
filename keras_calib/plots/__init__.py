"""Displays: arrays first, then a picture.

`from_predictions`, `from_model` and `from_metric` compute, `plot` draws, and
`to_png` and `to_svg` give files. matplotlib is imported when something is
drawn.
"""

from keras_calib.plots.reliability import ReliabilityDisplay
from keras_calib.plots.selection import RiskCoverageDisplay

__all__ = ["ReliabilityDisplay", "RiskCoverageDisplay"]
