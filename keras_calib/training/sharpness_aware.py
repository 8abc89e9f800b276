"""Sharpness-aware minimisation: two passes over each batch."""

import contextlib
from typing import Any

import keras
from keras import backend, ops

from keras_calib.backend.keras_internals import (
    compiled_metrics,
    loss_tracker,
    updated_metrics,
)
from keras_calib.backend.late import jax, torch
from keras_calib.backend.late import tensorflow as tf
from keras_calib.backend.replicas import num_replicas, sum_over_replicas
from keras_calib.inputs.checks import check_above
from keras_calib.training.epoch_model import EpochModel

# As in the released code.
_EPSILON = 1e-12


def perturbations(
    weights: list, gradients: list, rho: float, adaptive: bool
) -> list:
    """Steps that, to first order, raise the loss most within the radius.

    e = rho g / (|g| + 1e-12), or with `adaptive`
    e = rho w^2 g / (| |w| g | + 1e-12), norms over all weights.

    The step is None where the gradient is None.
    """
    squares = []
    for w, g in zip(weights, gradients, strict=True):
        if g is not None:
            scaled = ops.abs(w) * g if adaptive else g
            squares.append(ops.sum(ops.square(ops.cast(scaled, "float32"))))
    norm = ops.sqrt(ops.sum(ops.stack(squares))) if squares else 0.0
    scale = rho / (norm + _EPSILON)

    def step(w, g):
        if g is None:
            return None
        g = ops.cast(scale, g.dtype) * g
        return ops.square(w) * g if adaptive else g

    return [step(w, g) for w, g in zip(weights, gradients, strict=True)]


@keras.saving.register_keras_serializable(package="keras_calib")
class SharpnessAwareModel(EpochModel):
    """Sharpness-aware minimisation (SAM), or its adaptive form (ASAM).

    Use it to look for flat minima, which often generalise better, if you can
    afford steps that take about twice as long. Each step moves the weights by
    `rho` along the gradient of the batch. It then takes the gradient of the
    same batch there and updates the original weights with that.

    Gradient clipping, weight decay and moving averages of the optimizer act on
    the second gradient. Loss, metrics and the statistics of batch
    normalisation are those of the first pass. Under a distribution strategy
    the first gradient is that of the whole batch.

    Args:
        *args: Inputs and outputs, as `keras.Model` takes them.
        rho: Radius of the neighbourhood, > 0; None for `0.05`, or for `2.0`
            with `adaptive=True`, as in the released examples.
        adaptive: Whether the neighbourhood scales with the weights (ASAM).
        **kwargs: Other arguments of `keras.Model`.

    Raises:
        ValueError: If `rho` is not above 0.

    Example:

    >>> import keras
    >>> inputs = keras.Input((4,))
    >>> outputs = keras.layers.Dense(3)(inputs)
    >>> model = SharpnessAwareModel(inputs, outputs, rho=0.1)
    >>> model.rho
    0.1

    Reference:
        Foret et al., Sharpness-Aware Minimization for Efficiently Improving
        Generalization, ICLR 2021, https://arxiv.org/abs/2010.01412; adaptive:
        Kwon et al., ASAM, ICML 2021, https://arxiv.org/abs/2102.11600
    """

    def __init__(
        self,
        *args: Any,
        rho: float | None = None,
        adaptive: bool = False,
        **kwargs: Any,
    ):
        if rho is None:
            rho = 2.0 if adaptive else 0.05
        check_above("rho", rho, 0.0)
        super().__init__(*args, **kwargs)
        self._keep(rho=rho, adaptive=bool(adaptive))

    def train_step(self, *args):
        if self.built and not self.trainable_variables:
            return super().train_step(*args)
        self.postpones = True
        try:
            if backend.backend() == "jax":
                return self._functional_step(*args)
            return self._imperative_step(*args)
        finally:
            self.postpones = False

    def _imperative_step(self, data):
        """The step on TensorFlow and torch, which change variables."""
        batch = keras.utils.unpack_x_y_sample_weight(data)
        x, y, sample_weight = batch
        y_pred, loss, gradients = self._gradients(*batch)
        # A model with its own `call` may have no weights before this.
        weights = self.trainable_variables
        loss_tracker(self).update_state(
            loss * num_replicas(),
            sample_weight=ops.shape(keras.tree.flatten(x)[0])[0],
        )
        present = [g for g in gradients if g is not None]
        whole = iter(sum_over_replicas(present) if present else [])
        gradients = [None if g is None else next(whole) for g in gradients]
        with _no_gradient():
            before = [ops.copy(w) for w in weights]
            records = {id(v) for v in self.records()}
            remembered = [
                v for v in self.non_trainable_weights if id(v) not in records
            ]
            remembered += self._metrics_of_a_pass()
            kept = [ops.copy(v) for v in remembered]
            steps = perturbations(before, gradients, self.rho, self.adaptive)
            for w, old, step in zip(weights, before, steps, strict=True):
                if step is not None:
                    w.assign(old + step)
        _, _, gradients = self._gradients(*batch)
        with _no_gradient():
            for v, old in zip(
                [*weights, *remembered], [*before, *kept], strict=True
            ):
                v.assign(old)
            self.optimizer.apply(gradients, weights)
            self.remember_batch(y, y_pred, sample_weight)
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def _metrics_of_a_pass(self):
        """Variables of metrics of layers and losses, which a pass updates."""
        others = (loss_tracker(self), compiled_metrics(self))
        return [
            variable
            for metric in self.metrics
            if not any(metric is other for other in others)
            for variable in metric.variables
        ]

    def _gradients(self, x, y, sample_weight):
        """Predictions, loss, and its scaled gradients at the weights."""

        def forward():
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, sample_weight, training=True)
            return y_pred, loss, self.optimizer.scale_loss(loss)

        if backend.backend() == "torch":
            self.zero_grad()
            y_pred, loss, scaled = forward()
            scaled.backward()
            return (
                y_pred,
                loss,
                [v.value.grad for v in self.trainable_variables],
            )
        with tf.GradientTape() as tape:
            y_pred, loss, scaled = forward()
        weights = [v.value for v in self.trainable_variables]
        # Makes sparse gradients of embedding tables dense.
        gradients = [
            None if g is None else tf.convert_to_tensor(g)
            for g in tape.gradient(scaled, weights)
        ]
        return y_pred, loss, gradients

    def _functional_step(self, state, data):
        """The step on JAX, from one state to the next."""
        weights, others, optimizer_state, metrics_state = state
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        run = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        options = {"training": True, "optimizer_variables": optimizer_state}
        batch = (x, y, sample_weight)
        (_, aux), gradients = run(
            weights, others, metrics_state, *batch, **options
        )
        loss, y_pred, others, metrics_state = aux
        steps = perturbations(weights, gradients, self.rho, self.adaptive)
        moved = [w + s for w, s in zip(weights, steps, strict=True)]
        (_, aux), gradients = run(
            moved, others, metrics_state, *batch, **options
        )
        # Random states advance; other states keep those of the first pass.
        remembered = {id(v) for v in self.non_trainable_weights}
        others = [
            first if id(v) in remembered else second
            for v, first, second in zip(
                self.non_trainable_variables, others, aux[2], strict=True
            )
        ]
        variables = self.non_trainable_variables
        with keras.StatelessScope(
            state_mapping=list(zip(variables, others, strict=True))
        ) as scope:
            self.remember_batch(y, y_pred, sample_weight)
        others = [scope.get_current_value(v) for v in variables]
        weights, optimizer_state = self.optimizer.stateless_apply(
            optimizer_state, gradients, weights
        )
        logs, metrics_state = updated_metrics(self)(
            metrics_state, loss, x, y, y_pred, sample_weight
        )
        return logs, (weights, others, optimizer_state, metrics_state)


def _no_gradient() -> Any:
    """A context in which torch does not record."""
    if backend.backend() == "torch":
        return torch.no_grad()
    return contextlib.nullcontext()
