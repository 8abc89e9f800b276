"""
# Rejecting with a guarantee

From a network that always answers to one that answers where it can: what
ranks predictions, what training does to that ranking, how many predictions
are worth keeping, and a promise about those, put to the test. Digits of
scikit-learn with noise, which some of them do not survive. Nothing is
downloaded; one core takes about half a minute.

    python examples/guide_rejecting.py

The same file is the page of the documentation: read it there or here.
"""

import tempfile
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_calib

"""
## Data

Each image can be drawn any number of times, with new noise. So there is, for
once, a true risk to hold the promise against: the share of errors among
20,000 draws.
"""

rng = np.random.default_rng(0)
pixels, digits = load_digits(return_X_y=True)
order = rng.permutation(len(digits))
train_images, other_images = np.split(order, [900])


def draw(images, count):
    rows = rng.choice(images, count)
    noise = 0.3 * rng.standard_normal((count, 64))
    return (pixels[rows] / 16.0 + noise).astype("float32"), digits[rows]


train, select = draw(train_images, 900), draw(other_images, 1000)
test, world = draw(other_images, 1000), draw(other_images, 20_000)

"""
## Two networks

One trained with cross entropy, one with label smoothing, otherwise the same.
"""


def trained(loss):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(optimizer=keras.optimizers.SGD(0.05, 0.9), loss=loss)
    model.fit(*train, epochs=25, verbose=0)
    return model


models = {
    "cross entropy": trained(
        keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    ),
    "label smoothing": trained(
        keras_calib.LabelSmoothing(alpha=0.2, from_logits=True)
    ),
}


def logits_of(model, data):
    return model.predict(data[0], batch_size=1000, verbose=0)


"""
## What ranks the predictions

A rejector needs an order: the surest first. Usual is the largest probability,
`msp`. `LogitNormalization` divides the centred logits by their p-norm instead
and takes the p that ranks the data of `fit` best, `msp` where no p is better.

AURC (times 1000) is the error rate among the surest predictions, averaged
over how many are kept; coverage is the share that can be kept when one in
fifty of them may be wrong. Both look at the order only, which a temperature
hardly changes: calibration is a different question. Normalising helps where
training spoiled the order, as label smoothing does to networks that fit their
data closely (`docs/abstaining.md` has one); `p = msp` says that it found
nothing to repair here.
"""

print("loss             score        accuracy   AURC  coverage at 2 % wrong")
for name, model in models.items():
    normalized = keras_calib.LogitNormalization()
    normalized.fit(select[1], logits_of(model, select))
    logits = logits_of(model, test)
    correct = logits.argmax(-1) == test[1]
    for score in ("msp", normalized):
        values = {"score": score, "from_logits": True}
        aurc = keras_calib.aurc(test[1], logits, **values)
        kept = keras_calib.coverage_at_risk(test[1], logits, 0.02, **values)
        label = score if score == "msp" else f"norm, p = {score.p}"
        print(
            f"{name:17}{label:13}{correct.mean():8.3f}"
            f"{1000 * aurc:7.1f}{kept:12.3f}"
        )

"""
## A threshold without and with a promise

Without `delta` the threshold is the one that had the wanted risk on the data
of `fit`. It is as likely to be too bold as too careful. With `delta=0.1` it
promises: in nine of ten such fits or more, the true risk is no larger than
wanted. That costs coverage, the more the fewer data there are.
"""

network = models["cross entropy"]
for delta in (None, 0.1):
    selector = keras_calib.SelectiveClassifier()
    selector.fit(select[1], logits_of(network, select), risk=0.05, delta=delta)
    answer = selector(logits_of(network, world))
    accept = np.asarray(answer["accept"])
    wrong = np.asarray(answer["label"]) != world[1]
    print(
        f"\ndelta {delta}: keeps {accept.mean():.3f} of 20,000, "
        f"{wrong[accept].mean():.4f} of these wrong; the fit says"
    )
    print(selector.chosen)

"""
## The promise put to the test

The same 200 times: 1,000 labelled draws, a threshold, its true risk.
"""

world_logits = logits_of(network, world)
scores = np.asarray(keras_calib.msp(world_logits))
correct = world_logits.argmax(-1) == world[1]
print("\n            risk above 5 %    mean coverage")
for delta in (None, 0.1):
    broken, coverages = 0, []
    for _ in range(200):
        rows = rng.integers(len(scores), size=1000)
        chosen = keras_calib.choose_threshold(
            scores[rows], correct[rows], risk=0.05, delta=delta
        )
        accept = scores >= chosen.threshold
        broken += (~correct[accept]).mean() > 0.05
        coverages.append(accept.mean())
    print(f"delta {delta!s:5}{broken:9} of 200{np.mean(coverages):17.3f}")

"""
## Ship it

One SavedModel with the threshold inside, which answers with `label` and
`accept` and needs neither Keras nor this package.
"""

with tempfile.TemporaryDirectory() as folder:
    keras_calib.export(network, Path(folder) / "1", selector=selector)
    import tensorflow as tf

    served = tf.saved_model.load(Path(folder) / "1")
    signature = served.signatures["serving_default"]
    name = list(signature.structured_input_signature[1])[0]
    answer = signature(**{name: tf.constant(test[0][:5])})
    print("\nlabel ", answer["label"].numpy())
    print("accept", answer["accept"].numpy())

"""
## Next

What `delta` asks of the data, scores of your own, pixels:
`docs/abstaining.md`. A page with a slider from risk to threshold:
`docs/seeing.md`. The files that are served: `docs/serving.md`.
"""
