"""
# From a trained model to a monitored service

How many labels does a guarantee take, when should a person take over, and does
the promise hold next month? This script answers for noisy digits in 20 seconds.
Half-way the noise grows: a monitor tells it, and new labels repair the service.

    python examples/operating.py
"""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import keras_calib

"""
## A trained model

Each image of scikit-learn can be drawn any number of times, with new noise.
"""

rng = np.random.default_rng(0)
pixels, digits = load_digits(return_X_y=True)
train_images, new_images = np.split(rng.permutation(len(digits)), [900])


def draw(images, count, noise=0.3):
    rows, errors = rng.choice(images, count), rng.normal(size=(count, 64))
    return (pixels[rows] / 16 + noise * errors).astype("float32"), digits[rows]


keras.utils.set_random_seed(0)
hidden = keras.layers.Dense(128, activation="relu")
inputs = keras.Input((64,), name="pixels")
model = keras.Sequential([inputs, hidden, keras.layers.Dense(10)])
cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.1, 0.9), cross_entropy)
model.fit(*draw(train_images, 9000), batch_size=100, epochs=5, verbose=0)

"""
## Plan: how many labels?

A pilot of 2,000 labels fits the temperature, and says what more labels buy: the
share of answers that the model may accept with at most 2 % of these wrong.
"""

data = draw(new_images, 2000)
pilot = keras_calib.Predictions.of_model(model, data, verbose=0)
temperature = keras_calib.TemperatureScaling().fit(pilot)
pilot = temperature.calibrate(pilot)
print(keras_calib.plan(risk=0.02, power=0.9, pilot=pilot))

"""
## Decide: when does a person take over?

4,000 new labels choose the threshold: with 95 % probability at most 2 % of all
that it will accept are wrong. A person answers the rest.
"""


def decided(temperature, data):
    selector = keras_calib.SelectiveClassifier(calibrator=temperature)
    return selector.fit_on(model, data, risk=0.02, delta=0.05, verbose=0)


x, y = labelled = draw(new_images, 4000)
selector = decided(temperature, labelled)
print(f"\n{selector.chosen}\n")

"""
## Does it hold for every group?

The promise is about all accepted answers together. Here a group is a digit, as
the model reads it. A small `p_holm` says that the confidence in it is wrong.
One temperature repairs the mean, the last line, but not each digit.
"""

answers = selector(model.predict(x, verbose=0))
probs, digit, accept = map(answers.get, ("probabilities", "label", "accept"))
shown = {"metrics": ("confidence_gap",), "accept": accept}
table = keras_calib.by_group(y, probs, groups=digit, **shown)
print(table)

"""
## Ship it with a certificate

An auditor who has the records checks each number. In a shell without Keras:
`keras-calib verify work/operating/1 --data=work/operating/records.npz`.
"""

folder = Path("work/operating")
shipped = {"certificate": True, "overwrite": True}
keras_calib.export(model, folder / "1", selector=selector, **shipped)
path = keras_calib.exporting.save_records(selector, folder / "records.npz")
check = keras_calib.exporting.check_certificate(folder / "1", path)
print("\nThe certificate holds:", check.holds)

"""
## Watch: does it still hold?

One answer in three gets a label, a day later. From day 10 on the noise is
larger, and nobody acts. The gap is known to 0.01: `tolerance` allows for twice.
"""


def watched(version, selector, days):
    served = tf.saved_model.load(folder / version)
    serve = served.signatures["serving_default"]
    monitor = keras_calib.Monitor(selector, tolerance=0.02)
    late, told = ([], []), {}
    for day in days:
        x, y = draw(new_images, 1500, noise=0.3 if day < 10 else 0.4)
        answer = serve(pixels=x)
        ids = [f"{day}-{i}" for i in range(len(y))]
        monitor.update(answer["confidence"], answer["accept"], ids=ids)
        monitor.update_labels(*late)
        late = ids[::3], (answer["label"].numpy() == y)[::3]
        for alarm in monitor.alarms:
            told.setdefault(alarm.name, f"Day {day}: {alarm.message}")
    print(*told.values() or ["No alarm"], sep="\n")
    return monitor


monitor = watched("1", selector, range(20))
display = keras_calib.plots.MonitorDisplay(monitor)
display.save(folder / "monitor.png")

"""
## Repair

Labels with the new noise fit temperature and threshold anew. This version
accepts less, and keeps the promise again.
"""

new = draw(new_images, 2000, noise=0.4)
temperature = keras_calib.TemperatureScaling().fit_on(model, new, verbose=0)
selector = decided(temperature, draw(new_images, 4000, noise=0.4))
print(f"\n{selector.chosen}")
keras_calib.export(model, folder / "2", selector=selector, **shipped)
watched("2", selector, range(20, 40))

"""
## Next

In a shell and from logs: `docs/operating.md`. By group: `docs/deciding.md`.
"""
