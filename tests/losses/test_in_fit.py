"""Losses in `fit` and `evaluate`: precision, weights, masks, pairs."""

import contextlib

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from keras import ops
from loss_batches import CASES, COUPLED, FIRST

import keras_calib as kc

# What depends on the backend; `fit` itself is Keras' on all of them.
portable = pytest.mark.portable
# TensorFlow compiles without XLA or with it, and sooner without.
JIT = [False, True] if BACKEND == "tensorflow" else ["auto"]
# Of one sample, of the batch.
TWO = [CASES["MbLS"], CASES["MMCE-weighted"]]


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


@contextlib.contextmanager
def policy(name):
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy("float32")


def exact_products():
    """On GPUs JAX rounds those of a network otherwise for each batch size."""
    if BACKEND != "jax":
        return contextlib.nullcontext()
    import jax

    return jax.default_matmul_precision("highest")


def outputs(model, x):
    """As constants, which torch wants before it makes numbers of them."""
    return ops.stop_gradient(model(x))


def train(model, loss, x, y, rate=0.05, epochs=3, jit_compile=None, **kwargs):
    """Full batches: the loss of each epoch, and the weights at the end.

    Eagerly, if `jit_compile` is not given; but JAX would then compile each
    operation.
    """
    model.compile(
        optimizer=keras.optimizers.SGD(rate),
        loss=loss,
        jit_compile=JIT[0] if jit_compile is None else jit_compile,
        run_eagerly=jit_compile is None and BACKEND != "jax",
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


def begins_at_the_eager_loss(case, **options):
    x, ids = data()
    y, loss, model = case.labels(ids), case.make(), network()
    eager = float(loss(y, outputs(model, x)))
    losses, _ = train(model, loss, x, y, **options)
    np.testing.assert_allclose(losses[0], eager, rtol=1e-5, err_msg=str(case))
    assert losses[0] > losses[1] > losses[2], case


def trains_in_mixed_precision(case, name, **options):
    x, ids = data()
    with policy(name):
        y, loss, model = case.labels(ids), case.make(), network()
        logits = outputs(model, x)
        assert name.endswith(keras.backend.standardize_dtype(logits.dtype))
        value = loss(y, logits)
        assert keras.backend.standardize_dtype(value.dtype) == "float32"
        losses, weights = train(model, loss, x, y, epochs=2, **options)
    np.testing.assert_allclose(losses[0], float(value), rtol=1e-3)
    # Later, logits can tie, where some losses jump.
    assert losses[0] > losses[1], case
    assert weights[0].dtype == "float32"


@portable
@pytest.mark.parametrize(
    ("name", "jit"),
    [
        ("MbLS", JIT[0]),
        ("AdaptiveLabelSmoothing", JIT[0]),
        ("MMCE-weighted", JIT[-1]),
    ],
)
def test_fit_begins_at_the_eager_loss_and_lowers_it(name, jit):
    begins_at_the_eager_loss(CASES[name], jit_compile=jit)


@portable
def test_mixed_precision_trains_on_a_float32_loss():
    trains_in_mixed_precision(TWO[0], "mixed_float16", jit_compile=JIT[0])
    trains_in_mixed_precision(TWO[1], "mixed_bfloat16")


@pytest.mark.slow
def test_every_class_of_losses_trains():
    for i, case in enumerate(FIRST):
        begins_at_the_eager_loss(case, jit_compile=JIT[-1])
        # Eagerly each loss takes both, in `tests/laws/test_losses.py`.
        name = ("mixed_float16", "mixed_bfloat16")[i % 2]
        trains_in_mixed_precision(case, name, jit_compile=JIT[0])


@portable
def test_ids_and_objectness_keep_their_precision_in_fit():
    # bfloat16 holds neither 257 nor 0.701.
    x, _ = data(8)
    y = np.tile([[257.0, 0.701]], (8, 1))
    loss = kc.AdaptiveLabelSmoothing(from_logits=True)
    with policy("mixed_bfloat16"):
        model = network(300)
        assert model.compute_dtype == "bfloat16"
        logits = array(ops.cast(outputs(model, x), "float32"))
        losses, _ = train(model, loss, x, y, epochs=1)
    np.testing.assert_allclose(losses[0], float(loss(y, logits)), rtol=1e-4)


def test_fidelity_and_what_it_reads_survive_saving(tmp_path):
    options = {"from_logits": True, "ignore_class": 2, "reduction": "sum"}
    loss = kc.MDCA(0.5, fidelity=kc.FocalLoss(1.5, **options), **options)
    x, y = data()
    model = network()
    model.compile(optimizer="sgd", loss=loss, jit_compile=JIT[0])
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


@pytest.mark.slow
def test_an_ignored_pixel_trains_as_a_deleted_one():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 3, 5, 4)).astype("float32")
    ids = rng.integers(3, size=(4, 3, 5))
    ids[:, 0] = ids[1, 2, 3] = 255
    kept = ids != 255
    x[~kept] = 100.0
    for case in (TWO[1], CASES["AdaptiveLabelSmoothing"]):
        y, dense = case.labels(ids), network()
        pixels = keras.Sequential(
            [keras.Input((3, 5, 4)), keras.layers.Conv2D(3, 1)]
        )
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


@pytest.mark.parametrize(
    "ignore_class", [None, pytest.param(2, marks=portable)]
)
def test_a_masked_step_trains_as_a_deleted_one(ignore_class):
    rng = np.random.default_rng(0)
    x = rng.integers(1, 9, size=(5, 7))
    x[np.arange(7) >= rng.integers(2, 8, size=(5, 1))] = 0
    y = rng.integers(3, size=x.shape)
    kept = x != 0
    assert 10 < kept.sum() < 30
    weights = [rng.normal(size=s) for s in ((9, 4), (4, 3), (3,))]
    case, runs = TWO[1], []
    for model, steps, labels in (
        (embedding(7, True), x, y),
        (embedding(1, False), x[kept][:, None], y[kept][:, None]),
    ):
        model.set_weights(weights)
        loss = case.make(ignore_class=ignore_class)
        with exact_products():
            runs.append(train(model, loss, steps, labels, rate=0.5))
    agree(*runs)
    losses, (table, *_) = runs[0]
    assert np.abs(losses[0] - losses[1:]).min() > 1e-3
    np.testing.assert_allclose(table[0], weights[0][0], rtol=1e-6)


# Weights.


def weight_zero_is_a_deletion(case, reduction):
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
    unweighted = train(network(), loss, x, y, rate=rate, epochs=1)
    assert abs(run[0][0] / unweighted[0][0] - 1) > 1e-3


def test_weight_zero_in_fit_is_a_deleted_sample():
    weight_zero_is_a_deletion(TWO[1], "sum_over_batch_size")


def weights_of_classes_are_repeats(case):
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


def test_weights_of_classes_in_fit_are_repeats_and_deletions():
    weights_of_classes_are_repeats(TWO[1])


@pytest.mark.slow
def test_weights_in_fit_for_pairs_and_every_loss_of_the_batch():
    for name in ("AdaptiveLabelSmoothing", "MbLS"):
        weights_of_classes_are_repeats(CASES[name])
    for i, case in enumerate(COUPLED):
        weights_of_classes_are_repeats(case)
        # The base of all losses reduces.
        reduction = ("sum_over_batch_size", "sum")[i % 2]
        weight_zero_is_a_deletion(case, reduction)


# Pairs of class id and objectness.


@pytest.mark.slow
def test_pairs_train_beside_metrics_that_read_them():
    x, ids = data(64)
    rng = np.random.default_rng(1)
    y = np.stack([ids, rng.uniform(size=64)], axis=-1)
    loss = kc.AdaptiveLabelSmoothing(from_logits=True)
    options = {"from_logits": True, "objectness": True}
    metrics = [kc.NLL(**options), kc.Accuracy(**options)]
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
    plain = kc.NLL(from_logits=True)
    plain.update_state(ids, logits)
    assert values["nll"] == pytest.approx(float(plain.result()), rel=1e-4)


def test_pairs_in_fit_need_metrics_and_losses_that_read_them():
    smooth = kc.AdaptiveLabelSmoothing(from_logits=True)
    plain, reads = (
        kc.NLL(from_logits=True, objectness=x) for x in (False, True)
    )
    for loss, metric, num_classes in (
        (kc.MDCA(from_logits=True), reads, 3),
        (smooth, plain, 3),
        # Here pairs might be rows of two classes.
        (smooth, plain, 2),
    ):
        x, ids = data(num_classes=num_classes)
        y = np.stack([ids, np.full(24, 0.5)], axis=-1)
        model = network(num_classes)
        model.compile(loss=loss, metrics=[metric], jit_compile=JIT[0])
        if num_classes == 3 or BACKEND == "torch":
            with pytest.raises(ValueError, match="objectness=True"):
                model.fit(x, y, verbose=0)
        else:
            with pytest.warns(RuntimeWarning, match="`nll` leaves out 24"):
                model.fit(x, y, verbose=0)


def test_a_loss_that_is_compiled_alone_trains_the_same():
    options = {"margin": 0.1, "from_logits": True, "ignore_class": 2}
    plain = train(network(), kc.ACLS(**options), *data(), epochs=2)
    loss = kc.ACLS(jit_compile=True, **options)
    alone = train(network(), loss, *data(), epochs=2, jit_compile=JIT[0])
    agree(alone, plain)
    with pytest.raises(TypeError, match="`jit_compile` must be True or False"):
        kc.ACLS(jit_compile="auto")


# Values that compiled code cannot refuse.


def test_soft_labels_without_a_meaning_do_not_train_in_silence():
    x, y = data()
    soft = 0.4 * np.eye(3)[y] + 0.2
    loss = kc.FLSD(from_logits=True)
    model = network()
    model.compile(loss=loss, run_eagerly=True)
    with pytest.raises(ValueError, match="no meaning for soft labels"):
        model.fit(x, soft, verbose=0)
    if BACKEND != "torch":
        losses, _ = train(
            network(), loss, x, soft, epochs=1, jit_compile=JIT[0]
        )
        assert np.isnan(losses).all()


@pytest.mark.skipif(BACKEND != "tensorflow", reason="graphs of TensorFlow")
@pytest.mark.parametrize(
    "jit", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_a_model_of_logits_does_not_train_in_silence(jit):
    x, y = data()
    model = network()
    model.compile("sgd", kc.MDCA(), jit_compile=jit)
    with pytest.warns(RuntimeWarning, match="without a softmax") as told:
        history = model.fit(x, y, epochs=2, validation_data=(x, y), verbose=0)
    assert sum(x.category is RuntimeWarning for x in told) == 1
    assert np.isnan(history.history["loss"]).all()


def test_cape_loss_trains_one_output_or_two():
    x, _ = data()
    targets = np.linspace(0.1, 0.9, 24).astype("float32")
    for num_outputs in (1, 2):
        model = network(num_outputs)
        eager = float(ops.mean(kc.losses.cape_loss(targets, outputs(model, x))))
        jit = {"jit_compile": JIT[0]} if num_outputs == 1 else {}
        losses, _ = train(model, kc.losses.cape_loss, x, targets, **jit)
        np.testing.assert_allclose(losses[0], eager, rtol=1e-5)
        assert losses[0] > losses[2]
