"""What a node costs, roughly: floating-point operations plus bytes touched. The planner balances devices by it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

# A symbolic size counts as the size it had in the example, or as this where there was none (data-dependent sizes).
_UNKNOWN_SIZE = 128


def node_cost(operator: str, inputs: Iterable[Any], outputs: Iterable[Any]) -> float:
    """`inputs` and `outputs`: the fake tensors of the example run, in the operator's order."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    results = [value for value in outputs if isinstance(value, torch.Tensor)]
    name = operator.removeprefix("aten::").partition(".")[0]
    if name in _VIEWS:
        return 1.0  # no data move
    if name in _LOOKUPS:
        tensors = []  # reads a few rows of its table
    flops = _FLOPS[name](tensors, results) if name in _FLOPS and tensors and results else 0.0
    return flops + sum(_bytes(value) for value in (*tensors, *results))


def _size(value: Any) -> int:
    if isinstance(value, int):
        return value
    hint = getattr(getattr(value, "node", None), "hint", None)
    return int(hint) if isinstance(hint, int) else _UNKNOWN_SIZE


def _numel(tensor: torch.Tensor) -> int:
    return math.prod(_size(size) for size in tensor.shape)


def _bytes(tensor: torch.Tensor) -> float:
    return float(_numel(tensor) * tensor.dtype.itemsize)


def _product(tensors: list[torch.Tensor], results: list[torch.Tensor]) -> float:
    """Matrix products: each result element takes as many multiply-adds as the first operand's last dimension."""
    return 2.0 * _numel(results[0]) * (_size(tensors[0].shape[-1]) if tensors[0].dim() else 1)


def _biased_product(tensors: list[torch.Tensor], results: list[torch.Tensor]) -> float:
    return _product(tensors[1:], results) if len(tensors) > 1 else 0.0


def _attention(tensors: list[torch.Tensor], results: list[torch.Tensor]) -> float:
    query, key = tensors[0], tensors[1]
    return 4.0 * _numel(query) * _size(key.shape[-2])


def _convolution(tensors: list[torch.Tensor], results: list[torch.Tensor]) -> float:
    weight = tensors[1]
    return 2.0 * _numel(results[0]) * _numel(weight) / max(1, _size(weight.shape[0]))


_FLOPS: dict[str, Any] = {
    "mm": _product,
    "bmm": _product,
    "matmul": _product,
    "linear": _product,
    "mv": _product,
    "dot": _product,
    "addmm": _biased_product,
    "baddbmm": _biased_product,
    "addmv": _biased_product,
    "scaled_dot_product_attention": _attention,
    "convolution": _convolution,
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv3d": _convolution,
}
_LOOKUPS = frozenset(("embedding", "gather", "index", "index_select", "dropout", "copy"))
_VIEWS = frozenset(
    "view reshape transpose t permute expand unsqueeze squeeze select slice split chunk unbind detach alias "
    "flatten unflatten movedim expand_as view_as narrow _assert_tensor_metadata".split()
)
