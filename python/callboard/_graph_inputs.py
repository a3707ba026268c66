"""What Dynamo says of a graph's inputs and outputs: which sizes are free, which tensors are the model's own, and which
results share memory with an argument or with each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from callboard._symbols import free_symbols

__all__ = ["Alias", "GraphInput", "GraphOutput", "InexpressibleAliasError", "inputs_of", "outputs_of", "symbols_of"]


class InexpressibleAliasError(Exception):
    """Two tensors share memory in a way that sizes, strides and an offset do not say; the text says which."""


@dataclass(frozen=True)
class GraphInput:
    """`owned`: a parameter or buffer of the model. `symbol`: the input is the value of this size. `derived`: the
    position and dimension of a tensor that has this size, so that it need not be given. `free`: dimensions whose size
    may change from call to call.
    """

    name: str
    owned: bool = False
    symbol: Any = None
    derived: tuple[int, int] | None = None
    free: tuple[int, ...] = ()


@dataclass(frozen=True)
class Alias:
    """Where a result lies in memory that others see, too: in an input's (`base` is its position) or, with the results
    of the same negative `base`, in one of their own. Sizes and strides are ints or expressions over sizes.
    """

    base: int
    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any

    def on(self, memory: torch.Tensor, symbols: Mapping[Any, int]) -> torch.Tensor:
        """The view of `memory` that the result is."""
        sizes, strides = ([value_of(item, symbols) for item in each] for each in (self.sizes, self.strides))
        return torch.as_strided(memory, sizes, strides, value_of(self.offset, symbols))

    def extent(self, symbols: Mapping[Any, int]) -> int:
        """Elements from the start of the memory to the end of the result."""
        sizes, strides = ([value_of(item, symbols) for item in each] for each in (self.sizes, self.strides))
        if 0 in sizes:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        return value_of(self.offset, symbols) + last + 1


@dataclass(frozen=True)
class GraphOutput:
    """`identical`: the position of the input that it is. `alias`: see there."""

    requires_grad: bool = False
    identical: int | None = None
    alias: Alias | None = None


def inputs_of(graph: torch.fx.Graph) -> list[GraphInput]:
    """In the order in which the graph is called."""
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    sizes: dict[Any, tuple[int, int]] = {}
    for position, node in enumerate(nodes):
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor):
            for dim, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    sizes.setdefault(size.node.expr, (position, dim))
    return [_input(node, sizes) for node in nodes]


def _input(node: torch.fx.Node, sizes: dict[Any, tuple[int, int]]) -> GraphInput:
    value = node.meta.get("example_value")
    if isinstance(value, torch.SymInt):
        return GraphInput(node.name, symbol=value.node.expr, derived=sizes.get(value.node.expr))
    if not isinstance(value, torch.Tensor):
        return GraphInput(node.name)
    kept = "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {})
    free = tuple(dim for dim, size in enumerate(value.shape) if free_symbols(size))
    return GraphInput(node.name, owned=(kept or isinstance(value, torch.nn.Parameter)) and not free, free=free)


def symbols_of(inputs: Sequence[GraphInput], args: Sequence[Any]) -> dict[Any, int]:
    """The sizes of a call."""
    return {item.symbol: int(args[position]) for position, item in enumerate(inputs) if item.symbol is not None}


def outputs_of(graph: torch.fx.Graph) -> list[GraphOutput]:
    """In the order of the flat results. InexpressibleAliasError."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    values = [node.meta.get("example_value") for node in placeholders]
    owners = {_memory(value): position for position, value in enumerate(values) if isinstance(value, torch.Tensor)}
    output = next(node for node in graph.nodes if node.op == "output")
    leaves = tree_leaves(output.args[0])
    fakes = [leaf.meta.get("example_value") if isinstance(leaf, torch.fx.Node) else leaf for leaf in leaves]
    shared: dict[Any, int] = {}
    for fake in fakes:
        if isinstance(fake, torch.Tensor):
            shared[_memory(fake)] = shared.get(_memory(fake), 0) + 1
    bases: dict[Any, tuple[int, torch.dtype]] = {}
    found = []
    for leaf, fake in zip(leaves, fakes, strict=True):
        if not isinstance(fake, torch.Tensor):
            found.append(GraphOutput())
            continue
        if leaf in placeholders:
            found.append(GraphOutput(fake.requires_grad, identical=placeholders.index(leaf)))
            continue
        memory = _memory(fake)
        alias = None
        if memory in owners:
            alias = _alias(owners[memory], fake, values[owners[memory]].dtype)
        elif shared[memory] > 1:
            base, dtype = bases.setdefault(memory, (-1 - len(bases), fake.dtype))
            alias = _alias(base, fake, dtype)
        found.append(GraphOutput(fake.requires_grad, alias=alias))
    return found


def _memory(fake: torch.Tensor) -> Any:
    if fake.layout is not torch.strided:
        raise InexpressibleAliasError(f"a tensor of the layout {fake.layout} comes or goes")
    return fake.untyped_storage()._cdata


def _alias(base: int, fake: torch.Tensor, dtype: torch.dtype) -> Alias:
    if fake.dtype is not dtype or fake.is_conj() or fake.is_neg():
        raise InexpressibleAliasError("a result is a view of other memory with another dtype, conjugated or negated")
    expressions = [
        tuple(size.node.expr if isinstance(size, torch.SymInt) else int(size) for size in each)
        for each in (fake.shape, fake.stride(), (fake.storage_offset(),))
    ]
    return Alias(base, expressions[0], expressions[1], expressions[2][0])


def value_of(expression: Any, symbols: Mapping[Any, int]) -> int:
    """An int, or an expression over sizes that a call has."""
    if isinstance(expression, int):
        return expression
    return int(expression.xreplace({symbol: _integer(value) for symbol, value in symbols.items()}))


def _integer(value: int) -> Any:
    import sympy

    return sympy.Integer(value)
