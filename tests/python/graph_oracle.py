"""A program builder and interpreter in Python: what the exporter builds can be run, call by call, without a cluster.

It takes exactly the calls of callboard._native.FragmentBuilder, checks what a device checks (types, sizes, counts) and
calls the same operators through torch.ops. So a difference between a device and this one is a fault of the device's
side, and a difference between this one and eager is a fault of the exporter.
"""

from __future__ import annotations

import ctypes
import math
import operator
from dataclasses import dataclass, field
from typing import Any

import torch

_BINARY = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod, "min": min,
    "max": max, "**": operator.pow, "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge, "and": lambda a, b: bool(a) and bool(b), "or": lambda a, b: bool(a) or bool(b),
}  # fmt: skip

_PRIMITIVES = {
    **{name: getattr(operator, name) for name in "add sub mul floordiv truediv mod pow eq ne lt le gt ge neg".split()},
    "abs": abs,
    "min": min,
    "max": max,
    "int": int,
    "float": float,
    "round": round,
    "not": operator.not_,
    **{name: getattr(math, name) for name in ("floor", "ceil", "trunc", "sqrt")},
    "and": lambda a, b: bool(a and b),
    "or": lambda a, b: bool(a or b),
    "ite": lambda condition, a, b: a if condition else b,
}


@dataclass
class RecordedNode:
    """One add_node()."""

    op: str
    args: list[Any]
    kwargs: dict[str, Any]
    outputs: list[Any]
    ids: list[Any]
    name: str
    module_path: str
    source: str
    cost: float


@dataclass
class RecordedConstant:
    """One add_constant(); `tensor` is a view of the storage as the builder was told of it."""

    name: str
    storage: tuple[int, int]
    tensor: torch.Tensor
    owner: object


@dataclass
class GraphOracle:
    """Records the calls, and runs them."""

    symbols: list[tuple[str, int, int | None]] = field(default_factory=list)
    inputs: list[tuple[str, str | None, list[Any] | None, str, int]] = field(default_factory=list)
    constants: dict[int, RecordedConstant] = field(default_factory=dict)
    states: list[tuple[str, int, int]] = field(default_factory=list)
    nodes: list[RecordedNode] = field(default_factory=list)
    outputs: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    annotations: dict[str, str] = field(default_factory=dict)
    _next: int = 0
    _state_values: dict[int, torch.Tensor] = field(default_factory=dict)

    # -- the builder --------------------------------------------------------------------------------------------------

    def _value(self) -> int:
        self._next += 1
        return self._next - 1

    def add_symbol(self, name, min=0, max=None):
        assert name not in [symbol[0] for symbol in self.symbols]
        self.symbols.append((name, min, max))
        return len(self.symbols) - 1

    def add_input(self, name, dtype=None, sizes=None, kind="tensor"):
        self.inputs.append((name, dtype, sizes, kind, self._value()))
        return self.inputs[-1][-1]

    def add_constant(self, name, storage, dtype, sizes, strides, offset=0, owner=None, requires_grad=False):
        address, size = storage
        raw = (ctypes.c_char * size).from_address(address) if size else b""
        base = torch.frombuffer(raw, dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
        tensor = base.view(getattr(torch, dtype)).as_strided(sizes, strides, offset).detach()
        tensor.requires_grad_(requires_grad)  # detached: of a view's views only the root says whether they require grad
        value = self._value()
        self.constants[value] = RecordedConstant(name, storage, tensor, owner)
        return value

    def add_state(self, name, before, after):
        assert before in self.constants and after not in self.constants
        self.states.append((name, before, after))

    def add_node(self, op, args=(), kwargs=None, outputs=(), name="", module_path="", source="", cost=0.0):
        ids: list[Any] = []
        for spec in outputs:
            if isinstance(spec, list):
                ids.append([None if item is None else self._value() for item in spec])
            else:
                ids.append(None if spec is None else self._value())
        node = RecordedNode(op, list(args), dict(kwargs or {}), list(outputs), ids, name, module_path, source, cost)
        self.nodes.append(node)
        return ids

    def add_output(self, name, source):
        assert source[0] != "expr" or not _mentions_value(source[1]), "only a device knows that"
        self.outputs.append((name, source))

    def set_annotation(self, key, value):
        self.annotations[key] = value

    # -- the interpreter ----------------------------------------------------------------------------------------------

    def run(self, inputs: list[Any]) -> list[Any]:
        """The flat outputs; inputs are those of the program, in order."""
        values: dict[int, Any] = {value: constant.tensor for value, constant in self.constants.items()}
        values.update(self._state_values)
        symbols = self._bind(inputs)
        for (*_, value), given in zip(self.inputs, inputs, strict=True):
            values[value] = given
        with torch.inference_mode():
            for node in self.nodes:
                self._run_node(node, values, symbols)
        self._state_values = {before: values[after] for _, before, after in self.states}
        return [self._argument(source, values, symbols) for _, source in self.outputs]

    def _bind(self, inputs: list[Any]) -> dict[int, int]:
        symbols: dict[int, int] = {}
        for (name, dtype, sizes, kind, _), given in zip(self.inputs, inputs, strict=True):
            if kind != "tensor":
                assert type(given).__name__ == kind, name
                continue
            assert str(given.dtype) == f"torch.{dtype}", name
            for size, expr in zip(given.shape, sizes, strict=True):
                if isinstance(expr, tuple) and expr[0] == "sym":
                    assert symbols.setdefault(expr[1], size) == size, name
                    _, low, high = self.symbols[expr[1]]
                    assert low <= size and (high is None or size <= high), name
        for (name, _, sizes, _, _), given in zip(self.inputs, inputs, strict=True):
            for size, expr in zip(given.shape if sizes is not None else (), sizes or (), strict=True):
                if all(symbol in symbols for symbol in _symbols_of(expr)):
                    assert self._expr(expr, {}, symbols) == size, (name, expr)
                else:
                    self._solve(expr, size, symbols)
        assert len(symbols) == len(self.symbols)
        return symbols

    def _solve(self, expr, size, symbols):
        (unknown,) = _symbols_of(expr)
        symbols[unknown] = next(n for n in range(size + 1) if self._expr(expr, {}, {**symbols, unknown: n}) == size)

    def _expr(self, expr: Any, values: dict[int, Any], symbols: dict[int, int]) -> int:
        if isinstance(expr, int):
            return expr
        kind = expr[0]
        if kind == "sym":
            return symbols[expr[1]]
        if kind == "value":
            assert isinstance(values[expr[1]], (int, bool))
            return int(values[expr[1]])
        operands = [self._expr(operand, values, symbols) for operand in expr[1:]]
        return int(not operands[0]) if kind == "not" else int(_BINARY[kind](*operands))

    def _argument(self, argument: tuple[Any, ...], values: dict[int, Any], symbols: dict[int, int]) -> Any:
        kind = argument[0]
        if kind == "none":
            return None
        content = argument[1]
        if kind == "tensor":
            return values[content]
        if kind in ("tensors", "optional_tensors"):
            return [None if value is None else values[value] for value in content]
        if kind == "expr":
            return self._expr(content, values, symbols)
        if kind == "ints":
            return [self._expr(item, values, symbols) for item in content]
        if kind in ("dtype", "layout", "memory_format"):
            return getattr(torch, content)
        if kind == "device_slot":
            return torch.device("cpu")
        assert kind in ("int", "float", "bool", "complex", "str", "scalar", "floats", "bools", "strs"), kind
        return content

    def _run_node(self, node: RecordedNode, values: dict[int, Any], symbols: dict[int, int]) -> None:
        args = [self._argument(argument, values, symbols) for argument in node.args]
        kwargs = {name: self._argument(argument, values, symbols) for name, argument in node.kwargs.items()}
        if node.op == "callboard_sym::assert":
            assert args[0], args[1]
            return
        results = self._call(node.op, args, kwargs)
        for spec, value, made in zip(node.outputs, node.ids, results, strict=True):
            self._store(spec, value, made, values, symbols, node)

    def _call(self, op: str, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
        if op == "callboard_sym::size":
            return [args[0].shape[args[1]]]
        if op.startswith("callboard_sym::"):
            return [_PRIMITIVES[op.removeprefix("callboard_sym::")](*args)]
        namespace, _, rest = op.partition("::")
        name, _, overload = rest.partition(".")
        function = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
        made = function(*args, **kwargs)
        count = len(function._schema.returns)
        return [] if count == 0 else [made] if count == 1 else list(made)

    def _store(self, spec, value, made, values, symbols, node):
        if isinstance(spec, list):
            assert len(spec) == len(made), node
            for item, single, element in zip(spec, value, made, strict=True):
                self._store(item, single, element, values, symbols, node)
            return
        if spec is None:
            return
        kind = spec[0]
        if kind == "tensor":
            assert isinstance(made, torch.Tensor), node
            assert spec[2] is None or str(made.dtype) == f"torch.{spec[2]}", (node, made.dtype)
            if spec[3] is not None:
                assert [self._expr(e, values, symbols) for e in spec[3]] == list(made.shape), (node, made.shape)
        else:
            assert type(made).__name__ == kind, (node, made)
        values[value] = made


def _mentions_value(expr: Any) -> bool:
    return isinstance(expr, tuple) and (expr[0] == "value" or any(map(_mentions_value, expr[1:])))


def _symbols_of(expr: Any) -> set[int]:
    if not isinstance(expr, tuple):
        return set()
    return {expr[1]} if expr[0] == "sym" else set().union(*map(_symbols_of, expr[1:]))
