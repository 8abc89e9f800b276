"""
# Calibrated training

See what a loss does to the confidence of a network. Choose a loss on held-out
data, and compare it with cross entropy and with a temperature. The network
learns 300 noisy digits of scikit-learn and becomes far too confident. The
script prints a table of the training and one of the losses. It takes half a
minute on one core.

    python examples/calibrated_training.py
"""

import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_calib

"""
## Data

The four parts share no image. `train` chooses the weights, `tune` the loss,
`calibrate` the temperature; `test` chooses nothing.
"""

pixels, digits = load_digits(return_X_y=True)
rng = np.random.default_rng(0)
order = rng.permutation(len(digits))
pixels, digits = (pixels[order] / 16).astype("float32"), digits[order]
pixels += 0.3 * rng.standard_normal(pixels.shape, "float32")
train, tune, calibrate, test = zip(
    np.split(pixels, [300, 600, 900]),
    np.split(digits, [300, 600, 900]),
    strict=True,
)

"""
## One network for every loss

It returns logits, so losses and functions are told `from_logits=True`.
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
puts `cal_ece` and others where `EarlyStopping` finds them. ECE is the mean
distance between confidence and accuracy. The confidence goes on rising when
the accuracy has stopped.
"""

cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
logger = keras_calib.CalibrationLogger(tune, every=5)
plain = trained(cross_entropy, [logger])
print("epoch  accuracy  confidence    ECE    NLL")
SHOWN = {"accuracy": 10, "mean_confidence": 12, "ece": 7, "nll": 7}
for logged in logger.logged:
    cells = [f"{logged.values[f'cal_{k}']:{w}.3f}" for k, w in SHOWN.items()]
    print(f"{logged.epoch + 1:5}{''.join(cells)}")

"""
## Other losses

A loss of this package takes the place of cross entropy in `compile`. Each has
a number that matters more than the choice among them, so `tune` decides by the
lowest NLL, which looks at accuracy and calibration at once.
"""

LOSSES = {
    "label smoothing": [
        keras_calib.LabelSmoothing(alpha=alpha, from_logits=True)
        for alpha in (0.05, 0.1)
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

Dividing the logits by one number costs no training and changes no predicted
class. AURC is about order: the error rate of the surest predictions, averaged
over coverage (times 1000).
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
    text = "".join(f"{cell:7.3f}" for cell in cells[:-1])
    print(f"{name:18}{accuracy:9.3f}{text}{cells[-1]:7.1f}")

"""
## Next

Which loss is for what: `docs/choosing_a_loss.md`. How to compare two models:
`docs/choosing_a_metric.md`. When to abstain: `docs/abstaining.md`.
"""
