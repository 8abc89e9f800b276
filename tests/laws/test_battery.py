"""Every public callable, given odd inputs from one list.

Each returns what it returns for the plain form of the same numbers, or raises
an error of the house, or tells. No other value comes back. What is slow, or
reads its arrays where others do, is tried with a part of the list, another
part for each.
"""

import battery
import numpy as np
import odd_inputs
import pytest
from battery import NAMES, NUM, base_of, entry_of
from cases import BACKEND, CALIBRATORS, LOSSES, METRICS
from odd_inputs import (
    ODD_ARRAYS,
    ODD_LABELS,
    ODD_PREDICTIONS,
    ODD_PROBS,
    ODD_WEIGHTS,
    WIDE_IDS,
    is_error,
    of_house,
    outcome,
    shown,
    with_wide_id,
)
from report_pages import results_alone

from keras_calib.plots.display import Display

# Fits that need a package which this environment lacks.
OUT_OF_REACH = {x.cls.__name__ for x in CALIBRATORS if not x.can_fit}
# It fits a posterior.
SLOW = ("GaussianProcessCalibration",)
CALLED = [
    name
    for name in NAMES
    if entry_of(name) is not None and name not in OUT_OF_REACH
]
# Streams and fits read their arrays as one of them does, which tries all.
HALVED = {x.cls.__name__ for x in (*CALIBRATORS, *METRICS)}
HALVED -= {"AffineScaling", "ECE"}
STREAMS = {x.cls.__name__ for x in METRICS}
LOSS_NAMES = {x.cls.__name__ for x in LOSSES} | {"SVLS", "NACL", "L1ACE"}
# One of each kind: NumPy reads arrays, whatever the backend.
KINDS = (
    "AffineScaling",
    "ECE",
    "IsotonicCalibration",
    "MbLS",
    "ReliabilityDisplay",
    "RiskCoverageDisplay",
    "SelectiveClassifier",
    "cape_loss",
    "choose_threshold",
    "ece",
    "mbls",
    "objectness_targets",
    "per_image",
    "prediction_flips",
)


def cases(names, slow=(), *given):
    """Names with their marks, each with what else is given to a test."""
    for name in names:
        marks = [pytest.mark.portable] if name in KINDS else []
        marks += [pytest.mark.slow] if name in slow else []
        yield pytest.param(name, *given, marks=marks)


def named(names, slow=()):
    """A parametrization by these names, some of them slow."""
    return pytest.mark.parametrize("name", [*cases(names, slow)])


def shared(slow=()):
    """A third of the kinds for each name, other ones for the next; or all."""
    fast = [name for name in CALLED if name not in slow]
    values = [*cases(fast, (), 3), *cases(CALLED, CALLED, 1)]
    return pytest.mark.parametrize(("name", "least"), values)


@pytest.fixture(autouse=True)
def reports_have_no_pages(request, monkeypatch):
    """Their results are looked at; pages take most of the time."""
    case = getattr(request.node, "callspec", None)
    if case and case.params.get("name") == "report":
        results_alone(monkeypatch)


def some(kinds, name, most=4, least=1):
    """All, or those that are due for this name: other ones for each."""
    share = max(least, 1 if BACKEND == "tensorflow" else 3)
    share *= 1 + (name in HALVED)
    every = min(share * entry_of(name).every, most)
    return list(kinds)[CALLED.index(name) % every :: every]


def close(found, expected):
    return (
        not (is_error(found) or is_error(expected))
        and found.shape == expected.shape
        and np.allclose(found, expected, rtol=2e-4, atol=2e-6, equal_nan=True)
    )


def test_what_takes_no_predictions_is_listed_with_its_reason():
    assert not set(battery.NO_PREDICTIONS) - set(NAMES)
    assert not set(battery.SPECIAL) - set(NAMES)
    assert not set(battery.SPECIAL) & set(battery.NO_PREDICTIONS)
    assert len(CALLED) > 110


@shared(slow=SLOW)
def test_every_form_of_the_same_numbers_gives_the_same_value(name, least):
    entry = entry_of(name)
    labels, outputs, whole, weight = base_of(name)
    expected, _ = outcome(lambda: entry.call(labels, outputs, weight))
    assert not is_error(expected), shown(expected)
    assert np.isfinite(expected).any()
    wrong = []
    # Those of labels, predictions and weights side by side.
    label_forms = [("plain", lambda y: y)]
    weight_forms = [("plain", lambda w: w)]
    if entry.labels:
        label_forms = list(odd_inputs.LABEL_FORMS.items())
        if entry.takes in ("rows", "labels") or (
            len(entry.lead) != 1 or entry.classes == 2
        ):
            keep = ("tensor", "pandas", "variable", "reversed", "list")
            label_forms = [x for x in label_forms if x[0] in keep]
    if entry.weights:
        weight_forms += odd_inputs.WEIGHT_FORMS.items()
    forms = list(enumerate(odd_inputs.PREDICTION_FORMS.items()))
    for i, (form, changed) in some(forms, name, most=len(forms), least=least):
        label_form, of_labels = label_forms[i % len(label_forms)]
        weight_form, of_weight = weight_forms[i % len(weight_forms)]
        found, told = outcome(
            lambda changed=changed, of_labels=of_labels, of_weight=of_weight: (
                entry.call(
                    of_labels(labels),
                    changed(outputs),
                    None if weight is None else of_weight(weight),
                )
            )
        )
        if told or not close(found, expected):
            sides = f"{form} / {label_form} / {weight_form}"
            wrong.append(f"{sides}: {shown(found)} {told}")
    ints = outcome(lambda: entry.call(labels, whole, weight))[0]
    floats = outcome(
        lambda: entry.call(labels, whole.astype("float32"), weight)
    )[0]
    # Where predictions are sure, some refuse both.
    both = of_house(ints) and of_house(floats)
    if not (both or close(ints, floats)):
        wrong.append(f"integers: {shown(ints)}, floats {shown(floats)}")
    assert not wrong, f"not {shown(expected)}\n" + "\n".join(wrong)


def odd_calls(name):
    """Each odd input: its id, the call, and whether NaN is an answer."""
    entry = entry_of(name)
    labels, outputs, _, weight = base_of(name)
    pure = entry.takes == "rows" or not entry.rules
    for kind, changed in ODD_ARRAYS.items():
        short = kind in ("too short", "too long")
        # Some take several models by name.
        named = kind == "dict" and name in (
            "RiskCoverageDisplay",
            "report",
        )
        if (
            entry.takes != "labels"
            and not named
            and not (short and entry.takes == "rows" and not entry.labels)
        ):
            yield f"predictions {kind}", (labels, changed, weight, 1), False
        if entry.labels:
            yield f"labels {kind}", (changed, outputs, weight, 0), False
        fine = kind in ("None", "one number")  # A weight of them all.
        if weight is not None and not fine and entry.takes != "rows":
            yield f"weights {kind}", (labels, outputs, changed, 2), False
    if entry.labels and entry.takes != "rows" and entry.classes == 3:
        for kind, changed in ODD_LABELS.items():
            yield f"labels {kind}", (changed, outputs, weight, 0), False
    for kind, changed in ODD_PREDICTIONS.items():
        if entry.takes == "labels" or entry.lead == ():
            continue
        if name == "prediction_flips" and kind == "infinite":
            continue  # An infinite logit predicts its class.
        if not (pure and "class" in kind):
            nan = entry.takes == "rows" or entry.nothing is not None
            yield f"predictions {kind}", (labels, changed, weight, 1), nan
    if entry.takes == "probs" and entry.rules:
        for kind, changed in ODD_PROBS.items():
            yield f"predictions {kind}", (labels, changed, weight, 1), False
    if weight is not None and entry.takes != "rows":
        for kind, changed in ODD_WEIGHTS.items():
            yield f"weights {kind}", (labels, outputs, changed, 2), False


@shared()
def test_what_is_odd_is_refused_in_the_words_of_the_house(name, least):
    entry = entry_of(name)
    wrong = []
    for kind, (*given, place), may_be_nan in some(
        odd_calls(name), name, least=least
    ):
        given[place] = given[place](base_of(name)[(0, 1, 3)[place]])
        found, _ = outcome(lambda given=given: entry.call(*given))
        if of_house(found):
            continue
        if may_be_nan and not is_error(found) and not np.isfinite(found).all():
            continue
        wrong.append(f"{kind}: {shown(found)}")
    assert not wrong, "\n".join(wrong)


@named(CALLED)
def test_ids_that_a_cast_would_wrap_are_refused(name):
    entry = entry_of(name)
    if not entry.labels or entry.takes == "rows" or entry.classes != 3:
        return
    labels, outputs, _, weight = base_of(name)
    kinds, place = list(WIDE_IDS), CALLED.index(name)
    if entry.every > 2 or name in HALVED:  # Read as others are.
        kinds = kinds[place % len(kinds) :: len(kinds) // 2]
    wrong = []
    for kind in kinds:
        wide = with_wide_id(labels, kind)
        found, _ = outcome(lambda y=wide: entry.call(y, outputs, weight))
        if not of_house(found):
            wrong.append(f"{kind}: {shown(found)}")
        if name not in STREAMS or kind != kinds[place % len(kinds)]:
            continue
        # Where a metric counts nothing, any id may stand.
        none = np.where(labels == labels[-1], 0, weight)
        found, _ = outcome(lambda y=wide, w=none: entry.call(y, outputs, w))
        fine = wide.dtype.kind in "iuf"
        if is_error(found) == fine:
            wrong.append(f"{kind} of weight 0: {shown(found)}")
    assert not wrong, "\n".join(wrong)


@named(battery.BY_MODEL)
def test_what_is_odd_is_refused_by_way_of_a_model(name):
    entry = battery.BY_MODEL[name]
    probs = entry.takes == "probs"
    outputs = battery.PROBS if probs else battery.LOGITS
    expected, _ = outcome(lambda: entry.call(battery.LABELS, outputs, None))
    assert np.isfinite(expected).any()
    odd_labels = {**ODD_ARRAYS, **ODD_LABELS}
    odd_outputs = {**ODD_PREDICTIONS, **(ODD_PROBS if probs else {})}
    calls = [
        (f"labels {kind}", changed(battery.LABELS), outputs)
        for kind, changed in odd_labels.items()
    ] + [
        (f"outputs {kind}", battery.LABELS, changed(outputs))
        for kind, changed in odd_outputs.items()
        if "class" not in kind  # The model takes three.
    ]
    wrong = []
    every = 1 if BACKEND == "tensorflow" else 3
    for kind, labels, given in calls[::every]:
        found, _ = outcome(lambda y=labels, z=given: entry.call(y, z, None))
        if not of_house(found):
            wrong.append(f"{kind}: {shown(found)}")
    # What draws or reports tells of probabilities as logits; fits refuse them.
    options = {"from_logits": True} if probs else {}
    found, told = outcome(
        lambda: entry.call(battery.LABELS, battery.PROBS, None, **options)
    )
    is_told = any("looks like prob" in x for x in told)
    if not (is_told if probs else of_house(found)):
        wrong.append(f"probabilities as logits: {shown(found)}")
    assert not wrong, "\n".join(wrong)


@named(CALLED)
def test_rows_of_weight_0_are_as_if_they_were_not_there(name):
    entry = entry_of(name)
    labels, outputs, _, weight = base_of(name)
    is_loss = name in LOSS_NAMES  # A mean over the batch counts them.
    has_more = not entry.labels or "objectness" in battery._REQUIRED.get(
        name, {}
    )
    if weight is None or entry.takes == "rows" or is_loss or has_more:
        return
    if name in HALVED and CALLED.index(name) % 3:  # Read as others are.
        return
    kept = np.arange(NUM) % 5 != 2
    expected, _ = outcome(
        lambda: entry.call(labels[kept], outputs[kept], weight[kept])
    )
    odd = np.where(kept, labels, -100)
    bad = np.where(kept.reshape(-1, 1), outputs, np.nan).astype("float32")
    found, told = outcome(
        lambda: entry.call(odd, bad, np.where(kept, weight, 0))
    )
    assert not told and close(found, expected), shown(found)


@named(CALLED)
def test_no_samples_are_refused_or_nothing(name):
    entry = entry_of(name)
    labels, outputs, _, weight = base_of(name)
    calls = {}
    if entry.takes != "rows" and entry.rules and entry.takes != "labels":
        none = None if weight is None else weight[:0]
        calls["empty"] = (labels[:0], outputs[:0], none)
        if weight is not None:
            calls["weights of 0"] = (labels, outputs, weight * 0)
    for kind, given in calls.items():
        found, told = outcome(lambda given=given: entry.call(*given))
        if entry.nothing is None:
            assert of_house(found), (kind, shown(found))
        else:
            nothing = odd_inputs.numbers(entry.nothing())
            assert close(found, nothing), (kind, shown(found))
            assert not told


@named(CALLED)
def test_probabilities_as_logits_are_told(name):
    entry = entry_of(name)
    thing = battery.PUBLIC[name]
    # Whoever takes predictions tells it.
    if thing in (battery.kc.Predictions, battery.kc.Runs):
        return
    labels, outputs, _, weight = base_of(name)
    call = entry.call
    if entry.takes == "logits" and entry.rules:
        outputs = battery.PROBS
    elif entry.takes == "probs" and entry.labels and len(entry.lead) == 1:
        function = thing
        if isinstance(thing, type) and issubclass(thing, Display):

            def call(y, p, w):
                return entry.call(y, p, w, from_logits=True)

        elif isinstance(thing, type):
            options = battery._REQUIRED.get(name, {})
            made = thing(from_logits=True, **options)
            if hasattr(made, "update_state"):

                def call(y, p, w):
                    made.update_state(y, p, w)
                    return made.result()

            else:
                call = made
        elif name not in battery.SPECIAL:
            wrapped, _ = battery._weighted(
                lambda *a, **k: function(*a, from_logits=True, **k), name
            )
            options = battery._REQUIRED.get(name, {})

            def call(y, p, w):
                return function(y, p, from_logits=True, **options)

        else:
            return
    else:
        return
    found, told = outcome(lambda: call(labels, outputs, weight))
    assert of_house(found) or any("looks like prob" in x for x in told), told
