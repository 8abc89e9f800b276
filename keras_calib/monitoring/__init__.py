"""Monitoring of a model that trains, epoch by epoch, and of one in use.

- Training: `CalibrationLogger`, `LoggedEpoch`.
- Use: `Monitor`, `Alarm`.

Lives here: the callback and its files; the monitor of a model in use. Not
here: the pass over the data (`predictions`), the evidence (`formulas`).
Floor: above `plots`, below `reporting`.
"""

from typing import TYPE_CHECKING

from keras_calib.backend.late import late_names

if TYPE_CHECKING:
    from keras_calib.monitoring.evaluation import LoggedEpoch
    from keras_calib.monitoring.logger import CalibrationLogger
    from keras_calib.monitoring.monitor import Alarm, Monitor

__all__ = ["Alarm", "CalibrationLogger", "LoggedEpoch", "Monitor"]

__getattr__ = late_names(
    __name__,
    {
        "evaluation": "LoggedEpoch",
        "logger": "CalibrationLogger",
        "monitor": "Alarm Monitor",
    },
)
