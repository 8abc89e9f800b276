"""What models refuse, and how they meet the rest of Keras."""

import keras
import numpy as np
import pytest
from cases import BACKEND
from cases import array
from keras import ops
from small_trainings import COUNT
from small_trainings import MODELS
from small_trainings import data_of
from small_trainings import network

import keras_calib as kc
from keras_calib.training.sharpness_aware import perturbations

pytestmark = pytest.mark.portable

CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
REMEMBER = [name for name, (_, a, _) in MODELS.items() if "num_samples" in a]
JIT = {} if BACKEND == "jax" else {"jit_compile": False}


def dense(cls, num_classes=3, **arguments):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    outputs = keras.layers.Dense(num_classes)(inputs)
    return cls(inputs, outputs, **arguments)


class Batches(keras.utils.PyDataset):
    """One batch, of inputs and labels, or weights too."""

    def __init__(self, parts=2, y=None):
        super().__init__()
        x, _, labels, weight = data_of("adafocal", 32)
        self.batch = (x, labels if y is None else y, weight)[:parts]

    def __len__(self):
        return 1

    def __getitem__(self, place):
        return self.batch


# What cannot train.


@pytest.mark.parametrize("name", REMEMBER)
def test_labels_without_an_index_do_not_train(name):
    x, y, labels, _ = data_of(name, COUNT)
    with pytest.raises(ValueError, match='must be {"label": labels'):
        network(name).fit(x, labels, verbose=0)
    with pytest.raises(ValueError, match="index"):
        network(name).fit(x, {"label": labels, "id": y["index"]}, verbose=0)


@pytest.mark.parametrize("name", REMEMBER)
def test_class_weights_are_refused_and_weights_of_samples_asked_for(name):
    x, y, _, _ = data_of(name, COUNT)
    with pytest.raises(ValueError, match="as `sample_weight`"):
        network(name).fit(x, y, class_weight={0: 1.0, 1: 2.0}, verbose=0)


@pytest.mark.parametrize("cls", [kc.AdaptiveFocalModel, kc.ScheduledFocalModel])
def test_models_with_their_own_loss_take_no_other(cls):
    x, y, labels, _ = data_of("sam", 32)
    model = dense(cls, from_logits=True)
    model.compile("sgd", loss=CROSS_ENTROPY)
    with pytest.raises(ValueError, match="without `loss`"):
        model.fit(x, labels, validation_data=(x, labels), verbose=0)


def test_adafocal_needs_validation_data_without_weights():
    x, y, labels, weight = data_of("adafocal", 32)
    with pytest.raises(ValueError, match="`validation_data` must be given"):
        network("adafocal").fit(x, labels, verbose=0)
    with pytest.raises(ValueError, match="no sample weights"):
        network("adafocal").update_gammas((x, labels, weight))
    with pytest.raises(ValueError, match="have a sample"):
        network("adafocal").update_gammas([])
    for data in ((x, labels, weight), [x, labels, weight], Batches(3)):
        model = network("adafocal")
        with pytest.raises(ValueError, match="no sample weights"):
            model.fit(x, labels, validation_data=data, verbose=0)
        assert int(model.optimizer.iterations) == 0
    with pytest.raises(ValueError, match="again and again"):
        network("adafocal").fit(
            x, labels, validation_data=iter([(x, labels)]), verbose=0
        )


def test_adafocal_takes_validation_data_as_keras_does():
    x, _, labels, _ = data_of("adafocal", 32)
    gammas = []
    for data in ((x, labels), [x, labels], Batches(2)):
        model = network("adafocal")
        model.fit(x, labels, validation_data=data, verbose=0, shuffle=False)
        gammas.append(array(model.gammas))
    assert np.any(gammas[0] != 1.0)
    np.testing.assert_array_equal(gammas[0], gammas[1])
    np.testing.assert_array_equal(gammas[0], gammas[2])


def test_cape_needs_two_classes_and_an_index():
    x, y, labels, _ = data_of("cape", COUNT)
    model = dense(kc.CaPEModel, num_samples=COUNT)
    model.compile("sgd", loss=CROSS_ENTROPY)
    with pytest.raises(ValueError, match="two classes"):
        model.fit(x, y, verbose=0)
    with pytest.raises(ValueError, match='must be {"label"'):
        network("cape").update_targets((x, labels))


def test_models_need_to_know_what_outputs_are():
    x, y, _, _ = data_of("crl", 32)
    model = dense(kc.CorrectnessRankingModel, num_samples=COUNT)
    model.compile("sgd", loss=lambda labels, logits: ops.sum(logits, -1))
    with pytest.raises(ValueError, match="`from_logits` must be True or"):
        model.fit(x, y, verbose=0)


def test_pixels_have_no_record():
    inputs = keras.Input((2, 2, 3))
    outputs = keras.layers.Dense(3)(inputs)
    model = kc.CorrectnessRankingModel(inputs, outputs, num_samples=8)
    model.compile("sgd", loss=CROSS_ENTROPY)
    y = {"label": np.zeros((8, 2, 2), int), "index": np.arange(8)}
    with pytest.raises(ValueError, match="not pixels"):
        model.fit(np.zeros((8, 2, 2, 3)), y, verbose=0)


@pytest.mark.parametrize(
    "cls, arguments, message",
    [
        (kc.CorrectnessRankingModel, {"num_samples": 0}, "`num_samples`"),
        (
            kc.CorrectnessRankingModel,
            {"num_samples": 4, "strength": -1.0},
            "`strength` must be >= 0",
        ),
        (
            kc.CorrectnessRankingModel,
            {"num_samples": 4, "score": "energy"},
            "`score` must be one of",
        ),
        (kc.SharpnessAwareModel, {"rho": 0.0}, "`rho` must be > 0"),
        (kc.AdaptiveFocalModel, {"num_bins": 0}, "`num_bins` must be >= 1"),
        (
            kc.AdaptiveFocalModel,
            {"limits": (2.0, -2.0)},
            "`limits` must be > 2.0",
        ),
        (
            kc.AdaptiveFocalModel,
            {"limits": (1.0, 2.0, 3.0)},
            "`limits` must be two",
        ),
        (
            kc.ScheduledFocalModel,
            {"schedule": ((5, 1.0),)},
            "`schedule` must be rows",
        ),
        (kc.CaPEModel, {"num_samples": 4, "every": 0}, "`every` must be >= 1"),
        (
            kc.ConfidencePruningModel,
            {"num_samples": 4, "fraction": 1.0},
            "`fraction` must be < 1",
        ),
        (
            kc.ConfidencePruningModel,
            {"num_samples": 4, "smoothing": 0.0},
            "`smoothing` must be > 0",
        ),
    ],
)
def test_arguments_out_of_range_are_named(cls, arguments, message):
    with pytest.raises(ValueError, match=message):
        dense(cls, **arguments)


@pytest.mark.parametrize(
    "loss", [keras.losses.CategoricalCrossentropy(), kc.ACLS(from_logits=True)]
)
def test_a_condition_needs_a_loss_that_takes_it(loss):
    x, y, _, _ = data_of("crl", 32)
    model = dense(
        kc.CorrectnessRankingModel, 2, num_samples=32, role="condition"
    )
    assert model.condition == "ranking"
    model.compile("sgd", loss=loss, **JIT)
    y["label"] = np.eye(2)[y["label"] % 2]
    with pytest.raises(ValueError, match='needs `ACLS\\(condition="rank'):
        model.fit(x, y, verbose=0)
    with pytest.raises(ValueError, match='needs `ACLS\\(condition="rank'):
        model.evaluate(x, y["label"], verbose=0)


def test_class_weights_with_an_index_are_refused_by_every_model():
    x, _, labels, _ = data_of("sam", 32)
    model = network("sam")
    batches = kc.EpochBatches(x, labels)
    with pytest.raises(ValueError, match="as `sample_weight`"):
        model.fit(batches, class_weight={0: 2.0}, verbose=0)
    losses = [
        network("sam").fit(x, labels, verbose=0, shuffle=False, **option)
        for option in ({}, {"class_weight": {0: 9.0}})
    ]
    losses = [fitted.history["loss"][0] for fitted in losses]
    assert abs(losses[0] - losses[1]) > 0.1


def test_class_weights_are_refused_step_by_step_and_of_any_data():
    x, y, labels, _ = data_of("sam", 32)
    with pytest.raises(ValueError, match="as `sample_weight`"):
        network("sam").train_on_batch(x, y, class_weight={0: 2.0})
    with pytest.raises(ValueError, match="as `sample_weight`"):
        network("sam").fit(Batches(y=y), class_weight={0: 2.0}, verbose=0)
    plain = network("sam").train_on_batch(x, labels)
    weighed = network("sam").train_on_batch(x, labels, class_weight={0: 9.0})
    assert abs(plain[0] - weighed[0]) > 0.1


def test_models_that_remember_do_not_combine():
    class Two(kc.ConfidencePruningModel, kc.CorrectnessRankingModel):
        pass

    with pytest.raises(TypeError, match="one class that remembers samples"):
        dense(Two, num_samples=COUNT)

    class Own(kc.CorrectnessRankingModel):
        def recorded_loss(self, *args):
            return 2.0 * super().recorded_loss(*args)

    assert dense(Own, num_samples=COUNT).num_samples == COUNT


@pytest.mark.parametrize("name", ["crl", "pruning", "adafocal"])
def test_models_with_a_loss_of_one_output_take_no_two(name):
    cls, arguments, compiled = MODELS[name]
    inputs = keras.Input((6,))
    outputs = [keras.layers.Dense(3)(inputs) for _ in range(2)]
    model = cls(inputs, outputs, **arguments)
    model.compile("sgd", **compiled, **JIT)
    x, y, labels, _ = data_of(name, COUNT)
    with pytest.raises(ValueError, match="must have one output"):
        model.fit(x, y, validation_data=(x, labels), verbose=0)


@pytest.mark.parametrize(
    "loss",
    [
        keras.losses.sparse_categorical_crossentropy,
        "sparse_categorical_crossentropy",
        [keras.losses.SparseCategoricalCrossentropy()],
    ],
)
def test_losses_given_in_other_ways_say_what_they_take(loss):
    x, y, _, _ = data_of("crl", COUNT)
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    outputs = keras.layers.Dense(3, activation="softmax")(inputs)
    losses = []
    for given in (loss, keras.losses.SparseCategoricalCrossentropy()):
        model = kc.CorrectnessRankingModel(inputs, outputs, num_samples=COUNT)
        model.compile(keras.optimizers.SGD(0.0), loss=given, **JIT)
        losses.append(model.evaluate(x, y["label"], verbose=0))
        fitted = model.fit(x, y, epochs=2, shuffle=False, verbose=0)
        losses.append(fitted.history["loss"][-1])
    np.testing.assert_allclose(losses[:2], losses[2:], rtol=1e-6)


def test_a_sample_of_weight_0_is_no_condition_for_its_neighbour():
    _, y, _, _ = data_of("crl acls", 3)
    weight = np.array([1.0, 0.0, 1.0])
    values = []
    for logit in (0.0, 5.0):
        model = network("crl acls")
        model.right_counts.assign(np.arange(COUNT) % 5)
        model.finished_epochs.assign(4.0)
        logits = np.eye(3, dtype="float32") * [[2.0], [logit], [1.0]]
        logits = ops.convert_to_tensor(logits)
        loss = model.compute_loss(None, y, logits, weight)
        values.append(float(array(loss)))
    assert values[0] == values[1]


def test_too_few_samples_for_a_record_are_refused_before_training():
    x, y, labels, _ = data_of("crl", COUNT)
    model = dense(kc.CorrectnessRankingModel, num_samples=COUNT - 1)
    model.compile("sgd", loss=CROSS_ENTROPY, **JIT)
    for data in ((x, y), (kc.EpochBatches(x, labels),)):
        with pytest.raises(ValueError, match="maximum=95, num_samples=95"):
            model.fit(*data, verbose=0)


def test_weights_of_float64_train():
    x, y, labels, weight = data_of("crl", COUNT)
    for name in ("crl", "pruning", "sam crl"):
        batches = kc.EpochBatches(
            x, labels, sample_weight=weight.astype("float64")
        )
        fitted = network(name).fit(batches, verbose=0)
        assert np.isfinite(fitted.history["loss"]).all()


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
    model.compile("sgd", loss=CROSS_ENTROPY, **JIT)
    fitted = model.fit(x, labels, epochs=2, verbose=0)
    assert np.isfinite(fitted.history["loss"]).all()


def test_an_epoch_model_trains_plain_losses_on_an_index(tmp_path):
    x, y, labels, _ = data_of("crl", COUNT)
    model = dense(kc.EpochModel)
    model.compile("sgd", loss=CROSS_ENTROPY, metrics=["accuracy"], **JIT)
    model.fit(kc.EpochBatches(x, labels), verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        again.evaluate(x, y, verbose=0), model.evaluate(x, labels, verbose=0)
    )


def test_data_in_the_order_of_the_epoch_are_read_whole():
    x, _, labels, _ = data_of("crl", COUNT)
    batches = kc.EpochBatches(x, labels)
    with pytest.raises(ValueError, match="`steps_per_epoch` must be None"):
        network("crl").fit(batches, steps_per_epoch=2, verbose=0)
    with pytest.raises(ValueError, match="`shuffle` must be False"):
        network("crl").fit(batches, shuffle=True, verbose=0)


def test_cape_takes_no_targets_from_what_is_split_off():
    x, y, _, _ = data_of("cape", COUNT)
    with pytest.raises(ValueError, match="beside `validation_split`"):
        network("cape").fit(x, y, validation_split=0.5, verbose=0)


def test_cape_sets_targets_of_all_and_needs_to_read_again():
    x, y, _, _ = data_of("cape", COUNT)
    model = network("cape")
    model.fit(x, y, batch_size=32, steps_per_epoch=1, verbose=0)
    assert np.all(array(model.targets) >= 0)
    batches = [(x[i : i + 32], _part(y, i)) for i in range(0, COUNT, 32)]
    with pytest.raises(ValueError, match="again and again"):
        network("cape").fit((b for b in batches), verbose=0)
    with pytest.raises(ValueError, match="again and again"):
        network("cape").fit(x, y, calibration_data=iter(batches), verbose=0)
    model = network("cape")
    model.fit(
        (batch for batch in batches),
        steps_per_epoch=3,
        calibration_data=(x, y),
        shuffle=False,
        verbose=0,
    )
    assert np.all(array(model.targets) >= 0)


def _part(y, start):
    return {key: value[start : start + 32] for key, value in y.items()}


@pytest.mark.skipif(BACKEND != "tensorflow", reason="data of TensorFlow")
def test_cape_reads_as_many_batches_of_endless_data_as_an_epoch_has():
    import tensorflow as tf

    x, y, _, _ = data_of("cape", COUNT)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    for given, count in ((data, COUNT), (data.repeat(), 64)):
        model = network("cape")
        model.fit(given, steps_per_epoch=2, verbose=0)
        assert np.sum(array(model.targets) >= 0) == count


def test_epochs_count_on_from_fit_to_fit():
    x, y, _, _ = data_of("crl", COUNT)
    models = [network("crl") for _ in range(2)]
    options = {"shuffle": False, "verbose": 0}
    for _ in range(4):
        models[0].fit(x, y, **options)
    models[1].fit(x, y, epochs=4, **options)
    assert float(models[0].finished_epochs) == 4
    shares = [model.correctness() for model in models]
    np.testing.assert_allclose(shares[0], shares[1])
    assert len(np.unique(shares[0])) > 2


def test_layers_that_do_not_train_stay_so_in_a_file(tmp_path):
    x, y, _, _ = data_of("crl", COUNT)
    model = network("crl")
    model.layers[1].trainable = False
    model.compile("adam", loss=CROSS_ENTROPY, **JIT)
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert len(again.trainable_variables) == len(model.trainable_variables)
    assert len(again.trainable_variables) == 2


def test_counts_go_on_beyond_256_under_half_precision():
    keras.config.set_dtype_policy("bfloat16")
    try:
        models = [network(name) for name in ("crl", "pruning", "adafocal")]
    finally:
        keras.config.set_dtype_policy("float32")
    for model in models:
        own = [v for v in model.non_trainable_variables if v.shape != ()]
        assert own
        assert {str(v.dtype) for v in own} == {"float32"}


def test_a_pruned_sum_is_that_of_the_others():
    x, y, labels, _ = data_of("pruning", COUNT)
    model = dense(kc.ConfidencePruningModel, num_samples=COUNT)
    model.compile("sgd", kc.ACLS(from_logits=True, reduction="sum"), **JIT)
    kept = np.arange(COUNT) % 2 == 0
    model.keeps.assign(kept.astype("float32"))
    logits = ops.convert_to_tensor(model.predict(x, verbose=0))
    value = float(model.compute_loss(None, y, logits, None))
    expected = float(model.loss(labels[kept], array(logits)[kept]))
    np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_a_fidelity_that_needs_a_factor_is_refused():
    ranking = kc.ACLS(condition="ranking", from_logits=True)
    with pytest.raises(TypeError, match="must take plain labels"):
        kc.DCA(fidelity=ranking, from_logits=True)


def test_cape_can_begin_late():
    x, y, _, _ = data_of("cape", COUNT)
    model = dense(kc.CaPEModel, 1, num_samples=COUNT, every=2, first_epoch=1)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile("sgd", loss=loss, **JIT)
    seen = []
    look = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(float(model.calibrates))
    )
    model.fit(x, y, epochs=4, verbose=0, callbacks=[look])
    assert seen == [0.0, 1.0, 0.0, 1.0]


def test_acls_by_ranking_wants_its_factor():
    loss = kc.ACLS(condition="ranking", from_logits=True)
    with pytest.raises(ValueError, match="a factor per sample"):
        loss(np.array([0, 1]), np.zeros((2, 3)))


# How models are made.


def test_functional_and_subclassed_models_go_together():
    class Own(kc.CorrectnessRankingModel):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.layer = keras.layers.Dense(3)

        def build(self, shape):
            self.layer.build(shape)

        def call(self, inputs):
            return self.layer(inputs)

    class Graph(kc.CorrectnessRankingModel):
        def __init__(self, width, classes):
            inputs = keras.Input((width,))
            outputs = keras.layers.Dense(classes)(inputs)
            super().__init__(inputs, outputs, num_samples=COUNT)

    x, y, labels, _ = data_of("crl", COUNT)
    losses = []
    for model in (
        dense(kc.CorrectnessRankingModel, num_samples=COUNT),
        Own(num_samples=COUNT),
        Graph(6, 3),
        dense(kc.CorrectnessRankingModel, num_samples=COUNT),
    ):
        model.build((None, 6))
        model.trainable_variables[0].assign(np.full((6, 3), 0.1))
        model.compile("sgd", loss=CROSS_ENTROPY, metrics=["accuracy"], **JIT)
        fitted = model.fit(x, y, epochs=2, shuffle=False, verbose=0).history
        losses.append(fitted["loss"])
        assert isinstance(model, kc.CorrectnessRankingModel)
        assert model.view_counts.shape == (COUNT,)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
    np.testing.assert_allclose(losses[0], losses[2], rtol=1e-6)
    np.testing.assert_allclose(losses[0], losses[3], rtol=1e-6)


def test_several_inputs_and_named_ones_are_kept_by_a_file(tmp_path):
    inputs = {
        "a": keras.Input((2,), name="a"),
        "b": keras.Input((3,), name="b"),
    }
    joined = keras.layers.Concatenate()([inputs["a"], inputs["b"]])
    model = kc.SharpnessAwareModel(inputs, keras.layers.Dense(2)(joined))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    x = {"a": np.ones((1, 2)), "b": np.ones((1, 3))}
    np.testing.assert_array_equal(array(model(x)), array(again(x)))
    assert again.rho == 0.05


# Two passes.


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
    model.compile(keras.optimizers.SGD(0.1), loss=CROSS_ENTROPY, **JIT)
    loss = model.train_on_batch(x, labels)
    assert float(counted.calls) == 1
    moved = [array(w).copy() for w in model.non_trainable_weights]
    plain.set_weights(before)
    plain.compile(keras.optimizers.SGD(0.1), loss=CROSS_ENTROPY, **JIT)
    plain.train_on_batch(x, labels)
    for v, w in zip(moved, plain.non_trainable_weights, strict=True):
        np.testing.assert_allclose(v, array(w), rtol=1e-5)
    assert np.isfinite(loss)


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


def test_mixed_precision_takes_the_steps_of_float32():
    x, _, labels, _ = data_of("sam", COUNT)
    ends = []
    for policy in ("float32", "mixed_float16"):
        keras.config.set_dtype_policy(policy)
        try:
            model = dense(kc.SharpnessAwareModel, rho=0.5)
        finally:
            keras.config.set_dtype_policy("float32")
        model.compile(keras.optimizers.SGD(0.1), loss=CROSS_ENTROPY, **JIT)
        if policy != "float32":
            scaled = "LossScaleOptimizer"
            assert type(model.optimizer).__name__ == scaled
        model.fit(x, labels, epochs=3, shuffle=False, verbose=0)
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
    model.compile(keras.optimizers.SGD(0.1), loss=CROSS_ENTROPY, **JIT)
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
        **JIT,
    )
    before = [array(v).copy() for v in model.trainable_variables]
    model.train_on_batch(x, labels)
    moved = [
        array(v) - w
        for v, w in zip(model.trainable_variables, before, strict=True)
    ]
    norm = np.sqrt(sum(np.square(m).sum() for m in moved))
    np.testing.assert_allclose(norm, 1e-3, rtol=1e-3)


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


# Between epochs.


def test_a_schedule_sets_the_gamma_of_each_epoch():
    seen = []
    model = dense(
        kc.ScheduledFocalModel,
        schedule=((0, 5.0), (1, 3.0), (3, 1.0)),
        from_logits=True,
    )
    model.compile("sgd", **JIT)
    look = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(float(model.gammas[0]))
    )
    x, _, labels, _ = data_of("sam", 32)
    model.fit(x, labels, epochs=4, verbose=0, callbacks=look)
    assert seen == [5.0, 3.0, 3.0, 1.0]
    value = model.evaluate(x, labels, verbose=0)
    loss = kc.FocalLoss(gamma=1.0, from_logits=True)
    expected = float(loss(labels, model.predict(x, verbose=0)))
    np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_gammas_are_those_of_the_validation_data_after_each_epoch():
    x, _, labels, _ = data_of("adafocal", COUNT)
    model = dense(kc.AdaptiveFocalModel, num_bins=5, from_logits=True)
    model.compile("sgd", **JIT)
    model.fit(x, labels, validation_data=(x, labels), epochs=1, verbose=0)
    twin = dense(kc.AdaptiveFocalModel, num_bins=5, from_logits=True)
    for v, w in zip(
        twin.trainable_variables, model.trainable_variables, strict=True
    ):
        v.assign(w)
    sums = twin.update_gammas((x, labels), batch_size=7)
    np.testing.assert_allclose(array(model.gammas), array(twin.gammas), 1e-5)
    np.testing.assert_allclose(array(model.edges), array(twin.edges), 1e-5)
    # The least confidence is in no bin.
    assert sums.weight.sum() == COUNT - 1
    assert np.abs(array(model.gammas) - 1.0).max() > 1e-3


def test_ignored_labels_of_validation_data_set_no_gamma():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4, 5, 3)).astype("float32")
    labels = rng.integers(3, size=(4, 5))
    labels[0] = labels[:, 0] = 255
    inputs = keras.Input((5, 3))
    models = [
        kc.AdaptiveFocalModel(
            inputs,
            keras.layers.Rescaling(1.0)(inputs),
            num_bins=3,
            from_logits=True,
            ignore_class=255,
        )
        for _ in range(2)
    ]
    kept = labels != 255
    alone = keras.Input((3,))
    models[1] = kc.AdaptiveFocalModel(
        alone, keras.layers.Rescaling(1.0)(alone), num_bins=3, from_logits=True
    )
    models[0].update_gammas((logits, labels), batch_size=1)
    models[1].update_gammas((logits[kept], labels[kept]))
    assert kept.sum() == 12
    np.testing.assert_array_equal(
        array(models[0].gammas), array(models[1].gammas)
    )


def test_cape_targets_are_taken_in_the_epochs_that_calibrate():
    x, y, labels, _ = data_of("cape", COUNT)
    seen = []
    model = dense(kc.CaPEModel, 1, num_samples=COUNT, every=2)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1.0), loss=loss, **JIT)

    def look(epoch, logs):
        seen.append((float(model.calibrates), array(model.targets).copy()))

    model.fit(
        x,
        y,
        epochs=3,
        verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=look)],
    )
    assert [flag for flag, _ in seen] == [1.0, 0.0, 1.0]
    np.testing.assert_array_equal(seen[0][1], seen[1][1])
    assert np.abs(seen[2][1] - seen[1][1]).max() > 0.01
    # Other samples than those trained on: a target for these alone.
    model = dense(kc.CaPEModel, 1, num_samples=COUNT, every=2)
    model.compile("sgd", loss=loss, **JIT)
    some = {key: values[:40] for key, values in y.items()}
    model.fit(x, y, epochs=1, verbose=0, calibration_data=(x[:40], some))
    targets = array(model.targets)
    assert (targets[:40] >= 0).all()
    assert (targets[40:] == -1).all()


def test_pruning_drops_the_least_confident_and_trains_as_without_them():
    x, y, labels, _ = data_of("pruning", COUNT)
    model = dense(
        kc.ConfidencePruningModel, num_samples=COUNT, fraction=0.25, every=2
    )
    model.compile(keras.optimizers.SGD(0.1), loss=CROSS_ENTROPY, **JIT)
    options = {"batch_size": COUNT, "shuffle": False, "verbose": 0}
    model.fit(x, y, epochs=1, **options)
    assert model.kept().all()
    model.fit(x, y, initial_epoch=1, epochs=2, **options)
    kept = model.kept()
    assert kept.sum() == 72
    confidence = array(model.confidence)
    assert confidence[~kept].max() <= confidence[kept].min()
    assert model.prune() == 54
    assert model.prune() == 48, "half of all stay"
    kept = model.kept()
    plain = dense(keras.Model)
    plain.set_weights([array(w) for w in model.trainable_variables])
    plain.compile(keras.optimizers.SGD(0.1), loss=CROSS_ENTROPY, **JIT)
    model.fit(x, y, epochs=1, **options)
    plain.fit(x[kept], labels[kept], epochs=1, **options)
    for v, w in zip(
        model.trainable_variables, plain.trainable_variables, strict=True
    ):
        np.testing.assert_allclose(array(v), array(w), atol=1e-6)


def test_the_average_of_confidence_moves_by_its_share():
    inputs = keras.Input((2,))
    model = kc.ConfidencePruningModel(
        inputs, keras.layers.Rescaling(1.0)(inputs), num_samples=2
    )
    model.compile(loss=CROSS_ENTROPY)
    confidence = []
    for size in (0.0, 2.0, -1.0):
        logits = np.array([[size, 0.0], [0.0, 0.0]], "float32")
        y = {"label": np.zeros(2, int), "index": np.arange(2)}
        model.compute_loss(None, y, ops.convert_to_tensor(logits), None)
        confidence.append(1 / (1 + np.exp(-abs(size))))
    expected = 0.7 * (0.7 * confidence[0] + 0.3 * confidence[1])
    expected += 0.3 * confidence[2]
    np.testing.assert_allclose(array(model.confidence), [expected, 0.5], 1e-6)


# Data.


def test_epoch_batches_show_all_once_in_an_order_of_seed_and_epoch():
    x, labels = np.arange(10.0)[:, None], np.arange(10) % 3
    orders = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 0)):
        batches = kc.EpochBatches(x, labels, batch_size=4, seed=seed)
        batches.set_epoch(epoch)
        assert len(batches) == 3
        parts = [batches[i] for i in range(3)]
        index = np.concatenate([y["index"] for _, y in parts])
        shown = np.concatenate([x[:, 0] for x, _ in parts])
        of_labels = np.concatenate([y["label"] for _, y in parts])
        np.testing.assert_array_equal(shown, index)
        np.testing.assert_array_equal(of_labels, labels[index])
        assert sorted(index) == list(range(10))
        orders.append(tuple(index))
    assert orders[0] == orders[3]
    assert len(set(orders)) == 3
    plain = kc.EpochBatches(x, labels, batch_size=4, seed=None)
    np.testing.assert_array_equal(plain[1][1]["index"], [4, 5, 6, 7])
    assert (
        len(kc.EpochBatches(x, labels, batch_size=4, drop_remainder=True)) == 2
    )
    weighted = kc.EpochBatches(x, labels, sample_weight=np.arange(10), seed=2)
    *_, y, weight = weighted[0]
    np.testing.assert_array_equal(weight, y["index"])


def test_augmented_batches_depend_on_seed_epoch_and_place_alone():
    x, labels = np.zeros((6, 1)), np.arange(6)

    def noisy(x, y, random):
        return x + random.normal(size=x.shape), 10 * y

    def shown(seed, epoch):
        batches = kc.EpochBatches(
            x, labels, batch_size=3, seed=seed, augment=noisy
        )
        batches.set_epoch(epoch)
        # The second before the first: nothing depends on what was read.
        second, first = batches[1], batches[0]
        for _, y in (first, second):
            np.testing.assert_array_equal(y["label"], 10 * y["index"])
        return np.concatenate([first[0], second[0]])[:, 0]

    first = shown(0, 0)
    assert len(set(first)) == 6
    np.testing.assert_array_equal(shown(0, 0), first)
    for seed, epoch in ((1, 0), (0, 1)):
        assert not set(shown(seed, epoch)) & set(first)
    assert len(set(shown(None, 0))) == 6


class OwnLoss(keras.Model):
    """Not of this library: nothing tells the data what epoch it is."""

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        return ops.mean(ops.square(y_pred))


class Shown(kc.EpochBatches):
    """Remembers the first numbers of each pass."""

    def __getitem__(self, place):
        batch = super().__getitem__(place)
        if place == 0:
            self.firsts.append(tuple(batch[1]["index"]))
        return batch


@pytest.mark.parametrize("told", [False, True])
def test_epoch_batches_count_epochs_told_or_not(told):
    x, labels = np.zeros((10, 6), "float32"), np.zeros(10, int)
    batches = Shown(x, labels, batch_size=5)
    batches.firsts = []
    model = network("crl") if told else dense(OwnLoss)
    model.compile("sgd", loss=CROSS_ENTROPY, **JIT)
    # The second `fit` goes on where nothing tells it the epoch.
    for epochs in (3, 2):
        orders = []
        look = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: batches.firsts.clear(),
            on_epoch_end=lambda epoch, logs, orders=orders: orders.append(
                batches.firsts[0]
            ),
        )
        model.fit(
            batches, epochs=epochs, shuffle=False, verbose=0, callbacks=[look]
        )
        first = 3 if epochs == 2 and not told else 0
        for epoch, order in enumerate(orders, first):
            random = np.random.default_rng((0, epoch)).permutation(10)
            assert order == tuple(random[:5])
        assert len(orders) == epochs


def test_a_plain_model_trains_on_epoch_batches_without_the_index():
    x, _, labels, _ = data_of("sam", 10)
    options = {"batch_size": 5, "sample_weight": np.ones(10), "seed": 3}
    plain = kc.EpochBatches(x, labels, with_index=False, **options)
    numbered = kc.EpochBatches(x, labels, **options)
    for (a, y, w), (b, z, v) in zip(
        (plain[0], plain[1]), (numbered[0], numbered[1]), strict=True
    ):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(y, z["label"])
        np.testing.assert_array_equal(w, v)
    model = dense(keras.Model)
    model.compile(
        "sgd", metrics=[kc.NLL(from_logits=True)], loss=CROSS_ENTROPY, **JIT
    )
    model.fit(plain, epochs=2, shuffle=False, verbose=0)
    # A model of this library that needs no index takes either.
    sharp = network("sam")
    for batches in (plain, numbered):
        sharp.fit(batches, epochs=1, verbose=0)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"batch_size": 0}, "`batch_size` must be >= 1"),
        ({"seed": -1}, "`seed` must be >= 0"),
        ({"sample_weight": np.ones(3)}, "the same length"),
        ({"y": {"label": np.zeros(4)}}, "the index is added here"),
    ],
)
def test_epoch_batches_refuse(arguments, message):
    with pytest.raises(ValueError, match=message):
        kc.EpochBatches(np.zeros((4, 2)), **{"y": np.zeros(4), **arguments})


@pytest.mark.skipif(BACKEND != "tensorflow", reason="data sets of TensorFlow")
def test_kept_examples_are_read_anew_in_each_epoch():
    import tensorflow as tf

    x, y, _, _ = data_of("pruning", COUNT)
    model = dense(
        kc.ConfidencePruningModel, num_samples=COUNT, fraction=0.5, every=1
    )
    model.compile("sgd", loss=CROSS_ENTROPY, jit_compile=False)
    examples = tf.data.Dataset.from_tensor_slices((x, y))
    kept = model.kept_examples(examples)
    assert len(list(kept)) == COUNT
    fitted = model.fit(
        examples.batch(32), epochs=1, validation_data=None, verbose=0
    )
    assert len(fitted.epoch) == 1
    shown = {int(y["index"]) for _, y in kept}
    before = set(shown)
    model.keeps.assign(np.arange(COUNT) < 5)
    assert {int(y["index"]) for _, y in kept} == set(range(5))
    model.keeps.assign(np.isin(np.arange(COUNT), list(before)))
    assert shown == set(np.flatnonzero(model.kept()))
    assert len(shown) == 48
    with pytest.raises(ValueError, match="must have an index"):
        model.kept_examples(tf.data.Dataset.range(3))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="it is TensorFlow's")
def test_workers_need_what_is_compiled_and_ends():
    import tensorflow as tf

    x, y, labels, _ = data_of("crl", COUNT)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    with pytest.raises(ValueError, match="compiled and built"):
        kc.fit_workers(dense(keras.Model), data, epochs=1)
    with pytest.raises(ValueError, match="`steps_per_epoch` must be given"):
        kc.fit_workers(network("crl"), data.repeat(), epochs=1, verbose=0)
    with pytest.raises(ValueError, match="`data` must have a batch"):
        kc.fit_workers(network("crl"), data.take(0), epochs=1, verbose=0)
    batches = kc.EpochBatches(x, labels)
    with pytest.raises(TypeError, match="`data` must be a `tf.data.Dataset`"):
        kc.fit_workers(network("crl"), batches, epochs=1, verbose=0)
    with pytest.raises(TypeError, match="`validation_data` must be a `tf"):
        kc.fit_workers(
            network("crl"), data, epochs=1, validation_data=batches, verbose=0
        )
    model = network("crl")
    fitted = kc.fit_workers(
        model,
        data.repeat(),
        epochs=2,
        steps_per_epoch=2,
        validation_data=(x, labels),
        verbose=0,
    )
    assert set(fitted.history) == {
        "accuracy",
        "loss",
        "val_accuracy",
        "val_loss",
    }
    assert float(ops.sum(model.view_counts)) == 4 * 32


@pytest.mark.skipif(BACKEND != "tensorflow", reason="it is TensorFlow's")
def test_workers_give_cape_its_data():
    import tensorflow as tf

    x, y, _, _ = data_of("cape", COUNT)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    options = {"epochs": 1, "steps_per_epoch": 2, "verbose": 0}
    for given, calibration, count in (
        (data.repeat(), None, 64),
        (data.repeat(), [x, y], COUNT),
        (lambda context: data, (x, y), COUNT),
    ):
        model = network("cape")
        kc.fit_workers(model, given, calibration_data=calibration, **options)
        assert np.sum(array(model.targets) >= 0) == count
    with pytest.raises(ValueError, match="`calibration_data` must be given"):
        kc.fit_workers(network("cape"), lambda context: data, **options)
    with pytest.raises(ValueError, match="None but for `CaPEModel`"):
        kc.fit_workers(network("crl"), data, calibration_data=(x, y), **options)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="it is TensorFlow's")
def test_training_by_workers_stops_within_an_epoch_and_shows_the_loss():
    import tensorflow as tf

    class Stop(keras.callbacks.Callback):
        seen = []

        def on_train_batch_end(self, batch, logs=None):
            self.seen.append(logs["loss"])
            self.model.stop_training = batch == 1

    x, _, labels, _ = data_of("sam", COUNT)
    data = tf.data.Dataset.from_tensor_slices((x, labels)).batch(32)
    model = network("sam")
    model.compile(
        "sgd",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[ByClass()],
    )
    stop = Stop()
    fitted = kc.fit_workers(
        model, data, epochs=5, callbacks=[stop], verbose=0
    ).history
    assert int(model.optimizer.iterations) == 2
    assert len(fitted["loss"]) == 1
    assert stop.seen[-1] == pytest.approx(fitted["loss"][0], rel=1e-6)
    assert fitted["by_class"][0].shape == (3,)


class ByClass(keras.metrics.Metric):
    """How often each class came: a metric of several values."""

    def __init__(self):
        super().__init__(name="by_class")
        self.counts = self.add_weight(shape=(3,), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels = ops.cast(ops.reshape(y_true, (-1,)), "int32")
        self.counts.assign_add(ops.sum(ops.one_hot(labels, 3), axis=0))

    def result(self):
        return self.counts


@pytest.mark.skipif(BACKEND == "tensorflow", reason="it works there")
def test_workers_are_of_tensorflow():
    with pytest.raises(RuntimeError, match="TensorFlow backend"):
        kc.fit_workers(network("crl"), [], epochs=1)
