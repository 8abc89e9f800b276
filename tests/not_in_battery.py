"""Public names that take no predictions, with the reason.

Those of `shaped` take arrays of shapes of their own.
"""

from shaped import SHAPED

_ABSTRACT = "a base: its subclasses are called"
_BOXES = "takes boxes or masks of images"
_DATA = "takes images or data sets"
_FILES = "takes files"
_MAPS = "takes logits of images alone: tests/calibrators/test_local.py"
_MODEL = "takes a model, whose outputs come by way of what is called here"
_RESULT = "holds results"
_SHAPE = "takes arrays of its own shape: tests/laws/test_shaped_battery.py"
# Without groups it takes predictions.
_OF_SHAPE = {name.partition(",")[0] for name in SHAPED} - {"choose_threshold"}
NO_PREDICTIONS = {
    **dict.fromkeys(_OF_SHAPE, _SHAPE),
    "LocalTemperatureScaling": _MAPS,
    "get": "makes a metric, which is given predictions",
    **dict.fromkeys(
        ("BatchCoupledLoss", "Calibrator", "PerSampleLoss", "StreamingMetric"),
        _ABSTRACT,
    ),
    **dict.fromkeys(
        (
            *("boxes_to_mask", "clip_boxes", "crop_boxes", "flip_boxes"),
            *("mask_area", "objectness", "objectness_from_mask"),
            *("resize_boxes", "union_area"),
        ),
        _BOXES,
    ),
    **dict.fromkeys(
        (
            *("ClassMapping", "EpochBatches", "Tally", "apply_layers"),
            *(
                "array_pipeline",
                "cap_classes",
                "center_crop",
                "class_map",
                "color_jitter",
            ),
            *("context_examples", "cutmix", "describe", "label_by_largest"),
            *("map_classes", "mixup", "object_examples"),
            *("random_resized_crop", "ricap"),
            *("training_pipeline", "valid_examples", "validation_pipeline"),
            "with_index",
        ),
        _DATA,
    ),
    **dict.fromkeys(
        (
            *("ResumableBackup", "finished_epochs", "from_folder"),
            *("from_tfds", "from_tfrecords", "load_threshold"),
            "load_training_state",
            "save_training_state",
        ),
        _FILES,
    ),
    **dict.fromkeys(
        (
            *("AdaptiveFocalModel", "CaPEModel", "CalibrationLogger"),
            *("ConfidencePruningModel", "CorrectnessRankingModel"),
            *("DeepEnsemble", "EpochModel"),
            *("MonteCarloDropout", "RecordingModel", "ScheduledFocalModel"),
            *("SharpnessAwareModel", "export"),
        ),
        _MODEL,
    ),
    **dict.fromkeys(
        (
            *("BinSums", "BrierComponents", "CalibrationTestResult"),
            *("CalibratorChoice", "CandidateScore", "Choice", "Target"),
            *("Comparison", "CumulativeCurve", "DatasetSummary"),
            *(
                "Decomposition",
                "EffectiveTargets",
                "LoggedEpoch",
                "CostEstimate",
            ),
            *("PriorEstimate", "RegularizerCounts", "ReportPage"),
            *("MetricTable",),
            *("RiskCoveragePoints", "ThresholdTable", "Alarm", "GroupMetrics"),
            *("CertificateCheck", "AnswerThreshold"),
            *("LabelTable", "LargestDifference", "SampleSizePlan"),
            *("DetectionCalibrationError", "BoxPredictions"),
            *("SizeTable",),
        ),
        _RESULT,
    ),
    **dict.fromkeys(
        (
            *("CalibratorChoiceDisplay", "DetectionReliabilityDisplay"),
            *("MonitorDisplay", "PlanDisplay"),
        ),
        "draws a result",
    ),
    "Monitor": "takes answers: tests/monitoring/test_monitor.py",
    "check_certificate": "takes files: tests/exporting/test_certificates.py",
    **dict.fromkeys(
        ("CalibratedDecoder", "DetectionSelector"),
        "takes boxes: tests/detection/test_selector.py",
    ),
    "model_card": "takes files: tests/reporting/test_model_card.py",
    "plan": "takes a pilot: tests/selection/test_planning.py",
    "FileModel": "takes files: tests/exporting/test_file_model.py",
    "save_records": "takes a selector: tests/exporting/test_certificates.py",
    "choice_labels": "takes letters: tests/text/test_choices.py",
}
