"""The served model: a network, its calibrator and its selector in one."""

import keyword
import re
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.backend.keras_internals import nested_layers
from keras_calib.ensembles.base import input_structure
from keras_calib.labels.selector import MultiLabelSelector
from keras_calib.selection import SelectiveClassifier

__all__ = ["OUTPUT_NAMES", "ServedModel"]

OUTPUT_NAMES = (
    "logits",
    "probabilities",
    "confidence",
    "score",
    "accept",
    "label",
    "probability_low",
    "probability_high",
    "expected_cost",
    "labels",
)
# Names that Keras numbers differ between processes.
_MADE_UP = re.compile(r"(keras_tensor|input_layer)(_\d+)?")


class ServedModel:
    """A network and a selector, with inputs and outputs by name."""

    def __init__(
        self,
        network: keras.Model,
        selector: SelectiveClassifier | MultiLabelSelector,
        from_logits: bool,
    ):
        self.network = network
        self.selector = selector
        self.from_logits = from_logits
        self.structure = input_structure(network)
        flat = keras.tree.flatten(self.structure)
        names = _input_names(self.structure)
        if self.groups:
            names = [f"input_{x}" if x == "group" else x for x in names]
        self.inputs = {
            name: keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=name)
            for name, tensor in zip(names, flat, strict=True)
        }
        # What clients send besides the network's inputs.
        self.group_input = {}
        if self.groups:
            group = keras.Input((), dtype="int32", name="group")
            self.group_input = {"group": group}
        outputs = self._call(self.inputs)
        answers = self.select(
            outputs, from_logits, self.group_input.get("group")
        )
        self.model = keras.Model(self.client_inputs, answers)

    @property
    def groups(self) -> tuple:
        """Ids or names of the selector's groups; empty without groups."""
        return getattr(self.selector, "groups", ())

    @property
    def several_labels(self) -> bool:
        """Whether each output is a label of its own."""
        return isinstance(self.selector, MultiLabelSelector)

    def select(
        self, outputs: Any, from_logits: bool, groups: Any = None
    ) -> Any:
        """The selector's named answers to outputs of the network."""
        if self.several_labels:
            return self.selector(outputs, from_logits=from_logits)
        return self.selector(outputs, groups=groups, from_logits=from_logits)

    @property
    def client_inputs(self) -> dict:
        """All inputs of the served model by name."""
        return {**self.inputs, **self.group_input}

    @property
    def logits_shape(self) -> tuple:
        """Shape of the network's output; one channel may stand for two."""
        return (None, *self.network.outputs[0].shape[1:])

    @property
    def computes_in_half(self) -> bool:
        """Whether a layer of the network computes in half precision."""
        dtypes = {x.compute_dtype for x in nested_layers(self.network)}
        return not dtypes.isdisjoint(["float16", "bfloat16"])

    def outputs(self, inputs: dict) -> Any:
        """Outputs of the network for inputs by name."""
        return self._call(inputs, training=False)

    def answers(
        self,
        outputs: Any,
        from_logits: bool | None = None,
        groups: Any = None,
    ) -> dict[str, np.ndarray]:
        """The selector's named answers in Keras to outputs of the network."""
        if from_logits is None:
            from_logits = self.from_logits
        answers = self.select(outputs, from_logits, groups)
        return {k: ops.convert_to_numpy(v) for k, v in answers.items()}

    def _call(self, inputs: dict, **options: Any) -> Any:
        flat = [inputs[name] for name in self.inputs]
        packed = keras.tree.pack_sequence_as(self.structure, flat)
        # Some models return their one output in a dict or list.
        (outputs,) = keras.tree.flatten(self.network(packed, **options))
        return outputs


def _input_names(structure: Any) -> list[str]:
    """Input names for clients; the user's own if there are any."""
    flat = keras.tree.flatten_with_path(structure)
    names = [tensor.name for _, tensor in flat]
    if isinstance(structure, dict) and len(structure) == len(flat):
        names = [path[0] for path, _ in flat]
    names = [_client_name(str(name)) for name in names]
    # TensorFlow ignores the case of names.
    if len({name.lower() for name in names}) < len(names):
        names = [f"inputs_{i}" for i in range(len(names))]
    return names


def _client_name(name: str) -> str:
    """A name that every format takes: a Python argument that is no output."""
    if _MADE_UP.fullmatch(name):
        return "inputs"
    name = re.sub(r"\W", "_", name, flags=re.ASCII)
    taken = name in ("self", *OUTPUT_NAMES) or keyword.iskeyword(name)
    if taken or not name[0].isalpha():
        name = "input_" + name.lstrip("_")
    return name
