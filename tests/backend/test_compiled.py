"""What compiled code does in another way on each backend."""

import pytest
from cases import BACKEND
from keras import ops

from keras_calib.backend.compiled import read_later

pytestmark = pytest.mark.portable


class Owner:
    def read(self, array):
        return {"sum": 3.0 if array is None else float(ops.sum(array))}


def test_values_are_read_where_nothing_is_compiled():
    owner = Owner()
    later = read_later(owner, lambda: ops.convert_to_tensor([1.0, 2.0]))
    if BACKEND == "torch":
        assert later is None
        return
    # Keras takes an empty dict for none.
    assert later
    assert dict(later.items())["sum"] == later["sum"] == 3.0
    with pytest.raises(KeyError):
        later["mean"]
