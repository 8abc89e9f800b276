"""ONNX files as graphs: their answers are cut off and written anew."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.exporting.answer_graph import (
    PREFIX,
    check_marks,
    names_of_constants,
)
from keras_calib.exporting.served_model import OUTPUT_NAMES

__all__ = ["OnnxGraph"]


class OnnxGraph:
    """The graph of an ONNX file, which can be changed and packed again.

    Raises ValueError unless it has the answers of an export.
    """

    def __init__(self, data: bytes):
        import onnx
        from google.protobuf.message import DecodeError

        try:
            self.model = onnx.ModelProto.FromString(data)
        except DecodeError as error:
            raise value_error(
                "`path` must be an ONNX file", error=str(error)
            ) from error
        self.graph = self.model.graph
        check_marks({x.name for x in self.graph.output})
        outside = onnx.TensorProto.EXTERNAL
        if any(x.data_location == outside for x in self.graph.initializer):
            raise value_error(
                "`path` must hold its weights itself: save it with "
                "`onnx.save(onnx.load(path), path)`",
                data_location="EXTERNAL",
            )
        (logits,) = [x for x in self.graph.output if x.name == "logits"]
        kind = logits.type.tensor_type
        if kind.elem_type != onnx.TensorProto.FLOAT:
            raise value_error(
                "`path` must have logits in float32", type=kind.elem_type
            )
        self._sides = kind.shape.dim

    def logits_shape(self) -> tuple:
        """Shape of the answer `logits`, None where it is open."""
        return (None, *(x.dim_value or None for x in self._sides[1:]))

    @property
    def opset(self) -> int:
        """The version of the operators."""
        (found,) = [
            x.version
            for x in self.model.opset_import
            if x.domain in ("", "ai.onnx")
        ]
        return found

    def constant(self, name: str) -> float | None:
        """A constant that an earlier graft has named, or None."""
        from onnx import numpy_helper

        found = self._named(name)
        if found is None:
            return None
        return float(numpy_helper.to_array(found).reshape(()))

    def set_constant(self, name: str, value: float) -> None:
        """Replaces a constant that a graft has named."""
        from onnx import numpy_helper

        found = self._named(name)
        array = np.full(tuple(found.dims), value, np.float32)
        found.CopyFrom(numpy_helper.from_array(array, found.name))

    def graft(self, tail: "OnnxGraph") -> None:
        """Replaces all that follows the network's logits by another graph."""
        cut = self._cut()
        if cut == "logits":
            cut = PREFIX + "uncalibrated"
            renamed = {"logits": cut}
            _rename(self.graph, lambda name: renamed.get(name, name))
        constants = tail._name_constants()
        (taken,) = tail.graph.input
        fixed = {"": "", taken.name: cut} | {x: x for x in OUTPUT_NAMES}
        fixed |= {old: PREFIX + new for old, new in constants.items()}
        _rename(tail.graph, lambda name: fixed.get(name, PREFIX + name))
        kept = self._needed(cut)
        del self.graph.node[:]
        self.graph.node.extend([*kept, *tail.graph.node])
        read = {x for node in kept for x in _names_read(node)}
        weights = [x for x in self.graph.initializer if x.name in read]
        del self.graph.initializer[:]
        self.graph.initializer.extend([*weights, *tail.graph.initializer])
        made = {x for node in kept for x in node.output}
        told = [x for x in self.graph.value_info if x.name in made]
        del self.graph.value_info[:]
        self.graph.value_info.extend(told)
        del self.graph.output[:]
        self.graph.output.extend(tail.graph.output)
        known = {x.domain for x in self.model.opset_import}
        for other in tail.model.opset_import:
            if other.domain not in known and other.domain != "ai.onnx":
                self.model.opset_import.append(other)

    def inputs_of(self, output: str) -> set[str]:
        """Names of the inputs that an output depends on."""
        needed = self._needed(output)
        read = {x for node in needed for x in _names_read(node)}
        return {x.name for x in self.graph.input} & read

    def score_operators(self) -> list[str]:
        """Kinds of the operators from the logits to the score."""
        before = {x for node in self._needed("logits") for x in node.output}
        return [
            node.op_type
            for node in self._needed("score")
            if not before & set(node.output)
        ]

    def packed(self) -> bytes:
        """The bytes of the file."""
        return self.model.SerializeToString()

    def _named(self, name: str) -> Any:
        for found in self.graph.initializer:
            if found.name == PREFIX + name:
                return found
        return None

    def _name_constants(self) -> dict[str, str]:
        """Names of temperature and threshold of a tail, by their old names."""
        from onnx import numpy_helper

        singles = {}
        for found in self.graph.initializer:
            value = numpy_helper.to_array(found)
            if value.dtype == np.float32 and value.size == 1:
                singles[found.name] = float(value.reshape(()))
        return {old: new for new, old in names_of_constants(singles).items()}

    def _cut(self) -> str:
        """The name of the network's logits."""
        marks = {PREFIX + "temperature", PREFIX + "inverse_temperature"}
        for node in self.graph.node:
            if "logits" in node.output and set(node.input) & marks:
                (before,) = set(node.input) - marks
                return before
        return "logits"

    def _needed(self, cut: str) -> list:
        """The nodes that lead to a value, in their order."""
        wanted, kept = {cut}, []
        for node in reversed(self.graph.node):
            if wanted & set(node.output):
                wanted |= set(_names_read(node))
                kept.append(node)
        return kept[::-1]


def _names_read(node: Any) -> Iterable[str]:
    """Inputs of a node, and what its own graphs may read from outside."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (x.name for x in graph.output)
            for inner in graph.node:
                yield from _names_read(inner)


def _rename(graph: Any, new: Callable[[str], str]) -> None:
    """Renames values everywhere in a graph, nodes too."""
    for node in graph.node:
        node.name = new(node.name)
        node.input[:] = [new(x) for x in node.input]
        node.output[:] = [new(x) for x in node.output]
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, new)
    for part in (graph.initializer, graph.value_info, graph.output):
        for value in part:
            value.name = new(value.name)
