"""Monte Carlo dropout: one network, asked several times with masks."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import invalid
from keras_calib.ensembles.base import Member
from keras_calib.ensembles.base import Predictor
from keras_calib.ensembles.base import check_classifier
from keras_calib.ensembles.base import input_structure
from keras_calib.ensembles.base import log_probs_of
from keras_calib.ensembles.base import serialized
from keras_calib.ensembles.dropout_masks import dropout_layers
from keras_calib.ensembles.dropout_masks import masked
from keras_calib.inputs.checks import check_integer
from keras_calib.predictions.outputs import reads_logits

__all__ = ["MonteCarloDropout"]


@keras.saving.register_keras_serializable(package="keras_calib")
class MonteCarloDropout(Predictor):
    """A model of the mean of what a network says under dropout.

    output = log(1/T sum_t p(k | x, mask_t)), t = 1..T

    The output is logits that are normalised: metrics and calibrators take
    it with `from_logits=True`, `SelectiveClassifier` and `export` as it is.
    In each pass every dropout layer drops as in training, inner ones and
    those of `MultiHeadAttention` too; batch normalisation and all else is as
    at inference. The dropout that recurrent layers and `keras.layers.
    Attention` apply on their own stays off.

    Masks are a function of seed, pass, layer and unit, the same on every
    backend and in an exported file; a layer that is used twice has the same
    mask twice. Samples share them, so that the answer to one does not depend
    on its batch: each pass is one network that was drawn. A pass costs what
    the network costs.

    Masks of samples, of open sides or of more than 65,536 units are computed
    where the model runs: in a SavedModel, but not in ONNX or LiteRT, for
    which `export` raises. All others are constants.

    Weights are those of `model`: train it, before or after. `predict_passes`
    gives the answers that the mean is of.

    Args:
        model: A functional or sequential model with one output, logits or
            probabilities `(batch, ..., num_classes)`, or `(batch, ..., 1)`
            for the second of two classes, which become two.
        num_passes: Number of passes T, >= 1.
        seed: Seed of the masks, >= 0.
        per_sample: Whether each sample of a batch has masks of its own, a
            function of its row too, so that neighbours err independently.
        from_logits: Whether `model` returns logits. None takes it from the
            loss that it was compiled with.
        name: Name of the model.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If `model` has no fixed inputs, several outputs or no
            dropout layer with a rate > 0, it is not known what it returns,
            or a number is out of range.
        RuntimeError: On `fit`.

    Example:

    >>> import keras, keras_calib
    >>> import numpy as np
    >>> model = keras.Sequential(
    ...     [keras.Input((2,)), keras.layers.Dropout(0.5)]
    ... )
    >>> predictor = keras_calib.MonteCarloDropout(
    ...     model, num_passes=6, from_logits=True
    ... )
    >>> x = np.array([[1.0, 0.0]])
    >>> predictor.predict_passes(x)[:, 0, 0].round(3)
    array([0.881, 0.5  , 0.5  , 0.5  , 0.881, 0.881], dtype=float32)
    >>> np.exp(predictor.predict(x, verbose=0)).round(3)
    array([[0.69, 0.31]], dtype=float32)

    Reference:
        Gal and Ghahramani, Dropout as a Bayesian Approximation: Representing
        Model Uncertainty in Deep Learning, ICML 2016, section 4,
        https://arxiv.org/abs/1506.02142

    Differs:
        The paper draws masks for each sample anew, which is `per_sample`,
        but for the fixed seed.
    """

    def __init__(
        self,
        model: keras.Model,
        num_passes: int = 20,
        *,
        seed: int = 0,
        per_sample: bool = False,
        from_logits: bool | None = None,
        name: str = "monte_carlo_dropout",
    ):
        check_classifier(model, "model")
        check_integer("num_passes", num_passes, 1)
        check_integer("seed", seed, 0)
        if not isinstance(per_sample, bool):
            raise TypeError(
                invalid(
                    "`per_sample` must be True or False", per_sample=per_sample
                )
            )
        if not dropout_layers(model):
            raise ValueError(
                invalid(
                    "`model` must have a dropout layer with a rate > 0",
                    model=model.name,
                )
            )
        passes = _Passes(
            model,
            num_passes,
            seed=seed,
            per_sample=per_sample,
            from_logits=reads_logits(model, from_logits),
        )
        super().__init__(
            input_structure(model),
            passes,
            np.full(num_passes, 1 / num_passes),
            name,
        )

    def predict_passes(
        self, x: Any, *, batch_size: int | None = None
    ) -> np.ndarray:
        """What the network says in each pass.

        Their mean is softmax of the output; the entropy of the mean less the
        mean of their entropies is the mutual information of the class and
        the network.

        Args:
            x: Inputs as `predict` takes them.
            batch_size: As in `predict`.

        Returns:
            Probabilities `(num_passes, batch, ..., num_classes)`, float32.
        """
        return self.predict_each(x, batch_size)

    def get_config(self) -> dict:
        return {"name": self.name, **self.get_layer("passes").settings()}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        model = keras.saving.deserialize_keras_object(
            config["model"], custom_objects=custom_objects
        )
        return cls(**{**config, "model": model})


class _Passes(Member):
    """log p by each pass, `(batch, num_passes, ..., num_classes)`."""

    def __init__(
        self,
        model: keras.Model,
        num_passes: int,
        *,
        seed: int,
        per_sample: bool,
        from_logits: bool,
    ):
        super().__init__([model], num_passes, name="passes")
        self._seed = seed
        self._per_sample = per_sample
        self._from_logits = from_logits

    def settings(self) -> dict:
        """What makes the same passes again."""
        return {
            "model": serialized(self.layers[0]),
            "num_passes": self.num_members,
            "seed": self._seed,
            "per_sample": self._per_sample,
            "from_logits": self._from_logits,
        }

    def call(self, inputs):
        (model,) = self.layers
        layers = dropout_layers(model)
        passes = []
        for i in range(self.num_members):
            with masked(layers, (self._seed, i), self._per_sample):
                passes.append(log_probs_of(model, inputs, self._from_logits))
        return ops.stack(passes, axis=1)
