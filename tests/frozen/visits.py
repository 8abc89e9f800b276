"""Which public names the frozen results visit, and which they need not."""

from frozen.api import USED

_ABSTRACT = "a base, whose subclasses are frozen"
_RESULT = "a result, whose parts are frozen under the call that gives it"
_DISPLAY = "draws what is frozen where it is computed"
_TRAINING = "trains a network: its steps are not those of another version"
_IMAGES = "images and data sets, outside of what is measured or chosen"
_STATE = "files of training, with no number of their own"

NOT_FROZEN = {
    "choice_labels": "places of texts in a list",
    "evaluate": "has the numbers of `report`",
    "Runs": "has the numbers of the exact functions, and draws",
    **dict.fromkeys(
        ("BatchCoupledLoss", "Calibrator", "PerSampleLoss", "StreamingMetric"),
        _ABSTRACT,
    ),
    **dict.fromkeys(
        (
            *("Alarm", "AnswerThreshold", "BinSums", "BrierComponents"),
            *("CalibrationTestResult", "CalibratorChoice", "CandidateScore"),
            *("CertificateCheck", "Choice", "Comparison", "Target"),
            *("CumulativeCurve", "Decomposition"),
            *("DetectionCalibrationError", "BoxPredictions"),
            *("EffectiveTargets", "GroupMetrics", "LabelTable"),
            *("LargestDifference", "LoggedEpoch", "MetricTable"),
            *("CostEstimate", "SampleSizePlan", "PriorEstimate"),
            *("RegularizerCounts",),
            *(
                "ReportPage",
                "RiskCoveragePoints",
                "SizeTable",
                "ThresholdTable",
            ),
        ),
        _RESULT,
    ),
    **dict.fromkeys(
        (
            *("CalibratorChoiceDisplay", "ClasswiseReliabilityDisplay"),
            *("ConfidenceDisplay", "CumulativeDisplay"),
            *("DetectionReliabilityDisplay", "MonitorDisplay", "PlanDisplay"),
            *("ReliabilityDisplay", "RiskCoverageDisplay"),
            "SegmentationDisplay",
        ),
        _DISPLAY,
    ),
    **dict.fromkeys(
        (
            *("AdaptiveFocalModel", "CaPEModel", "CalibrationLogger"),
            *("ConfidencePruningModel", "CorrectnessRankingModel"),
            *("EpochModel", "RecordingModel", "ScheduledFocalModel"),
            "SharpnessAwareModel",
        ),
        _TRAINING,
    ),
    **dict.fromkeys(
        (
            *("ClassMapping", "DatasetSummary", "EpochBatches", "Tally"),
            *("apply_layers", "array_pipeline", "cap_classes", "center_crop"),
            *("class_map", "color_jitter", "context_examples"),
            *("cutmix", "describe", "from_folder"),
            *("from_tfds", "from_tfrecords", "label_by_largest"),
            *("map_classes", "mixup", "object_examples"),
            *("random_resized_crop", "ricap"),
            *("training_pipeline", "valid_examples", "validation_pipeline"),
            "with_index",
        ),
        _IMAGES,
    ),
    **dict.fromkeys(
        (
            *("ResumableBackup", "finished_epochs"),
            *("load_training_state", "save_training_state"),
        ),
        _STATE,
    ),
    **dict.fromkeys(
        ("DeepEnsemble", "MonteCarloDropout"),
        "answers of networks, of random layers among them",
    ),
    "CalibratedDecoder": "needs KerasHub; its layer is frozen",
    "FileModel": "runs converters of models, which round otherwise",
    "accuracy": "a test says that it is the metric, which is frozen",
    "get": "makes what is frozen",
    "model_card": "words around the facts of a certificate",
}


def visited() -> set[str]:
    """Public names that were used for frozen numbers."""
    return set(USED)
