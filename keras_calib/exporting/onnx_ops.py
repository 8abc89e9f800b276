"""ONNX graphs of operators that the converter writes wrongly or not at all."""

from typing import Any

import numpy as np

__all__ = ["HANDLERS"]


def _select(context: Any, node: Any, name: str, arguments: list) -> None:
    """Where(c, x, y).

    The converter prefers c x + (1 - c) y, which is NaN where the value that
    is not taken is infinite.
    """
    node.type = "Where"


def _log1p(context: Any, node: Any, name: str, arguments: list) -> None:
    """log(1 + x), which ONNX lacks.

    x log(u) / (u - 1) with u = 1 + x, and x where u rounds to 1: the error
    of u cancels (Kahan).
    """
    (x,), (output,) = node.input, node.output
    dtype = context.get_dtype(output)
    shape = context.get_shape(output)
    context.remove_node(node.name)

    def constant(value):
        values = np.array(value, np.float64)
        made = context.make_const(f"{name}_{value}", values)
        return make("Cast", made.output, {"to": dtype})

    def make(kind, inputs, attributes=None, **options):
        attributes = attributes or {}
        made = context.make_node(kind, inputs, attr=attributes, **options)
        return made.output[0]

    one, zero = constant(1), constant(0)
    u = make("Add", [x, one])
    rest = make("Sub", [u, one])
    lost = make("Equal", [rest, zero])
    rest = make("Where", [lost, one, rest])
    scaled = make("Div", [make("Log", [u]), rest])
    make(
        "Where",
        [lost, x, make("Mul", [scaled, x])],
        outputs=[output],
        name=name,
        shapes=[shape],
        dtypes=[dtype],
    )


# TensorFlow's operator to (function, [new name of the operator]).
HANDLERS = {"SelectV2": (_select, ["Where"]), "Log1p": (_log1p, ["Log1p"])}
