"""Operators that write to their arguments, as torch.export leaves them: `auto_functionalized` and its second version.

Both stand for an operator that gives the written tensors as further results. In a program the written tensors are
copied first and the operator writes to the copies, which is what the two are defined to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from callboard._arguments import Argument, ArgumentProblem, Ref, bind, dtype_name, operator_name

__all__ = ["add_written", "is_functionalized"]

_VERSIONS = ("auto_functionalized", "auto_functionalized_v2")

AddNode = Callable[[str, list[Argument], dict[str, Argument], Iterable[Any]], list[Any]]
SpecOf = Callable[[str, Any], Any]


def is_functionalized(node: torch.fx.Node) -> bool:
    return getattr(node.target, "__name__", "") in _VERSIONS


def add_written(node: torch.fx.Node, resolve: Callable[[Any], Any], add: AddNode, spec_of: SpecOf) -> list[Any]:
    """The node's results: those of the operator, then the written tensors, as the node gives them."""
    target: Any = node.args[0]
    schema = target._schema
    given = dict(node.kwargs)
    kwargs = {name: resolve(value) for name, value in given.items()}
    written = [argument for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write]

    def copy(original: Any, value: Any, name: str, **options: Any) -> Any:
        if original is None:
            return None
        args, kwargs = bind(torch.ops.aten.clone.default._schema, [original], options)
        return Ref(add("aten::clone", args, kwargs, [spec_of(f"{node.name}.{name}", value.meta["val"])])[0])

    if node.target.__name__ == _VERSIONS[0]:  # type: ignore[union-attr]
        copies = []
        for argument in written:
            kwargs[argument.name] = _each(kwargs[argument.name], given[argument.name], copy, argument.name)
            copies.append(kwargs[argument.name])
    else:
        bases: Any = given["_all_bases"]
        resolved = kwargs.pop("_all_bases")
        pairs = zip(resolved, bases, strict=True)
        laid_out = _read_by_strides(given, bases)
        by_memory = {"memory_format": torch.contiguous_format}
        copies = [
            copy(one, base, f"base{number}", **(by_memory if number in laid_out else {}))
            for number, (one, base) in enumerate(pairs)
        ]
        views = _Views(node, kwargs, copies, [base.meta["val"].dtype for base in bases], add)
        for argument in written:
            kwargs[argument.name] = views.of(argument)
    args, named = bind(schema, [], kwargs)
    results = list(node.meta["val"])[: max(1, len(schema.returns))] if schema.returns else []
    specs = [_spec(f"{node.name}.{number}", value, spec_of) for number, value in enumerate(results)]
    made = add(operator_name(schema), args, named, specs)
    values: list[Any] = [[Ref(item) for item in one] if isinstance(one, list) else Ref(one) for one in made]
    return [*(values or [None]), *copies]


def _read_by_strides(given: dict[str, Any], bases: list[Any]) -> set[int]:
    """Bases of views that say where elements lie in memory: that is known of contiguous ones only, and of those for
    any strides that arrive.
    """
    views = [name.removesuffix("_storage_offset") for name in given if name.endswith("_storage_offset")]
    numbers = {given[f"{view}_base_index"] for view in views}
    for number in numbers:
        fake = bases[number].meta["val"]
        if not fake.is_contiguous() or fake.storage_offset() != 0:
            raise ArgumentProblem("it writes to a part of a tensor that is not contiguous: clone that one first")
    return numbers


def _each(resolved: Any, given: Any, copy: Callable[[Any, Any, str], Any], name: str) -> Any:
    if isinstance(resolved, list):
        pairs = zip(resolved, given, strict=True)
        return [copy(item, value, f"{name}{number}") for number, (item, value) in enumerate(pairs)]
    return copy(resolved, given, name)


def _spec(name: str, value: Any, spec_of: SpecOf) -> Any:
    if isinstance(value, (list, tuple)):
        return [spec_of(f"{name}[{number}]", item) for number, item in enumerate(value)]
    return spec_of(name, value)


class _Views:
    """What an argument is of its base: the base, an alias, a slice of it or strides over its memory."""

    def __init__(
        self, node: torch.fx.Node, kwargs: dict[str, Any], copies: list[Any], dtypes: list[torch.dtype], add: AddNode
    ) -> None:
        self._node = node
        self._kwargs = kwargs
        self._copies = copies
        self._dtypes = dtypes
        self._add = add

    def of(self, argument: Any) -> Any:
        if f"_{argument.name}_length" not in self._kwargs:
            return self._one(f"_{argument.name}")
        length = self._kwargs.pop(f"_{argument.name}_length")
        return None if length is None else [self._one(f"_{argument.name}_{number}") for number in range(length)]

    def _one(self, prefix: str) -> Any:
        def take(name: str) -> Any:
            return self._kwargs.pop(f"{prefix}_{name}", None)

        index, alias = take("base_index"), take("alias")
        dim, start, end = take("slice_dim"), take("slice_start"), take("slice_end")
        size, stride, offset = take("size"), take("stride"), take("storage_offset")
        if index is None:
            return None
        base = self._copies[index]
        if alias or (dim is None and offset is None):
            return base
        operator: Any = torch.ops.aten.as_strided.default if dim is None else torch.ops.aten.slice.Tensor
        given = [base, size, stride, offset] if dim is None else [base, dim, start, end]
        args, kwargs = bind(operator._schema, given, {})
        name = f"{self._node.name}.{prefix.removeprefix('_')}"
        spec = ("tensor", name, dtype_name(self._dtypes[index]), None)
        return Ref(self._add(operator_name(operator._schema), args, kwargs, [spec])[0])
