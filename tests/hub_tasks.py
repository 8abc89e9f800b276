"""Small tasks of KerasHub with random weights, and data for them."""

import importlib
import importlib.util

import keras
import numpy as np
import pytest

# Its import takes seconds, so only tests that run it import it.
NEEDS_HUB = pytest.mark.skipif(
    importlib.util.find_spec("keras_hub") is None, reason="needs keras_hub"
)

SIDE = 16
WORDS = ["the", "film", "was", "good", "bad", "dull", "great", "not", "##ly"]


def keras_hub():
    """The module."""
    return importlib.import_module("keras_hub")


def converted(name, **options):
    """The preprocessor of a task of images, which scales to about [-1, 1]."""
    converter = getattr(keras_hub().layers, f"{name}ImageConverter")(
        image_size=(SIDE, SIDE),
        scale=[1 / 127.5, 1 / 120, 1 / 130],
        offset=[-1.0, -1.1, -0.9],
        **options,
    )
    kind = "Segmenter" if name == "SegFormer" else "Classifier"
    cls = getattr(keras_hub().models, f"{name}Image{kind}Preprocessor")
    return cls(image_converter=converter)


def image_classifier(num_classes=3, **options):
    """A transformer of images of any size."""
    keras.utils.set_random_seed(0)
    backbone = keras_hub().models.ViTBackbone(
        image_shape=(SIDE, SIDE, 3),
        patch_size=8,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        mlp_dim=8,
    )
    return keras_hub().models.ViTImageClassifier(
        backbone,
        num_classes=num_classes,
        preprocessor=converted("ViT"),
        **options,
    )


def segmenter(num_classes=3):
    """A transformer that labels the pixels of images of any size."""
    keras.utils.set_random_seed(0)
    encoder = keras_hub().models.MiTBackbone(
        layerwise_depths=[1, 1],
        num_layers=2,
        layerwise_num_heads=[1, 1],
        layerwise_sr_ratios=[1, 1],
        max_drop_path_rate=0.0,
        layerwise_patch_sizes=[3, 3],
        layerwise_strides=[2, 2],
        image_shape=(SIDE, SIDE, 3),
        hidden_dims=[4, 8],
    )
    backbone = keras_hub().models.SegFormerBackbone(
        image_encoder=encoder, projection_filters=4
    )
    return keras_hub().models.SegFormerImageSegmenter(
        backbone,
        num_classes=num_classes,
        preprocessor=converted(
            "SegFormer",
            crop_to_aspect_ratio=False,
            pad_to_aspect_ratio=True,
            interpolation="bicubic",
        ),
    )


def text_classifier(num_classes=2):
    """BERT with one layer and few words."""
    keras.utils.set_random_seed(0)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = keras_hub().models.BertTokenizer(
        special + WORDS, lowercase=True
    )
    backbone = keras_hub().models.BertBackbone(
        vocabulary_size=len(special + WORDS),
        num_layers=1,
        num_heads=1,
        hidden_dim=8,
        intermediate_dim=8,
        max_sequence_length=12,
    )
    task = keras_hub().models.BertTextClassifier(
        backbone,
        num_classes=num_classes,
        preprocessor=keras_hub().models.BertTextClassifierPreprocessor(
            tokenizer, sequence_length=12
        ),
    )
    # The head starts so small that all texts look alike.
    kernel = task.output_dense.kernel
    kernel.assign(30.0 * kernel)
    return task


def images(count):
    """Images that are wider than a task wants them, whole numbers."""
    rng = np.random.default_rng(0)
    return rng.integers(256, size=(count, 20, 30, 3), dtype="uint8")


def texts(count):
    """Sentences of known and of unknown words, and an empty one."""
    rng = np.random.default_rng(0)
    ends = ["good", "bad", "Not bad", "badly made", "dull " * 20]
    found = [f"The film was {x}" for x in rng.choice(ends, count - 1)]
    return [*found, ""]
