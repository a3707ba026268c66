"""What a program's inputs and symbols are called: as the caller calls them, for errors, plans and saved files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from callboard._structure import parameter_names


def input_names(exported: torch.export.ExportedProgram, forward: Callable[..., Any] | None) -> dict[str, str]:
    """Placeholder's name → what its argument is called: "x", "data['a']", "scale"."""
    spec = exported.call_spec.in_spec
    tree = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    parameters = parameter_names(forward, len(tree[0])) if forward is not None else []
    names = {}
    placeholders = [
        input_spec.arg.name
        for input_spec in exported.graph_signature.input_specs
        if input_spec.kind == InputKind.USER_INPUT
    ]
    for placeholder, (path, _) in zip(placeholders, pytree.tree_flatten_with_path(tree)[0], strict=True):
        outer, key, *rest = list[Any](path)
        if outer.idx == 1:
            first = str(key.key)
        else:
            first = parameters[key.idx] if key.idx < len(parameters) else f"argument {key.idx}"
        names[placeholder] = first + pytree.keystr(tuple(rest))
    return names


def dimension_names(
    exported: torch.export.ExportedProgram, dynamic_shapes: Any, called: Mapping[str, str]
) -> dict[Any, str]:
    """Symbol → the Dim's name in dynamic_shapes, for arguments that are plain tensors."""
    values = {
        called[node.name]: node.meta.get("val")
        for node in exported.graph_module.graph.nodes
        if node.op == "placeholder" and node.name in called
    }
    if isinstance(dynamic_shapes, Mapping):
        entries = list(dynamic_shapes.items())
    elif isinstance(dynamic_shapes, (list, tuple)):
        entries = list(zip(values, dynamic_shapes, strict=False))
    else:
        return {}
    names: dict[Any, str] = {}
    for argument, dims in entries:
        value = values.get(argument)
        if not isinstance(value, torch.Tensor):
            continue
        listed = (
            dims.items() if isinstance(dims, Mapping) else enumerate(dims) if isinstance(dims, (list, tuple)) else ()
        )
        for index, dim in listed:
            symbol = getattr(getattr(value.shape[index], "node", None), "expr", None)
            if symbol is not None and symbol.is_Symbol and hasattr(dim, "__name__"):
                names.setdefault(symbol, dim.__name__)
    return names
