"""What the outputs of a model are."""

from typing import Any

import keras

from keras_calib.checks import invalid

__all__ = ["reads_logits"]


def reads_logits(model: keras.Model, from_logits: bool | None) -> bool:
    """Whether a model returns logits: as told, or as its loss says.

    Args:
        model: Any Keras model.
        from_logits: True or False, or None to ask the loss that the model
            was compiled with.

    Returns:
        True for logits, False for probabilities.

    Raises:
        ValueError: If `from_logits` is None and the loss does not say.
    """
    if from_logits is not None:
        return bool(from_logits)
    loss: Any = getattr(model, "loss", None)
    if isinstance(loss, keras.losses.Loss):
        known = loss.get_config().get("from_logits")
        if known is not None:
            return bool(known)
    raise ValueError(
        invalid(
            "`from_logits` must be True or False unless the model is compiled "
            "with a loss that says so",
            from_logits=from_logits,
            loss=loss,
        )
    )
