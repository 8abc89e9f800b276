"""What the papers print, in published.csv and in the README of recipes."""

import re

import numpy as np
import pytest
from recipe_cases import LOSSES, RECIPES, SETUPS, comment
from results import tables

import keras_calib

MEASURES = {
    "accuracy",
    "aece",
    "aece10",
    "aece_foreground_per_batch",
    "ap",
    "ap50",
    "ap75",
    "ap_large",
    "ap_medium",
    "ap_small",
    "ar",
    "aurc",
    "ece",
    "ece10",
    "ece100",
    "ece_foreground_per_batch",
    "gamma_3_share",
    "hours",
    "inactive_share",
    "mce",
    "mean_confidence",
    "mean_objectness",
    "miou",
    "nll",
    "objectness_deviation",
    "overconfidence",
    "prediction_flips",
    "rank_accuracy",
    "rank_ece",
    "temperature",
    "underconfidence",
}
# What is no fraction, and the most that it can be.
MOST = {
    "nll": 5,
    "temperature": 5,
    "rank_accuracy": 5,
    "rank_ece": 5,
    "hours": 100,
}

# How many numbers the tables have: rows x columns that are not empty; and
# texts.
ROWS = {
    "ACLS, Footnote 1": 5,
    "ACLS, Section 4.3": 3,
    "ACLS, Section S1.1": 1,
    "ACLS, Table 1": 7,
    "ACLS, Table 3": 12 * 15,
    "ACLS, Table 4": 6 * 3,
    "ACLS, Table 5": 6 * 4,
    "ACLS, Table 6": 4 * 2,
    "ACLS, Table A": 15 * 2,
    # Accuracy stands there twice, one row has two numbers, one a temperature.
    "ACLS, Table B": 7 * 5 + 2 + 1,
    "Adaptive Label Smoothing, Section 4.2": 3,
    "Adaptive Label Smoothing, Section A.5": 2,
    "Adaptive Label Smoothing, Table 1": 4 * 4,
    "Adaptive Label Smoothing, Table 2": 14 * 6,
    "Adaptive Label Smoothing, Table 3": 4 * 6,
    "Adaptive Label Smoothing, Table 4": 7 * 4,
    "Adaptive Label Smoothing, Table 5": 30 * 8,
    "Adaptive Label Smoothing, Table 6": 10 * 8,
    "Adaptive Label Smoothing, Table 7": 18 * 6,
    "Label Relaxation, Table 1": 10 * 6,
    "Label Relaxation, Table 2": 30 * 6,
    "Label Relaxation, Table 3": 5 * 6,
    "MbLS appendix, Table 1": 6 * 15,
    "MbLS appendix, Table 2": 2 * 8,
}


@pytest.fixture(scope="module")
def published():
    return tables.read_published()


def test_published_numbers_are_as_many_as_the_tables_have(published):
    counts = dict.fromkeys(ROWS, 0)
    for row in published:
        counts[row.source] += 1
    assert counts == ROWS


def test_published_number_stands_once_for_each_source(published):
    keys = [row._replace(value="", std="") for row in published]
    assert len(keys) == len(set(keys))


def test_published_rows_name_a_setup_and_a_loss(published):
    setups = {path.stem for path in SETUPS}
    losses = {path.stem for path in LOSSES}
    for row in published:
        several = row.setup.split("+")
        assert set(several) <= setups
        assert (len(several) > 1) == row.measure.startswith("rank_")
        # One number is of the images alone.
        if row.measure != "mean_objectness":
            assert tables.parse_loss(row.loss).stem in losses
        both = ("both",) * (row.source == "Label Relaxation, Table 3")
        assert row.tuned in ("", "accuracy", "ece", *both)
        if row.measure.startswith(("ap", "ar")):
            assert row.on in setups
            continue
        sets = ("test", "train", "validation", "val", "V1", "V2", "context")
        assert row.on in sets


def test_published_numbers_are_fractions(published):
    for row in published:
        assert row.measure in MEASURES
        most = MOST.get(row.measure, 1)
        assert 0 < float(row.value) <= most
        assert float(row.value) < 1 or most > 1
        if row.std:
            assert 0 < float(row.std) < 0.2


def test_published_confidences_agree_with_each_other(published):
    """The mean is that of right and wrong predictions, to rounding."""
    groups = {}
    for row in published:
        key = row._replace(measure="", value="")
        groups.setdefault(key, {})[row.measure] = float(row.value)
    checked = 0
    for found in groups.values():
        if "mean_confidence" not in found:
            continue
        accuracy, over, under = (
            found[name]
            for name in ("accuracy", "overconfidence", "underconfidence")
        )
        mean = accuracy * (1 - under) + (1 - accuracy) * over
        assert mean == pytest.approx(found["mean_confidence"], abs=2e-3)
        checked += 1
    assert checked == 44


def test_published_precisions_are_in_their_order(published):
    """Less of an overlap counts more boxes; small objects are the hardest."""
    groups = {}
    for row in published:
        if row.measure.startswith("ap"):
            key = row._replace(measure="", value="")
            groups.setdefault(key, {})[row.measure] = float(row.value)
    assert len(groups) == 7 + 18
    for found in groups.values():
        assert found["ap"] < found["ap75"] < found["ap50"]
        if "ap_small" in found:
            assert found["ap_small"] < found["ap_medium"] < found["ap_large"]
            assert found["ap_small"] < found["ap"] < found["ap_large"]


def test_published_tables_repeat_the_same_numbers(published):
    """Only temperatures of two papers differ."""
    values = {}
    for row in published:
        values.setdefault(row._replace(value="", std="", source=""), set()).add(
            float(row.value)
        )
    differ = {key for key, found in values.items() if len(found) > 1}
    assert {key.loss for key in differ} == {"cross_entropy+temperature"}
    measures = sorted(key.measure for key in differ)
    assert measures == ["ece"] * 4 + ["temperature"] * 3


def test_mean_ranks_are_those_of_the_tables_before(published):
    """Table 3 has means of tables 1 and 2; accuracies decide their ranks."""
    ranks = {}
    for row in published:
        if row.measure.startswith("rank_"):
            loss = row.loss.removesuffix("+temperature")
            # Cross entropy has no hyperparameter to choose.
            tuned = row.tuned or "accuracy"
            key = row.source[-1] == "3", loss, tuned, row.measure
            ranks.setdefault(key, []).append(float(row.value))
    checked = 0
    for (overall, loss, tuned, measure), found in ranks.items():
        if not overall:
            assert len(found) == 4
            continue
        parts = [
            rank
            for by in (("accuracy", "ece") if tuned == "both" else (tuned,))
            for rank in ranks[False, loss, by, measure]
        ]
        assert found == [pytest.approx(np.mean(parts), abs=0.0051)]
        checked += 1
    assert checked == 30
    accuracies, table = {}, "Label Relaxation, Table 1"
    for row in published:
        if (row.source, row.measure) == (table, "accuracy"):
            key = row.tuned or "accuracy", row.setup
            accuracies.setdefault(key, {})[row.loss] = -float(row.value)
    for row in published:
        if (row.source, row.measure) == (table, "rank_accuracy"):
            by = row.tuned or "accuracy"
            found = [
                sum(x < values[row.loss] for x in values.values()) + 1
                for (tuned, _), values in accuracies.items()
                if tuned == by
            ]
            assert float(row.value) == np.mean(found), row


def test_options_of_a_published_loss_are_arguments(published):
    for text in {row.loss for row in published} - {""}:
        loss = tables.parse_loss(text)
        if loss.stem == "acls":
            options = {k: float(v) for k, v in loss.options.items()}
            keras_calib.ACLS(**options, from_logits=True)
        else:
            assert not loss.options


def test_a_published_loss_that_is_none_is_refused():
    with pytest.raises(ValueError, match="`text` must name a loss"):
        tables.parse_loss("acls[lambda1=0")


def test_readme_is_what_its_script_writes():
    path = RECIPES / "README.md"
    assert tables.readme() == path.read_text(encoding="utf-8")


def test_setup_without_published_numbers_is_named_in_the_readme(published):
    text = (RECIPES / "README.md").read_text(encoding="utf-8")
    have = {row.setup for row in published}
    for path in SETUPS:
        lssc = path.stem.endswith("_lssc") and "`*_lssc`" in text
        assert path.stem in have or lssc or f"`{path.stem}`" in text


def test_setups_say_in_which_tables_their_numbers_are(published):
    for path in SETUPS:
        sources = {
            row.source
            for row in published
            if row.setup == path.stem and ", Table " in row.source
        }
        text = comment(path).replace("#", "")
        text = " ".join(text.split()).replace("tables", "table")
        for source in sources:
            number = source.rpartition(" ")[2]
            pattern = rf"(?i)table [^.;]*\b{number}\b"
            assert re.search(pattern, text), (path.stem, source)
