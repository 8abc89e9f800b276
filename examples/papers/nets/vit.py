"""A vision transformer."""

import keras
from keras import ops

from nets.imagenet import load_vit


@keras.saving.register_keras_serializable(package="examples")
class ClassAndPositions(keras.layers.Layer):
    """Puts a learnt token before the others, and adds learnt positions.

    Args:
        **kwargs: As in `keras.layers.Layer`.
    """

    def build(self, input_shape):
        """Makes the variables.

        Args:
            input_shape: `(batch, tokens, width)`.
        """
        _, tokens, width = input_shape
        self.token = self.add_weight(shape=(1, 1, width), name="token")
        self.positions = self.add_weight(
            shape=(1, tokens + 1, width),
            initializer=_small(),
            name="positions",
        )

    def call(self, x):
        """`(batch, tokens, width)` to `(batch, tokens + 1, width)`."""
        token = ops.broadcast_to(
            self.token, (ops.shape(x)[0], 1, ops.shape(x)[2])
        )
        return ops.concatenate([token, x], axis=1) + self.positions


def vit_s16(
    input_shape,
    num_classes,
    *,
    patch_size=16,
    dropout=0.1,
    width=384,
    depth=12,
    heads=6,
):
    """ViT-S: a pre-normalized transformer encoder over patches.

    Args:
        input_shape: Height and width, multiples of `patch_size`, and channels.
        num_classes: Number of logits.
        patch_size: Height and width of a patch.
        dropout: Share dropped of tokens with positions and of what attention
            and dense layers put out; nothing is dropped of attention.
        width: Width of a token, a multiple of `heads`.
        depth: Blocks.
        heads: Attention heads.

    Raises:
        ValueError: If patches or heads do not come out even.

    Reference:
        Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021,
        equations 1-4 and appendix B.1, https://arxiv.org/abs/2010.11929; S:
        Touvron et al., Training data-efficient image transformers &
        distillation through attention, ICML 2021, table 1,
        https://arxiv.org/abs/2012.12877
    """
    if any(side % patch_size for side in input_shape[:2]):
        raise ValueError(
            "Height and width of `input_shape` must be multiples of "
            f"`patch_size`. Received: input_shape={input_shape}, "
            f"patch_size={patch_size}"
        )
    if width % heads:
        raise ValueError(
            "`width` must be a multiple of `heads`. "
            f"Received: width={width}, heads={heads}"
        )
    inputs = keras.Input(input_shape)
    x = keras.layers.Conv2D(width, patch_size, strides=patch_size)(inputs)
    x = keras.layers.Reshape((-1, width))(x)
    x = ClassAndPositions()(x)
    x = keras.layers.Dropout(dropout)(x)
    for _ in range(depth):
        x = _block(x, heads, dropout)
    x = keras.layers.LayerNormalization(epsilon=1e-6)(x[:, 0])
    logits = keras.layers.Dense(
        num_classes, kernel_initializer=_small(), dtype="float32"
    )(x)
    return keras.Model(inputs, logits)


def vit_b16(
    input_shape,
    num_classes,
    *,
    patch_size=16,
    dropout=0.1,
    width=768,
    depth=12,
    heads=12,
    weights=None,
):
    """ViT-B: as `vit_s16`, twice as wide.

    Args:
        input_shape: Height and width, multiples of `patch_size`, and channels;
            224, 224 and 3 with `weights`.
        num_classes: Number of logits.
        patch_size: Height and width of a patch.
        dropout: As in `vit_s16`.
        width: Width of a token, a multiple of `heads`.
        depth: Blocks.
        heads: Attention heads.
        weights: None, or `"imagenet"`; see `nets.imagenet.load_vit`. The
            logits begin at random.

    Raises:
        ImportError: With `weights`, if keras-hub is absent.
        OSError: With `weights`, if they cannot be read.
        ValueError: If patches or heads do not come out even, or there are no
            such weights for the network.

    Reference:
        Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021, table 1,
        https://arxiv.org/abs/2010.11929
    """
    sizes = {"width": width, "depth": depth, "heads": heads}
    options = {"patch_size": patch_size, "dropout": dropout, **sizes}
    model = vit_s16(input_shape, num_classes, **options)
    if weights is not None:
        load_vit(model, weights)
    return model


def _block(x, heads, dropout):
    width = x.shape[-1]
    y = keras.layers.LayerNormalization(epsilon=1e-6)(x)
    y = keras.layers.MultiHeadAttention(
        heads, width // heads, kernel_initializer=_small()
    )(y, y)
    y = keras.layers.Dropout(dropout)(y)
    x = keras.layers.Add()([x, y])
    y = keras.layers.LayerNormalization(epsilon=1e-6)(x)
    y = keras.layers.Dense(4 * width, kernel_initializer=_small())(y)
    y = ops.gelu(y, approximate=False)
    y = keras.layers.Dropout(dropout)(y)
    y = keras.layers.Dense(width, kernel_initializer=_small())(y)
    y = keras.layers.Dropout(dropout)(y)
    return keras.layers.Add()([x, y])


def _small():
    # A shared initializer would give equal numbers to all that share it.
    return keras.initializers.TruncatedNormal(stddev=0.02)
