"""
# Rejecting with a guarantee

Turn a network that always answers into one that answers when it is sure. A
score ranks its predictions, and a threshold keeps the surest. The script prints
what each score keeps and how often the guarantee failed, in ten seconds.

    python examples/rejecting.py
"""

import tempfile
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_calib

"""
## Data

Each image can be drawn any number of times, with new noise. So the true risk
is known: the share of errors among 20,000 draws.
"""

rng = np.random.default_rng(0)
pixels, digits = load_digits(return_X_y=True)
order = rng.permutation(len(digits))
train_images, other_images = np.split(order, [900])


def draw(images, count):
    rows, noise = rng.choice(images, count), rng.standard_normal((count, 64))
    return (pixels[rows] / 16 + 0.3 * noise).astype("float32"), digits[rows]


train, select = draw(train_images, 900), draw(other_images, 1000)
test, world = draw(other_images, 1000), draw(other_images, 20_000)

"""
## A network
"""

keras.utils.set_random_seed(0)
network = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(10),
    ]
)
cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
network.compile(keras.optimizers.SGD(0.05, 0.9), cross_entropy)
network.fit(*train, epochs=25, verbose=0)


def logits_of(data):
    return network.predict(data[0], batch_size=1000, verbose=0)


"""
## What ranks the predictions

A rejector needs an order: the surest first. Usual is the largest probability,
`msp`; the margin between the two largest logits is another. AURC (times 1000)
is the error rate among the surest predictions, averaged over how many are
kept; coverage is the share that can be kept when one in fifty may be wrong.
Both look at the order only, which a temperature hardly changes.
`docs/abstaining.md` has a network whose order `LogitNormalization` repairs.
"""

answers = test[1], logits_of(test)
print("score          AURC  coverage at 2 % wrong")
for score in ("msp", "logit_margin", "neg_energy"):
    values = {"score": score, "from_logits": True}
    aurc = keras_calib.aurc(*answers, **values)
    kept = keras_calib.functional.coverage_at_risk(
        *answers, risk=0.02, **values
    )
    print(f"{score:12}{1000 * aurc:7.1f}{kept:12.3f}")

"""
## A threshold without and with a promise

Without `delta` the threshold is the one that had the wanted risk on the data
of `fit`. It is as likely to be too bold as too careful. With `delta=0.1` it
promises: in nine of ten such fits or more, the true risk is no larger than
wanted. That costs coverage, the more the fewer data there are.
"""

for delta in (None, 0.1):
    selector = keras_calib.SelectiveClassifier()
    selector.fit(select[1], logits_of(select), risk=0.05, delta=delta)
    answer = selector(logits_of(world))
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

world_logits = logits_of(world)
scores = np.asarray(keras_calib.functional.msp(world_logits))
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

What `delta` asks of the data, and pixels: `docs/abstaining.md`. A page with a
slider: `docs/seeing.md`. The files that are served: `docs/serving.md`.
"""
