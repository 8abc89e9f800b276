"""A data set in every form that is read, and models that read it."""

import keras
import numpy as np
from cases import BACKEND

import keras_calib as kc

COUNT, K = 53, 3
rng = np.random.default_rng(0)
X = rng.normal(size=(COUNT, 4)).astype("float32")
KERNEL = rng.normal(size=(4, K)).astype("float32")
# What the network says, but for some.
Y = np.where(
    np.arange(COUNT) % 3, (X @ KERNEL).argmax(-1), rng.integers(K, size=COUNT)
)
W = rng.integers(1, 4, size=COUNT).astype("float32")


def network(**compiled):
    """A model that returns logits."""
    inputs = keras.Input((4,))
    kind = keras.layers.Dense(K, name="kind")(inputs)
    model = keras.Model(inputs, kind)
    model.set_weights([KERNEL, np.zeros(K)])
    model.compile(loss=kc.MbLS(from_logits=True, **compiled))
    return model


class Batches(keras.utils.PyDataset):
    shape = (5,)  # As some loaders keep that of their images.

    def __init__(self, *arrays):
        super().__init__()
        self.arrays = arrays

    def __len__(self):
        return -(-COUNT // 10)

    def __getitem__(self, index):
        part = slice(10 * index, 10 * index + 10)
        return tuple(x[part] for x in self.arrays)


def tf_data(*arrays):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(arrays).batch(10)


def torch_loader(*arrays):
    from torch import tensor
    from torch.utils.data import DataLoader, TensorDataset

    return DataLoader(TensorDataset(*map(tensor, arrays)), batch_size=10)


def with_index(x, y, *weight):
    index = np.arange(COUNT)[::-1]
    weight = [{"label": w, "index": w} for w in weight]
    return x, {"label": y, "index": index}, *weight


FORMS = {
    "arrays": lambda *a: a,
    "lists": lambda *a: tuple(x.tolist() for x in a),
    "tuples": lambda x, *a: (x.tolist(), *(tuple(v.tolist()) for v in a)),
    "a list of a batch": lambda *a: [a],
    "tensors": lambda *a: tuple(map(keras.ops.convert_to_tensor, a)),
    "a list of batches": lambda *a: [Batches(*a)[i] for i in range(6)],
    "batches of lists": lambda *a: [
        [x.tolist() for x in Batches(*a)[i]] for i in range(6)
    ],
    "a generator": lambda *a: (Batches(*a)[i] for i in range(6)),
    "with empty batches": lambda *a: [tuple(x[:0] for x in a), a],
    "PyDataset": Batches,
    "with_index": with_index,
    "batches with index": lambda *a: [with_index(*a)],
    "tf.data": tf_data,
    "torch": torch_loader,
}
NEEDS = {"tf.data": "tensorflow", "torch": "torch"}


def forms(*arrays):
    for name, form in FORMS.items():
        if NEEDS.get(name, BACKEND) == BACKEND:
            yield name, lambda form=form: form(*arrays)


def two_outputs(kind):
    """The network above with a second output: dict, list or subclass."""
    one = network()
    size = keras.layers.Dense(1, name="size")(one.input)
    if kind == "subclass":

        class Both(keras.Model):
            def __init__(self):
                super().__init__()
                self.both = keras.Model(
                    one.input, {"kind": one.output, "size": size}
                )

            def call(self, inputs):
                return self.both(inputs)

        model = Both()
    elif kind == "dict":
        model = keras.Model(one.input, {"kind": one.output, "size": size})
    else:
        model = keras.Model(one.input, [one.output, size])
    losses = {
        "kind": kc.MbLS(from_logits=True, ignore_class=255),
        "size": "mean_squared_error",
    }
    model.compile(loss=list(losses.values()) if kind == "list" else losses)
    return model
