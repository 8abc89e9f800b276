"""What the table of measures says of a change."""

import pytest

from keras_calib.reporting.measures import EXPLAINED, directions, measures


def results(changed, p_value=1.0):
    """Results of a table whose values all stay, but for some."""
    same = {"value": 0.5, "low": 0.4, "high": 0.6}
    test = {"p_value": p_value / 2, "p_holm": p_value}
    before = dict.fromkeys([*EXPLAINED, "confidence_gap"], same)
    after = before | changed
    return {
        "confidence_gap": before.pop("confidence_gap"),
        "metrics": before,
        "calibrated_confidence_gap": after.pop("confidence_gap"),
        "calibrated_metrics": after,
        "changes": dict.fromkeys([*EXPLAINED, "confidence_gap"], test),
    }


@pytest.mark.parametrize(
    ("name", "value", "p_value", "change"),
    [
        ("ece", 0.5, 0.0, ("=", "same", "unclear")),
        ("ece", 0.4, 0.05, ("↓", "clearly better", "better")),
        ("ece", 0.6, 0.05, ("↑", "clearly worse", "worse")),
        ("ece", 0.1, 0.051, ("↓", "not clear", "unclear")),
        ("failure_auroc", 0.6, 0.01, ("↑", "clearly better", "better")),
        ("failure_auroc", 0.4, 0.01, ("↓", "clearly worse", "worse")),
        # Neither is better; of which side a gap is does not matter.
        ("mean_confidence", 0.1, 0.01, ("↓", "", "unclear")),
        ("confidence_gap", -0.1, 0.01, ("↓", "clearly better", "better")),
        ("confidence_gap", -0.9, 0.01, ("↓", "clearly worse", "worse")),
    ],
)
def test_a_change_is_clear_where_the_test_of_all_rows_says_so(
    name, value, p_value, change
):
    estimate = {"value": value, "low": 0.0, "high": 1.0}
    rows = measures(results({name: estimate}, p_value))
    place = ["confidence_gap", *EXPLAINED].index(name)
    assert rows[place]["change"] == change
    others = [x["change"][1] for i, x in enumerate(rows) if i != place]
    assert {*others} == {"same"}


@pytest.mark.parametrize(
    ("p_value", "text"),
    [(None, ""), (0.0421, "p = 0.042"), (1e-9, "p < 0.001")],
)
def test_a_p_value_stands_below_its_interval(p_value, text):
    estimate = {"value": 0.1, "low": 0.0, "high": 0.2, "p_value": p_value}
    row = measures(results({"ecce": estimate}))
    place = ["confidence_gap", *EXPLAINED].index("ecce")
    assert row[place]["cells"][1] == ("0.1000", "0.0000 to 0.2000", text)


def test_the_page_says_which_values_should_be_small():
    found = results({})
    for name in ("nll", "brier_score", "mean_confidence"):
        del found["metrics"][name]
    assert directions(found) == (
        "Lower is better for ECE, AECE, MCE, ECCE-R and AURC; higher is better "
        "for Accuracy, Failure AUROC and Coverage at 5 % risk. "
        "Confidence less accuracy is best at 0."
    )


def test_without_calibration_there_is_no_change():
    found = results({})
    del found["calibrated_metrics"], found["calibrated_confidence_gap"]
    assert {(len(x["cells"]), x["change"]) for x in measures(found)} == {
        (1, None)
    }
