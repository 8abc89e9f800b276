"""What the code of a guide takes as given, made up so that it runs.

Notebooks begin with it, and tests run it before the code of the page.
"""


def _code(*parts):
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


_DATA = """
import keras
import numpy as np

import keras_calib

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(1500, 4)).astype("float32")
labels = np.argmax(x[:, :3] + rng.gumbel(size=(1500, 3)), axis=-1)
logits = 3.0 * x[:, :3]  # overconfident: a temperature of 3 is right
"""

_NETWORK = """
def network_of(features=4, classes=3):
    model = keras.Sequential(
        [keras.Input((features,)), keras.layers.Dense(classes)]
    )
    model.compile(
        "sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model
"""

_BATCHES = """
class batches_of(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x) // 100

    def __getitem__(self, i):
        rows = slice(100 * i, 100 * i + 100)
        return self.x[rows], self.y[rows]
"""

_PARTS = """
# A network that is right where it is sure, and three parts of its predictions.
logits = np.round(9.0 * x[:, :3], 3)
unsure = np.sort(logits)[:, -1] - np.sort(logits)[:, -2] < 1.0
labels = np.where(unsure, labels, logits.argmax(-1))
cal_labels, sel_labels, test_labels = np.split(labels, [300, 1200])
cal_logits, sel_logits, test_logits = np.split(logits, [300, 1200])
"""

# True boxes of images, and what a detector finds: it is too sure of itself, in
# some images more than in others.
BOXES = """
import numpy as np


def boxes_of(count, seed):
    rng = np.random.default_rng(seed)
    corners = rng.uniform(0, [480, 320], size=(count, 8, 2))
    sizes = rng.uniform(40, 160, size=(count, 8, 2))
    true = np.concatenate([corners, corners + sizes], axis=-1)
    kinds = rng.integers(3, size=(count, 8))
    confidence = np.sort(rng.beta(0.9, 0.9, size=(count, 8)))[:, ::-1]
    hard = rng.uniform(1.0, 3.0, size=(count, 1))
    right = rng.uniform(size=(count, 8)) < confidence**hard
    found = true + rng.normal(scale=6.0, size=true.shape)
    found += np.where(right, 0.0, 200.0)[..., None]
    return {"boxes": true, "labels": kinds}, {
        "boxes": found,
        "confidence": confidence,
        "labels": kinds,
        "num_detections": np.full(count, 8),
    }
"""

_HUB = """
import keras
import keras_hub
import numpy as np

import keras_calib

keras.utils.set_random_seed(0)
hub = keras_hub.models
vocabulary = "[PAD] [UNK] [CLS] [SEP] [MASK] the film was good bad not"


def make_classifier():
    return hub.BertTextClassifier(
        hub.BertBackbone(
            vocabulary_size=11,
            num_layers=1,
            num_heads=1,
            hidden_dim=8,
            intermediate_dim=8,
            max_sequence_length=12,
        ),
        num_classes=2,
        preprocessor=hub.BertTextClassifierPreprocessor(
            hub.BertTokenizer(vocabulary.split(), lowercase=True),
            sequence_length=12,
        ),
    )


classifier = make_classifier()
photo_classifier = hub.ViTImageClassifier(
    hub.ViTBackbone(
        image_shape=(16, 16, 3),
        patch_size=8,
        num_layers=1,
        num_heads=1,
        hidden_dim=8,
        mlp_dim=8,
    ),
    num_classes=3,
    preprocessor=hub.ViTImageClassifierPreprocessor(
        keras_hub.layers.ViTImageConverter(image_size=(16, 16), scale=1 / 255)
    ),
)
segmenter = hub.SegFormerImageSegmenter(
    hub.SegFormerBackbone(
        image_encoder=hub.MiTBackbone(
            layerwise_depths=[1, 1],
            num_layers=2,
            layerwise_num_heads=[1, 1],
            layerwise_sr_ratios=[1, 1],
            max_drop_path_rate=0.0,
            layerwise_patch_sizes=[3, 3],
            layerwise_strides=[2, 2],
            image_shape=(16, 16, 3),
            hidden_dims=[4, 8],
        ),
        projection_filters=4,
    ),
    num_classes=3,
)
rng = np.random.default_rng(0)
words = rng.choice(["good", "bad"], 600)
texts = [f"The film was {word}" for word in words]
labels = (words == "good").astype("int32") ^ (rng.random(600) < 0.2)
texts, val_texts, test_texts = texts[:200], texts[200:400], texts[400:]
labels, val_labels, test_labels = np.split(labels, 3)
photos = rng.integers(256, size=(8, 16, 16, 3)).astype("float32")
masks = rng.integers(3, size=(8, 16, 16))
"""

# A network of several labels, and three parts of its data.
_SEVERAL = """
names = ["sport", "politics", "travel"]
weights = np.array([[2, 0, 0], [0, 2, 0], [0, 0, 2], [1, 1, 1]])
labels = (rng.logistic(size=(1500, 3)) < 3.0 * x @ weights).astype("int32")
x_cal, x_sel, x_test = np.split(x, [500, 1200])
y_cal, y_sel, y_test = np.split(labels, [500, 1200])
model = keras.Sequential(
    [keras.Input((4,)), keras.layers.Dense(3, activation="sigmoid")]
)
model.layers[-1].set_weights([6.0 * weights, np.zeros(3)])
model.compile("sgd", loss="binary_crossentropy")
"""

# By the address of the page.
GIVEN = {
    "several_labels.md": _code(_DATA, _SEVERAL),
    "choosing_a_loss.md": _code(
        _DATA,
        _NETWORK,
        """
model, new_model = network_of(), network_of
x_train, y_train, x_cal, y_cal = x[:500], labels[:500], x[500:], labels[500:]
x_val, y_val, x_test, y_test = x_cal, y_cal, x_cal, y_cal
""",
    ),
    "choosing_a_metric.md": _code(
        _DATA,
        """
y_test, logits_of_other = labels, 2.0 * logits
""",
    ),
    "detectors.md": _code(
        """
import keras
import numpy as np

import keras_calib
""",
        BOXES,
        """
# In place of a network: its images are numbers, by which it finds the boxes.
true_boxes, found_boxes = boxes_of(3000, 0)


class detector:
    def predict(images, verbose=0):
        return {name: x[images] for name, x in found_boxes.items()}


cal_images, sel_images, test_images = np.split(np.arange(3000), 3)
cal_boxes, sel_boxes, test_boxes = (
    {name: x[part] for name, x in true_boxes.items()}
    for part in (cal_images, sel_images, test_images)
)
""",
    ),
    "devices.md": _code(_DATA),
    "losses.md": _code(
        _DATA,
        _NETWORK,
        """
model = network_of()
x, labels, logits = x[:20], labels[:20], logits[:20]
record = rng.random(20).astype("float32")
labels = np.eye(3, dtype="float32")[labels]
loss = keras_calib.ACLS(margin=1.0, from_logits=True)
""",
    ),
    "metrics.md": _code(
        _DATA,
        _NETWORK,
        _BATCHES,
        """
model = network_of()
loss = keras_calib.LabelSmoothing(from_logits=True)
train = val = batches_of(x, labels)
test = [(labels, logits)]
""",
    ),
    "after_training.md": _code(
        _DATA,
        _NETWORK,
        """
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
    ),
    "abstaining.md": _code(_DATA, _PARTS),
    "deciding.md": _code(_DATA, _PARTS),
    "operating.md": _code(
        _DATA,
        _NETWORK,
        """
network = network_of()
network.set_weights([3.0 * np.eye(4, 3), np.zeros(3)])
keras_calib.export(network, "int8.tflite")
""",
    ),
    "predictions.md": _code(
        _DATA,
        _NETWORK,
        """
model, y = network_of(), labels
model.set_weights([3.0 * np.eye(4, 3), np.zeros(3)])
sites = np.where(rng.random(len(x)) < 0.5, "north", "south")
patients = np.arange(len(x)) // 3
tags = np.where(rng.random(len(x)) < 0.9, logits.argmax(-1), labels)
tagged = keras_calib.Predictions(
    tags.reshape(300, 5),
    logits.reshape(300, 5, 3),
    from_logits=True,
    sample_weight=np.arange(5) < rng.integers(1, 6, size=(300, 1)),
)
""",
    ),
    "seeing.md": _code(
        _DATA,
        _PARTS,
        BOXES,
        """
true_boxes, found_boxes = boxes_of(1000, 0)
class_names = ["cat", "dog", "owl"]
cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

# A square and a disc under noise, and a network that finds them.
mask = np.zeros((32, 32), "int32")
mask[4:18, 4:16] = 1
rows, columns = np.ogrid[:32, :32]
mask[(rows - 21) ** 2 + (columns - 21) ** 2 < 50] = 2
image = (mask / 2 + 0.3 * rng.normal(size=mask.shape))[..., None]
segmenter = keras.Sequential(
    [
        keras.Input((32, 32, 1)),
        keras.layers.Conv2D(8, 5, padding="same", activation="relu"),
        keras.layers.Conv2D(3, 1),
    ]
)
segmenter.compile(keras.optimizers.Adam(0.02), cross_entropy)
segmenter.fit(image[None], mask[None], epochs=40, verbose=0)
""",
    ),
    "serving.md": _code(
        _DATA,
        """
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
    ),
    "training.md": _code(
        _DATA,
        _NETWORK,
        """
x = rng.normal(size=(50_000, 1)).astype("float32")
labels = (x[:, 0] + rng.logistic(size=50_000) > 0).astype("int32")
x_val, y_val = x[:64], labels[:64]
val = (x_val, y_val)
train = keras_calib.data.EpochBatches(x[:64], labels[:64], with_index=False)
new_model = lambda: network_of(1, 2)
inputs = keras.Input((1,))
outputs = keras.layers.Dense(2)(keras.layers.Dropout(0.2)(inputs))
model_1, model_2, model_3 = (network_of(1, 2) for _ in range(3))
for member in (model_1, model_2, model_3):
    member.set_weights([np.array([[-1.0, 1.0]]), np.zeros(2)])
cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
early_stopping = keras.callbacks.EarlyStopping(patience=0, min_delta=1.0)
""",
    ),
    "kerashub.md": _code(_HUB),
}
