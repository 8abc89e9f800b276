"""Optimizers and schedules as the papers' code has them."""

import keras


@keras.saving.register_keras_serializable(package="examples")
class CoupledSGD(keras.optimizers.SGD):
    """SGD whose weight decay is part of the gradient, as torch's is.

    g + d w takes the place of g for all weights w, also of normalizations
    and biases. Keras' `weight_decay` is decoupled from momentum, and a
    regularizer of d/2 on all layers would be shown as part of the loss.

    Args:
        learning_rate: As in `keras.optimizers.SGD`.
        coupled_decay: d. Defaults to `0.0`.
        backbone_rate: Multiplies the learning rate of variables in whose
            path `"backbone"` stands. Defaults to `1.0`.
        **kwargs: As in `keras.optimizers.SGD`.
    """

    def __init__(
        self,
        learning_rate=0.01,
        *,
        coupled_decay=0.0,
        backbone_rate=1.0,
        **kwargs,
    ):
        super().__init__(learning_rate, **kwargs)
        self.coupled_decay = coupled_decay
        self.backbone_rate = backbone_rate

    def build(self, variables):
        """Called by Keras with the variables that are trained."""
        super().build(variables)
        self._rates = [
            self.backbone_rate if "backbone" in variable.path else 1.0
            for variable in variables
        ]

    def update_step(self, gradient, variable, learning_rate):
        """One variable's share of a step."""
        if self.coupled_decay:
            decay = keras.ops.cast(self.coupled_decay, variable.dtype)
            gradient = gradient + decay * variable
        # On TensorFlow it is a variable without a path.
        learning_rate *= self._rates[self._get_variable_index(variable)]
        super().update_step(gradient, variable, learning_rate)

    def get_config(self):
        return {
            **super().get_config(),
            "coupled_decay": self.coupled_decay,
            "backbone_rate": self.backbone_rate,
        }


@keras.saving.register_keras_serializable(package="examples")
class TimeDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A rate, or schedule, divided by 1 + `decay` step."""

    def __init__(self, rate, decay):
        super().__init__()
        self.rate = rate
        self.decay = decay

    def __call__(self, step):
        rate = self.rate(step) if callable(self.rate) else self.rate
        return rate / (1.0 + self.decay * keras.ops.cast(step, "float32"))

    def get_config(self):
        rate = self.rate
        if callable(rate):
            rate = keras.saving.serialize_keras_object(rate)
        return {"rate": rate, "decay": self.decay}

    @classmethod
    def from_config(cls, config):
        """As of all Keras objects."""
        rate = config["rate"]
        if isinstance(rate, dict):
            rate = keras.saving.deserialize_keras_object(rate)
        return cls(rate, config["decay"])


def learning_rate(setup, steps_per_epoch):
    """The schedule of a set-up.

    Args:
        setup: A `Setup`.
        steps_per_epoch: Steps of an epoch, >= 1.

    Returns:
        A number, or a `keras.optimizers.schedules.LearningRateSchedule`.
    """
    rate = _schedule(setup, steps_per_epoch)
    return TimeDecay(rate, setup.time_decay) if setup.time_decay else rate


def _schedule(setup, steps_per_epoch):
    steps = setup.epochs * steps_per_epoch
    warmup = setup.warmup_epochs * steps_per_epoch
    rate = setup.learning_rate
    schedules = keras.optimizers.schedules
    if setup.schedule == "cosine":
        return schedules.CosineDecay(
            0.0 if warmup else rate,
            max(1, steps - warmup),
            warmup_target=rate if warmup else None,
            warmup_steps=warmup,
        )
    if warmup:
        raise ValueError(
            "`--warmup_epochs` must be 0 for a schedule that is not cosine. "
            f"Received: --warmup_epochs={setup.warmup_epochs}, "
            f"--schedule={setup.schedule}"
        )
    if setup.schedule == "poly":
        return schedules.PolynomialDecay(rate, steps, 0.0, setup.power)
    if setup.schedule == "steps":
        # The rate changes after its boundary, epochs begin at theirs.
        places = [e * steps_per_epoch - 1 for e in setup.decay_epochs]
        rates = [
            rate * setup.decay_factor**drops for drops in range(len(places) + 1)
        ]
        return schedules.PiecewiseConstantDecay(places, rates)
    return rate


def build_optimizer(setup, steps_per_epoch):
    """The optimizer of a set-up, with its schedule."""
    rate = learning_rate(setup, steps_per_epoch)
    clip = {"global_clipnorm": setup.clip_norm}
    if setup.weight_decay and setup.optimizer != "adamw":
        raise ValueError(
            "`--weight_decay` must be 0 for an optimizer that is not AdamW; "
            "SGD has --coupled_decay. "
            f"Received: --weight_decay={setup.weight_decay}, "
            f"--optimizer={setup.optimizer}"
        )
    if setup.optimizer == "sgd":
        return CoupledSGD(
            rate,
            coupled_decay=setup.coupled_decay,
            backbone_rate=setup.backbone_rate,
            momentum=setup.momentum,
            nesterov=setup.nesterov,
            **clip,
        )
    for name, neutral in (("coupled_decay", 0.0), ("backbone_rate", 1.0)):
        if getattr(setup, name) != neutral:
            raise ValueError(
                f"`--{name}` must be {neutral:g} for an optimizer that is not "
                f"SGD. Received: --{name}={getattr(setup, name)}, "
                f"--optimizer={setup.optimizer}"
            )
    if setup.optimizer == "adamw":
        return keras.optimizers.AdamW(
            rate, weight_decay=setup.weight_decay, **clip
        )
    return keras.optimizers.Adam(rate, **clip)
