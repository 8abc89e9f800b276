"""Risk-coverage displays hold the exact curves, bands and points."""

from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from scipy.stats import binom
from told import told

import keras_calib as kc

mpl.use("Agg")


def data(goldens):
    return goldens["in/m_over/labels"], goldens["in/m_over/probs"]


def test_risk_coverage_display_draws_one_curve_per_model(goldens):
    labels, probs = data(goldens)
    flat = np.sqrt(probs) / np.sqrt(probs).sum(-1, keepdims=True)
    display = kc.RiskCoverageDisplay(
        told(labels, {"a": probs, "b": flat})[0]
    ).plot()
    assert len(display.ax_.lines) == 2
    assert abs(display.values["a"] - kc.aurc(labels, probs)) < 1e-12
    assert "coverage" in display.ax_.get_xlabel()
    x, y = display.ax_.lines[0].get_data()
    curve = kc.functional.risk_coverage_curve(labels, probs)
    np.testing.assert_array_equal(x, curve.coverage)
    np.testing.assert_array_equal(y, curve.risk)


def test_many_curves_are_told_apart(goldens):
    labels, probs = data(goldens)
    display = kc.RiskCoverageDisplay(
        told(labels, {str(i): probs for i in range(17)})[0]
    ).plot()
    # Dashes as drawn; the style's name is "--" for all of them.
    looks = {(x.get_color(), str(x._dash_pattern)) for x in display.ax_.lines}
    assert len(looks) == 17


def test_band_is_the_exact_interval_of_the_accepted(goldens):
    labels, probs = data(goldens)
    display = kc.RiskCoverageDisplay(told(labels, {"net": probs})[0], band=True)
    low, high = display.bands["net"]
    curve = display.curves["net"]
    for i in (0, len(low) // 2, len(low) - 1):
        accepted = round(curve.coverage[i] * len(labels))
        wrong = round(curve.risk[i] * accepted)
        # Either tail beyond the interval has 2.5 %.
        np.testing.assert_allclose(
            binom.cdf(wrong, accepted, high[i]), 0.025, rtol=1e-6
        )
        if wrong:
            np.testing.assert_allclose(
                binom.sf(wrong - 1, accepted, low[i]), 0.025, rtol=1e-6
            )
    metric = kc.CalibrationMetrics(["aurc"])
    metric.update_state(labels, probs)
    streamed = kc.RiskCoverageDisplay(metric, band=True)
    assert streamed.counts == {"model": len(labels)}
    weights = np.full(len(labels), 0.5)
    with pytest.raises(ValueError, match="`band` must be False"):
        kc.RiskCoverageDisplay(
            kc.Predictions(labels, probs, sample_weight=weights), band=True
        )
    metric.update_state(labels, probs, sample_weight=weights)
    for one in (metric, kc.AURC()):
        with pytest.raises(ValueError, match="`band` must be False unless"):
            kc.RiskCoverageDisplay(one, band=True)


def test_operating_points_are_marked_where_they_are(goldens):
    labels, probs = data(goldens)
    logits = np.log(np.maximum(probs, 1e-30)).astype("float32")
    selector = kc.SelectiveClassifier().fit(labels, logits, coverage=0.5)
    point = replace(selector.chosen, limit=0.2)
    display = kc.RiskCoverageDisplay(
        kc.Predictions(labels, probs), points={"half": point}
    ).plot()
    *_, limit, mark = display.ax_.lines
    assert mark.get_xydata().tolist() == [[point.coverage, point.risk]]
    assert limit.get_ydata().tolist() == [0.2, 0.2]
    assert "half" in mark.get_label() and "0.2" in mark.get_label()
    assert display.ax_.get_ylim()[1] > 0.2


def test_clopper_pearson_ends_where_the_tail_is_two_and_a_half_percent():
    low, high = kc.formulas.intervals.clopper_pearson([0, 3, 10], [10, 10, 10])
    assert low[0] == 0.0
    assert high[2] == 1.0
    np.testing.assert_allclose(binom.sf(2, 10, low[1]), 0.025, rtol=1e-9)
    np.testing.assert_allclose(binom.cdf(3, 10, high[1]), 0.025, rtol=1e-9)
    assert [v.item() for v in kc.formulas.intervals.clopper_pearson(0, 0)] == [
        0.0,
        1.0,
    ]


@pytest.mark.parametrize(
    "odd", [np.ma.masked_array([1], mask=[True]), np.array([1 + 1j]), ["1"]]
)
def test_an_interval_is_of_real_numbers(odd):
    for name, given in (("successes", (odd, [2])), ("trials", ([1], odd))):
        with pytest.raises(TypeError, match=f"`{name}` must"):
            kc.formulas.intervals.clopper_pearson(*given)
