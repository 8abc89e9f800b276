"""Arguments out of range are refused where they are given."""

from functools import partial

import numpy as np
import pytest
from refusals import (
    FUNCTIONS,
    IDS,
    LOSSES,
    METRICS,
    PROBS,
    UNIT,
    Case,
    choice,
    integer,
    number,
    on_data,
    refused,
)
from told import taking

from keras_calib import (
    ACLS,
    AECE,
    AURC,
    ECE,
    NLL,
    AdaptiveLabelSmoothing,
    ConfidencePenalty,
    FocalLoss,
    LabelRelaxation,
    LabelSmoothing,
    MbLS,
    ReliabilityDisplay,
    aurc,
    ece,
    nll,
)
from keras_calib.functional import (
    aece,
    coverage_at_risk,
    eaurc,
    risk_at_coverage,
)

HYPERPARAMETERS = [
    *number(MbLS, "margin", (-1.0,), ">= 0"),
    *number(MbLS, "strength", (-0.1,), ">= 0"),
    *choice(MbLS, "class_reduction"),
    *number(ACLS, "margin", (-1.0,), ">= 0"),
    *number(ACLS, "lambda1", (-0.1,), ">= 0"),
    *number(ACLS, "lambda2", (-0.01,), ">= 0"),
    *choice(ACLS, "reference"),
    Case(
        "ACLS reference='zero' without from_logits",
        partial(ACLS, reference="zero"),
        ValueError,
        "`reference` .* needs `from_logits=True`",
    ),
    Case(
        "ACLS reference='zero', from_logits=False",
        partial(ACLS, reference="zero", from_logits=False),
        ValueError,
        "`reference` .* needs `from_logits=True`",
    ),
    *number(LabelSmoothing, "alpha", (1.5,), "<= 1"),
    *choice(LabelSmoothing, "spread"),
    *number(FocalLoss, "gamma", (-1.0,), ">= 0"),
    *number(LabelRelaxation, "alpha", (-0.1, 1.5), UNIT),
    *number(ConfidencePenalty, "beta", (-0.1,), ">= 0"),
    *number(ConfidencePenalty, "threshold", (-0.1,), ">= 0"),
    *choice(ConfidencePenalty, "class_reduction"),
    *integer(ECE, "num_bins", (0, -1), ">= 1"),
    *integer(AECE, "num_bins", (0, -1), ">= 1"),
    *integer(AECE, "resolution", (0, 63), ">= 64"),
    *integer(AURC, "resolution", (0, 63), ">= 64"),
    *number(NLL, "clip", (0.0, 1.5), {0.0: "> 0.0", 1.5: "<= 1.0"}),
    *number(on_data(nll), "clip", (0.0, 1.5), {0.0: "> 0.0", 1.5: "<= 1.0"}),
    *integer(on_data(ece), "num_bins", (0, -1), ">= 1"),
    *integer(on_data(aece), "num_bins", (0, -1), ">= 1"),
    *choice(on_data(aece), "edges"),
    *choice(on_data(aece), "ties"),
    *choice(on_data(aurc), "ties"),
    *choice(on_data(eaurc), "ties"),
    *choice(on_data(coverage_at_risk, risk=0.1), "ties"),
    *choice(on_data(risk_at_coverage, coverage=0.5), "ties"),
    *number(on_data(coverage_at_risk), "risk", (-0.1, 1.5), UNIT),
    *number(
        on_data(risk_at_coverage),
        "coverage",
        (0.0, -0.1, 1.5),
        {0.0: "> 0.0", -0.1: "> 0.0", 1.5: "<= 1.0"},
    ),
    *integer(on_data(taking(ReliabilityDisplay)), "num_bins", (0, -1), ">= 1"),
    Case(
        "aece edges='interp' with weights",
        on_data(aece, edges="interp", sample_weight=np.full(2, 2)),
        ValueError,
        '`sample_weight` needs `edges="mass"`',
    ),
]


def test_bad_hyperparameters_are_refused():
    for case in HYPERPARAMETERS:
        refused(case)


def test_an_argument_that_a_loss_does_not_have_is_refused():
    for cls in (*LOSSES, AdaptiveLabelSmoothing):
        with pytest.raises(TypeError, match="`strenght` must be an argument"):
            cls(strenght=2.0)
        config = cls().get_config()
        assert cls.from_config(config).get_config() == config


def test_what_from_logits_is_not():
    calls = [partial(cls, from_logits="yes") for cls in (*LOSSES, *METRICS)]
    calls += [
        partial(function, IDS, PROBS, from_logits=1)
        for function in FUNCTIONS.values()
    ]
    for call in calls:
        refused(
            Case("", call, TypeError, "`from_logits` must be True or False")
        )
    ece(IDS, PROBS, from_logits=np.False_)
