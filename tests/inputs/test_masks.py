"""Masks say what counts: bool, or 0 and 1."""

import numpy as np
import pytest
from cases import BACKEND, array, one_hot
from streams import compiled

import keras_calib as kc

pytestmark = pytest.mark.portable
LOG_P = np.log([[0.5, 0.5, 0.9], [0.9, 0.4, 0.1]]).astype("float32")
KEPT = np.array([[True, True, False], [True, True, True]])
_rng = np.random.default_rng(0)
LOGITS = _rng.normal(size=(2, 3, 4)).astype("float32")
LABELS = one_hot(_rng.integers(4, size=(2, 3)), 4).astype("float32")
READERS = {
    "sequence_confidence": lambda mask: kc.text.sequence_confidence(
        LOG_P, mask
    ),
    "svls": lambda mask: kc.losses.svls(LABELS, LOGITS, mask=mask),
    "nacl": lambda mask: kc.losses.nacl(LABELS, LOGITS, mask=mask),
}


@pytest.mark.parametrize("name", READERS)
def test_masks_of_0_and_1_are_those_of_bool_and_others_are_refused(name):
    read = READERS[name]
    expected = array(read(KEPT))
    assert not np.allclose(expected, array(read(None)))
    for dtype in ("int32", "uint8", "float32", "float64"):
        np.testing.assert_array_equal(array(read(KEPT.astype(dtype))), expected)
    np.testing.assert_array_equal(array(read(KEPT.tolist())), expected)
    additive = np.where(KEPT, 0.0, -1e9)
    for odd in (
        additive,
        -additive,
        2.0 * KEPT,
        0.5 * KEPT,
        KEPT - 2,
        3 - KEPT,
    ):
        with pytest.raises(ValueError, match="an additive mask, with 0 where"):
            read(odd)
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match="`mask` must be bool"):
            read(np.where(KEPT, 1.0, value))
    with pytest.raises(TypeError, match="`mask` must hold real numbers"):
        read(KEPT.astype(str))


@pytest.mark.skipif(BACKEND == "torch", reason="torch runs eagerly")
def test_compiled_code_keeps_what_is_1_alone():
    read = compiled(lambda mask: kc.text.sequence_confidence(LOG_P, mask))
    odd = np.where(KEPT, 1.0, -1e9).astype("float32")
    expected = array(kc.text.sequence_confidence(LOG_P, KEPT))
    np.testing.assert_allclose(array(read(odd)), expected, rtol=1e-6)
    # An additive mask keeps nothing, which has no confidence.
    additive = np.where(KEPT, 0.0, -1e9).astype("float32")
    assert np.isnan(array(read(additive))).all()
