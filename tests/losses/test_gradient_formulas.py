"""Values and gradients of losses are those that docs/derivations.md states."""

import functools

import numpy as np
import pytest
from cases import array, one_hot, softmax
from keras import ops

import keras_calib as kc
from keras_calib.backend.gradients import value_and_grad
from keras_calib.losses.focal import signed_focal

K, MARGIN = 5, 2.0
PARTIAL = functools.partial
ACLS = PARTIAL(kc.losses.acls, margin=MARGIN, lambda1=0.3, lambda2=0.7)
CRL_MARGIN = PARTIAL(kc.losses.crl_margin, margin=MARGIN, strength=0.8)
SHARES = np.linspace(0.0, 1.0, 8)
# The functions, by the names of the formulas below.
LOSSES = {
    "cross entropy": PARTIAL(kc.losses.label_smoothing, alpha=0.0),
    "all": PARTIAL(kc.losses.label_smoothing, alpha=0.2),
    "others": PARTIAL(kc.losses.label_smoothing, alpha=0.2, spread="others"),
    "adaptive": PARTIAL(
        kc.losses.adaptive_label_smoothing, objectness=SHARES, beta=0.6
    ),
    "focal": PARTIAL(kc.losses.focal_loss, gamma=2.5),
    "inverse focal": lambda t, z: signed_focal(
        t, z, lambda p: -1.5 * ops.ones_like(p)
    ),
    "relaxation": PARTIAL(kc.losses.label_relaxation, alpha=0.1),
    "penalty": PARTIAL(kc.losses.confidence_penalty, beta=0.4),
    "threshold": PARTIAL(kc.losses.confidence_penalty, beta=0.4, threshold=0.5),
    "uniformity": PARTIAL(kc.losses.uniformity_penalty, strength=0.4),
    "brier": kc.losses.brier_loss,
    "mbls": PARTIAL(kc.losses.mbls, margin=MARGIN, strength=0.4),
    "acls": ACLS,
    "acls zero": PARTIAL(ACLS, reference="zero"),
    "cape": lambda t, z: kc.losses.cape_loss(SHARES, z, classes=np.full(8, 2)),
    "crl margin": CRL_MARGIN,
    "crl margin each": PARTIAL(CRL_MARGIN, condition="each"),
    "cpc": PARTIAL(kc.losses.cpc, lambda1=0.3, lambda2=0.7),
}


def rule1(p, s):
    return s - p * s.sum()


def rule2(p, s):
    return p * (s - (p * s).sum())


def formulas(z, y, share):
    """Value and gradient of each loss, of one row."""
    p, e = softmax(z), np.eye(K)
    q, t, log_p, py = 1 - p, e[y], np.log(p), p[y]
    ce, top, low = -log_p[y], z.argmax(), z.argmin()

    def smoothed(t):
        return -(t * log_p).sum(), p - t

    def others(alpha):
        return (1 - alpha) * t + alpha / (K - 1) * (1 - t)

    entropy = -(p * log_p).sum()
    pull = p * (log_p + entropy)
    relaxed = 0.9 * np.log(0.9 / py) + 0.1 * np.log(0.1 / (1 - py))
    relaxed = relaxed, (p - t) * (1 - 0.1 - 0.1 * py / (1 - py))
    h = np.maximum(z[top] - z - MARGIN, 0)
    far = max(z[top] - z[low] - MARGIN, 0)
    past, tied = max(z[top] - MARGIN, 0), (z == z[top]).sum()
    hinge, squares = 0.4 / K * (h > 0), 0.7 / (K - 1) * h
    pulled = p[top] * p * (np.arange(K) != top)
    sure, beyond = z[top] - z[low] >= MARGIN, z[top] - z >= MARGIN
    s, wrong = lambda x: np.log(1 + np.exp(x)), [k for k in range(K) if k != y]
    pair = 0.7 / ((K - 1) * (K - 2))
    exclusion = sum(s(z[k] - z[j]) / 2 for k in wrong for j in wrong if j != k)
    binary = 0.3 / (K - 1) * 1 / (1 + np.exp(z[y] - z)) * (1 - t)
    apart = [
        sum(np.tanh((z[k] - z[j]) / 2) / 2 for j in wrong) for k in range(K)
    ]
    return {
        "cross entropy": smoothed(t),
        "all": smoothed(0.8 * t + 0.2 / K),
        "others": smoothed(others(0.2)),
        "adaptive": smoothed(others(0.6 * (1 - share))),
        "focal": (
            -(t * q**2.5 * log_p).sum(),
            rule1(p, t * (2.5 * p * q**1.5 * log_p - q**2.5)),
        ),
        "inverse focal": (
            -((1 + py) ** 1.5) * log_p[y],
            rule1(p, -t * (1.5 * p * (1 + p) ** 0.5 * log_p + (1 + p) ** 1.5)),
        ),
        "relaxation": relaxed if py < 0.9 else (0.0, 0 * p),
        "penalty": (ce - 0.4 * entropy, p - t + 0.4 * pull),
        "threshold": (
            ce + 0.4 * max(0.5 - entropy, 0),
            p - t + 0.4 * (entropy < 0.5) * pull,
        ),
        "uniformity": (
            ce + 0.4 * abs(p - 1 / K).sum(),
            p - t + rule2(p, 0.4 * np.sign(p - 1 / K)),
        ),
        "brier": (((p - t) ** 2).sum(), rule2(p, 2 * (p - t))),
        "mbls": (
            ce + 0.4 / K * h.sum(),
            p - t - hinge + e[top] * hinge.sum(),
        ),
        "acls": (
            ce + 0.3 * far**2 + (squares * h).sum(),
            p
            - t
            - 2 * squares
            + e[top] * (0.6 * far + 2 * squares.sum())
            - e[low] * 0.6 * far,
        ),
        "acls zero": (
            ce + tied * 0.3 * past**2 + (squares * h).sum(),
            p - t - 2 * squares + e[top] * tied * 0.6 * past,
        ),
        "cape": (
            -share * log_p[2] - (1 - share) * np.log(q[2]),
            p - share * e[2] - (1 - share) * p / q[2] * (1 - e[2]),
        ),
        "crl margin": (
            ce + 0.8 * sure * p[top],
            p - t + 0.8 * sure * (e[top] * p[top] * (1 - p[top]) - pulled),
        ),
        "crl margin each": (
            ce + 0.8 * sure * p[top],
            p
            - t
            + 0.8 * sure * e[top] * p[top] * (1 - p[top])
            - 0.8 * beyond * pulled,
        ),
        "cpc": (
            ce
            + 0.3 / (K - 1) * sum(s(z[k] - z[y]) for k in wrong)
            + pair * exclusion,
            p
            - t
            + binary
            - t * binary.sum()
            + pair * np.array(apart) * (1 - t),
        ),
    }


def rows(n=8):
    """Logits, of which three rows tie at the top or the bottom; class ids."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(n, K)) * 3
    logits[0, [1, 3]], logits[1, [0, 4]] = logits[0].max() + 1, -9.0
    logits[2] = [4.0, 4.0, 4.0, -3.0, -3.0]
    return logits, np.r_[
        logits.argmax(-1)[: n // 2], rng.integers(K, size=n - n // 2)
    ]


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_has_the_value_and_the_gradient_of_the_page(name):
    logits, labels = rows()
    soft = one_hot(labels, K)
    values = array(LOSSES[name](soft, logits))
    _, gradient = value_and_grad(
        lambda z: ops.sum(LOSSES[name](soft, z)), ops.convert_to_tensor(logits)
    )
    for i, row in enumerate(zip(logits, labels, SHARES, strict=True)):
        value, slope = formulas(*row)[name]
        np.testing.assert_allclose(values[i], value, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(array(gradient)[i], slope, rtol=0, atol=1e-9)


def test_a_term_of_the_confidence_has_the_gradient_of_the_page():
    logits, labels = rows()
    soft, n = one_hot(labels, K), len(labels)
    p = np.array([softmax(z) for z in logits])
    top = one_hot(logits.argmax(-1), K)
    r, a = p.max(-1), (logits.argmax(-1) == labels).astype(float)
    to_logits = r[:, None] * (top - p)
    kernel = np.exp(-np.abs(r[:, None] - r) / 0.4)
    c, side = a - r, np.sign(r[:, None] - r)
    by_r = 2 / n**2 * (-kernel @ c - c * ((side * kernel) @ c) / 0.4)
    square = c @ kernel @ c / n**2
    d, g = np.mean(r - a), np.mean(p - soft, axis=0)
    record = np.array([0.1, 0.9, 0.5, 0.5, 0.3, 1.0, 0.0, 0.6])
    lead, gap = record - np.roll(record, -1), r - np.roll(r, -1)
    pairs = np.maximum(np.abs(lead) - np.sign(lead) * gap, 0)
    pulled = -np.sign(lead) * (pairs > 0)
    huber = PARTIAL(kc.losses.dca, huber_delta=0.01)
    expected = {
        kc.losses.dca: (abs(d), np.sign(d) / n * to_logits),
        huber: (0.01 * (abs(d) - 0.005), 0.01 * np.sign(d) / n * to_logits),
        PARTIAL(kc.losses.dca, huber_delta=0.9): (d**2 / 2, d / n * to_logits),
        kc.losses.mdca: (
            np.mean(abs(g)),
            np.array([rule2(x, np.sign(g)) for x in p]) / (n * K),
        ),
        kc.losses.mmce: (square, by_r[:, None] * to_logits),
        PARTIAL(kc.losses.mmce, variant="unweighted_sqrt"): (
            np.sqrt(square + 1e-10),
            (by_r / 2 / np.sqrt(square + 1e-10))[:, None] * to_logits,
        ),
        lambda _, z: ops.sum(kc.losses.correctness_ranking(z, record)): (
            pairs.sum(),
            (pulled - np.roll(pulled, 1))[:, None] * to_logits,
        ),
    }
    for function, (value, slope) in expected.items():
        found, gradient = value_and_grad(
            lambda z, f=function: f(soft, z), ops.convert_to_tensor(logits)
        )
        assert float(found) == pytest.approx(value, rel=1e-9)
        np.testing.assert_allclose(array(gradient), slope, rtol=0, atol=1e-9)
