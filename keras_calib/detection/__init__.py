"""Detection: boxes, matched to true ones, and how far to trust them.

- Matching: `match`, which returns `BoxPredictions`.
- Errors: `detection_ece`, `DetectionECE`, `localization_aware_ece`,
  `LocalizationAwareECE`, `adaptive_localization_error`,
  `DetectionCalibrationError`, `DetectionReliabilityDisplay`.
- Repair: `DetectionScaling`.
- Abstention: `DetectionSelector`, `CalibratedDecoder`,
  `choose_detection_threshold`.

Lives here: matching, calibration errors, a metric, scaling of confidences,
thresholds, the selector of a detector, a display. Not here: boxes of images in
training (`data`) and served detectors (`exporting`).
Floor: above `selection` and `plots`; nothing for classes imports it.
"""

from keras_calib.detection.display import DetectionReliabilityDisplay
from keras_calib.detection.errors import (
    DetectionCalibrationError,
    adaptive_localization_error,
    detection_ece,
    localization_aware_ece,
)
from keras_calib.detection.matching import BoxPredictions, match
from keras_calib.detection.metric import DetectionECE, LocalizationAwareECE
from keras_calib.detection.scaling import DetectionScaling
from keras_calib.detection.selector import CalibratedDecoder, DetectionSelector
from keras_calib.detection.thresholds import choose_detection_threshold

__all__ = [
    "BoxPredictions",
    "CalibratedDecoder",
    "DetectionCalibrationError",
    "DetectionECE",
    "DetectionReliabilityDisplay",
    "DetectionScaling",
    "DetectionSelector",
    "LocalizationAwareECE",
    "adaptive_localization_error",
    "choose_detection_threshold",
    "detection_ece",
    "localization_aware_ece",
    "match",
]
