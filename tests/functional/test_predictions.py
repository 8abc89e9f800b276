"""Functions take `Predictions` in place of labels, outputs and options."""

import functools
import inspect

import numpy as np
import pytest
from public_names import PUBLIC

import keras_calib as kc
from keras_calib.functional import __all__ as names

F, RNG = kc.functional, np.random.default_rng(0)
PROBS = RNG.dirichlet([2.0, 0.7, 0.5], 120)
LABELS = (RNG.random(120)[:, None] > PROBS.cumsum(axis=-1)).sum(axis=-1)
GROUPS = np.where(np.arange(120) % 3, "a", "b")
VOTES = np.eye(3, dtype=int)[LABELS] * 2 + np.eye(3, dtype=int)[0]
SOME = np.arange(120) % 4 > 0
FEW = {"num_draws": 8}
REQUIRED = {
    "by_group": {"groups": GROUPS, "min_count": 5, **FEW},
    "calibration_test": FEW,
    "coverage_at_accuracy": {"accuracy": 0.8},
    "coverage_at_risk": {"risk": 0.2},
    "mean_cost": {"costs": 2.0},
    "objectness_deviation": {"objectness": np.linspace(0, 1, 120)},
    "risk_at_coverage": {"coverage": 0.5},
}
# Every function of labels and outputs.
FUNCTIONS = {
    name: functools.partial(PUBLIC[name], **REQUIRED.get(name, {}))
    for name in names
    if inspect.isfunction(PUBLIC[name])
    and [*inspect.signature(PUBLIC[name]).parameters][:2]
    == ["labels", "outputs"]
}
KINDS = {
    "classes": (LABELS, PROBS, {}),
    "logits": (LABELS, np.log(PROBS), {"from_logits": True}),
    "binary": (LABELS > 0, 1 - PROBS[:, :1], {}),
    "votes": (VOTES, PROBS, {"votes": True}),
    "masked": (LABELS, PROBS, {"sample_weight": SOME * 1.0}),
    "weighted": (LABELS, PROBS, {"sample_weight": np.arange(120) % 4}),
    "ignored": (np.where(SOME, LABELS, -1), PROBS, {"ignore_class": -1}),
}
# What takes no weights.
UNWEIGHTED = {
    "by_group": {"statistic": None},
    "calibration_test": None,
}
OF_ALL_CLASSES = {
    *("brier_decomposition", "brier_score", "classwise_ece", "mean_iou", "nll"),
}


def plain(found):
    found = found.to_dict() if hasattr(found, "to_dict") else found
    return repr(found)


def test_the_functions_are_found():
    assert {"ece", "by_group", "mean_cost", "aurc", "nll"} <= {*FUNCTIONS}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_predictions_say_what_arrays_and_options_say(name):
    # One function takes time.
    kinds = [*KINDS][: 2 if name == "smooth_ece" else None]
    for kind in kinds:
        (labels, outputs, options), more = KINDS[kind], {}
        if kind == "weighted" and name in UNWEIGHTED:
            more = UNWEIGHTED[name]
        p = kc.Predictions(labels, outputs, **options)
        if more is None:
            for given in ((labels, outputs), (p,)):
                with pytest.raises(ValueError, match="`sample_weight` must"):
                    FUNCTIONS[name](*given, **options if given[1:] else {})
            continue
        wanted = FUNCTIONS[name](labels, outputs, **options, **more)
        assert plain(FUNCTIONS[name](p, **more)) == plain(wanted), kind
    # Rows of weight 0 are not there.
    kept = KINDS["masked"][2]
    masked = FUNCTIONS[name](kc.Predictions(LABELS, PROBS, **kept))
    ignored = FUNCTIONS[name](*KINDS["ignored"][:2], ignore_class=-1)
    if isinstance(masked, float):
        assert masked == pytest.approx(ignored, rel=1e-12)
    with pytest.raises(TypeError, match="`from_logits` must not be given besi"):
        FUNCTIONS[name](p, from_logits=True)
    with pytest.raises(TypeError, match="`outputs` must not be given beside"):
        FUNCTIONS[name](p, PROBS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_log_says_what_two_columns_say(name):
    sure, right = PROBS.max(axis=-1), PROBS.argmax(axis=-1) == LABELS
    weight = SOME * 1.0
    log = kc.Predictions(correct=right, confidence=sure, sample_weight=weight)
    if name in OF_ALL_CLASSES:
        with pytest.raises(ValueError, match="a log of correctness and conf"):
            FUNCTIONS[name](log)
        return
    more = {"metrics": ("ece", "aurc")} if name == "by_group" else {}
    wanted = FUNCTIONS[name](LABELS, PROBS, sample_weight=weight, **more)
    assert plain(FUNCTIONS[name](log, **more)) == plain(wanted)


def test_images_and_priors_are_taken_from_predictions():
    labels, probs = LABELS.reshape(4, 30), PROBS.reshape(4, 30, 3)
    ignored = np.where(np.arange(30) % 4, labels, 255)
    given = {"background": 0, "num_bins": 5}
    wanted = F.per_image("ece", ignored, probs, ignore_class=255, **given)
    for facts in (
        {"ignore_class": 255, "labels": ignored},
        {"sample_weight": (ignored != 255) * 1.0, "labels": labels},
        {"from_logits": True, "ignore_class": 255, "labels": ignored},
    ):
        outputs = np.log(probs) if "from_logits" in facts else probs
        p = kc.Predictions(outputs=outputs, **facts)
        assert F.per_image("ece", p, **given) == pytest.approx(wanted)
    with pytest.raises(TypeError, match="`ignore_class` must not be given"):
        F.per_image("ece", p, ignore_class=255)
    p = kc.Predictions(labels, probs, sample_weight=labels)
    with pytest.raises(TypeError, match="all pixels have equal weight"):
        F.per_image("ece", p)
    source, few = np.full(3, 1 / 3), {"num_draws": 4}
    wanted = F.estimate_prior(probs, source, sample_weight=labels, **few)
    assert plain(F.estimate_prior(p, source, **few)) == plain(wanted)
    with pytest.raises(TypeError, match="`from_logits` must not be given"):
        F.estimate_prior(p, source, from_logits=True)


def test_groups_are_those_of_the_predictions():
    p = kc.Predictions(LABELS, PROBS, groups={"site": GROUPS})
    wanted = kc.by_group(LABELS, PROBS, groups={"site": GROUPS}, min_count=5)
    assert plain(kc.by_group(p, min_count=5)) == plain(wanted)
    other = kc.by_group(p, groups=LABELS, min_count=5)
    assert {*other.table["attribute"]} == {"group"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_several_labels_are_refused_with_advice(name):
    several = kc.Predictions(PROBS > 0.3, PROBS, multi_label=True)
    with pytest.raises(ValueError, match=r"labels\.MultiLabelMetric"):
        FUNCTIONS[name](several)
