"""A SavedModel with nothing but TensorFlow: what both servers ask."""

import numpy as np
import tensorflow as tf

__all__ = ["LoadedModel"]


class LoadedModel:
    """Signatures of a SavedModel as functions of arrays.

    Args:
        path: Its folder.
    """

    def __init__(self, path):
        self._loaded = tf.saved_model.load(str(path))

    def specs(self, signature_name=""):
        """Inputs of a signature: TensorSpecs by name."""
        return self._signature(signature_name).structured_input_signature[1]

    def predict(self, inputs, signature_name="", only=()):
        """Outputs by name, as arrays.

        Args:
            inputs: What the signature takes, by name.
            signature_name: "" for `serving_default`.
            only: Names of the outputs to return; empty for all.

        Raises:
            LookupError: If there is no such signature or output.
            ValueError: If the inputs are not what it takes.
        """
        signature, specs = (
            self._signature(signature_name),
            self.specs(signature_name),
        )
        if set(inputs) != set(specs):
            raise ValueError(f"inputs {sorted(inputs)}, not {sorted(specs)}")
        missing = set(only) - set(signature.structured_outputs)
        if missing:
            raise LookupError(f"no output {sorted(missing)}")
        try:
            given = {
                name: tf.constant(np.asarray(inputs[name]), specs[name].dtype)
                for name in specs
            }
            outputs = signature(**given)
        except (TypeError, ValueError, tf.errors.OpError) as error:
            raise ValueError(str(error)) from error
        return {name: outputs[name].numpy() for name in only or outputs}

    def _signature(self, name):
        name = name or "serving_default"
        if name not in self._loaded.signatures:
            raise LookupError(
                f"no signature {name!r} in {sorted(self._loaded.signatures)}"
            )
        return self._loaded.signatures[name]
