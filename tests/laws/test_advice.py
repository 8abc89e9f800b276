"""The way out that an error names for several labels is a way out."""

import battery
import numpy as np
import pytest
from battery import NUM, entry_of
from laws.test_battery import CALLED

_RNG = np.random.default_rng(0)
PROBS = _RNG.integers(1, 16, (NUM, 3)) / np.float32(16)
TRUE = (PROBS + _RNG.normal(size=PROBS.shape) > 0.5).astype("int64")
# The battery calls these for three classes, and these want [0, z] for z.
OTHERS = {
    *("ClasswiseECE", "mean_cost", "effective_labels", "regularizer_histogram"),
}


def called():
    for name in CALLED:
        entry = entry_of(name)
        of_rows = entry.lead == (NUM,) and entry.every < 10
        if entry.labels and of_rows and entry.takes in ("probs", "logits"):
            yield name


# What reads labels and outputs reads them at one door.
@pytest.mark.parametrize("name", sorted({*called()} - OTHERS)[::4])
def test_one_label_at_a_time_goes_where_several_do_not(name, monkeypatch):
    entry = entry_of(name)
    outputs = PROBS if entry.takes == "probs" else np.log(PROBS)
    with pytest.raises(ValueError, match="labels at once need `Predictions"):
        entry.call(TRUE, outputs, None)
    monkeypatch.setattr(battery, "LOGITS", outputs[:, :1])
    entry.call(TRUE[:, 0], outputs[:, :1], None)
