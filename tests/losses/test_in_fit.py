"""Every loss in `fit` and `evaluate`: precision, weights, masks, pairs."""

import json
import warnings

import keras
import numpy as np
import pytest
from cases import BACKEND
from cases import KINDS
from cases import LOSSES
from cases import array
from keras import ops

import keras_calib as kc

pytestmark = pytest.mark.portable

# The first case of each class.
FIRST = list({case.cls: case for case in reversed(LOSSES)}.values())
# Compiling takes long on JAX.
HERE = FIRST if BACKEND == "jax" else LOSSES
COUPLED = [case for case in HERE if case.batch_coupled]
every_loss = pytest.mark.parametrize("case", HERE, ids=str)
batch_coupled = pytest.mark.parametrize("case", COUPLED, ids=str)
one_of_each = pytest.mark.parametrize("case", FIRST, ids=str)
# TensorFlow compiles without XLA or with it, and sooner without.
JIT = [False, True] if BACKEND == "tensorflow" else ["auto"]
COUPLED_AND_FIRST = [c for c in HERE if c in COUPLED or c in FIRST]


def data(n=24, num_classes=3):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 4)).astype("float32")
    return x, rng.integers(num_classes, size=n)


def network(num_classes=3):
    """Its initial weights are the same each time."""
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(num_classes)]
    )


def outputs(model, x):
    """As constants, which torch wants before it makes numbers of them."""
    return ops.stop_gradient(model(x))


def train(model, loss, x, y, rate=0.05, epochs=3, **kwargs):
    """Full batches: the loss of each epoch, and the weights at the end."""
    model.compile(
        optimizer=keras.optimizers.SGD(rate),
        loss=loss,
        jit_compile=kwargs.pop("jit_compile", JIT[0]),
    )
    history = model.fit(
        x, y, batch_size=len(x), epochs=epochs, verbose=0, **kwargs
    ).history
    return np.array(history["loss"]), model.get_weights()


def agree(run, expected, factor=1.0):
    """Losses and weights of two trainings."""
    np.testing.assert_allclose(run[0], factor * expected[0], rtol=1e-5)
    for weight, other in zip(run[1], expected[1], strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-4, atol=1e-5)


@every_loss
@pytest.mark.parametrize("jit_compile", JIT)
def test_fit_begins_at_the_eager_loss_and_lowers_it(case, jit_compile):
    x, ids = data()
    y, loss, model = case.labels(ids), case.make(), network()
    eager = float(loss(y, outputs(model, x)))
    losses, _ = train(model, loss, x, y, jit_compile=jit_compile)
    np.testing.assert_allclose(losses[0], eager, rtol=1e-5)
    assert np.isfinite(losses).all()
    assert losses[0] > losses[1] > losses[2]


@pytest.fixture
def policy(request):
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy("float32")


@every_loss
@pytest.mark.parametrize(
    "policy", ["mixed_float16", "mixed_bfloat16"], indirect=True
)
def test_mixed_precision_trains_on_a_float32_loss(case, policy):
    x, ids = data()
    y, loss, model = case.labels(ids), case.make(), network()
    logits = outputs(model, x)
    assert policy.endswith(keras.backend.standardize_dtype(logits.dtype))
    value = loss(y, logits)
    assert keras.backend.standardize_dtype(value.dtype) == "float32"
    losses, weights = train(model, loss, x, y, epochs=2)
    np.testing.assert_allclose(losses[0], float(value), rtol=1e-3)
    # Later, logits can tie, where some losses jump.
    assert losses[0] > losses[1]
    assert weights[0].dtype == "float32"


@pytest.mark.parametrize("policy", ["mixed_bfloat16"], indirect=True)
def test_ids_and_objectness_keep_their_precision_in_fit(policy):
    # bfloat16 holds neither 257 nor 0.701.
    x, _ = data(8)
    y = np.tile([[257.0, 0.701]], (8, 1))
    loss = kc.AdaptiveLabelSmoothing(from_logits=True)
    losses, _ = train(model := network(300), loss, x, y, epochs=1)
    assert model.compute_dtype == "bfloat16"
    exact = float(loss(y, array(ops.cast(outputs(network(300), x), "float32"))))
    np.testing.assert_allclose(losses[0], exact, rtol=1e-4)


@every_loss
def test_a_loss_is_found_by_its_configuration(case):
    x, ids = data()
    loss, logits = (
        case.make(reduction="sum", name="mine"),
        array(outputs(network(), x)),
    )
    config = json.loads(json.dumps(keras.losses.serialize(loss)))
    by_name = {
        "class_name": f"keras_calib>{case.cls.__name__}",
        "config": config["config"],
    }
    y = case.labels(ids)
    for again in (
        keras.losses.deserialize(config),
        keras.losses.get(config),
        keras.losses.get(by_name),
        case.cls.from_config(loss.get_config()),
    ):
        assert type(again) is case.cls
        assert again.get_config() == loss.get_config()
        assert float(again(y, logits)) == float(loss(y, logits))


@one_of_each
def test_a_loss_is_registered_under_its_name(case):
    name = f"keras_calib>{case.cls.__name__}"
    assert keras.saving.get_registered_object(name) is case.cls
    loss = keras.losses.get({"class_name": name, "config": {}})
    assert loss.get_config() == case.cls().get_config()


@pytest.mark.parametrize("cls", [kc.MMCE, kc.MDCA, kc.DCA])
def test_fidelity_and_what_it_reads_survive_saving(cls, tmp_path):
    options = {"from_logits": True, "ignore_class": 2, "reduction": "sum"}
    loss = cls(0.5, fidelity=kc.FocalLoss(1.5, **options), **options)
    x, y = data()
    model = network()
    model.compile(optimizer="sgd", loss=loss)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again.loss.fidelity) is kc.FocalLoss
    assert again.loss.fidelity.get_config() == loss.fidelity.get_config()
    np.testing.assert_allclose(
        again.evaluate(x, y, batch_size=24, verbose=0),
        float(loss(y, outputs(model, x))),
        rtol=1e-5,
    )


# Labels that do not count.


@pytest.mark.parametrize("case", COUPLED_AND_FIRST, ids=str)
def test_an_ignored_pixel_trains_as_a_deleted_one(case):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 3, 5, 4)).astype("float32")
    ids = rng.integers(3, size=(4, 3, 5))
    ids[:, 0] = ids[1, 2, 3] = 255
    kept = ids != 255
    x[~kept] = 100.0
    y = case.labels(ids)
    pixels = keras.Sequential(
        [keras.Input((3, 5, 4)), keras.layers.Conv2D(3, 1)]
    )
    dense = network()
    kernel, bias = dense.get_weights()
    pixels.set_weights([kernel[None, None], bias])
    run = train(pixels, case.make(ignore_class=255), x, y, rate=0.5)
    run[1][0] = run[1][0][0, 0]
    agree(run, train(dense, case.make(), x[kept], y[kept], rate=0.5))
    value = pixels.evaluate(x, y, batch_size=4, verbose=0)
    deleted = float(case.make()(y[kept], outputs(dense, x[kept])))
    np.testing.assert_allclose(value, deleted, rtol=1e-5)
    assert abs(value - run[0][0]) > 1e-3


def embedding(length, mask_zero):
    return keras.Sequential(
        [
            keras.Input((length,)),
            keras.layers.Embedding(9, 4, mask_zero=mask_zero),
            keras.layers.Dense(3),
        ]
    )


@batch_coupled
@pytest.mark.parametrize("ignore_class", [None, 2])
def test_a_masked_step_trains_as_a_deleted_one(case, ignore_class):
    rng = np.random.default_rng(0)
    x = rng.integers(1, 9, size=(5, 7))
    x[np.arange(7) >= rng.integers(2, 8, size=(5, 1))] = 0
    y = rng.integers(3, size=x.shape)
    kept = x != 0
    assert 10 < kept.sum() < 30
    weights = [rng.normal(size=s) for s in ((9, 4), (4, 3), (3,))]
    runs = []
    for model, steps, labels in (
        (embedding(7, True), x, y),
        (embedding(1, False), x[kept][:, None], y[kept][:, None]),
    ):
        model.set_weights(weights)
        loss = case.make(ignore_class=ignore_class)
        runs.append(train(model, loss, steps, labels, rate=0.5))
    agree(*runs)
    losses, (table, *_) = runs[0]
    assert np.abs(losses[0] - losses[1:]).min() > 1e-3
    np.testing.assert_allclose(table[0], weights[0][0], rtol=1e-6)


# Weights.


@batch_coupled
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum"])
def test_weight_zero_in_fit_is_a_deleted_sample(case, reduction):
    x, y = data()
    weight = np.arange(24) % 3 != 0
    factor, rate = 1.0, 0.01
    if reduction == "sum_over_batch_size":
        # Keras divides by all 24, also those of weight 0.
        factor, rate = 16 / 24, 0.2
    loss = case.make(reduction=reduction)
    options = {"sample_weight": weight.astype("float32")}
    run = train(network(), loss, x, y, rate=rate, **options)
    expected = train(network(), loss, x[weight], y[weight], rate=factor * rate)
    agree(run, expected, factor)
    unweighted = train(network(), loss, x, y, rate=rate)
    assert abs(run[0][0] / unweighted[0][0] - 1) > 1e-3


@pytest.mark.parametrize("case", COUPLED_AND_FIRST, ids=str)
def test_weights_of_classes_in_fit_are_repeats_and_deletions(case):
    x, ids = data()
    y, times = case.labels(ids), np.array([1, 2, 0])[ids]
    weights = {"class_weight": {0: 1.0, 1: 2.0, 2: 0.0}}
    if case.objectness:
        # Keras would read the class off the larger number of each pair.
        weights = {"sample_weight": times.astype("float32")}
    loss = case.make(reduction="mean_with_sample_weight")
    run = train(network(), loss, x, y, **weights)
    expected = train(
        network(), loss, np.repeat(x, times, 0), np.repeat(y, times, 0)
    )
    agree(run, expected)


# Pairs of class id and objectness.


def test_pairs_train_beside_metrics_that_read_them():
    x, ids = data(64)
    rng = np.random.default_rng(1)
    y = np.stack([ids, rng.uniform(size=64)], axis=-1)
    loss = kc.AdaptiveLabelSmoothing(from_logits=True)
    cases = [case for case in KINDS if case.cls is not kc.CalibrationMetrics]
    options = {"from_logits": True, "objectness": True}
    metrics = [case.make(3, **options) for case in cases]
    metrics.append(kc.Accuracy(**options))
    model = network()
    model.compile(loss=loss, metrics=metrics)
    history = model.fit(
        x, y, validation_data=(x, y), epochs=2, verbose=0
    ).history
    values = model.evaluate(x, y, batch_size=25, verbose=0, return_dict=True)
    logits = array(outputs(model, x))
    assert history["val_nll"][-1] == pytest.approx(values["nll"], rel=1e-5)
    assert values["loss"] == pytest.approx(float(loss(y, logits)), rel=1e-5)
    assert values["accuracy"] == np.mean(logits.argmax(-1) == ids)
    for case, metric in zip(cases, metrics, strict=False):
        plain = case.make(3, from_logits=True)
        plain.update_state(ids, logits)
        expected = float(plain.result())
        assert values[metric.name] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_pairs_in_fit_need_metrics_and_losses_that_read_them(num_classes):
    x, ids = data(num_classes=num_classes)
    y = np.stack([ids, np.full(24, 0.5)], axis=-1)
    smooth = kc.AdaptiveLabelSmoothing(from_logits=True)
    for loss, metric in (
        (kc.MbLS(from_logits=True), kc.NLL(from_logits=True, objectness=True)),
        (kc.MDCA(from_logits=True), kc.NLL(from_logits=True, objectness=True)),
        (smooth, kc.NLL(from_logits=True)),
    ):
        model = network(num_classes)
        model.compile(loss=loss, metrics=[metric])
        if num_classes == 3 or BACKEND == "torch":
            with pytest.raises(ValueError, match="objectness=True"):
                model.fit(x, y, verbose=0)
        elif loss is smooth:
            with pytest.warns(RuntimeWarning, match="`nll` leaves out 24"):
                model.fit(x, y, verbose=0)
        else:
            history = model.fit(x, y, verbose=0).history
            assert np.isnan(history["loss"]).all()


def test_ids_alone_do_not_train_a_loss_of_pairs():
    x, y = data()
    loss = kc.AdaptiveLabelSmoothing(from_logits=True)
    for labels in (y, y[:, None], np.eye(3)[y]):
        with pytest.raises(ValueError, match="must be pairs"):
            train(network(), loss, x, labels)


# Values that compiled code cannot refuse.


@pytest.mark.parametrize(
    "case", [c for c in FIRST if not c.soft_labels], ids=str
)
def test_soft_labels_without_a_meaning_do_not_train_in_silence(case):
    x, y = data()
    soft = 0.4 * np.eye(3)[y] + 0.2
    model = network()
    model.compile(loss=case.make(), run_eagerly=True)
    with pytest.raises(ValueError, match="no meaning for soft labels"):
        model.fit(x, soft, verbose=0)
    if BACKEND != "torch":
        losses, _ = train(network(), case.make(), x, soft, epochs=1)
        assert np.isnan(losses).all()


def dense(x, activation=None, units=3):
    return keras.layers.Dense(units, activation)(x)


def softmax(x):
    return dense(x, "softmax")


def mixed(x):
    return 0.5 * softmax(x) + 0.5 * softmax(x)


def transposed(x):
    stacked = ops.stack([softmax(x), softmax(x)], axis=-1)
    return ops.matmul(stacked, np.full((2, 1), 0.5, "float32"))[..., 0]


def divided(x):
    shares = dense(x, "softplus")
    return shares / ops.sum(shares, axis=-1, keepdims=True)


# What the last operations of a model are.
ENDS = {
    "layer": [
        dense,
        lambda x: keras.layers.Dense(3, use_bias=False)(x),
        lambda x: keras.layers.Activation("linear", dtype="float16")(dense(x)),
        lambda x: keras.layers.Reshape((2, 3))(dense(x, units=6)),
        lambda x: dense(dense(x, "swish")) + dense(x),
        lambda x: keras.layers.Conv2D(3, 1)(x[:, None, None]),
        lambda x: keras.layers.UpSampling2D(interpolation="bilinear")(
            keras.layers.Conv2DTranspose(3, 2)(x[:, None, None])
        ),
    ],
    "softmax": [
        softmax,
        lambda x: keras.layers.Softmax(dtype="float16")(dense(x)),
        lambda x: keras.layers.Conv2D(3, 1, activation="softmax")(
            x[:, None, None]
        ),
        lambda x: dense(x, "sigmoid", 1),
    ],
    # May be either, so nothing is said.
    None: [
        mixed,
        transposed,
        divided,
        lambda x: keras.layers.Average()([softmax(x), softmax(x)]),
        lambda x: keras.layers.Dense(3, use_bias=False)(softmax(x)),
        lambda x: dense(mixed(x)),
        # Weights of features, which are not known from probabilities.
        lambda x: dense(softmax(x) * dense(x)),
        lambda x: ops.matmul(ops.exp(ops.log_softmax(dense(x))), np.eye(3)),
        lambda x: ops.log_softmax(dense(x)),
        lambda x: keras.layers.BatchNormalization()(dense(x)),
        lambda x: dense(x, "sigmoid"),
    ],
}


@pytest.mark.skipif(BACKEND != "tensorflow", reason="graphs of TensorFlow")
@pytest.mark.parametrize("from_logits", [False, True])
@pytest.mark.parametrize(
    "kind, end", [(kind, end) for kind, ends in ENDS.items() for end in ends]
)
def test_a_compiled_loss_tells_by_the_end_of_the_model(kind, end, from_logits):
    import tensorflow as tf

    inputs = keras.Input((4,))
    model = keras.Model(inputs, end(inputs))
    loss = kc.LabelSmoothing(alpha=0.1, from_logits=from_logits)

    def traced():
        x = tf.zeros((2, 4))
        labels = tf.zeros(model(x).shape[:-1], "int32")
        step = tf.function(lambda x: loss(labels, model(x)), autograph=False)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            step.get_concrete_function(x)
        return [str(x.message) for x in told if x.category is RuntimeWarning]

    told = traced()
    if kind == ("softmax" if from_logits else "layer"):
        rule = f"pass `from_logits={not from_logits}`"
        assert len(told) == 1 and rule in told[0], told
        # Once for each loss.
        told = traced()
    assert told == []


@pytest.mark.skipif(BACKEND != "tensorflow", reason="graphs of TensorFlow")
@pytest.mark.parametrize("jit", JIT)
def test_a_model_of_logits_does_not_train_in_silence(jit):
    x, y = data()
    model = network()
    model.compile("sgd", kc.MDCA(), jit_compile=jit)
    with pytest.warns(RuntimeWarning, match="without a softmax") as told:
        history = model.fit(x, y, epochs=2, validation_data=(x, y), verbose=0)
    assert sum(x.category is RuntimeWarning for x in told) == 1
    assert np.isnan(history.history["loss"]).all()


@pytest.mark.parametrize("num_outputs", [1, 2])
def test_cape_loss_trains_one_output_or_two(num_outputs):
    x, _ = data()
    targets = np.linspace(0.1, 0.9, 24).astype("float32")
    model = network(num_outputs)
    eager = float(ops.mean(kc.cape_loss(targets, outputs(model, x))))
    model.compile(optimizer="sgd", loss=kc.cape_loss)
    value = model.evaluate(x, targets, batch_size=24, verbose=0)
    np.testing.assert_allclose(value, eager, rtol=1e-5)
    losses, _ = train(model, kc.cape_loss, x, targets)
    assert losses[0] > losses[2]
