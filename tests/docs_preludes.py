"""What the code on a page of the documentation takes as given."""

__all__ = ["PRELUDES"]

_DATA = """
import keras
import numpy as np
import keras_calib

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(1500, 4)).astype("float32")
labels = np.argmax(x[:, :3] + rng.gumbel(size=(1500, 3)), axis=-1)
logits = 3.0 * x[:, :3]


class batches_of(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x) // 100

    def __getitem__(self, i):
        rows = slice(100 * i, 100 * i + 100)
        return self.x[rows], self.y[rows]


def network_of(features=4, classes=3):
    model = keras.Sequential(
        [keras.Input((features,)), keras.layers.Dense(classes)]
    )
    model.compile(
        "sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model
"""

# Predictions of a sure network in three parts: where it is sure it is right.
_PARTS = """
logits = np.round(9.0 * x[:, :3], 3)
unsure = np.sort(logits)[:, -1] - np.sort(logits)[:, -2] < 1.0
labels = np.where(unsure, labels, logits.argmax(-1))
cal_labels, sel_labels, test_labels = np.split(labels, [300, 1200])
cal_logits, sel_logits, test_logits = np.split(logits, [300, 1200])
"""

PRELUDES = {
    "docs/choosing_a_loss.md": _DATA
    + """
model, new_model = network_of(), network_of
x_train, y_train, x_cal, y_cal = x[:500], labels[:500], x[500:], labels[500:]
x_val, y_val, x_test, y_test = x_cal, y_cal, x_cal, y_cal
""",
    "docs/choosing_a_metric.md": _DATA
    + """
y_test, logits_of_other = labels, 2.0 * logits
""",
    "docs/devices.md": _DATA,
    "docs/losses.md": _DATA
    + """
model = network_of()
x, labels, logits = x[:20], labels[:20], logits[:20]
record = rng.random(20).astype("float32")
labels = np.eye(3, dtype="float32")[labels]
loss = keras_calib.ACLS(margin=1.0, from_logits=True)
""",
    "docs/metrics.md": _DATA
    + """
model = network_of()
loss = keras_calib.LabelSmoothing(from_logits=True)
train = val = batches_of(x, labels)
test = [(labels, logits)]
""",
    "docs/after_training.md": _DATA
    + """
network = network_of()
softmax_network = keras.Sequential([network, keras.layers.Softmax()])
val = (x, labels)
val_labels, val_logits = labels[:1000], logits[:1000]
test_labels, test_logits = labels[1000:], logits[1000:]
batches = [(labels[:450], logits[:450]), (labels[450:], logits[450:])]
segmenter = keras.Sequential(
    [keras.Input((8, 8, 3)), keras.layers.Conv2D(3, 1)]
)
segmenter.compile(
    "sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
)
pixels = rng.normal(size=(4, 8, 8, 3)).astype("float32")
segmenter.set_weights([3.0 * np.eye(3)[None, None], np.zeros(3)])
noise = rng.gumbel(size=pixels.shape)
scenes = (pixels, np.argmax(pixels + noise, axis=-1))
""",
    "docs/abstaining.md": _DATA + _PARTS,
    "docs/seeing.md": _DATA
    + _PARTS
    + """
class_names = ["cat", "dog", "owl"]
smoothed_labels, smoothed_logits = labels, logits
segmenter = keras.Sequential(
    [keras.Input((8, 8, 1)), keras.layers.Conv2D(3, 1)]
)
classifier = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(4, 3),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(3),
    ]
)
for model in (segmenter, classifier):
    model.compile(
        "sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
image, mask = rng.random((8, 8, 1)), rng.integers(3, size=(8, 8))
images, boxes = rng.random((2, 8, 8, 1)), np.ones((2, 1, 4)) * [0, 0, 0.5, 0.5]
image_labels, garments = np.array([0, 2]), ["shirt", "bag", "boot"]
""",
    "docs/serving.md": _DATA
    + """
import tensorflow as tf

network = keras.Sequential(
    [
        keras.Input((8, 8, 3)),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]
)
network.compile(
    "sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
)
selector = keras_calib.SelectiveClassifier(
    calibrator=keras_calib.TemperatureScaling().fit(labels, logits)
).fit(labels, logits, coverage=0.8)
""",
    "docs/training.md": _DATA
    + """
import numpy

x = rng.normal(size=(50_000, 1)).astype("float32")
labels = (x[:, 0] + rng.logistic(size=50_000) > 0).astype("int32")
x_val, y_val = x[:64], labels[:64]
val = (x_val, y_val)
train = keras_calib.EpochBatches(x[:64], labels[:64], with_index=False)
new_model = lambda: network_of(1, 2)
inputs = keras.Input((1,))
outputs = keras.layers.Dense(2)(keras.layers.Dropout(0.2)(inputs))
model_1, model_2, model_3 = (network_of(1, 2) for _ in range(3))
for member in (model_1, model_2, model_3):
    member.set_weights([np.array([[-1.0, 1.0]]), np.zeros(2)])
cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
early_stopping = keras.callbacks.EarlyStopping(patience=0, min_delta=1.0)
""",
}
