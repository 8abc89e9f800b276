"""Batch normalization as one operation of TensorFlow."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="examples")
class FusedBatchNormalization(keras.layers.BatchNormalization):
    """Keras' layer, which on TensorFlow trains by the fused operation.

    Keras builds means, variances and the rest of many operations, each of
    which reads or writes all of the images. Values are those of Keras'
    layer, but for rounding. Elsewhere, in inference, and where several
    replicas take their statistics together, this is that layer.

    Args:
        **kwargs: As in `keras.layers.BatchNormalization`, with `axis=-1`.

    Reference:
        Ioffe, Szegedy, Batch Normalization, ICML 2015,
        https://arxiv.org/abs/1502.03167
    """

    def call(self, inputs, training=None, mask=None):
        """As of Keras' layer."""
        trains = training and self.trainable and mask is None
        if not trains or keras.backend.backend() != "tensorflow":
            return super().call(inputs, training=training, mask=mask)
        import tensorflow as tf

        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if self.synchronized and replicas > 1:
            return super().call(inputs, training=training, mask=mask)
        outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=ops.convert_to_tensor(self.gamma),
            offset=ops.convert_to_tensor(self.beta),
            mean=tf.constant([], "float32"),
            variance=tf.constant([], "float32"),
            epsilon=self.epsilon,
            is_training=True,
        )
        # The operation returns the unbiased variance, Keras keeps the other.
        count = tf.cast(tf.size(inputs) // inputs.shape[-1], "float32")
        variance *= (count - 1.0) / count
        for moving, batch in (
            (self.moving_mean, mean),
            (self.moving_variance, variance),
        ):
            kept = moving * self.momentum
            moving.assign(kept + batch * (1.0 - self.momentum))
        return outputs
