"""What pages say that their code gives, as checks that run after it."""

# Pages that are run with all their epochs.
TO_THE_END = {"README.md", "docs/language_models.md", "docs/start.md"}

PROMISED = {
    # So short a training leaves the network too unsure.
    "README.md": """
assert temperature.temperature < 1.0
assert selector.chosen.limit == 0.05
""",
    "docs/start.md": """
assert 0.075 < keras_calib.ece(tested) < 0.105
assert 0.035 < keras_calib.aurc(tested) < 0.045
assert isinstance(calibrator, keras_calib.StructuredMatrixScaling)
assert 0.02 < keras_calib.ece(calibrator.calibrate(tested)) < 0.04
assert 0.65 < selector.chosen.coverage < 0.8
answer = report.results["model"]["verdict"]["answer"]
assert answer.startswith(
    "Yes, after calibration, as far as these data show"
)
""",
    "docs/abstaining.md": """
assert temperature.temperature > 1.0
""",
    "docs/after_training.md": """
assert temperature.temperature > 1.0
""",
    # Parts have the state of one pass, bit for bit.
    "docs/scale.md": """
one = keras_calib.CalibrationMetrics(["ece", "aurc"])
one.update_scores(confidence, correct)
sums = [each.state_dict()["sums"] for each in (one, whole)]
np.testing.assert_array_equal(*sums)
""",
    "docs/segmentation.md": """
assert temperatures.shape == (8, 24, 24)
before, after = (np.argmax(m(images), -1) for m in (segmenter, calibrated))
np.testing.assert_array_equal(before, after)
""",
    "docs/operating.md": """
assert (first, second) == (0, 3)
assert monitor.alarms
assert keras_calib.exporting.check_certificate("int8.tflite").holds
assert abs(served.selector.calibrator.temperature - 3.0) < 0.8
""",
    "docs/language_models.md": """
right = correct.mean()
assert 0.65 < right < 0.8
raw = {
    reduction: np.mean(
        keras_calib.text.sequence_confidence(log_probs, mask,
        reduction=reduction)
    )
    for reduction in ("geometric_mean", "mean", "minimum", "product")
}
assert abs(raw["geometric_mean"] - right) < 0.04 < raw["mean"] - right + 0.01
assert max(raw["minimum"], raw["product"]) < right - 0.08
before = keras_calib.nll(labels[4000:], log_odds[4000:], from_logits=True)
after = platt(log_odds[4000:])
assert keras_calib.nll(labels[4000:], after, from_logits=True) < before
""",
}
