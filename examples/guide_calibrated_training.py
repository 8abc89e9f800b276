"""
# Calibrated training

What a loss does to the confidence of a network, seen while it trains; how to
choose a loss and its number on data that test nothing; and how that compares
with cross entropy and a temperature. Everything happens on 300 noisy digits of
scikit-learn, where networks get far too sure of themselves. Nothing is
downloaded; one core takes about half a minute.

    python examples/guide_calibrated_training.py

The same file is the page of the documentation: read it there or here.
"""

import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_calib

"""
## Data

Four parts that share no image. Each chooses one thing only: `train` the
weights, `tune` the loss, `calibrate` the temperature. `test` chooses nothing,
so that its numbers can be believed.
"""

pixels, digits = load_digits(return_X_y=True)
rng = np.random.default_rng(0)
order = rng.permutation(len(digits))
pixels = (pixels[order] / 16.0).astype("float32")
pixels += 0.3 * rng.standard_normal(pixels.shape, "float32")
digits = digits[order].astype("int32")
train, tune, calibrate, test = zip(
    np.split(pixels, [300, 600, 900]),
    np.split(digits, [300, 600, 900]),
    strict=True,
)

"""
## One network for every loss

The last layer returns logits, so every loss and function is told
`from_logits=True`.
"""


def trained(loss, callbacks=()):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
        loss=loss,
    )
    model.fit(*train, epochs=40, callbacks=callbacks, verbose=0)
    return model


"""
## Cross entropy

`CalibrationLogger` measures calibration on other data at the end of epochs and
puts `cal_ece` and others beside Keras' own values, where `EarlyStopping` and
every other callback finds them. ECE is the mean distance between confidence
and accuracy; NLL is the loss that cross entropy minimises, on data that it
does not see. The confidence goes on rising when the accuracy has stopped.
"""

cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
logger = keras_calib.CalibrationLogger(tune, every=5)
plain = trained(cross_entropy, [logger])
print("epoch  accuracy  confidence    ECE    NLL")
for logged in logger.logged:
    values = logged.values
    print(
        f"{logged.epoch + 1:5}{values['cal_accuracy']:10.3f}"
        f"{values['cal_mean_confidence']:12.3f}"
        f"{values['cal_ece']:7.3f}{values['cal_nll']:7.3f}"
    )

"""
## Other losses

A loss of this package takes the place of cross entropy in `compile`, nothing
else changes. Each has a number that matters more than the choice among them,
so several are tried, and `tune` decides: here by the lowest NLL, which looks
at accuracy and calibration at once. Choosing by ECE alone may cost accuracy.
"""

LOSSES = {
    "label smoothing": [
        keras_calib.LabelSmoothing(alpha=alpha, from_logits=True)
        for alpha in (0.05, 0.1)
    ],
    "label relaxation": [
        keras_calib.LabelRelaxation(alpha=alpha, from_logits=True)
        for alpha in (0.1, 0.2)
    ],
    "focal": [
        keras_calib.FocalLoss(gamma=gamma, from_logits=True)
        for gamma in (1.0, 3.0)
    ],
}


def logits_of(model, images):
    return np.asarray(model(images))


def tuned(losses):
    def nll(model):
        logits = logits_of(model, tune[0])
        return keras_calib.nll(tune[1], logits, from_logits=True)

    return min(map(trained, losses), key=nll)


models = {"cross entropy": plain}
models |= {name: tuned(losses) for name, losses in LOSSES.items()}

"""
## After training: a temperature

Dividing the logits by one number repairs much of what a loss left, costs no
training, and changes no predicted class. So the question is what a loss gives
beyond that. The table has both. AURC is about order: the error rate of the
surest predictions, averaged over how many are accepted (times 1000).
"""

print("\n                            as trained          with a temperature")
print("loss               accuracy    NLL    ECE      T    NLL    ECE   AURC")
for name, model in models.items():
    logits = logits_of(model, test[0])
    temperature = keras_calib.TemperatureScaling()
    temperature.fit(calibrate[1], logits_of(model, calibrate[0]))
    repaired = np.asarray(temperature(logits))
    accuracy = np.mean(logits.argmax(-1) == test[1])
    cells = [
        keras_calib.nll(test[1], logits, from_logits=True),
        keras_calib.ece(test[1], logits, from_logits=True),
        temperature.temperature,
        keras_calib.nll(test[1], repaired, from_logits=True),
        keras_calib.ece(test[1], repaired, from_logits=True),
        1000 * keras_calib.aurc(test[1], repaired, from_logits=True),
    ]
    print(
        f"{name:18}{accuracy:9.3f}"
        + "".join(f"{cell:7.3f}" for cell in cells[:-1])
        + f"{cells[-1]:7.1f}"
    )

"""
## Is a difference more than chance?

On the same test images, differences can be tested in pairs. The interval is
of the ECE of the first less that of the second; where it has 0 inside, these
897 images do not tell which is lower. One training of each says nothing about
another seed: for that, train several.
"""

probs = {
    name: keras.ops.softmax(logits_of(model, test[0]))
    for name, model in models.items()
}
for name in LOSSES:
    found = keras_calib.compare(
        test[1], probs["cross entropy"], probs[name], keras_calib.ece
    )
    print(f"cross entropy less {name:18}{found.low:+.3f} to {found.high:+.3f}")

"""
## What a loss asks for

Any loss, also one of your own, can be read as label smoothing: which labels
would make cross entropy pull in the same direction? Label smoothing asks
every sample for the same; label relaxation asks nothing of samples that are
sure enough.
"""

logits = np.array([[1.0, 0.0, 0.0], [4.0, 0.0, 0.0]], "float32")
for name in ("label smoothing", "label relaxation"):
    loss = models[name].loss
    labels = keras_calib.effective_labels(loss, np.array([0, 0]), logits).labels
    print(name, np.round(np.asarray(labels)[:, 0], 3))

"""
## Next

More losses, and which of them is for what: `docs/choosing_a_loss.md`. Models
that train with more than a loss: `docs/training.md`. Thresholds with a
guarantee, for a classifier that may say "I do not know":
`docs/abstaining.md`.
"""
