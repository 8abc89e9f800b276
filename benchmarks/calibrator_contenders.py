"""Calibrators of this library and of others, fitted and asked alike.

`CONTENDERS` has, by method and by name, a function of labels and logits that
fits. It returns a function of other logits, which returns calibrated logits or
probabilities, and whether they are logits.
"""

from functools import partial

import numpy as np

import keras_calib

# The solver of probmetrics for the ridge that takes less time.
_RIDGE = {"penalty": "ridge", "opt": "bfgs"}


def probabilities(logits):
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def ours(make):
    def fit(labels, logits):
        # A matrix for 100 classes has more parameters than 10,000 samples.
        # The folds that say whether it helps are no part of the fit.
        calibrator = make().fit(labels, logits, num_folds=0, force=True)
        return lambda z: (np.asarray(calibrator(z)), True)

    return fit


def netcal(name):
    def fit(labels, logits):
        import netcal.binning
        import netcal.scaling

        package = netcal.scaling
        package = package if hasattr(package, name) else netcal.binning
        calibrator = getattr(package, name)()
        # In float32 its finite differences see no slope, and nothing is
        # fitted.
        probs = probabilities(logits.astype("float64"))
        calibrator.fit(probs, labels)

        def predict(z):
            found = calibrator.transform(probabilities(z.astype("float64")))
            # Two classes come as the probability of the second.
            found = found.reshape(len(z), -1)
            if found.shape[-1] == 1:
                found = np.concatenate([1.0 - found, found], axis=-1)
            return found, False

        return predict

    return fit


def scikit_temperature(labels, logits):
    from sklearn.calibration import _TemperatureScaling

    calibrator = _TemperatureScaling().fit(logits, labels)
    return lambda z: (calibrator.predict(z), False)


def scikit_matrix(labels, logits):
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=np.inf, max_iter=1000).fit(logits, labels)
    return lambda z: (model.predict_proba(z), False)


def scikit_isotonic(labels, logits):
    from sklearn.isotonic import IsotonicRegression

    probs = probabilities(logits)
    fits = [
        IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(
            p, labels == k
        )
        for k, p in enumerate(probs.T)
    ]

    def predict(z):
        columns = zip(fits, probabilities(z).T, strict=True)
        q = np.stack([f.predict(p) for f, p in columns], axis=-1)
        return q / np.maximum(q.sum(axis=-1, keepdims=True), 1e-37), False

    return predict


def probmetrics(name):
    def fit(labels, logits):
        import torch
        from probmetrics import calibrators
        from probmetrics.distributions import CategoricalLogits

        calibrator = getattr(calibrators, name)()
        outputs = CategoricalLogits(torch.as_tensor(logits))
        calibrator.fit_torch(outputs, torch.as_tensor(labels))

        def predict(z):
            rows = CategoricalLogits(torch.as_tensor(z))
            found = calibrator.predict_proba_torch(rows)
            return found.get_logits().numpy(), True

        return predict

    return fit


def of_probabilities(name, **options):
    """A calibrator of probmetrics that takes probabilities."""

    def fit(labels, logits):
        from probmetrics.calibrators import logistic

        calibrator = getattr(logistic, name)(**options)
        probs = probabilities(logits)
        calibrator.fit(probs, labels)
        return lambda z: (calibrator.predict_proba(probabilities(z)), False)

    return fit


def tfp_vector(labels, logits):
    """The same problem by TFP's L-BFGS in one compiled graph: no product."""
    import tensorflow as tf
    import tensorflow_probability as tfp

    count = logits.shape[-1]
    z, y = tf.constant(logits), tf.constant(labels)

    def loss(point):
        scaled = tf.cast(z, "float64") * point[:count] + point[count:]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, scaled)
        return tf.reduce_mean(losses)

    @tf.function(jit_compile=True)
    def minimum(start):
        return tfp.optimizer.lbfgs_minimize(
            lambda x: tfp.math.value_and_gradient(loss, x),
            start,
            num_correction_pairs=20,
            tolerance=1e-6,
            max_iterations=500,
        ).position

    start = np.concatenate([np.full(count, 0.5), np.zeros(count)])
    point = minimum(tf.constant(start)).numpy()
    return lambda z: (z * point[:count] + point[count:], True)


CONTENDERS = {
    "temperature": {
        "keras_calib": ours(keras_calib.TemperatureScaling),
        "netcal": netcal("TemperatureScaling"),
        "scikit-learn": scikit_temperature,
        "probmetrics": probmetrics("TemperatureScalingCalibrator"),
        "probmetrics (Guo)": probmetrics("GuoTemperatureScalingCalibrator"),
    },
    "vector": {
        "keras_calib": ours(partial(keras_calib.VectorScaling, penalty=None)),
        # Despite its name: a scale and a bias for each class.
        "netcal, logistic": netcal("LogisticCalibration"),
        "probmetrics": probmetrics("VectorScalingCalibrator"),
        "(TFP, one graph)": tfp_vector,
    },
    "matrix": {
        "keras_calib": ours(partial(keras_calib.MatrixScaling, penalty=None)),
        "keras_calib, Dirichlet": ours(
            partial(keras_calib.DirichletCalibration, penalty=None)
        ),
        "scikit-learn, logistic": scikit_matrix,
        "probmetrics": probmetrics("MatrixScalingCalibrator"),
    },
    "structured vector": {
        "keras_calib": ours(keras_calib.StructuredVectorScaling),
        "probmetrics": of_probabilities("SVSCalibrator", **_RIDGE),
    },
    "structured matrix": {
        "keras_calib": ours(keras_calib.StructuredMatrixScaling),
        "probmetrics": of_probabilities("SMSCalibrator", **_RIDGE),
    },
    "isotonic": {
        "keras_calib": ours(keras_calib.IsotonicCalibration),
        "netcal": netcal("IsotonicRegression"),
        "scikit-learn": scikit_isotonic,
    },
    "histogram": {
        "keras_calib": ours(keras_calib.HistogramBinning),
        "netcal": netcal("HistogramBinning"),
    },
    "beta": {
        "keras_calib": ours(keras_calib.BetaCalibration),
        "netcal": netcal("BetaCalibration"),
    },
    "ensemble": {
        "keras_calib": ours(
            lambda: keras_calib.EnsembleTemperatureScaling(objective="nll")
        ),
        "probmetrics": probmetrics("ETSCalibrator"),
    },
}
