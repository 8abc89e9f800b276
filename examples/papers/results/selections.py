"""Tables, curves and guarantees of rejecting predictions."""

import keras
import numpy as np
from runs.training import follows

import keras_calib
from results.runs import read_flags, read_predictions, read_row

_RISKS = (0.01, 0.05)


def selection_row(folder, part="test"):
    """Area and coverages of a run by each of `scores_of`, and p of two."""
    labels, logits = read_predictions(folder, part)
    scores = scores_of(folder)
    row = {"p": scores["norm"].p, "p_raw": scores["norm_raw"].p}
    for name, score in scores.items():
        options = {"score": score, "from_logits": True}
        row[f"aurc_{name}"] = keras_calib.aurc(labels, logits, **options)
        for risk in _RISKS:
            row[f"coverage_at_{risk:g}_{name}"] = (
                keras_calib.functional.coverage_at_risk(
                    labels, logits, risk=risk, **options
                )
            )
    return row


def scores_of(folder):
    """What ranks predictions: softmax, and logits normalised in two ways.

    Returns:
        `{name: score}`: `msp`; `norm`, the largest logit over the norm of all,
        after their mean is taken off; `norm_raw`, without that, as equation
        17 of Xia et al. (2024) is printed. The order of either norm is
        chosen on the run's validation predictions.
    """
    validation = read_predictions(folder, "validation")
    found = {"msp": "msp"}
    for name, center in (("norm", True), ("norm_raw", False)):
        score = keras_calib.LogitNormalization(center=center)
        found[name] = score.fit(*validation)
    return found


def guarantee(folder, risk, delta, part="test"):
    """Coverage and risk of a threshold with a guarantee.

    The guarantee does not hold for pixels, because those of one image are not
    independent. It does not hold either if training used the validation data
    to choose the epoch. Then `delta` is None, and only the validation
    predictions keep the risk.

    Returns:
        `delta`, coverage and risk on `part` of a selector that was fitted on
        the run's validation predictions. If no threshold reaches the risk,
        nothing is accepted: coverage 0, risk None.
    """
    flags = read_flags(folder)
    looked = flags.get("keep") == "best" or follows(flags.get("train_model"))
    # Pixels are not independent, and data that chose the epoch or the gammas
    # certify nothing.
    if "miou" in read_row(folder) or looked:
        delta = None
    labels, logits = read_predictions(folder, part)
    selector = keras_calib.SelectiveClassifier()
    validation = read_predictions(folder, "validation")
    try:
        selector.fit(*validation, risk=risk, delta=delta)
    except ValueError as error:
        print(f"{folder}: {error}")
        return delta, 0.0, None
    accepted = keras.ops.convert_to_numpy(selector(logits)["accept"])
    wrong = np.argmax(logits, axis=-1) != labels
    count = max(1, int(accepted.sum()))
    return delta, float(accepted.mean()), float(wrong[accepted].sum() / count)


def imbalance(folder, votes, alpha, num_bins=10, part="test"):
    """How label smoothing pulls at the largest logit, by chance of error.

    With the votes as true probabilities, equation 16: alpha times (1 -
    P_error) - alpha / K, where P_error is the share of votes against the
    predicted class.

    Args:
        folder: Folder of a run on CIFAR-10.
        votes: Shares of votes `(n, num_classes)`, in the order of the
            predictions.
        alpha: Strength of label smoothing.
        num_bins: Number of equal-mass bins of the softmax probability.
        part: Predictions to take.

    Returns:
        A row per bin: mean softmax probability; of predictions that most
        people share, and of those that they do not: how many, mean pull, mean
        largest centred logit.
    """
    _, logits = read_predictions(folder, part)
    predicted = np.argmax(logits, axis=-1)
    error = 1.0 - votes[np.arange(len(votes)), predicted]
    pull = alpha * (1.0 - error) - alpha / votes.shape[1]
    centred = logits - logits.mean(axis=-1, keepdims=True)
    order = np.argsort(log_odds(logits), kind="stable")
    confidence = keras.ops.convert_to_numpy(keras_calib.functional.msp(logits))
    rows = []
    for chunk in np.array_split(order, num_bins):
        shared = error[chunk] < 0.5
        row = {"confidence": float(confidence[chunk].mean())}
        for name, own in (("shared", chunk[shared]), ("other", chunk[~shared])):
            largest = centred[own].max(axis=-1)
            row[f"{name}_count"] = len(own)
            row[f"{name}_pull"] = float(pull[own].mean()) if len(own) else None
            row[f"{name}_logit"] = float(largest.mean()) if len(own) else None
        rows.append(row)
    return rows


def read_votes(path, labels):
    """Shares of votes of CIFAR-10H, an .npz file with counts and labels.

    Raises:
        ValueError: If its images are not those of the labels.
    """
    with np.load(path) as arrays:
        counts, truth = arrays["counts"], arrays["labels"]
    if not np.array_equal(truth, labels):
        raise ValueError(
            "`--votes` must be on the images of the runs, in their order. "
            f"Received: --votes={path} of {len(truth)} images, predictions of "
            f"{len(labels)}; labels differ"
        )
    return counts / counts.sum(axis=1, keepdims=True)


def curves_of(folders, part="test"):
    """Labels, and `{name: logits}` of the runs on the data of the first."""
    found = {}
    labels, _ = read_predictions(folders[0], part)
    for folder in folders:
        own, logits = read_predictions(folder, part)
        if np.array_equal(own, labels):
            found[(*key_of(folder), folder)] = logits
    return labels, dict(zip(names_of(found), found.values(), strict=True))


def key_of(folder):
    """A run's set-up, and its method with its options."""
    row = read_row(folder)
    options = f" {row['options']}" if row["options"] else ""
    return row["setup"], f"{row['method']}{options}"


def names_of(keys):
    """Keys as of `key_of` and more, as short as they can be to differ."""
    for parts in (slice(1, 2), slice(0, 2), slice(0, 3)):
        names = [" ".join(map(str, key[parts])) for key in keys]
        if len(set(names)) == len(names):
            break
    return names


def log_odds(logits):
    """Log-odds of the predicted class, exact even if p is nearly 1."""
    scores = keras_calib.SelectiveClassifier(threshold=0.0).score_of(logits)
    return keras.ops.convert_to_numpy(scores)
