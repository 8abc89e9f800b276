"""Weights of Keras' networks that have learnt from ImageNet."""

import keras
import numpy as np

_SOURCES = {
    (3, 4, 6, 3): keras.applications.ResNet50,
    (3, 4, 23, 3): keras.applications.ResNet101,
}
# Of red, green and blue, of pixels in [0, 1].
_MEANS = np.array([0.485, 0.456, 0.406])
_DEVIATIONS = np.array([0.229, 0.224, 0.225])
_VIT = "vit_base_patch16_224_imagenet"


def load_imagenet(model, blocks, weights, name):
    """Gives a network of bottlenecks what Keras' ResNets have learnt.

    The weights are downloaded when they are first used, into the folder
    `models` of `KERAS_HOME`.

    Args:
        model: A `keras.Model` with layers as `nets.resnet.features` makes.
        blocks: Bottlenecks of each stage.
        weights: `"imagenet"`.
        name: What the names of its layers begin with.

    Raises:
        OSError: If they cannot be downloaded or read.
        ValueError: If there are no such weights, or shapes differ.
    """
    _check_name(weights)
    if tuple(blocks) not in _SOURCES:
        raise ValueError(
            f"`blocks` must be one of {tuple(_SOURCES)} if there are "
            f"`weights`. Received: blocks={blocks}"
        )
    build = _SOURCES[tuple(blocks)]
    try:
        source = build(include_top=False, weights=weights)
    except Exception as error:
        # A failed download is a plain Exception, a wrong file a ValueError.
        raise OSError(
            f"The weights of {build.__name__} must be downloaded once, or lie "
            "in the folder `models` of KERAS_HOME (by default ~/.keras), as "
            f"their file that ends in _notop.h5. Received: {error}"
        ) from error
    convert(source, model, name)


def load_vit(model, weights):
    """Gives a ViT-B/16 what keras-hub's has learnt from ImageNet.

    Pretrained on ImageNet-21k and then on ImageNet-1k, at 224 x 224. The
    weights are downloaded when they are first used, by kagglehub.

    Args:
        model: As `nets.vit.vit_b16` makes it, for images as torchvision
            normalizes them; its logits stay as they are.
        weights: `"imagenet"`.

    Raises:
        ImportError: If keras-hub is absent.
        OSError: If the weights cannot be read.
        ValueError: If there are no such weights, or shapes differ.
    """
    _check_name(weights)
    try:
        import keras_hub
    except ImportError as error:
        raise ImportError(
            "`weights` of a ViT-B/16 need keras-hub: pip install "
            "'keras-calib[pretrained]'"
        ) from error
    try:
        source = keras_hub.models.ViTBackbone.from_preset(_VIT)
    except Exception as error:
        raise OSError(
            f"The preset {_VIT} of keras-hub must be downloaded once from "
            "Kaggle. Without a network, copy the folder ~/.cache/kagglehub of "
            "a machine that has it, or name another by KAGGLEHUB_CACHE. "
            f"Received: {error}"
        ) from error
    convert_vit(source, model)


def convert_vit(source, model):
    """Copies the weights of a `ViTBackbone` of keras-hub.

    Its images are in [-1, 1], here less the means of ImageNet, by standard
    deviations: the embedding of the patches is changed for that.

    Args:
        source: The backbone.
        model: As `nets.vit.vit_s16` makes it.

    Raises:
        ValueError: If the shapes of weights differ.
    """
    embedding = source.get_layer("vit_patching_and_embedding")
    encoder = source.get_layer("vit_encoder")
    kernel, bias = embedding.patch_embedding.get_weights()
    # v = (x - m) / s of x in [0, 1], so that 2 x - 1 = 2 s v + 2 m - 1.
    bias = bias + np.einsum("hwck,c->k", kernel, 2 * _MEANS - 1)
    kernel = kernel * (2 * _DEVIATIONS)[:, np.newaxis]
    positions = np.array(embedding.position_embedding.embeddings)[np.newaxis]
    token = np.array(embedding.class_token)
    norms, attentions, denses = [], [], []
    for block in encoder.encoder_layers:
        norms += [block.layer_norm_1, block.layer_norm_2]
        attentions.append(block.mha)
        denses += [block.mlp.dense_1, block.mlp.dense_2]
    norms.append(encoder.layer_norm)
    pairs = []
    for kind, theirs in (
        (keras.layers.LayerNormalization, norms),
        (keras.layers.MultiHeadAttention, attentions),
        (keras.layers.Dense, denses),
    ):
        ours = [layer for layer in model.layers if isinstance(layer, kind)]
        if kind is keras.layers.Dense:
            ours = ours[:-1]
        if len(ours) != len(theirs):
            raise ValueError(
                "The network must be as deep as the one of `weights`. "
                f"Received: {len(ours)} and {len(theirs)} of {kind.__name__}"
            )
        pairs += zip(ours, (x.get_weights() for x in theirs), strict=True)
    patches, rows = model.layers[1], model.layers[3]
    for layer, values in [
        (patches, [kernel, bias]),
        (rows, [token, positions]),
        *pairs,
    ]:
        _set_weights(layer, values)


def _check_name(weights):
    if weights != "imagenet":
        raise ValueError(
            f"`weights` must be None or 'imagenet'. Received: {weights=}"
        )


def _set_weights(layer, values):
    shapes = [tuple(v.shape) for v in layer.weights]
    found = [np.shape(value) for value in values]
    if shapes != found:
        raise ValueError(
            "The network must have the sizes of the one of `weights`: images "
            "of 224 x 224 for a transformer, the published width. "
            f"Received: layer={layer.name}, shapes={shapes}, "
            f"weights={found}"
        )
    layer.set_weights(values)


def convert(source, model, name):
    """Copy weights of Keras' ResNet50 or ResNet101.

    Three differences are converted. Its convolutions have biases, which the
    moving means subtract here. Its normalizations add more to the variance. Its
    images are BGR in [0, 255] minus their means. Here they are RGB in [0, 1]
    minus the means, divided by the standard deviations.

    The means of the two differ by less than half of one of 255 levels.

    Args:
        source: The network of `keras.applications`.
        model: A `keras.Model` with layers as `nets.resnet.features` makes.
        name: What the names of its layers begin with.

    Raises:
        ValueError: If the shapes of weights differ.
    """
    for layer in source.layers:
        if not isinstance(layer, keras.layers.Conv2D):
            continue
        kernel, bias = layer.get_weights()
        if layer.name == "conv1_conv":
            scales = 255 * _DEVIATIONS
            kernel = kernel[:, :, ::-1] * scales[:, np.newaxis]
        _set_weights(model.get_layer(f"{name}_{layer.name}"), [kernel])
        theirs = source.get_layer(layer.name.replace("_conv", "_bn"))
        ours = model.get_layer(f"{name}_{theirs.name}")
        gamma, beta, mean, variance = theirs.get_weights()
        variance = variance + (theirs.epsilon - ours.epsilon)
        _set_weights(ours, [gamma, beta, mean - bias, variance])
