"""Models that remember, look twice or set targets between epochs."""

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
from keras_calib.formulas.equal_mass import interpolated_bins
from keras_calib.training.adafocal import next_gammas

pytestmark = pytest.mark.portable

CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy
every_model = pytest.mark.parametrize("name", MODELS)
# Compiling takes long on JAX.
JIT = [False, True] if BACKEND == "tensorflow" else ["auto"]


def identity(cls, num_classes, **arguments):
    """A model that returns its inputs, compiled with cross entropy."""
    inputs = keras.Input((num_classes,))
    model = cls(inputs, keras.layers.Rescaling(1.0)(inputs), **arguments)
    if not isinstance(model, kc.AdaptiveFocalModel):
        model.compile(loss=CROSS_ENTROPY(from_logits=True))
    return model


def loss_and_gradient(model, logits, y, sample_weight=None):
    """Of `compute_loss` in training, with respect to the logits."""
    from keras_calib.backend.gradients import value_and_grad

    def of_logits(logits):
        with keras.StatelessScope():
            return model.compute_loss(
                None, y, logits, sample_weight, training=True
            )

    value, gradient = value_and_grad(of_logits, logits.astype("float32"))
    return float(value), array(gradient)


# Reference values.


@pytest.mark.parametrize("case", ["A", "OK"])
@pytest.mark.parametrize("strength", [1.0, 0.5])
@pytest.mark.parametrize(
    "released, score",
    [
        ("softmax", "msp"),
        ("entropy", "neg_entropy"),
        ("margin", "prob_margin"),
    ],
)
def test_crl_step_is_that_of_the_authors(
    goldens, case, strength, released, score
):
    logits, labels = goldens[f"in/{case}/logits"], goldens[f"in/{case}/labels"]
    before = goldens[f"in/crl/{case}/correctness"]
    index = goldens[f"in/crl/{case}/idx"]
    model = identity(
        kc.CorrectnessRankingModel,
        logits.shape[1],
        num_samples=len(before),
        strength=strength,
        score=score,
    )
    model.right_counts.assign(before)
    epochs = float(goldens[f"in/crl/{case}/max_correctness"])
    model.finished_epochs.assign(epochs)
    key = f"loss/crl_{released}/w{strength:g}/{case}"
    y = {"label": labels, "index": index}
    value, gradient = loss_and_gradient(model, logits, y)
    np.testing.assert_allclose(value, goldens[f"{key}/value"], rtol=1e-6)
    expected = goldens[f"{key}/grad"]
    bound = 1e-5 * np.abs(expected).max()
    assert np.abs(gradient - expected).max() <= bound
    # The record, once the step is not undone.
    tensor = ops.convert_to_tensor(logits.astype("float32"))
    model.compute_loss(None, y, tensor, None, training=True)
    np.testing.assert_array_equal(
        array(model.right_counts),
        goldens[f"state/crl/{case}/correctness_after"],
    )
    seen = np.bincount(index, minlength=len(before))
    np.testing.assert_array_equal(array(model.view_counts), seen)


@pytest.mark.parametrize("jit_compile", JIT)
@pytest.mark.parametrize(
    "key, arguments",
    [
        ("rho0.05", {}),
        ("rho0.2", {"rho": 0.2}),
        ("asam_rho2", {"rho": 2.0, "adaptive": True}),
    ],
)
def test_sam_goes_the_way_of_the_authors(goldens, key, arguments, jit_compile):
    matrix = goldens["in/sam/A"].astype("float32")
    shift = goldens["in/sam/b"].astype("float32")

    class Quadratic(kc.SharpnessAwareModel):
        def __init__(self):
            super().__init__(**arguments)
            self.w = self.add_weight(shape=(5,), name="w")
            self.w.assign(goldens["in/sam/w0"])

        def call(self, x):
            return x * self.w

        def compute_loss(self, x, y, y_pred, sample_weight, training=True):
            w = ops.mean(y_pred, axis=0)
            pulled = ops.matmul(ops.convert_to_tensor(matrix), w[:, None])
            half = 0.5 * ops.sum(w * pulled[:, 0])
            return half + ops.sum(w * ops.convert_to_tensor(shift))

    model = Quadratic()
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9), jit_compile=jit_compile
    )
    way = []
    for _ in range(3):
        ones = np.ones((4, 5), "float32")
        model.train_on_batch(ones, ones)
        way.append(array(model.w).copy())
    expected = goldens[f"posthoc/sam/{key}/traj"]
    np.testing.assert_allclose(way, expected, atol=1e-6)


@pytest.mark.parametrize(
    "state, arguments, num_bins, gamma",
    [
        ("default", {}, 15, 1.0),
        (
            "nondef",
            {"rate": 3.0, "switch": 0.4, "limits": (-1.0, 5.0)},
            10,
            0.5,
        ),
    ],
)
def test_gammas_follow_the_gaps_as_released(
    goldens, state, arguments, num_bins, gamma
):
    edges, sums = interpolated_bins(
        goldens[f"in/adafocal/{state}/val_conf"],
        goldens[f"in/adafocal/{state}/val_correct"],
        num_bins,
    )
    exact = {"rtol": 0, "atol": 1e-12}
    lower = goldens[f"state/adafocal/{state}/lower"]
    upper = goldens[f"state/adafocal/{state}/upper"]
    np.testing.assert_allclose(edges[:-1], lower, **exact)
    np.testing.assert_allclose(edges[1:], upper, **exact)
    gaps = goldens[f"state/adafocal/{state}/gap"]
    np.testing.assert_allclose(sums.gap, gaps, **exact)
    gammas = np.full(num_bins, gamma)
    for update in range(1, 5):
        gammas = next_gammas(gammas, sums.gap, **arguments)
        expected = goldens[f"state/adafocal/{state}/gamma_after{update}"]
        np.testing.assert_allclose(gammas, expected, **exact)


@pytest.mark.parametrize("case", ["A", "C"])
def test_adafocal_model_has_the_released_loss_after_an_update(goldens, case):
    confidence = goldens["in/adafocal/default/val_conf"]
    correct = goldens["in/adafocal/default/val_correct"]
    # The first of 20 classes has the confidence, the others share the rest.
    others = np.tile((1 - confidence)[:, None] / 19, 19)
    probs = np.concatenate([confidence[:, None], others], axis=-1)
    assert (probs.argmax(-1) == 0).all()
    logits, labels = goldens[f"in/{case}/logits"], goldens[f"in/{case}/labels"]
    model = identity(kc.AdaptiveFocalModel, logits.shape[1], from_logits=True)
    model.compile()
    valid = identity(kc.AdaptiveFocalModel, 20)
    valid.compile()
    valid.update_gammas((probs.astype("float32"), 1 - correct.astype("int32")))
    np.testing.assert_allclose(
        array(valid.gammas),
        goldens["state/adafocal/default/gamma_after1"],
        rtol=1e-4,
    )
    model.edges.assign(
        np.append(
            goldens["state/adafocal/default/lower"],
            goldens["state/adafocal/default/upper"][-1],
        )
    )
    model.gammas.assign(goldens["state/adafocal/default/gamma_after1"])
    value, gradient = loss_and_gradient(model, logits, labels)
    key = f"loss/adafocal/default_step1/{case}"
    count = len(labels)
    np.testing.assert_allclose(value, goldens[f"{key}/value"] / count, 1e-6)
    expected = goldens[f"{key}/grad"] / count
    bound = 1e-5 * np.abs(expected).max()
    assert np.abs(gradient - expected).max() <= bound


@pytest.mark.parametrize(
    "key, arguments",
    [
        ("bin10", {}),
        ("bin7", {"num_bins": 7}),
        ("kde_s0.1_w500", {"method": "kernel"}),
        ("kde_s0.05_w6", {"method": "kernel", "sigma": 0.05, "window": 6}),
    ],
)
def test_cape_epoch_is_that_of_the_authors(goldens, key, arguments):
    logits = goldens["in/F/logits"].astype("float32")
    y = {"label": goldens["in/F/labels"], "index": goldens["in/cape/indices"]}
    model = identity(kc.CaPEModel, 2, num_samples=len(logits), **arguments)
    model.update_targets((logits, y), batch_size=7)
    np.testing.assert_allclose(
        array(model.targets),
        goldens[f"state/cape/{key}/proposed_probs_by_id"],
        atol=1e-6,
    )
    plain, _ = loss_and_gradient(model, logits, y)
    model.calibrates.assign(1.0)
    value, gradient = loss_and_gradient(model, logits, y)
    expected = goldens[f"loss/cape/{key}/F/value"]
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert abs(plain - value) > 1e-3
    expected = goldens[f"loss/cape/{key}/F/grad"]
    assert np.abs(gradient - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("reference", ["min", "zero"])
def test_acls_with_the_ranking_condition(goldens, reference):
    logits, labels = goldens["in/A/logits"], goldens["in/A/labels"]
    record = goldens["in/A/rank_history"]
    model = identity(
        kc.CorrectnessRankingModel,
        logits.shape[1],
        num_samples=len(logits),
        role="condition",
        condition="ranking",
        normalization="views",
    )
    model.compile(
        loss=kc.ACLS(reference=reference, condition="ranking", from_logits=True)
    )
    model.right_counts.assign(record)
    model.view_counts.assign(np.ones(len(record)))
    for form in (labels, labels[:, None], np.eye(logits.shape[1])[labels]):
        y = {"label": form, "index": np.arange(len(logits))}
        value, gradient = loss_and_gradient(model, logits, y)
        key = f"loss/acls_rank_{reference}/default/A"
        np.testing.assert_allclose(value, goldens[f"{key}/value"], rtol=1e-6)
        expected = goldens[f"{key}/grad"]
        bound = 1e-5 * np.abs(expected).max()
        assert np.abs(gradient - expected).max() <= bound
    tensor = ops.convert_to_tensor(logits.astype("float32"))
    plain = CROSS_ENTROPY(from_logits=True)(labels, tensor)
    value = model.compute_loss(None, labels, tensor, None, training=False)
    np.testing.assert_allclose(float(value), float(plain), rtol=1e-5)


# The record.


def test_a_record_where_all_were_always_right_ranks_nothing():
    model = identity(kc.CorrectnessRankingModel, 3, num_samples=4)
    model.right_counts.assign(np.full(4, 7.0))
    model.finished_epochs.assign(7.0)
    np.testing.assert_array_equal(model.correctness(), np.zeros(4))


def test_correctness_is_at_most_1_where_samples_come_twice_in_an_epoch():
    model = identity(kc.CorrectnessRankingModel, 3, num_samples=3)
    model.right_counts.assign([0.0, 2.0, 4.0])
    model.finished_epochs.assign(2.0)
    np.testing.assert_array_equal(model.correctness(), [0, 1, 1])


def test_a_sample_twice_in_a_batch_counts_twice():
    model = identity(kc.CorrectnessRankingModel, 2, num_samples=5)
    logits = ops.convert_to_tensor([[1.0, 0.0]] * 4)
    y = {"label": np.array([0, 0, 1, 0]), "index": np.array([3, 3, 3, 1])}
    model.compute_loss(None, y, logits, None, training=True)
    np.testing.assert_array_equal(array(model.right_counts), [0, 1, 0, 2, 0])
    np.testing.assert_array_equal(array(model.view_counts), [0, 1, 0, 3, 0])


def test_samples_of_weight_0_are_not_recorded_and_rank_nobody():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(6, 3)).astype("float32")
    labels, index = rng.integers(3, size=6), np.arange(6)
    weight = np.array([1.0, 0.0, 1.0, 1.0, 0.0, 1.0], "float32")
    model = identity(kc.CorrectnessRankingModel, 3, num_samples=6, strength=9)
    model.right_counts.assign(rng.integers(4, size=6))
    model.finished_epochs.assign(4.0)
    y = {"label": labels, "index": index}
    _, gradient = loss_and_gradient(model, logits, y, weight)
    assert np.abs(gradient[weight == 0]).max() == 0
    assert np.abs(gradient[weight > 0]).max() > 0.1
    tensor = ops.convert_to_tensor(logits)
    model.compute_loss(None, y, tensor, weight, training=True)
    np.testing.assert_array_equal(array(model.view_counts), weight)


def test_weights_of_a_half_are_half_the_loss():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(6, 3)), rng.integers(3, size=6)
    model = identity(kc.CorrectnessRankingModel, 3, num_samples=6)
    model.right_counts.assign(rng.integers(4, size=6))
    model.finished_epochs.assign(4.0)
    y = {"label": labels, "index": np.arange(6)}
    whole, _ = loss_and_gradient(model, logits, y)
    half = np.full(6, 0.5, "float32")
    value, _ = loss_and_gradient(model, logits, y, half)
    np.testing.assert_allclose(value, whole / 2, rtol=1e-6)


@pytest.mark.parametrize("index", [-1, 96, 2**31 - 1])
def test_an_unknown_sample_is_refused_or_makes_the_loss_nan(index):
    model = network("crl")
    x, y, _, _ = data_of("crl", 32)
    y["index"][3] = index
    model.run_eagerly = True
    with pytest.raises(ValueError, match=r"`index` must hold numbers in \[0,"):
        model.train_on_batch(x, y)
    if BACKEND != "torch":
        loss = network("crl").train_on_batch(x, y)[0]
        assert np.isnan(loss)


def test_the_record_of_a_million_samples_takes_8_bytes_for_each():
    million = 1_300_000
    model = identity(kc.CorrectnessRankingModel, 3, num_samples=million)
    size = sum(
        array(v).nbytes
        for v in model.non_trainable_variables
        if tuple(v.shape) == (million,)
    )
    assert size == 8 * million


# In `fit`.


@every_model
def test_a_model_trains_remembers_and_is_saved(name, tmp_path):
    x, y, labels, weight = data_of(name, COUNT)
    model = network(name)
    options = {"batch_size": 32, "shuffle": False, "verbose": 0}
    before = kc.nll(labels, model.predict(x, verbose=0), from_logits=True)
    fitted = model.fit(
        x, y, epochs=3, validation_data=(x, labels), **options
    ).history
    assert set(fitted) == {"accuracy", "loss", "val_accuracy", "val_loss"}
    # What is shown is that of the labels.
    logits = model.predict(x, verbose=0)
    assert kc.nll(labels, logits, from_logits=True) < before
    right = np.mean(logits.argmax(-1) == labels)
    np.testing.assert_allclose(fitted["val_accuracy"][-1], right, rtol=1e-6)
    assert np.isfinite(fitted["loss"]).all()
    if hasattr(model, "view_counts"):
        np.testing.assert_array_equal(array(model.view_counts), np.full(96, 3))
        assert float(model.finished_epochs) == 3
    plain = model.evaluate(x, labels, verbose=0)
    np.testing.assert_allclose(model.evaluate(x, y, verbose=0), plain)
    if name != "sam crl":
        # A class of the user's own is not registered.
        model.save(tmp_path / "model.keras")
        again = keras.models.load_model(tmp_path / "model.keras")
        assert type(again) is type(model)
        own = {"layers", "input_layers", "output_layers", "name", "trainable"}
        config = again.get_config()
        assert set(config) > own or name == "sam"
        for key in set(config) - own:
            assert config[key] == model.get_config()[key]
        for v, w in zip(model.variables, again.variables, strict=True):
            np.testing.assert_array_equal(array(v), array(w))
        np.testing.assert_allclose(again.evaluate(x, y, verbose=0), plain)
        again.fit(x, y, validation_data=(x, labels), **options)
    model.save_weights(tmp_path / "model.weights.h5")
    other = network(name)
    other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "model.weights.h5")
    for v, w in zip(model.variables, other.variables, strict=True):
        np.testing.assert_array_equal(array(v), array(w))
