"""What the table of measures says of a change."""

import re

import numpy as np
import pytest

from keras_calib.numerics.results import interval_text
from keras_calib.reporting.measures import EXPLAINED, measures


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
    assert row[place]["cells"][1] == ("0.10", "0 to 0.20", text)


def test_each_row_says_which_values_are_better():
    told = {x["title"]: x["best"] for x in measures(results({}))}
    assert told.pop("Confidence less accuracy") == "0 is best"
    assert told.pop("Mean confidence") == ""
    high = {"Accuracy", "Failure AUROC", "Coverage at 5 % risk"}
    for title, best in told.items():
        word = "higher" if title in high else "lower"
        assert best == f"{word} is better", title


@pytest.mark.parametrize(
    ("numbers", "options", "text"),
    [
        ((0.3521, 0.3449, 0.3589), {}, "0.352 (0.345 to 0.359)"),
        ((0.2490, 0.0, 0.7790), {}, "0.2 (0 to 0.8)"),
        ((0.97970, 0.97745, 0.98151), {}, "0.9797 (0.9775 to 0.9815)"),
        ((15.61, 11.71, 20.17), {"digits": 2}, "16 (12 to 20)"),
        ((512.4, 480.2, 530.9), {}, "512 (480 to 531)"),
        ((1e-5, 0.9e-5, 1.1e-5), {}, "0.000010 (0.000009 to 0.000011)"),
        # The side of 0 is seen, and 0 has none.
        ((0.006, 0.0003, 0.012), {"sign": "+"}, "+0.0060 (+0.0003 to +0.0120)"),
        ((0.006, 0.0003, 0.012), {}, "0.006 (0.000 to 0.012)"),
        ((-1e-5, -0.005, 0.005), {"sign": "+"}, "+0.000 (-0.005 to +0.005)"),
        # Without an interval, or one without a width or an end.
        ((0.12345, None, None), {}, "0.1235"),
        ((0.12345, float("nan"), float("nan")), {"digits": 3}, "0.123"),
        ((0.00012345, None, None), {}, "0.00012"),
        ((0.5, 0.5, 0.5), {}, "0.5000 (0.5000 to 0.5000)"),
        ((0.5, 0.0, float("inf")), {}, "0.5000"),
        ((float("nan"),) * 3, {}, "nan"),
    ],
)
def test_numbers_have_the_digits_that_their_interval_supports(
    numbers, options, text
):
    assert interval_text(*numbers, **options) == text


def test_rounding_hides_less_than_a_seventh_of_half_an_interval():
    rng = np.random.default_rng(0)
    for width in 10.0 ** rng.uniform(-5, 0, 300):
        low = rng.uniform(0, 1)
        value = low + width * rng.uniform()
        text = interval_text(value, low, low + width)
        shown = [float(x) for x in re.findall(r"[0-9.]+", text)]
        lost = np.abs(np.subtract(shown, [value, low, low + width]))
        assert lost.max() <= width / 2 / 7.1 + 1e-12
        assert max(map(len, re.findall(r"\.([0-9]+)", text))) <= 2 - np.log10(
            width / 2
        )


def test_without_calibration_there_is_no_change():
    found = results({})
    del found["calibrated_metrics"], found["calibrated_confidence_gap"]
    assert {(len(x["cells"]), x["change"]) for x in measures(found)} == {
        (1, None)
    }
