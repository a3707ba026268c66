"""What the proof runs: pairs of an entry of PyTorch's op_db and one of the entry's float32 samples."""

from __future__ import annotations

import itertools
import sys
import types
import unittest
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

# Samples are random, and made in any process: those of a pair are the same wherever they are made.
SAMPLE_SEED = 20240229


class Pair(NamedTuple):
    """`entry` is the entry's name with its variant; `sample` counts from 0, -1 says that there is none."""

    entry: str
    sample: int


class Call(NamedTuple):
    """`function(*tensors)` calls the operator; all arguments that are no tensors are part of the function."""

    function: Callable[..., Any]
    tensors: tuple[torch.Tensor, ...]


def load_entries() -> dict[str, Any]:
    """op_db by name, in its order."""
    # PyTorch's test helpers derive a class from expecttest.TestCase and need nothing else of that package here.
    if "expecttest" not in sys.modules:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return {entry.formatted_name: entry for entry in op_db}


def sample_calls(entry: Any, count: int) -> list[Call]:
    """The first `count` float32 samples as calls; none where the entry has no float32 kernel on the CPU."""
    if not entry.supports_dtype(torch.float32, "cpu"):
        return []
    torch.manual_seed(SAMPLE_SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = itertools.islice(entry.sample_inputs("cpu", torch.float32), count)
        return [_as_call(entry, sample) for sample in samples]


def _as_call(entry: Any, sample: Any) -> Call:
    leaves, spec = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

    def function(*given: torch.Tensor) -> Any:
        rest = iter(given)
        values = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        first, args, kwargs = pytree.tree_unflatten(values, spec)
        return entry(first, *args, **kwargs)

    return Call(function, tensors)
