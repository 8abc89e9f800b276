"""The verdict answers whether the confidence can be trusted."""

import pytest

from keras_calib.metrics.gap_estimates import GapEstimate
from keras_calib.reporting.verdict import verdict


def stage(value, error, ece, too_few=None, low=0.9):
    gap = GapEstimate(value, value - error, value + error, too_few)
    return gap, {"value": ece, "low": low * ece, "high": 1.1 * ece}


OVER = stage(0.1, 0.01, 0.1)


@pytest.mark.parametrize(
    ("before", "after", "answer", "advice"),
    [
        (OVER, None, "No: it is too sure by 10.0", "Fit a calibrator on"),
        (stage(-0.1, 0.01, 0.1), None, "No: it is too unsure", "Fit a cal"),
        (stage(0.01, 0.001, 0.01), None, "Nearly: it is too sure", "2 perc"),
        (stage(0.0, 0.01, 0.01), None, "Yes: ", "Use the confidence as"),
        (stage(0.0, 0.01, 0.05), None, "Only on average: ", "can bend"),
        # Noise opens gaps, so that the ECE alone proves nothing.
        (stage(0.0, 0.01, 0.05, low=0.0), None, "far as these", "up to 0.0550"),
        (stage(0.0, 0.1, 0.05, "errors"), None, "few errors", "more data"),
        # Of what users get.
        (OVER, OVER, "No, not even after calibration", "was fitted on data"),
        (OVER, stage(0.0, 0.01, 0.01), "Yes, after calibration", "Use the"),
        (stage(0.0, 0.01, 0.01), OVER, "No, not even after", "was fitted on"),
    ],
)
def test_answer_and_advice(before, after, answer, advice):
    found = verdict(before, after)
    assert answer in found["answer"]
    assert advice in found["advice"]
