"""Several labels: models with a yes or no for each of several labels.

- Parts for several labels: `MultiLabel`, `MultiLabelLoss`, `MultiLabelMetric`,
  `MultiLabelCalibrator`, `MultiLabelSelector`.

Lives here: `MultiLabel`, and the loss, metric, calibrator and selector that it
makes, file by file as for classes. Not here: classes of which one is true, and
pages (`reporting`).
Floor: above `selection`; nothing for classes imports it.
"""

from keras_calib.labels.calibrator import MultiLabelCalibrator
from keras_calib.labels.loss import MultiLabelLoss
from keras_calib.labels.metric import MultiLabelMetric
from keras_calib.labels.selector import MultiLabel, MultiLabelSelector

__all__ = [
    "MultiLabel",
    "MultiLabelCalibrator",
    "MultiLabelLoss",
    "MultiLabelMetric",
    "MultiLabelSelector",
]
