"""Steps, gammas and targets of the authors' own code."""

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from keras import ops
from small_trainings import EAGER, identity, loss_and_gradient

import keras_calib as kc
from keras_calib.formulas.bins import interpolated_bins
from keras_calib.training.focal import next_gammas

pytestmark = pytest.mark.portable

CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy


def check(found, goldens, key):
    """Value and gradient are those of the file."""
    value, gradient = found
    expected, slope = goldens[f"{key}/value"], goldens[f"{key}/grad"]
    np.testing.assert_allclose(value, expected, rtol=1e-6, err_msg=key)
    assert np.abs(gradient - slope).max() <= 1e-5 * np.abs(slope).max(), key


@pytest.mark.parametrize("case", ["A", "OK"])
def test_crl_step_is_that_of_the_authors(goldens, case):
    scores = {
        "softmax": "msp",
        "entropy": "neg_entropy",
        "margin": "prob_margin",
    }
    for released, score in scores.items():
        for strength in (1.0, 0.5):
            crl_step(goldens, case, released, score, strength)


def crl_step(goldens, case, released, score, strength):
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
    check(loss_and_gradient(model, logits, y), goldens, key)
    # The record, once the step is not undone.
    tensor = ops.convert_to_tensor(logits.astype("float32"))
    model.compute_loss(None, y, tensor, None, training=True)
    np.testing.assert_array_equal(
        array(model.right_counts),
        goldens[f"state/crl/{case}/correctness_after"],
    )
    seen = np.bincount(index, minlength=len(before))
    np.testing.assert_array_equal(array(model.view_counts), seen)


SAM = [
    ("rho0.05", {}, EAGER),
    ("rho0.2", {"rho": 0.2}, EAGER),
    ("asam_rho2", {"rho": 2.0, "adaptive": True}, EAGER),
    # Compiled by XLA where there is XLA, else as it is.
    ("rho0.2", {"rho": 0.2}, {"jit_compile": BACKEND != "torch"}),
]


def test_sam_goes_the_way_of_the_authors(goldens):
    for key, arguments, compiled in SAM:
        sam_way(goldens, key, arguments, compiled)


def sam_way(goldens, key, arguments, compiled):
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
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), **compiled)
    way = []
    for _ in range(3):
        ones = np.ones((4, 5), "float32")
        model.train_on_batch(ones, ones)
        way.append(array(model.w).copy())
    expected = goldens[f"posthoc/sam/{key}/traj"]
    np.testing.assert_allclose(way, expected, atol=1e-6, err_msg=key)


def test_gammas_follow_the_gaps_as_released(goldens):
    gammas_follow(goldens, "default", {}, 15, 1.0)
    other = {"rate": 3.0, "switch": 0.4, "limits": (-1.0, 5.0)}
    gammas_follow(goldens, "nondef", other, 10, 0.5)


def gammas_follow(goldens, state, arguments, num_bins, gamma):
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
    np.testing.assert_allclose(sums.confidence_gap, gaps, **exact)
    gammas = np.full(num_bins, gamma)
    for update in range(1, 5):
        gammas = next_gammas(gammas, sums.confidence_gap, **arguments)
        expected = goldens[f"state/adafocal/{state}/gamma_after{update}"]
        np.testing.assert_allclose(gammas, expected, **exact)


def test_adafocal_model_has_the_released_loss_after_an_update(goldens):
    confidence = goldens["in/adafocal/default/val_conf"]
    correct = goldens["in/adafocal/default/val_correct"]
    # The first of 20 classes has the confidence, the others share the rest.
    others = np.tile((1 - confidence)[:, None] / 19, 19)
    probs = np.concatenate([confidence[:, None], others], axis=-1)
    assert (probs.argmax(-1) == 0).all()
    valid = identity(kc.AdaptiveFocalModel, 20)
    valid.compile()
    valid.update_gammas((probs.astype("float32"), 1 - correct.astype("int32")))
    np.testing.assert_allclose(
        array(valid.gammas),
        goldens["state/adafocal/default/gamma_after1"],
        rtol=1e-4,
    )
    edges = [goldens[f"state/adafocal/default/{x}"] for x in ("lower", "upper")]
    for case in "AC":
        logits = goldens[f"in/{case}/logits"]
        labels = goldens[f"in/{case}/labels"]
        classes = logits.shape[1]
        model = identity(kc.AdaptiveFocalModel, classes, from_logits=True)
        model.compile()
        model.edges.assign(np.append(edges[0], edges[1][-1]))
        model.gammas.assign(goldens["state/adafocal/default/gamma_after1"])
        value, gradient = loss_and_gradient(model, logits, labels)
        key, count = f"loss/adafocal/default_step1/{case}", len(labels)
        check((value * count, gradient * count), goldens, key)


CAPE = {
    "bin10": {},
    "bin7": {"num_bins": 7},
    "kde_s0.1_w500": {"method": "kernel"},
    "kde_s0.05_w6": {"method": "kernel", "sigma": 0.05, "window": 6},
}


def test_cape_epoch_is_that_of_the_authors(goldens):
    for key, arguments in CAPE.items():
        cape_epoch(goldens, key, arguments)


def cape_epoch(goldens, key, arguments):
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
    found = loss_and_gradient(model, logits, y)
    check(found, goldens, f"loss/cape/{key}/F")
    assert abs(plain - found[0]) > 1e-3


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
        found = loss_and_gradient(model, logits, y)
        check(found, goldens, f"loss/acls_rank_{reference}/default/A")
    tensor = ops.convert_to_tensor(logits.astype("float32"))
    plain = CROSS_ENTROPY(from_logits=True)(labels, tensor)
    value = model.compute_loss(None, labels, tensor, None, training=False)
    np.testing.assert_allclose(float(value), float(plain), rtol=1e-5)
