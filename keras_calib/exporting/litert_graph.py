"""LiteRT files as graphs: their answers are cut off and written anew."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.exporting.answer_graph import (
    PREFIX,
    check_marks,
    names_of_constants,
    read_constant,
)

__all__ = ["LiteRTGraph"]

_IDENTIFIER = b"TFL3"
# The format asks for this alignment of constants.
_ALIGNMENT = 16
_SIGNATURE = b"serving_default"


class LiteRTGraph:
    """The graph of a LiteRT file, which can be changed and packed again.

    Raises ValueError unless it has the answers of an export.
    """

    def __init__(self, data: bytes):
        from ai_edge_litert import schema_py_generated as schema

        if data[4:8] != _IDENTIFIER:
            raise value_error(
                "`path` must be a LiteRT file", first_bytes=data[:8]
            )
        self._schema = schema
        self.model: Any = schema.ModelT.InitFromObj(
            schema.Model.GetRootAs(data)
        )
        found = [
            x
            for x in self.model.signatureDefs or []
            if x.signatureKey == _SIGNATURE
        ]
        names = {x.name.decode() for x in found[0].outputs} if found else set()
        check_marks(names)
        if any((x.offset or 0) > 1 for x in self.model.buffers):
            raise value_error(
                "`path` must be a file of less than 2 GB, whose constants "
                "lie in the graph",
                buffers=len(self.model.buffers),
            )
        self.signature = found[0]
        self.graph = self.model.subgraphs[self.signature.subgraphIndex]

    def logits_shape(self) -> tuple:
        """Shape of the answer `logits`, None where it is open."""
        tensor = self.graph.tensors[self._output("logits")]
        sides = tensor.shapeSignature
        if sides is None or not len(sides):
            sides = tensor.shape
        # Not every quantiser keeps the mark of the open axis of the batch.
        return (None, *(None if n < 0 else int(n) for n in sides[1:]))

    def constant(self, name: str) -> float | None:
        """A constant that an earlier graft has named, or None."""
        found = self._named(name)
        return None if found is None else read_constant(self._bytes(found))

    def set_constant(self, name: str, value: float) -> None:
        """Replaces a constant that a graft has named."""
        tensor = self._named(name)
        data = np.frombuffer(np.float32(value).tobytes(), np.uint8)
        self.model.buffers[tensor.buffer].data = data

    def graft(self, tail: "LiteRTGraph") -> None:
        """Replaces all that follows the network's logits by another graph."""
        graph, added = self.graph, tail.graph
        if len(tail.model.subgraphs) > 1:
            raise value_error(
                "`score` must be a function without loops", score="a loop"
            )
        tail._name_constants()
        cut = self._dequantized(self._cut())
        graph.operators = self._needed(cut)
        codes, buffers = len(self.model.operatorCodes), len(self.model.buffers)
        tensors = len(graph.tensors)
        self.model.operatorCodes += tail.model.operatorCodes
        self.model.buffers += tail.model.buffers
        (taken,) = added.inputs

        def moved(index):
            if index == taken:
                return cut
            return int(index) + tensors if index >= 0 else -1

        for tensor in added.tensors:
            # The first buffer of a file is the empty one.
            tensor.buffer += buffers if tensor.buffer else 0
            tensor.name = PREFIX.encode() + (tensor.name or b"")
        for operator in added.operators:
            operator.opcodeIndex += codes
            operator.inputs = [moved(i) for i in _ids(operator.inputs)]
            operator.outputs = [moved(i) for i in _ids(operator.outputs)]
        graph.tensors += added.tensors
        graph.operators += added.operators
        graph.outputs = [moved(i) for i in added.outputs]
        for output in tail.signature.outputs:
            output.tensorIndex = moved(output.tensorIndex)
        self.signature.outputs = tail.signature.outputs
        self._drop_unused()

    def inputs_of(self, output: str) -> set[str]:
        """Names of the inputs that an output depends on."""
        needed = self._needed(self._output(output))
        read = {i for x in needed for i in _ids(x.inputs)}
        return {
            x.name.decode()
            for x in self.signature.inputs
            if int(x.tensorIndex) in read
        }

    def score_operators(self) -> list[str]:
        """Kinds of the operators from the logits to the score."""
        kinds = {
            code: name
            for name, code in vars(self._schema.BuiltinOperator).items()
            if isinstance(code, int)
        }
        before = {id(x) for x in self._needed(self._output("logits"))}
        codes = [
            self.model.operatorCodes[x.opcodeIndex]
            for x in self._needed(self._output("score"))
            if id(x) not in before
        ]
        # Old files have the code of an operator in another place.
        return [
            kinds[max(x.builtinCode or 0, x.deprecatedBuiltinCode or 0)]
            for x in codes
        ]

    def packed(self) -> bytes:
        """The bytes of the file."""
        import flatbuffers

        class Builder(flatbuffers.Builder):
            # Python's packer does not align constants, as the format asks.
            def CreateNumpyVector(self, x):  # noqa: N802
                if x.dtype == np.uint8:
                    self.Prep(_ALIGNMENT, len(x))
                return super().CreateNumpyVector(x)

        builder = Builder(2**20)
        builder.Finish(self.model.Pack(builder), file_identifier=_IDENTIFIER)
        return bytes(builder.Output())

    def _output(self, name: str) -> int:
        found = {x.name.decode(): x for x in self.signature.outputs}
        return int(found[name].tensorIndex)

    def _named(self, name: str) -> Any:
        wanted = (PREFIX + name).encode()
        found = [x for x in self.graph.tensors if x.name == wanted]
        return found[0] if found else None

    def _bytes(self, tensor: Any) -> bytes:
        data = self.model.buffers[tensor.buffer].data
        return b"" if data is None else np.asarray(data, np.uint8).tobytes()

    def _name_constants(self) -> None:
        """Names temperature and threshold of a tail, found by their values."""
        singles = {}
        for i, tensor in enumerate(self.graph.tensors):
            data = self._bytes(tensor)
            if tensor.type == self._schema.TensorType.FLOAT32 and (
                len(data) == 4
            ):
                singles[i] = read_constant(data)
        for name, i in names_of_constants(singles).items():
            tensor = self.graph.tensors[i]
            tensor.name = name.encode()
            # Its own buffer, as equal constants may share one.
            copy = self._schema.BufferT()
            copy.data = self.model.buffers[tensor.buffer].data
            self.model.buffers.append(copy)
            tensor.buffer = len(self.model.buffers) - 1

    def _cut(self) -> int:
        """The tensor of the network's logits."""
        logits = self._output("logits")
        marks = [
            self.graph.tensors.index(x)
            for name in ("temperature", "inverse_temperature")
            if (x := self._named(name)) is not None
        ]
        for operator in self.graph.operators:
            inputs = [int(i) for i in operator.inputs]
            if logits in operator.outputs and set(inputs) & set(marks):
                (before,) = set(inputs) - set(marks)
                return before
        return logits

    def _dequantized(self, index: int) -> int:
        """A tensor in float32."""
        kinds, tensor = self._schema.TensorType, self.graph.tensors[index]
        if tensor.type == kinds.FLOAT32:
            return index
        if tensor.quantization is None:
            raise value_error(
                "`path` must have logits in float32 or quantised",
                type=tensor.type,
            )
        code = self._schema.OperatorCodeT()
        code.builtinCode = self._schema.BuiltinOperator.DEQUANTIZE
        code.deprecatedBuiltinCode = code.builtinCode
        code.version = 2
        self.model.operatorCodes.append(code)
        made = self._schema.TensorT()
        made.shape, made.shapeSignature = tensor.shape, tensor.shapeSignature
        made.type, made.name = kinds.FLOAT32, (PREFIX + "float").encode()
        self.graph.tensors.append(made)
        operator = self._schema.OperatorT()
        operator.opcodeIndex = len(self.model.operatorCodes) - 1
        operator.inputs = [index]
        operator.outputs = [len(self.graph.tensors) - 1]
        self.graph.operators.append(operator)
        return operator.outputs[0]

    def _needed(self, cut: int) -> list:
        """The operators that lead to a tensor, in their order."""
        resource = self._schema.TensorType.RESOURCE
        stateful = {
            i for i, x in enumerate(self.graph.tensors) if x.type == resource
        }
        wanted, kept = {cut}, []
        for operator in reversed(self.graph.operators):
            inputs, outputs = _ids(operator.inputs), _ids(operator.outputs)
            touches = stateful & {*inputs, *outputs}
            if wanted & set(outputs) or touches or not outputs:
                wanted |= set(inputs)
                kept.append(operator)
        return kept[::-1]

    def _drop_unused(self) -> None:
        graph, graphs = self.graph, self.model.subgraphs
        used = {*_ids(graph.inputs), *_ids(graph.outputs)}
        for operator in graph.operators:
            parts = (operator.inputs, operator.outputs, operator.intermediates)
            used |= {i for part in parts for i in _ids(part)}
        new = _places(used - {-1}) | {-1: -1}
        graph.tensors = [x for i, x in enumerate(graph.tensors) if i in used]
        graph.inputs = [new[i] for i in _ids(graph.inputs)]
        graph.outputs = [new[i] for i in _ids(graph.outputs)]
        for operator in graph.operators:
            operator.inputs = [new[i] for i in _ids(operator.inputs)]
            operator.outputs = [new[i] for i in _ids(operator.outputs)]
            between = [new[i] for i in _ids(operator.intermediates)]
            operator.intermediates = between or None
        for mapped in (*self.signature.inputs, *self.signature.outputs):
            mapped.tensorIndex = new[int(mapped.tensorIndex)]
        operators = [x for g in graphs for x in g.operators or []]
        new = _places(x.opcodeIndex for x in operators)
        self.model.operatorCodes = [self.model.operatorCodes[i] for i in new]
        for operator in operators:
            operator.opcodeIndex = new[operator.opcodeIndex]
        holders = [x for g in graphs for x in g.tensors]
        holders += self.model.metadata or []
        new = _places([0, *(x.buffer for x in holders)])
        self.model.buffers = [self.model.buffers[i] for i in new]
        for holder in holders:
            holder.buffer = new[holder.buffer]
        # A list of buffers from before metadata had names.
        self.model.metadataBuffer = None


def _ids(indices: Any) -> list[int]:
    return [] if indices is None else [int(i) for i in indices]


def _places(used: Iterable[int]) -> dict[int, int]:
    """New numbers of what is kept, in the old order."""
    return {old: new for new, old in enumerate(sorted(set(used)))}
