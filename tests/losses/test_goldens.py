"""Losses give the values and gradients of their authors' code."""

from collections import defaultdict

import numpy as np
import pytest
from cases import BACKEND, HAS_FLOAT64, array
from golden_losses import (
    FLOAT32_ONLY,
    FLOAT64_ONLY,
    LEFT_OUT,
    NOT_EXPRESSED,
    VALUE_ONLY,
    all_goldens,
)
from keras import ops
from paths import TESTS

from keras_calib.backend.gradients import value_and_grad

STORED = np.load(TESTS / "data" / "goldens.npz")
GOLDENS = all_goldens(STORED)
GROUPS = defaultdict(list)
for golden in GOLDENS:
    GROUPS["/".join(golden.key.split("/")[1:-1])].append(golden)
# The strength of a penalty is a factor of it.
STRENGTHS = [
    f"{method}/l{strength}"
    for method in ("mmce", "mmce_m_sqrt", "mmce_w_paper", "mmce_w_code")
    for strength in (2, 4)
]
# Eager code of JAX compiles each operation for each shape.
MOST = 2 if BACKEND == "jax" else None
# Relative and absolute error of the value, error of the gradient against
# its largest entry.
TOLERANCES = {"float64": (1e-9, 0.0, 1e-9), "float32": (1e-6, 1e-7, 1e-5)}


def precisions(golden):
    """JAX computes in 32 bits; some values are known in one precision."""
    known = []
    if HAS_FLOAT64 and golden.key.split("/")[1] not in FLOAT32_ONLY:
        known.append("float64")
    if golden.key not in FLOAT64_ONLY:
        known.append("float32")
    return known


def check(golden, precision):
    """Tolerances: 1e-9 in float64; in float32 1e-6, gradients 1e-5."""
    logits = STORED[f"in/{golden.data}/logits"]
    labels = STORED[f"in/{golden.data}/labels"]
    expected = STORED[f"{golden.key}/value"]
    relative, absolute, steepness = TOLERANCES[precision]
    value, gradient = value_and_grad(
        lambda z: golden.total(labels, z),
        ops.convert_to_tensor(logits.astype(precision)),
    )
    error = abs(float(value) - expected)
    assert error <= relative * abs(expected) + absolute, (golden, precision)
    if golden.key not in VALUE_ONLY:
        slopes = STORED[f"{golden.key}/grad"]
        error = np.abs(array(gradient) - slopes).max()
        bound = steepness * np.abs(slopes).max()
        assert error <= bound, (golden, precision)


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(
            x,
            marks=getattr(
                pytest.mark, "slow" if x in STRENGTHS else "portable"
            ),
        )
        for x in GROUPS
    ],
)
def test_values_and_gradients_are_the_authors(group):
    """Each in the best precision, and one of a group in both."""
    goldens = GROUPS[group][:MOST]
    for golden in goldens:
        known = precisions(golden)
        for precision in known if golden is goldens[-1] else known[:1]:
            check(golden, precision)


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_all_values_are_the_authors_in_float32_too(group):
    for golden in GROUPS[group][:-1]:
        for precision in precisions(golden)[1:]:
            check(golden, precision)


@pytest.mark.portable
def test_every_stored_value_is_expressed_or_said_not_to_be():
    keys = {k.removesuffix("/value") for k in STORED.files if "/value" in k}
    keys = {k for k in keys if k.startswith("loss/")}
    covered = {golden.key for golden in GOLDENS} | LEFT_OUT
    missing = {
        k for k in keys - covered if k.split("/")[1] not in NOT_EXPRESSED
    }
    assert not missing
    assert len(GOLDENS) > 330
