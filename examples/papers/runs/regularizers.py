"""On how many training samples a loss is nothing but cross entropy."""

import numpy as np
from keras import ops
from results.runs import predict

import keras_calib
from keras_calib.losses.margin import with_penalty_mask


def training_inactive_share(model, batches, seed):
    """Share of the training samples on which the regulariser is 0 (ACLS,
    figure 3), after training.

    A ranking condition compares neighbours in a batch by the correctness that
    the model remembers: here in one order of the whole data.

    Args:
        model: A trained model with `ACLS` or `MbLS` as its loss.
        batches: The training data in the order of their index.
        seed: Seed of the order.
    """
    labels, logits = predict(model, batches)
    if getattr(model.loss, "needs_penalty_mask", False):
        order = np.random.default_rng((seed, 3)).permutation(len(labels))
        labels, logits = labels[order], logits[order]
        hinge = keras_calib.losses.correctness_ranking(
            ops.convert_to_tensor(logits),
            ops.convert_to_tensor(model.correctness()[order]),
            score=model.score,
            condition=model.condition,
        )
        labels = with_penalty_mask(labels, logits, hinge > 0)
    found = keras_calib.losses.regularizer_histogram(model.loss, labels, logits)
    return found.inactive_share
