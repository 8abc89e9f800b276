"""Two passes over each batch: the second gradient, the first statistics."""

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from keras import ops
from small_trainings import COUNT, EAGER, data_of, dense

import keras_calib as kc
from keras_calib.training.sharpness_aware import perturbations

CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.mark.portable
def test_steps_have_the_length_rho_and_follow_the_gradient():
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(3, 2)), rng.normal(size=4)]
    slopes = [rng.normal(size=(3, 2)), rng.normal(size=4)]
    tensors = [
        [ops.convert_to_tensor(x.astype("float32")) for x in part]
        for part in (weights, slopes)
    ]
    plain = perturbations(*tensors, rho=0.3, adaptive=False)
    length = np.sqrt(sum(np.square(array(e)).sum() for e in plain))
    np.testing.assert_allclose(length, 0.3, rtol=1e-6)
    adaptive = perturbations(*tensors, rho=0.3, adaptive=True)
    norm = np.sqrt(
        sum(
            np.square(w * g).sum() for w, g in zip(weights, slopes, strict=True)
        )
    )
    for e, w, g in zip(adaptive, weights, slopes, strict=True):
        np.testing.assert_allclose(array(e), 0.3 * w * w * g / norm, rtol=1e-5)
    with_none = perturbations(
        [tensors[0][0], None], [tensors[1][0], None], rho=0.3, adaptive=False
    )
    assert with_none[1] is None


class Recorded(keras.layers.Layer):
    """Counts its calls in training, as a moving average would move."""

    def build(self, shape):
        self.calls = self.add_weight(
            shape=(), initializer="zeros", trainable=False
        )

    def call(self, x, training=False):
        if training:
            self.calls.assign_add(1.0)
        return x


@pytest.mark.portable
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_the_second_pass_moves_no_statistics(policy):
    keras.config.set_dtype_policy(policy)
    try:
        inputs = keras.Input((6,))
        counted = Recorded(dtype="float32")
        hidden = counted(keras.layers.BatchNormalization()(inputs))
        hidden = keras.layers.Dropout(0.5)(hidden)
        outputs = keras.layers.Dense(3, dtype="float32")(hidden)
        model = kc.SharpnessAwareModel(inputs, outputs, rho=0.5)
        plain = keras.Model(inputs, outputs)
    finally:
        keras.config.set_dtype_policy("float32")
    x, _, labels, _ = data_of("sam", 32)
    before = [array(w).copy() for w in model.get_weights()]
    model.compile(keras.optimizers.SGD(0.1), loss=CROSS_ENTROPY, **EAGER)
    loss = model.train_on_batch(x, labels)
    assert float(counted.calls) == 1
    moved = [array(w).copy() for w in model.non_trainable_weights]
    plain.set_weights(before)
    plain.compile(keras.optimizers.SGD(0.1), loss=CROSS_ENTROPY, **EAGER)
    plain.train_on_batch(x, labels)
    for v, w in zip(moved, plain.non_trainable_weights, strict=True):
        np.testing.assert_allclose(v, array(w), rtol=1e-5)
    assert np.isfinite(loss)


@pytest.mark.portable
@pytest.mark.skipif(BACKEND == "jax", reason="looks between the passes")
def test_both_passes_read_the_record_as_it_was():
    seen = []

    class Looks(kc.SharpnessAwareModel, kc.CorrectnessRankingModel):
        def recorded_loss(self, *args):
            seen.append(float(ops.sum(self.view_counts)))
            return super().recorded_loss(*args)

    x, y, _, _ = data_of("crl", COUNT)
    model = dense(Looks, num_samples=COUNT)
    model.compile("sgd", loss=CROSS_ENTROPY, run_eagerly=True)
    model.fit(x, y, batch_size=32, epochs=1, verbose=0)
    assert seen == [0, 0, 32, 32, 64, 64]
    assert float(ops.sum(model.view_counts)) == 96


@pytest.mark.portable
def test_mixed_precision_takes_the_steps_of_float32():
    x, _, labels, _ = data_of("sam", COUNT)
    ends = []
    for policy in ("float32", "mixed_float16"):
        keras.config.set_dtype_policy(policy)
        try:
            model = dense(kc.SharpnessAwareModel, rho=0.5)
        finally:
            keras.config.set_dtype_policy("float32")
        # In a graph, as the optimizer that scales the loss is used.
        graph = BACKEND == "tensorflow" and policy != "float32"
        compiled = {"jit_compile": False} if graph else EAGER
        model.compile(keras.optimizers.SGD(0.1), loss=CROSS_ENTROPY, **compiled)
        if policy != "float32":
            scaled = "LossScaleOptimizer"
            assert type(model.optimizer).__name__ == scaled
        options = {"batch_size": 48, "shuffle": False, "verbose": 0}
        model.fit(x, labels, epochs=4, **options)
        ends.append(array(model.trainable_variables[0]).copy())
    np.testing.assert_allclose(ends[0], ends[1], atol=2e-3)
    assert (
        np.abs(
            ends[0] - array(dense(kc.SharpnessAwareModel).get_weights()[0])
        ).max()
        > 0.02
    )


def test_a_gradient_without_an_end_skips_the_step_and_keeps_weights():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = dense(kc.SharpnessAwareModel)
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile(keras.optimizers.SGD(0.1), loss=CROSS_ENTROPY, **EAGER)
    before = array(model.trainable_variables[0]).copy()
    x, _, labels, _ = data_of("sam", 32)
    model.train_on_batch(x * 1e5, labels)
    np.testing.assert_array_equal(array(model.trainable_variables[0]), before)
    model.train_on_batch(x, labels)
    assert np.isfinite(array(model.trainable_variables[0])).all()


def test_clipping_is_of_the_second_gradient():
    x, _, labels, _ = data_of("sam", 32)
    model = dense(kc.SharpnessAwareModel, rho=1.0)
    model.compile(
        keras.optimizers.SGD(1.0, global_clipnorm=1e-3),
        loss=CROSS_ENTROPY,
        **EAGER,
    )
    before = [array(v).copy() for v in model.trainable_variables]
    model.train_on_batch(x, labels)
    moved = [
        array(v) - w
        for v, w in zip(model.trainable_variables, before, strict=True)
    ]
    norm = np.sqrt(sum(np.square(m).sum() for m in moved))
    np.testing.assert_allclose(norm, 1e-3, rtol=1e-3)


def test_a_model_with_its_own_call_takes_two_passes_unbuilt():
    class Own(kc.SharpnessAwareModel):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.layer = keras.layers.Dense(3)

        def call(self, inputs):
            return self.layer(inputs)

    x, _, labels, _ = data_of("sam", COUNT)
    model = Own(adaptive=True)
    assert model.rho == 2.0
    model.compile("sgd", loss=CROSS_ENTROPY, **EAGER)
    fitted = model.fit(x, labels, batch_size=COUNT, epochs=2, verbose=0)
    assert np.isfinite(fitted.history["loss"]).all()
