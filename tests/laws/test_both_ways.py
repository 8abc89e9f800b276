"""What a metric refuses or counts, its exact function refuses or counts."""

import numpy as np
import pytest
from cases import METRICS, sample, softmax

import keras_calib as kc

NUM, CLASSES = 20, 4
Y, Z = sample(n=NUM, num_classes=CLASSES, scale=2.0)
Z = Z.astype("float32")
P, W, SOFT = softmax(Z), np.ones(NUM), np.eye(CLASSES)[Y]
BITS = (Y % 2, P[:, :1])
VOTES = np.random.default_rng(0).integers(1, 5, (NUM, CLASSES))


def but(array, value, *place):
    array = np.array(array, np.result_type(array, type(value)))
    array[place] = value
    return array


FIRST = but(W, 0.0, 0)
IGNORED = but(Y, 9, 0)
LOGITS = {"from_logits": True}
# Labels, outputs, and options.
ODD = {
    "NaN": (Y, but(P, np.nan, 0, 0), {}),
    "NaN of weight 0": (Y, but(P, np.nan, 0, 0), {"sample_weight": FIRST}),
    "NaN, ignored": (IGNORED, but(P, np.nan, 0, 0), {"ignore_class": 9}),
    "negative": (Y, but(P, -0.1, 0, 0), {}),
    "rounded below 0": (Y, but(P, -1e-4, 0, 0), {}),
    "sum 0.5": (Y, 0.5 * P, {}),
    "sum 1.02": (Y, 1.02 * P, {}),
    "sum 1.04": (Y, 1.04 * P, {}),
    "row of 0": (Y, but(P, 0.0, 0), {}),
    "logits as probabilities": (Y, Z, {}),
    "label too large": (but(Y, CLASSES, 0), P, {}),
    "label -1": (but(Y, -1, 0), P, {}),
    "label of weight 0": (but(Y, 7, 0), P, {"sample_weight": FIRST}),
    "fractional label": (but(Y, 0.5, 0), P, {}),
    "label NaN": (but(Y, np.nan, 0), P, {}),
    "label NaN of weight 0": (but(Y, np.nan, 0), P, {"sample_weight": FIRST}),
    "float labels": (Y.astype(float), P, {}),
    "bool labels": (Y > 0, P, {}),
    "uint8": (but(Y, 255, 0).astype("uint8"), P, {"ignore_class": 255}),
    "uint8, not ignored": (but(Y, 255, 0).astype("uint8"), P, {}),
    "uint8 ignores -1": (Y.astype("uint8"), P, {"ignore_class": -1}),
    "objects": (Y.astype(object), P, {}),
    "object outputs": (Y, P.astype(object), {}),
    "texts": (Y.astype(str), P, {}),
    "dict": ({"label": Y}, P, {}),
    "dict of outputs": (Y, {"probs": P}, {}),
    "bool outputs": (Y, SOFT.astype(bool), {}),
    "soft": (P, P, {}),
    "soft, sum 0.5": (0.5 * SOFT, P, {}),
    "soft, negative": (but(SOFT, -0.2, 0, 0), P, {}),
    "soft, NaN": (but(SOFT, np.nan, 0, 0), P, {}),
    "soft, 0 of weight 0": (but(SOFT, 0.0, 0), P, {"sample_weight": FIRST}),
    "soft, ignored": (SOFT, P, {"ignore_class": 0}),
    "column": (Y[:, None], P, {}),
    "two columns": (np.stack([Y, Y], axis=1), P, {}),
    "label too few": (Y[:-1], P, {}),
    "no classes": (Y, P[:, :0], {}),
    "one output": (*BITS, {}),
    "one output of classes": (Y, P[:, :1], {}),
    "one output, soft": (P[:, 1], P[:, :1], {}),
    "one axis": (BITS[0], P[:, 0], {}),
    "negative weight": (Y, P, {"sample_weight": but(W, -1.0, 0)}),
    "weight NaN": (Y, P, {"sample_weight": but(W, np.nan, 0)}),
    "weight NaN, ignored": (
        IGNORED,
        P,
        {"sample_weight": but(W, np.nan, 0), "ignore_class": 9},
    ),
    "weights too few": (Y, P, {"sample_weight": W[:-1]}),
    "one weight": (Y, P, {"sample_weight": 2.0}),
    "bool weights": (Y, P, {"sample_weight": W > 0}),
    "object weights": (Y, P, {"sample_weight": W.astype(object)}),
    "fractional class to ignore": (Y, P, {"ignore_class": 1.0}),
    "unused class to ignore": (Y, P, {"ignore_class": 77}),
    "from_logits 1": (Y, P, {"from_logits": 1}),
    "logit NaN": (Y, but(Z, np.nan, 0, 0), LOGITS),
    "logit inf": (Y, but(Z, np.inf, 0, 0), LOGITS),
    "whole logits": (Y, np.round(Z).astype(int), LOGITS),
    "votes": (VOTES, P, {"votes": True}),
    "no vote": (but(VOTES, 0, 0), P, {"votes": True}),
    "negative votes": (but(VOTES, -1, 0, 0), P, {"votes": True}),
    "ids as votes": (Y, P, {"votes": True}),
    "masked": (Y, np.ma.masked_array(P, mask=P > 0.5), {}),
}
WHOLE = [
    case for case in METRICS if case.name in ("ECE", "NLL", "ClasswiseECE")
]


def outcome(function):
    try:
        return float(function())
    except (TypeError, ValueError) as error:
        assert "Received: " in str(error), error
        return type(error)


def streamed(make, labels, outputs, options):
    options = dict(options)
    weight = options.pop("sample_weight", None)
    if options.pop("votes", False):
        options["labels"] = "votes"
    metric = make(**options)
    metric.update_state(labels, outputs, weight)
    assert metric.num_invalid == 0
    return metric.result()


def differ(pairs, odd):
    """Rows with two answers."""
    found = {}
    for name, (labels, outputs, options) in odd.items():
        for exact, make in pairs:
            given = labels, outputs, options
            one = outcome(lambda e=exact, g=given: e(*g[:2], **g[2]))
            other = outcome(lambda m=make, g=given: streamed(m, *g))
            if one != other and (
                isinstance(one, type)
                or isinstance(other, type)
                or abs(one - other) > 1e-5
            ):
                found[name] = one, other
    return found


@pytest.mark.parametrize("case", WHOLE, ids=str)
def test_a_metric_and_its_function_refuse_the_same(case):
    def make(**options):
        return case.make(CLASSES, **options)

    def make_binary(**options):
        return case.make(2, **options)

    binary = {k: x for k, x in ODD.items() if k.startswith("one output")}
    rest = {k: x for k, x in ODD.items() if k not in binary}
    assert not differ([(case.exact, make)], rest)
    assert not differ([(case.exact, make_binary)], binary)


def test_images_are_refused_alike():
    odd = {
        name: (y.reshape(4, 5, *y.shape[1:]), p.reshape(4, 5, *p.shape[1:]), o)
        for name, (y, p, o) in ODD.items()
        if isinstance(y, np.ndarray)
        and isinstance(p, np.ndarray)
        and len(y) == NUM
        and "mask" not in name
    }
    assert len(odd) > 50
    forms = "float labels", "column", "soft", "one output, soft", "votes"
    for background, some in ((None, odd), (1, {x: odd[x] for x in forms})):

        def exact(*given, left_out=background, **options):
            return kc.functional.per_image(
                kc.ece, *given, background=left_out, **options
            )

        def make(left_out=background, **options):
            return kc.PerImage(kc.ECE(**options), background=left_out)

        assert not differ([(exact, make)], some)


def test_objectness_is_refused_alike():
    share = np.linspace(0, 1, NUM)

    def exact(labels, outputs, **options):
        return kc.functional.objectness_deviation(
            labels[:, 0], outputs, objectness=labels[:, 1], **options
        )

    odd = {
        f"{share_of_one} {options}": (
            np.stack([Y, but(share, share_of_one, 0)], axis=-1),
            P,
            options,
        )
        for share_of_one in (0.5, -1.0, -0.5, 1.5, np.nan)
        for options in ({}, {"ignore_class": int(Y[0])})
    }
    assert not differ([(exact, kc.ObjectnessDeviation)], odd)


def test_an_empty_batch_and_large_weights_are_for_streams_alone():
    # A function needs a sample; a metric waits for one.
    for labels, outputs, options in (
        (Y[:0], P[:0], {}),
        (Y, P, {"sample_weight": 0 * W}),
        (0 * Y + 9, P, {"ignore_class": 9}),
    ):
        assert outcome(lambda g=(labels, outputs), o=options: kc.ece(*g, **o))
        assert float(streamed(kc.ECE, labels, outputs, options)) == 0.0
    # Exact sums hold weights up to 1e4.
    for scale in (1e6, 1e-6):
        options = {"sample_weight": scale * W}
        assert kc.ece(Y, P, **options) == pytest.approx(kc.ece(Y, P))
        with pytest.raises(ValueError, match="divide by the mean"):
            streamed(kc.ECE, Y, P, options)
