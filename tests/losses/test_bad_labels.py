"""Bad input to the losses: hyperparameters, fidelity, pairs, soft labels."""

import re
from functools import partial

import keras
import numpy as np
import pytest
from cases import HAS_FLOAT64
from cases import KINDS
from cases import LOSSES
from cases import array
from cases import one_hot
from test_bad_input import ALL
from test_bad_input import FIT
from test_bad_input import HARD_LOSSES
from test_bad_input import INF
from test_bad_input import NAN
from test_bad_input import UNIT
from test_bad_input import Case
from test_bad_input import choice
from test_bad_input import compiled
from test_bad_input import each
from test_bad_input import integer
from test_bad_input import number
from test_bad_input import refused

import keras_calib as kc

pytestmark = pytest.mark.portable

LOGITS = np.array([[2.0, 0.0, -1.0], [0.5, 1.0, 0.0]], "float32")
SOFT = np.array([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0]], "float32")
TWO = np.array([[0.7, 0.3], [0.4, 0.6]], "float32")
THREE = np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1]], "float32")
COUPLED = (kc.DCA, kc.MDCA, kc.MMCE)
SMOOTH_BY_OBJECTNESS = partial(kc.AdaptiveLabelSmoothing, from_logits=True)

# Hyperparameters.


def named(function, *args, **kwargs):
    call = partial(function, *args, **kwargs)
    call.__qualname__ = function.__qualname__
    return call


def unknown(call, argument, known):
    """Names that are none, one of them almost; `known` are told."""
    yield from choice(call, argument)
    told = re.escape(repr(known)[1:-1])
    for value in (known[-1].upper(), f" {known[-1]}", "", 0, True):
        yield Case(
            f"{call.__qualname__} {argument}={value!r}",
            partial(call, **{argument: value}),
            ValueError,
            f"`{argument}` must be one of .*{told}",
        )


RANKING = named(kc.correctness_ranking, LOGITS, np.array([0.2, 0.9]))
CAPE = named(kc.cape_targets, np.array([0, 1]), np.array([[0.2], [0.7]]))
TARGETS = named(kc.objectness_targets, np.array([0]), np.array([0.5]))
THREE_TARGETS = named(TARGETS, num_classes=3)
HYPERPARAMETERS = [
    *unknown(kc.MbLS, "class_reduction", ("mean", "sum")),
    *unknown(kc.ACLS, "reference", ("min", "zero")),
    *unknown(kc.ACLS, "smoothing", ("adaptive", "constant")),
    *unknown(kc.ACLS, "condition", ("margin", "none")),
    *unknown(kc.LabelSmoothing, "spread", ("all", "others")),
    *unknown(kc.ConfidencePenalty, "class_reduction", ("sum", "mean")),
    *number(kc.InverseFocalLoss, "gamma", (-1.0,), ">= 0"),
    *number(kc.UniformityPenalty, "strength", (-0.1,), ">= 0"),
    *number(kc.CPC, "lambda1", (-0.1,), ">= 0"),
    *number(kc.CPC, "lambda2", (-0.1,), ">= 0"),
    *number(kc.AdaptiveLabelSmoothing, "beta", (-0.1, 1.5), UNIT),
    *unknown(kc.AdaptiveLabelSmoothing, "floor", (None, "uniform")),
    *number(kc.MMCE, "strength", (-0.1,), ">= 0"),
    *number(kc.MMCE, "kernel_width", (-0.4, 0.0, 0.009), ">= 0.01"),
    *unknown(kc.MMCE, "variant", ("weighted", "weighted_released")),
    *number(kc.MDCA, "strength", (-0.1,), ">= 0"),
    *number(kc.DCA, "strength", (-0.1,), ">= 0"),
    *number(kc.DCA, "huber_delta", (-0.1, 0.0), "> 0"),
    *unknown(RANKING, "score", ("msp", "neg_entropy", "prob_margin")),
    *unknown(RANKING, "condition", ("margin", "ranking")),
    *unknown(CAPE, "method", ("bins", "kernel")),
    *integer(CAPE, "num_bins", (0, -1), ">= 1"),
    *integer(CAPE, "window", (0, -1), ">= 1"),
    *number(CAPE, "sigma", (0.0, -0.1), "> 0"),
    *integer(TARGETS, "num_classes", (1, 0, -1), ">= 2"),
    *number(THREE_TARGETS, "beta", (-0.1, 1.5), UNIT),
    *unknown(THREE_TARGETS, "floor", (None, "uniform")),
]


@each(HYPERPARAMETERS)
def test_bad_hyperparameter_is_refused_and_told(case):
    refused(case)
    received = case.id.split(" ", 1)[1]
    with pytest.raises(case.error, match=re.escape(f"Received: {received}")):
        case.call()


def table(gammas, rule, received):
    rule = f"`gammas` must be {rule}.* Received: gammas="
    rule += re.escape(repr(received))
    call = partial(kc.FLSD, gammas)
    return Case(f"gammas={gammas!r}", call, ValueError, rule)


ROWS = r"rows of \(threshold, gamma\)"
TABLES = [
    *(
        table(gammas, ROWS, gammas)
        for gammas in (
            None,
            3.0,
            "flsd",
            [],
            [[]],
            [0.2, 5.0],
            [(0.2,)],
            [(0.2, 5.0, 1.0)],
            [(0.2, 5.0), (1.0,)],
            [("low", 5.0)],
            [(0.2, None)],
            {0.2: 5.0},
        )
    ),
    table([(0.2, -1.0), (1.0, 3.0)], ">= 0", -1.0),
    table([(0.2, NAN), (1.0, 3.0)], "finite", NAN),
    table([(0.2, INF), (1.0, 3.0)], "finite", INF),
    table([(0.5, 5.0), (0.2, 3.0)], "> 0.5", 0.2),
    table([(0.5, 5.0), (0.5, 3.0)], "> 0.5", 0.5),
    table([(0.2, 5.0), (0.5, 4.0), (0.3, 3.0)], "> 0.5", 0.3),
    table([(0.2, 5.0), (NAN, 3.0)], "finite", NAN),
    table([(NAN, 5.0), (1.0, 3.0)], "", NAN),
]


@each(TABLES)
def test_bad_table_of_gammas_is_refused(case):
    refused(case)


CAPE_CASES = [
    Case(
        "three classes",
        partial(kc.cape_targets, np.array([0, 1]), np.full((2, 3), 1 / 3)),
        ValueError,
        r"`probs` must be of two classes\. Received: probs\.shape=\(2, 3\)",
    ),
    Case(
        "more bins than predictions",
        partial(CAPE, num_bins=3),
        ValueError,
        "`num_bins` must be at most .*num_bins=3, predictions=2",
    ),
]


@each(CAPE_CASES)
def test_bad_data_for_targets_is_refused(case):
    refused(case)


# The fidelity of losses that look at the whole batch.

SHARED = {
    "from_logits": (True, False),
    "axis": (-1, 1),
    "ignore_class": (None, 255),
    "reduction": ("sum_over_batch_size", "sum"),
    "dtype": ("float32", "float64"),
}
MISMATCHES = [
    Case(
        f"{cls.__name__} {name}={own!r}, fidelity {other!r}",
        partial(
            lambda cls, name, own, other: cls(
                fidelity=kc.FocalLoss(**{name: other}), **{name: own}
            ),
            *(cls, name, own, other),
        ),
        ValueError,
        f"`fidelity` must have the `{name}` of the loss around it. Received: "
        + re.escape(f"{name}={own!r}, fidelity.{name}={other!r}"),
    )
    for cls in COUPLED
    for name, both in SHARED.items()
    for own, other in (both, both[::-1])
]
NO_FIDELITIES = [
    Case(
        f"{cls.__name__} fidelity={told}",
        partial(cls, fidelity=fidelity),
        TypeError,
        f"`fidelity` must .*{told}",
    )
    for cls in COUPLED
    for told, fidelity in (
        ("'focal_loss'", "focal_loss"),
        ("<class .*FocalLoss", kc.FocalLoss),
        ("categorical_focal", keras.losses.CategoricalFocalCrossentropy()),
        ("MDCA", kc.MDCA()),
        ("1.0", 1.0),
        ("adaptive_label_smoothing", kc.AdaptiveLabelSmoothing()),
    )
]


@each(MISMATCHES + NO_FIDELITIES)
def test_bad_fidelity_is_refused(case):
    refused(case)


@pytest.mark.parametrize("cls", COUPLED)
@pytest.mark.parametrize("index", [0, 1])
def test_fidelity_that_reads_as_the_loss_does_is_taken(cls, index):
    shared = {name: both[index] for name, both in SHARED.items()}
    if not HAS_FLOAT64:
        del shared["dtype"]
    loss = cls(fidelity=kc.FocalLoss(gamma=0.0, **shared), **shared)
    plain = cls(**shared)
    ids, outputs = np.array([0, 1]), THREE if index else LOGITS
    np.testing.assert_allclose(
        float(loss(ids, outputs)), float(plain(ids, outputs)), rtol=1e-6
    )


# Soft labels where only hard ones have a meaning.

HARD = {
    **{cls.__name__: partial(cls, from_logits=True) for cls in HARD_LOSSES},
    **{
        f"{cls.__name__} of {inner.__name__}": partial(
            lambda cls, inner, **kwargs: cls(
                fidelity=inner(from_logits=True, **kwargs),
                from_logits=True,
                **kwargs,
            ),
            *(cls, inner),
        )
        for cls, inner in (
            (kc.DCA, kc.LabelRelaxation),
            (kc.MDCA, kc.FLSD),
            (kc.MMCE, kc.FocalLoss),
        )
    },
}
each_hard = pytest.mark.parametrize("make", HARD.values(), ids=HARD)
NO_SOFT = "`y_true` must be class ids or one-hot; .* soft labels.*=0.25"


@each_hard
def test_soft_labels_without_a_meaning_are_refused(make):
    image = np.tile(SOFT[:, None], (1, 4, 1))
    logits = np.tile(LOGITS[:, None], (1, 4, 1))
    calls = [
        partial(make(), SOFT, LOGITS),
        partial(make(), SOFT.astype("float64"), LOGITS),
        partial(make(), image, logits),
        partial(make(axis=1), SOFT, LOGITS),
        partial(make(reduction="sum"), SOFT, LOGITS, np.ones(2)),
    ]
    for call in calls:
        refused(Case("soft", call, ValueError, NO_SOFT))
    assert np.isfinite(float(make()(one_hot([0, 1], 3), LOGITS)))


@each_hard
def test_soft_labels_without_a_meaning_make_compiled_losses_nan(make):
    values = array(compiled(make(reduction="none"))(SOFT, LOGITS))
    assert np.isfinite(values[0])
    assert np.isnan(values[1])
    run = compiled(make())
    assert np.isfinite(float(run(one_hot([0, 1], 3), LOGITS)))
    assert np.isnan(float(run(SOFT, LOGITS)))


@each_hard
def test_rows_that_sum_to_1_but_are_not_one_hot_are_refused(make):
    labels = np.array([[1.0, 0.0, 0.0], [1.25, -0.25, 0.0]])
    call = partial(make(), labels, LOGITS)
    rule = r"`y_true` of several classes must lie in \[0, 1\]"
    refused(Case("beyond 1", call, ValueError, rule))


def test_targets_of_shares_beyond_1_are_refused():
    call = partial(kc.objectness_targets, [0, 1], np.array([0.5, 1.5]), 3)
    refused(Case("1.5", call, ValueError, "`objectness` must .*1.5"))


# Pairs of class id and objectness, given to what takes plain labels.

HINT = "pairs .*need the loss `AdaptiveLabelSmoothing` and metrics with "
PAIRS = np.array([[0.0, 0.4], [1.0, 0.75]])
MISREAD = [
    ("three classes", PAIRS, THREE, f"{FIT}.*{HINT}"),
    ("one output", PAIRS, TWO[:, 1:], f"{FIT}.*{HINT}"),
    ("two classes", PAIRS, TWO, f"must sum to 1 over.*{HINT}"),
    (
        "two classes, objectness 1",
        np.array([[0.0, 1.0], [1.0, 1.0]]),
        TWO,
        f"must sum to 1 over.*{HINT}",
    ),
    (
        "pixels of two classes",
        np.tile(PAIRS[:, None], (1, 4, 1)),
        np.tile(TWO[:, None], (1, 4, 1)),
        f"must sum to 1 over.*{HINT}",
    ),
    (
        "pairs that look like the ids of two pixels",
        PAIRS,
        np.tile(THREE[:, None], (1, 2, 1)),
        "must hold whole numbers",
    ),
]
PAIRS_MISREAD = [
    Case(f"{name}: {id}", partial(reader, pairs, probs), ValueError, rule)
    for id, pairs, probs, rule in MISREAD
    for name, reader in ALL.items()
]


@each(PAIRS_MISREAD)
def test_pairs_are_not_taken_for_plain_labels(case):
    refused(case)


@pytest.mark.parametrize(
    "case", [c for c in LOSSES if not c.objectness], ids=str
)
def test_pairs_taken_for_two_classes_make_a_compiled_loss_nan(case):
    logits = np.log(TWO)
    run = compiled(case.make())
    assert np.isfinite(float(run(np.eye(2, dtype="float32"), logits)))
    assert np.isnan(float(run(PAIRS.astype("float32"), logits)))


# What `AdaptiveLabelSmoothing` and metrics beside it take for pairs.

READ_PAIRS = {
    "loss": kc.AdaptiveLabelSmoothing(),
    **{c.name: c.make(3, objectness=True).update_state for c in KINDS},
}
NO_PAIRS = r"`y_true` must be pairs \(class id, objectness\) of shape"
OUTSIDE = r"`y_true` must hold an objectness in \[0, 1\]"
IN_RANGE = r"`y_true` must hold class ids in \[0, 3\)"


def column(*pairs):
    return np.array(pairs, "float32")


NO_OBJECTNESS = [
    ("ids", np.array([0, 1]), NO_PAIRS + r".*y_true\.shape=\(2,\)"),
    ("ids as floats", np.array([0.0, 1.0]), NO_PAIRS),
    ("ids of shape (n, 1)", np.array([[0], [1]]), NO_PAIRS),
    ("one id", np.array(0), NO_PAIRS),
    ("one-hot labels", np.eye(3)[:2], NO_PAIRS),
    ("triples", np.zeros((2, 3)), NO_PAIRS),
    ("objectness in front", PAIRS.T[:, None, :1], NO_PAIRS),
    ("too few pairs", PAIRS[:1], "`y_true` must be class ids"),
    ("ids of two pixels", np.zeros((2, 2, 2)), "`y_true` must be class ids"),
    ("objectness below 0", column((0, 0.5), (1, -0.1)), OUTSIDE),
    ("objectness below -1", column((0, -1.5), (1, 0.1)), OUTSIDE),
    ("objectness above 1", column((0, 1.1), (1, 0.5)), OUTSIDE),
    ("objectness in percent", column((0, 40.0), (1, 75.0)), OUTSIDE),
    ("infinite objectness", column((0, INF), (1, 0.5)), OUTSIDE),
    ("objectness that is NaN", column((0, 0.5), (1, NAN)), OUTSIDE),
    ("objectness first", column((0.4, 0), (0.75, 1)), "hold whole numbers"),
    ("id too large", column((0, 0.5), (3, 0.5)), IN_RANGE + ".*maximum=3"),
    ("negative id", column((0, 0.5), (-1, 0.5)), IN_RANGE + ".*minimum=-1"),
    ("id that is NaN", column((0, 0.5), (NAN, 0.5)), IN_RANGE),
]
NO_PAIR_CASES = [
    Case(f"{name}: {id}", partial(read, y, THREE), ValueError, rule)
    for name, read in READ_PAIRS.items()
    for id, y, rule in NO_OBJECTNESS
]


@each(NO_PAIR_CASES)
def test_what_is_no_pair_is_refused(case):
    refused(case)


def test_impossible_pairs_make_the_compiled_loss_nan():
    run = compiled(SMOOTH_BY_OBJECTNESS(reduction="none"))
    good = array(run(PAIRS.astype("float32"), LOGITS))
    assert np.isfinite(good).all()
    for bad in ((3, 0.75), (-1, 0.75), (0.5, 0.75), (1, NAN)):
        values = array(run(column(PAIRS[0], bad), LOGITS))
        np.testing.assert_allclose(values[0], good[0], rtol=1e-6)
        assert np.isnan(values[1])


def test_compiled_objectness_is_clipped():
    run = compiled(SMOOTH_BY_OBJECTNESS(reduction="none"))
    outside = array(run(column((0, 1.7), (1, -0.3)), LOGITS))
    edges = array(run(column((0, 1.0), (1, 0.0)), LOGITS))
    np.testing.assert_allclose(outside, edges, rtol=1e-6)
    inner = array(run(PAIRS.astype("float32"), LOGITS))
    assert (np.abs(outside - inner) > 1e-2).all()


@pytest.mark.parametrize(
    ("targets", "outputs", "rule"),
    [
        ((3, 2), (3, 2), "`targets` must have the shape"),
        ((2,), (3, 1), "`targets` must have the shape"),
        ((), (3, 1), "`targets` must have the shape"),
        ((3,), (3, 3), "`logits` must be of two classes"),
    ],
)
def test_targets_of_cape_that_do_not_fit_are_refused(targets, outputs, rule):
    with pytest.raises(ValueError, match=rule):
        kc.cape_loss(np.full(targets, 0.5), np.zeros(outputs, "float32"))


@pytest.mark.parametrize("shape", [(2, 1), (3,), (1,), ()])
def test_what_is_not_one_number_per_sample_is_refused(shape):
    ones = np.ones(shape)
    with pytest.raises(ValueError, match="`correctness` must have the shape"):
        kc.correctness_ranking(LOGITS, ones)
    with pytest.raises(ValueError, match="`active` must have the shape"):
        kc.acls(THREE, LOGITS, active=ones)
