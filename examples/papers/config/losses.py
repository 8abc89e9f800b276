"""From the flags of a method to the loss and the class that trains."""

import keras

import keras_calib

# Models whose loss is their own.
_OWN_LOSS = ("AdaptiveFocalModel", "ScheduledFocalModel")
_WITH_MARGIN = ("ACLS", "CRLMargin", "MbLS")


def build_loss(method, setup):
    """The loss of a method on logits, or None where the model has its own."""
    if method.train_model in _OWN_LOSS:
        return None
    kind = label_kind(method)
    if kind == "smoothed":
        # Labels are smoothed before they are mixed.
        return keras.losses.CategoricalCrossentropy(from_logits=True)
    if method.loss == "CrossEntropy":
        if kind == "soft":
            return keras.losses.CategoricalCrossentropy(from_logits=True)
        if setup.ignore_class is None:
            return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        # Keras' loss divides by the labels that count on each device, this
        # one by those on all of them.
        return keras_calib.LabelSmoothing(
            alpha=0.0, from_logits=True, ignore_class=setup.ignore_class
        )
    common = {"from_logits": True, "ignore_class": setup.ignore_class}
    options = _loss_options(method, setup)
    if method.fidelity is not None:
        fidelity = _class(method.fidelity, "fidelity")
        options["fidelity"] = fidelity(**method.fidelity_option, **common)
    return _class(method.loss, "loss")(**options, **common)


def option_text(method, setup):
    """What a method is trained with, as one text; a margin of a set-up too."""
    parts = {
        **_loss_options(method, setup),
        **{f"fidelity.{k}": v for k, v in method.fidelity_option.items()},
        **{f"model.{k}": v for k, v in method.model_option.items()},
    }
    return " ".join(f"{name}={value}" for name, value in parts.items())


def build_model(method, setup, num_samples, inputs, outputs):
    """A model of the class that the method trains with.

    Args:
        method: A `Method`.
        setup: A `Setup`; with `sam_rho` the class takes SAM's steps too.
        num_samples: Size of the training data, for those that remember it.
        inputs: Inputs of the network.
        outputs: Logits of the network.
    """
    kind, arguments = keras_calib.training.EpochModel, dict(method.model_option)
    if method.train_model is not None:
        kind = _class(method.train_model, "train_model")
    if remembers(method):
        arguments["num_samples"] = num_samples
    if method.train_model in _OWN_LOSS:
        arguments["from_logits"] = True
        arguments["ignore_class"] = setup.ignore_class
    if setup.sam_rho:
        arguments["rho"] = setup.sam_rho
        sharp = keras_calib.SharpnessAwareModel
        if kind is keras_calib.training.EpochModel:
            kind = sharp
        elif kind is not sharp:
            kind = type(f"Sharp{kind.__name__}", (sharp, kind), {})
    return kind(inputs, outputs, **arguments)


def has_margin(method):
    """Whether the loss has the margin of a set-up."""
    return method.loss in _WITH_MARGIN


def label_kind(method):
    """`"ids"`, `"soft"`, `"pairs"` or `"smoothed"`: what the loss takes.

    Pairs have the objectness of each image. Mixed images have none that one
    number says, so that their labels are smoothed by it before: `"smoothed"`.
    """
    if method.loss == "AdaptiveLabelSmoothing":
        return "smoothed" if method.mix else "pairs"
    return "soft" if method.mix or method.context_share else "ids"


def remembers(method):
    """Whether the model keeps a number for each training sample."""
    if method.train_model is None:
        return False
    kind = _class(method.train_model, "train_model")
    return issubclass(kind, keras_calib.training.RecordingModel)


def _class(name, flag):
    space = "training" if flag == "train_model" else "losses"
    found = getattr(getattr(keras_calib, space), name, None)
    if not isinstance(found, type):
        raise ValueError(
            f"`--{flag}` must be the name of a class of keras_calib.{space}. "
            f"Received: --{flag}={name}"
        )
    return found


def _loss_options(method, setup):
    options = dict(method.loss_option)
    if has_margin(method):
        options.setdefault("margin", setup.margin)
    return options
