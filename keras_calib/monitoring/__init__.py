"""What becomes of calibration while a model trains, epoch by epoch."""

from keras_calib.monitoring.logger import CalibrationLogger
from keras_calib.monitoring.measuring import LoggedEpoch

__all__ = ["CalibrationLogger", "LoggedEpoch"]
