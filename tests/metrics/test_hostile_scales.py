"""Streams and exact functions agree where numbers are hard to keep apart."""

import numpy as np
import pytest
from cases import METRICS, TABLE, softmax
from keras import ops

from keras_calib.metrics import base

pytestmark = pytest.mark.portable
NUM, CLASSES = 400, 6
FEW = ["logits x 20", "float64 beside an edge"]
# The table has the others in it.
WHOLE = [case for case in METRICS if str(case) not in map(str, TABLE.values())]


def hostile():
    """Name to labels, outputs, and whether they are logits."""
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(NUM, CLASSES)) * 2
    probs = softmax(logits)
    labels = np.array([rng.choice(CLASSES, p=p) for p in softmax(logits / 2)])
    # Just above an edge of 15 or of 10 bins, and on it in float32.
    edges = np.r_[np.arange(1, 15) / 15, np.arange(1, 10) / 10]
    top = rng.choice(edges, NUM) + rng.choice([-1e-9, 0.0, 1e-9], NUM)
    near = np.column_stack(
        [top, (1 - top)[:, None] * rng.dirichlet(np.ones(CLASSES - 1), NUM)]
    )
    found = {
        "logits x 20": (20 * logits.astype("float32"), True),
        "logits x 20 in float16": ((20 * logits).astype("float16"), True),
        "equal logits": (np.zeros((NUM, CLASSES), "float32"), True),
        "float16": (softmax(3 * logits).astype("float16"), False),
        "bfloat16": (ops.cast(probs.astype("float32"), "bfloat16"), False),
        "rows that sum to 1.00002": (1.00002 * softmax(9 * logits), False),
        "float64 beside an edge": (near, False),
        "0 and 1": (np.eye(CLASSES)[logits.argmax(-1)], False),
    }
    return {name: (labels, *given) for name, given in found.items()}


def follows_on(name, case, monkeypatch):
    labels, outputs, from_logits = hostile()[name]
    # A stream reads predictions in float32.
    read = ops.convert_to_numpy(outputs).astype("float32")
    exact = np.atleast_1d(case.exact(labels, read, from_logits=from_logits))
    for add_on_host in (base.add_on_host, lambda *_: False):
        monkeypatch.setattr(base, "add_on_host", add_on_host)
        metric = case.make(CLASSES, from_logits=from_logits)
        metric.update_state(labels, outputs)
        monkeypatch.undo()
        low, high = case.bounds(metric)
        assert ((low <= exact) & (exact <= high)).all(), name
        # Bounds say how far tied or unresolved scores may move a value.
        value = case.value(metric)
        inside = (low - 1e-6 <= value) & (value <= high + 1e-6)
        near = case.is_close(value, exact)
        assert (near | np.isfinite(low) & inside).all(), name


@pytest.mark.parametrize("case", WHOLE, ids=str)
def test_a_stream_equals_its_function_on_hostile_predictions(case, monkeypatch):
    for name in FEW:
        follows_on(name, case, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*hostile()} - {*FEW}))
def test_a_stream_equals_its_function_on_more_of_them(name, monkeypatch):
    for case in WHOLE:
        follows_on(name, case, monkeypatch)
