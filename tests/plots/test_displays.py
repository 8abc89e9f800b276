"""Displays hold the right arrays and draw them."""

from xml.etree import ElementTree

import keras
import matplotlib as mpl
import numpy as np
import pytest

import keras_calib as kc

mpl.use("Agg")


def data(goldens):
    return goldens["in/m_over/labels"], goldens["in/m_over/probs"]


def test_reliability_display_agrees_with_ece_and_its_metric(goldens):
    labels, probs = data(goldens)
    display = kc.ReliabilityDisplay(kc.Predictions(labels, probs))
    assert abs(display.ece - kc.ece(labels, probs)) < 1e-12
    metric = kc.ECE()
    metric.update_state(labels, probs)
    streamed = kc.ReliabilityDisplay(metric)
    for one, other in zip(
        display.sums.parts(), streamed.sums.parts(), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-4)


def test_reliability_display_draws_every_filled_bin(goldens, tmp_path):
    display = kc.ReliabilityDisplay(
        kc.Predictions(*data(goldens)), name="net"
    ).plot()
    filled = (display.sums.weight > 0).sum()
    assert len(display.ax_.patches) == filled
    (steps,) = display.counts_ax_.patches
    np.testing.assert_array_equal(steps.get_data().values, display.sums.weight)
    told = [x.get_text() for x in display.counts_ax_.texts]
    counts = display.sums.weight[display.sums.weight > 0]
    assert told == [f"{x:,.0f}" for x in counts]
    # Nine of ten right of 10 say little, of 1,000 much.
    for count, opacity in ((10, 0.105), (1000, 0.35)):
        labels = [0] * (count * 9 // 10) + [1] * (count // 10)
        few = kc.ReliabilityDisplay(
            kc.Predictions(labels, [[0.8, 0.2]] * count)
        ).plot()
        assert few.ax_.patches[0].get_alpha() == pytest.approx(opacity)
    assert "net" in display.ax_.get_title()
    assert "confidence" in display.counts_ax_.get_xlabel()
    display.figure_.savefig(tmp_path / "reliability.png")
    assert (tmp_path / "reliability.png").stat().st_size > 10_000
    given = mpl.figure.Figure().add_subplot()
    assert display.plot(given).ax_ is given


def test_displays_draw_from_one_table_of_metrics(goldens):
    labels, probs = data(goldens)
    table = kc.CalibrationMetrics(["ece", "aurc"])
    other = kc.AURC(score="neg_entropy")
    for metric in (table, other):
        metric.update_state(labels, probs)
    display = kc.ReliabilityDisplay(table)
    assert abs(display.ece - kc.ece(labels, probs)) < 1e-6
    curves = kc.RiskCoverageDisplay({"a": table, "b": other})
    assert abs(curves.values["a"] - kc.aurc(labels, probs)) < 1e-5
    assert len(curves.plot().ax_.lines) == 2
    curve = curves.curves["a"]
    assert curve.coverage[-1] == 1.0
    error = np.mean(probs.argmax(-1) != labels)
    assert abs(curve.risk[-1] - error) < 1e-12
    # Thresholds are lower ends of cells, in log-odds.
    confidence = probs.max(-1)
    log_odds = np.log(confidence) - np.log1p(-confidence)
    k = len(curve.coverage) // 2
    accepted = np.mean(log_odds >= curve.threshold[k])
    assert abs(accepted - curve.coverage[k]) < 1e-12
    with pytest.raises(TypeError, match="or an updated `ECE`"):
        kc.ReliabilityDisplay(other)
    with pytest.raises(TypeError, match="or an updated `AURC`"):
        kc.RiskCoverageDisplay(kc.ECE())


def test_cumulative_display_agrees_with_ecce_and_its_metrics(goldens):
    labels, probs = data(goldens)
    display = kc.plots.CumulativeDisplay(
        kc.Predictions(labels, probs), name="net"
    )
    assert display.ecce_range == kc.functional.ecce(labels, probs)
    assert display.ecce_maximum == kc.functional.ecce(
        labels, probs, kind="maximum"
    )
    for metric in (kc.ECCE(), kc.CalibrationMetrics(["ecce"])):
        metric.update_state(labels, probs)
        streamed = kc.plots.CumulativeDisplay(metric)
        assert streamed.ecce_range <= display.ecce_range + 1e-6
        assert streamed.ecce_range == pytest.approx(
            display.ecce_range, rel=1e-2
        )
        assert streamed.band == pytest.approx(display.band, rel=1e-5)
        assert streamed.differences.share[-1] == 1.0
    weight = np.random.default_rng(0).gamma(2.0, size=len(labels))
    weighted = kc.plots.CumulativeDisplay(
        kc.Predictions(labels, probs, sample_weight=weight)
    )
    metric = kc.ECCE()
    metric.update_state(labels, probs, weight)
    streamed = kc.plots.CumulativeDisplay(metric)
    # The state has the mean of the squared weights alone.
    assert streamed.band == pytest.approx(weighted.band, rel=0.05)
    with pytest.raises(TypeError, match="or an updated `ECCE` or"):
        kc.plots.CumulativeDisplay(kc.ECE())
    assert kc.plots.CumulativeDisplay(kc.ECCE()).ecce_range == 0.0


def test_cumulative_display_draws_the_curve_from_0_and_the_band(goldens):
    display = kc.plots.CumulativeDisplay(
        kc.Predictions(*data(goldens)), name="net"
    )
    ax = display.plot().ax_
    curve = ax.lines[-1].get_xydata()
    np.testing.assert_array_equal(curve[0], [0.0, 0.0])
    np.testing.assert_array_equal(curve[1:, 1], display.differences.difference)
    ends = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert ends.max() == -ends.min() == display.band
    assert f"ECCE-R {display.ecce_range:.3f}" in ax.get_title()
    assert "net" in ax.get_title()
    assert kc.plots.CumulativeDisplay(kc.ECCE()).plot()


def softmax_model(num_classes):
    inputs = keras.Input((num_classes,))
    return keras.Model(inputs, keras.layers.Activation("linear")(inputs))


@pytest.mark.portable
def test_displays_of_a_model_are_those_of_its_predictions(goldens):
    labels, probs = data(goldens)
    logits = np.log(np.maximum(probs, 1e-30)).astype("float32")
    model = softmax_model(logits.shape[-1])
    options = {"from_logits": True, "batch_size": 100}
    p = kc.Predictions.of_model(model, (logits, labels), **options)
    exact = kc.Predictions(labels, logits, from_logits=True)
    for cls in (kc.ReliabilityDisplay, kc.plots.ConfidenceDisplay):
        np.testing.assert_allclose(
            cls(p).sums.confidence, cls(exact).sums.confidence, rtol=1e-6
        )
    curves = kc.RiskCoverageDisplay({"a": p, "b": exact})
    assert abs(curves.values["a"] - curves.values["b"]) < 1e-9


@pytest.mark.parametrize(
    "cls",
    [
        kc.ReliabilityDisplay,
        pytest.param(
            kc.plots.ClasswiseReliabilityDisplay, marks=pytest.mark.slow
        ),
        pytest.param(kc.plots.ConfidenceDisplay, marks=pytest.mark.slow),
        kc.plots.CumulativeDisplay,
        kc.RiskCoverageDisplay,
    ],
)
def test_several_models_are_drawn_together_as_the_caller_wants(
    cls, goldens, tmp_path
):
    labels, probs = data(goldens)
    flat = np.sqrt(probs) / np.sqrt(probs).sum(-1, keepdims=True)
    one, other = (kc.Predictions(labels, x) for x in (probs, flat))
    display = cls({"sharp": one, "flat": other}).plot(title="Both")
    (legend,) = display.figure_.legends
    told = [x.get_text() for x in legend.get_texts()]
    for name in ("sharp", "flat"):
        assert any(name in text for text in told)
    whole = display.figure_.get_suptitle() or display.ax_.get_title()
    assert whole == "Both"
    bare = cls([one, other]).plot(legend=False)
    assert not bare.figure_.legends and bare.ax_.get_legend() is None
    # It hides nothing.
    display.figure_.draw_without_rendering()
    place = legend.get_window_extent()
    assert display.figure_.bbox.padded(1).fully_contains(*place.min)
    assert not any(
        place.overlaps(ax.get_window_extent()) for ax in display.axes_
    )
    for kind, start in (("pdf", b"%PDF"), ("svg", b"<?xml"), ("png", b"\x89P")):
        path = display.save(tmp_path / f"picture.{kind}")
        assert path.read_bytes().startswith(start)
    with pytest.raises(ValueError, match="must end in .pdf"):
        display.save(tmp_path / "picture.jpg")
    with pytest.raises(TypeError, match="`predictions` must be `Predictions`"):
        cls(probs)
    if len(display.axes_[0].lines) > 1:
        display.plot(color=["red", "green"], marker="s")
        colors = [x.get_color() for x in display.ax_.lines]
        assert colors[-2:] == ["red", "green"]
    with pytest.raises(ValueError, match="`label` must be None for several"):
        display.plot(label="both")


def test_curves_are_overlaid_in_colours_of_ones_own(goldens):
    p = kc.Predictions(*data(goldens))
    (ax,) = mpl.figure.Figure().subplots(1, 1, squeeze=False).flat
    for label, color in (("first", "red"), ("second", "green")):
        kc.RiskCoverageDisplay(p).plot(
            ax, label=label, color=color, linestyle=":"
        )
    assert [x.get_color() for x in ax.lines] == ["red", "green"]
    assert [x.get_label()[:5] for x in ax.lines] == ["first", "secon"]
    assert {x.get_linestyle() for x in ax.lines} == {":"}


def test_displays_ask_the_model_what_it_returns(goldens):
    labels, probs = data(goldens)
    logits = np.log(np.maximum(probs, 1e-30)).astype("float32")
    loss = keras.losses.SparseCategoricalCrossentropy
    logit_model = softmax_model(logits.shape[-1])
    inputs = keras.Input((logits.shape[-1],))
    prob_model = keras.Model(inputs, keras.layers.Softmax()(inputs))
    with pytest.raises(TypeError, match="`model` must be a Keras model"):
        kc.ReliabilityDisplay(kc.Predictions.of_model([1], (logits, labels)))
    for model, from_logits in ((logit_model, True), (prob_model, False)):
        model.compile(loss=loss(from_logits=from_logits))
        found = kc.ReliabilityDisplay(
            kc.Predictions.of_model(model, (logits, labels))
        )
        assert abs(found.ece - kc.ece(labels, probs)) < 1e-6
        classes = kc.plots.ClasswiseReliabilityDisplay(
            kc.Predictions.of_model(model, (logits, labels))
        )
        exact = kc.plots.ClasswiseReliabilityDisplay(
            kc.Predictions(labels, probs)
        )
        np.testing.assert_allclose(
            classes.bins.probability, exact.bins.probability, atol=1e-4
        )
    both = {"logits": logit_model, "probs": prob_model}
    curves = kc.RiskCoverageDisplay(
        {
            name: kc.Predictions.of_model(model, [(logits, labels)])
            for name, model in both.items()
        }
    )
    assert abs(curves.values["logits"] - curves.values["probs"]) < 1e-5


@pytest.mark.parametrize(
    "cls",
    [
        kc.ReliabilityDisplay,
        kc.plots.ClasswiseReliabilityDisplay,
        kc.plots.ConfidenceDisplay,
        kc.plots.CumulativeDisplay,
        kc.RiskCoverageDisplay,
    ],
)
def test_a_display_of_a_model_needs_a_sample_that_counts(cls):
    model, options = softmax_model(2), {"from_logits": True}
    logits, labels = np.eye(2, dtype="float32"), np.array([0, 0])
    with pytest.raises(ValueError, match="must not be 0 everywhere"):
        cls(
            kc.Predictions.of_model(
                model, (logits, labels, np.zeros(2)), **options
            )
        )
    with pytest.raises(ValueError, match="not ignored.*_class=0"):
        cls(
            kc.Predictions.of_model(
                model, (logits, labels), ignore_class=0, **options
            )
        )


OF_MODELS = {
    kc.ReliabilityDisplay: "ece",
    kc.plots.ConfidenceDisplay: "mean_confidence",
    kc.plots.CumulativeDisplay: "ecce_range",
    kc.plots.ClasswiseReliabilityDisplay: "classwise_ece",
    kc.RiskCoverageDisplay: "aurc",
}


@pytest.mark.parametrize("cls", OF_MODELS)
def test_numbers_of_several_models_have_their_names(cls):
    parts = np.array([[0.9, 0.1], [0.3, 0.7], [0.6, 0.4]]), np.eye(2)[[0, 1, 1]]
    several = {
        name: kc.Predictions([0, 1, 1], 0.4 + 0.2 * probs)
        for name, probs in zip(("net", "other"), parts, strict=True)
    }
    display, name = cls(several), OF_MODELS[cls]
    alone = {k: cls(p) for k, p in several.items()}
    for model, one in alone.items():
        (value,) = one.values.values()
        assert display.values[model] == value == getattr(one, name, value)
        assert f"{name}={value:.4g}" in repr(one)
        assert f"{name} of {model}={value:.4g}" in repr(display)
        assert f"{name}=" not in repr(display)
    with pytest.raises(AttributeError, match="of several|no attribute"):
        getattr(display, name)


def test_zoom_shows_the_bins_from_there_on(goldens):
    display = kc.ReliabilityDisplay(kc.Predictions(*data(goldens)), zoom=0.8)
    display.plot()
    low, high = display.zoom_ax_.get_xlim()
    assert 0.79 < low < 0.8 and 1.0 < high < 1.01
    inside = display.sums.mean_confidence >= 0.8
    shown = display.zoom_ax_.get_ylim()
    assert shown[0] <= display.sums.accuracy[inside].min()
    assert len(display.zoom_ax_.patches) == (display.sums.weight > 0).sum()
    with pytest.raises(ValueError, match="`zoom` must be in"):
        kc.ReliabilityDisplay(kc.Predictions(*data(goldens)), zoom=1.0)


def test_files_are_drawn_without_pyplot(goldens):
    display = kc.ReliabilityDisplay(kc.Predictions(*data(goldens)), name="a<b")
    before = mpl.pyplot.get_fignums() if hasattr(mpl, "pyplot") else []
    svg, png = display.to_svg(), display.to_png(dpi=50)
    assert svg == display.to_svg()
    assert "accuracy" in svg and "a&lt;b" in svg and "<text" in svg
    assert png.startswith(b"\x89PNG")
    after = mpl.pyplot.get_fignums() if hasattr(mpl, "pyplot") else []
    assert before == after and not hasattr(display, "ax_")
    assert mpl.rcParams["svg.fonttype"] == "path"


# Names that others give.

ODD = {
    "a$b$": "a$b$",
    "$\\frac{1}$": "$\\frac{1}$",
    "\\$5": "\\$5",
    "_hidden": "_hidden",
    "x^2_1%": "x^2_1%",
    "<b>&amp;": "<b>&amp;",
    "nul\x00bell\x07": "nul\\x00bell\\x07",
    "surrogate\udc80": "surrogate\\udc80",
    "no character\uffff": "no character\\uffff",
    "line\nend\ttab": "line end tab",
    "long" * 100: ("long" * 100)[:79] + "…",
}


def texts(svg):
    """What an SVG file says; an XML parser takes it."""
    root = ElementTree.fromstring(svg.encode("utf-8"))
    return [
        "".join(part.itertext()).strip()
        for part in root.iter("{http://www.w3.org/2000/svg}text")
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Layout|.*layout:UserWarning")
def test_names_are_drawn_letter_by_letter():
    labels, probs = [0, 1, 1], [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]
    names = list(ODD)[:10]
    point = kc.choose_threshold([2.0, 1.0], [1, 0], coverage=0.5)
    displays = [
        # Lists do as well as arrays.
        kc.RiskCoverageDisplay(
            dict.fromkeys(ODD, kc.Predictions(labels, probs)),
            points=dict.fromkeys(ODD, point),
        ),
        kc.plots.ClasswiseReliabilityDisplay(
            kc.Predictions(
                list(range(10)),
                np.full((10, 10), 0.1).tolist(),
                class_names=names,
            )
        ),
    ]
    for display in displays:
        # A legend may break a name.
        text = "".join("".join(texts(display.to_svg())).split())
        for name in getattr(display, "class_names", None) or ODD:
            assert "".join(ODD[name].split()) in text, (display, name)
    for name in list(ODD)[-4:]:
        shown = kc.ReliabilityDisplay(kc.Predictions(labels, probs), name=name)
        assert ODD[name] in " ".join(" ".join(texts(shown.to_svg())).split())
    assert shown.to_png(dpi=30).startswith(b"\x89PNG")
