"""Public names that take no predictions, with the reason."""

_ABSTRACT = "a base: its subclasses are called"
_BOXES = "takes boxes or masks of images"
_DATA = "takes images or data sets"
_FILES = "takes files"
_MAPS = "takes logits of images alone: tests/calibrators/test_local.py"
_MODEL = "takes a model, whose outputs come by way of what is called here"
_LABELS = "takes several labels at once: tests/*/test_multi_label*.py"
_NEIGHBORS = "takes images alone: tests/losses/test_spatial.py"
_RESULT = "holds results"
NO_PREDICTIONS = {
    "CompactLogits": "holds logits: tests/calibrators/test_compact_logits.py",
    "LocalTemperatureScaling": _MAPS,
    "MultiLabelCalibrator": _LABELS,
    "MultiLabelSelector": _LABELS,
    **dict.fromkeys(("NACL", "SVLS", "nacl", "svls"), _NEIGHBORS),
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
            *("ClassMap", "EpochBatches", "Tally", "apply_layers"),
            *(
                "array_pipeline",
                "cap_classes",
                "center_crop",
                "class_map",
                "color_jitter",
            ),
            *("context_examples", "cutmix", "describe", "label_by_largest"),
            *("map_classes", "mixup", "object_examples", "pixel_mean"),
            *("random_resized_crop", "ricap", "shuffled_epochs"),
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
            *("ClassActivationDisplay", "ConfidencePruningModel"),
            *("CorrectnessRankingModel", "DeepEnsemble", "EpochModel"),
            *("MonteCarloDropout", "RecordingModel", "ScheduledFocalModel"),
            *("SharpnessAwareModel", "choose_calibrator_on"),
            *("class_activation_maps", "export", "fit_workers", "report"),
        ),
        _MODEL,
    ),
    **dict.fromkeys(
        (
            *("BinSums", "BrierDecomposition", "CalibrationTest"),
            *("CalibratorChoice", "CandidateScore", "ChosenThreshold"),
            *("Comparison", "CumulativeDifferences", "DatasetSummary"),
            *("Decomposition", "EffectiveLabels", "LoggedEpoch", "MeanCost"),
            *("PriorEstimate", "RegularizerHistogram", "Report"),
            *("RiskCoverageCurve", "ThresholdTable", "Alarm", "GroupMetrics"),
            *("CertificateCheck", "ControlledRisks", "GroupThresholds"),
            *("AnswerThreshold", "LabelThresholds"),
            *("LabelTable", "LargestDifference", "Plan", "Recalibration"),
            *("DetectionCalibrationError", "DetectionRecords"),
            "DetectionThreshold",
            *("MixtureThreshold", "PriorThreshold", "SizeTable"),
        ),
        _RESULT,
    ),
    **dict.fromkeys(
        (
            *("EffectiveLabelsDisplay", "LossCurveDisplay"),
            "SmoothingProfileDisplay",
        ),
        "draws losses of points of its own",
    ),
    **dict.fromkeys(
        (
            *("CalibratorChoiceDisplay", "DetectionReliabilityDisplay"),
            *("MonitorDisplay", "PlanDisplay"),
        ),
        "draws a result",
    ),
    **dict.fromkeys(
        (
            *("adaptive_localization_error", "detection_ece"),
            *("localization_aware_ece", "match_detections"),
            *("DetectionECE", "LocalizationAwareECE"),
        ),
        "takes boxes: tests/functional/test_detection.py",
    ),
    **dict.fromkeys(
        ("MultiLabel", "MultiLabelLoss", "MultiLabelMetric"),
        "takes several labels: tests/metrics/test_multi_label.py",
    ),
    "Monitor": "takes answers: tests/monitoring/test_monitor.py",
    "add_windows": "takes sums: tests/monitoring/test_windows.py",
    "by_group": "takes groups: tests/functional/test_groups.py",
    "by_group_from_top1": "takes records: tests/functional/test_groups.py",
    "check_certificate": "takes files: tests/exporting/test_certificates.py",
    "DetectionScaling": "takes boxes: tests/calibrators/test_detection.py",
    "choose_detection_threshold": (
        "takes boxes: tests/selection/test_detection_thresholds.py"
    ),
    "choose_group_thresholds": (
        "takes records: tests/selection/test_group_thresholds.py"
    ),
    **dict.fromkeys(
        ("choose_threshold_for_mixtures", "choose_threshold_for_prior"),
        "takes records: tests/selection/test_shift.py",
    ),
    "choose_threshold_by_cost": "takes records: tests/selection/test_costs.py",
    "combined_groups": "takes groups",
    "control_risks": "takes records: tests/selection/test_risks.py",
    "model_card": "takes files: tests/reporting/test_model_card.py",
    "plan": "takes a pilot: tests/selection/test_planning.py",
    "recalibrate_file": "takes files: tests/exporting/test_recalibration.py",
    "save_records": "takes a selector: tests/exporting/test_certificates.py",
    "window_sums": "takes a monitor: tests/monitoring/test_windows.py",
    **dict.fromkeys(
        ("choice_logits", "sequence_confidence", "token_log_probs"),
        "takes tokens: tests/formulas/test_sequences.py",
    ),
    "clopper_pearson": "takes counts",
    "mean_cost_of_records": "takes records: tests/functional/test_costs.py",
}
