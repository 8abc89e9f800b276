"""Multiple choice: what services return, letters, and fewer choices."""

from types import SimpleNamespace

import numpy as np
import pytest
from cases import array

import keras_calib as kc
from keras_calib.text import choice_labels, choice_logits, sequence_confidence

LETTERS = ["A", "B", "C", "D"]
INF = np.inf
# Three questions; the second has no C and no D, the third no B.
ROWS = [[-0.5, -1.5, -2.5, -3.5], [-0.2, -1.7], [-1.0, -INF, -0.6, -4.0]]
EXPECTED = np.array([[*row, *[-INF] * (4 - len(row))] for row in ROWS])


def in_dicts():
    return [dict(zip(LETTERS, row, strict=False)) for row in ROWS]


def in_records(spelling="{}", make=dict):
    return [
        [
            make(token=spelling.format(k), logprob=v)
            for k, v in {"I": -9.0, **row}.items()
            if v > -INF
        ]
        for row in in_dicts()
    ]


FORMS = {
    "dicts": in_dicts,
    "records": in_records,
    "objects": lambda: in_records(make=SimpleNamespace),
    "with white space": lambda: in_records(" {}"),
    "a place of an answer": lambda: [
        {"token": "A", "logprob": -1.0, "top_logprobs": x} for x in in_records()
    ],
    "a column": lambda: np.array([*in_dicts(), None], object)[:3],
    "lists of unequal lengths": lambda: ROWS,
    "an array": lambda: EXPECTED,
}


@pytest.mark.portable
@pytest.mark.parametrize("form", FORMS)
def test_what_services_return_becomes_logits_of_choices(form):
    found = array(choice_logits(FORMS[form](), LETTERS))
    np.testing.assert_allclose(found, EXPECTED, rtol=1e-6)


def test_spellings_of_a_choice_are_added_also_by_id():
    answers = [{"A": -1.0, " A": -2.0, "a": -3.0, "B": -0.5}]
    found = array(choice_logits(answers, [["A", "a"], ["B"]]))
    added = np.logaddexp.reduce([-1.0, -2.0, -3.0])
    np.testing.assert_allclose(found, [[added, -0.5]], rtol=1e-6)
    found = array(choice_logits([{32: -1.0, 33: -0.5}], [32, (33, 34)]))
    np.testing.assert_allclose(found, [[-1.0, -0.5]], rtol=1e-6)


def test_the_result_goes_into_fits_reports_and_metrics():
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(300, 4))
    truth = (logits / 2 + rng.gumbel(size=(300, 4))).argmax(-1)
    log_p = logits - np.logaddexp.reduce(logits, -1, keepdims=True)
    # Every third question ends before the D, unless that is the answer.
    sizes = np.where((np.arange(300) % 3 == 0) & (truth < 3), 3, 4)
    answers = [
        dict(zip(LETTERS, row[:size], strict=False))
        for row, size in zip(log_p, sizes, strict=True)
    ]
    labels = choice_labels([LETTERS[x] for x in truth], LETTERS)
    logits = choice_logits(answers, LETTERS)
    np.testing.assert_array_equal(labels, truth)
    temperature = kc.TemperatureScaling().fit(labels, logits)
    absent = array(kc.TemperatureScaling.call(temperature, logits))
    assert (absent[sizes == 3, 3] == -INF).all()
    assert 0.0 < kc.ece(labels, array(logits), from_logits=True) < 1.0
    told = r"rule out the class of a label.* count in a log, `Predictions\(corr"
    with pytest.raises(ValueError, match=told):
        temperature.fit([3], array(logits)[sizes == 3][:1])
    with pytest.raises(ValueError, match="`class_names`: give these in the o"):
        kc.Predictions(["D"], [[0.25] * 4])
    with pytest.raises(TypeError, match="or give `Predictions` their `class_n"):
        kc.ece(["D"], [[0.25] * 4])


def test_labels_are_letters_or_places():
    assert choice_labels(["B", " D", 0, np.int64(2)], LETTERS).tolist() == [
        *(1, 3, 0, 2)
    ]
    # A number that is the text of a choice is that choice.
    assert choice_labels(["1", 1], ["1", "2"]).tolist() == [0, 1]


def test_answers_of_any_length_have_a_confidence():
    answers = [[-0.5, -1.0, -0.25], [-2.0], [-0.1, -0.3]]
    expected = [np.exp(np.mean(x)) for x in answers]
    records = [[{"token": "x", "logprob": x} for x in row] for row in answers]
    for form in answers, records:
        np.testing.assert_allclose(
            array(sequence_confidence(form)), expected, rtol=1e-6
        )
    masks = [[True, False, True], [1], [0, 1]]
    found = array(sequence_confidence(answers, masks))
    expected = np.exp([-0.375, -2.0, -0.3])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


WRONG = {
    "no choice in an answer": (
        lambda: choice_logits([{"A": -1.0}, {"I": -0.1}], LETTERS),
        r"`logits\[1\]` must have one of the `choices`.*\['I'\]",
    ),
    "a record without a number": (
        lambda: choice_logits([[{"token": "A"}]], LETTERS),
        r"`logits\[0\]` must be a dict",
    ),
    "no number": (
        lambda: choice_logits([{"A": "-0.1"}], LETTERS),
        r"`logits\[0\]` must hold numbers",
    ),
    "more numbers than choices": (
        lambda: choice_logits([[-1.0, -2.0], [-1.0] * 5], LETTERS),
        r"`logits\[1\]` must have a number for each.*numbers=5",
    ),
    "a vocabulary": (
        lambda: choice_logits(np.zeros((2, 9)), LETTERS),
        "vocabulary need the ids",
    ),
    "a choice twice": (
        lambda: choice_logits([{"A": -1.0}], ["A", " A"]),
        "each once",
    ),
    "a label of no choice": (
        lambda: choice_labels(["A", "E"], LETTERS),
        r"`labels\[1\]` must be one of `choices`, which may have letters",
    ),
    "labels of ids": (lambda: choice_labels([1], [4, 7]), "must be texts"),
    "a label beyond": (
        lambda: choice_labels([4], LETTERS),
        r"`labels\[0\]` must be one",
    ),
    "a mask of other length": (
        lambda: sequence_confidence([[-1.0], [-1.0] * 3], [[1], [1, 0]]),
        r"`mask\[1\]` must be as long as `log_probs\[1\]`",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_name_the_question_and_what_is_missing(case):
    call, rule = WRONG[case]
    with pytest.raises((ValueError, TypeError), match=rule):
        call()


def test_probabilities_are_no_log_probabilities():
    with pytest.raises(ValueError, match="at most 0: take logarithms"):
        kc.text.choice_logits([{"A": 0.9, "B": 0.1}], ["A", "B"])
