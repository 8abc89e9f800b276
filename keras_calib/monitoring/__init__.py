"""Monitoring of calibration while a model trains, epoch by epoch.

Lives here: the callback and the files that it writes. Not here: the pass over
the data (`predictions`).
Floor: above `plots`, below `reporting`.
"""

from keras_calib.monitoring.evaluation import LoggedEpoch
from keras_calib.monitoring.logger import CalibrationLogger

__all__ = ["CalibrationLogger", "LoggedEpoch"]
