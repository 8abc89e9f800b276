"""Metrics that stream: one pass, fixed memory, exact sums, mergeable."""

from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.calibration import AECE
from keras_calib.metrics.calibration import ECE
from keras_calib.metrics.proper import NLL
from keras_calib.metrics.proper import nll
from keras_calib.metrics.selective import AURC

__all__ = ["AECE", "AURC", "ECE", "NLL", "StreamingMetric", "nll"]
