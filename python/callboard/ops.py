"""Callboard's own operators, `torch.ops.callboard.*`: for eager calls, torch.compile, torch.export and TorchScript, and
by the same shared library on every device.

    rms_norm      y = x / sqrt(mean(x * x, last dimension) + eps) * weight
    paged_append  writes new tokens of sequences into a paged KV cache
    paged_gather  reads sequences of a paged KV cache as one dense tensor

Importing this module loads the library, once in a process, and registers its operators. It imports torch.
StartError where the library is not installed or does not load.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch

from callboard._installed import find_program
from callboard.errors import StartError

__all__ = ["paged_append", "paged_gather", "rms_norm", "rms_norm_pybind"]

_LIBRARY = "callboard_ops.so"


def _load() -> None:
    # Where a device has an interpreter in its own process, the device may have been first.
    if torch._C._jit_get_schemas_for_operator("callboard::rms_norm"):
        return
    path = Path(find_program("callboard-device")).with_name(_LIBRARY)
    try:
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    except OSError as problem:
        raise StartError(
            f"Callboard's operators cannot be loaded: {problem}",
            hint=f"{_LIBRARY} of the same build must lie beside callboard-device, and torch be the one that it "
            "was built with",
        ) from problem


_load()


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """x (..., d) over the root of the mean of its squares along the last dimension, times weight (d).

    float32, float64, bfloat16 or float16, both alike and on one device; squares are summed in float32, in float64 for
    float64. Any strides; the result is contiguous. Differentiable, twice. RuntimeError says what is wrong.
    """
    return cast(torch.Tensor, torch.ops.callboard.rms_norm.default(x, weight, eps))


def rms_norm_pybind(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """The same through a plain pybind11 function: a C++ function that torch.compile cannot look into, so that the graph
    breaks here and torch.export refuses it. To show the difference; use rms_norm().
    """
    from callboard import _plain_ops

    return _plain_ops.rms_norm(x, weight, eps)


def paged_append(
    cache: torch.Tensor, tokens: torch.Tensor, block_table: torch.Tensor, positions: torch.Tensor
) -> None:
    """Writes tokens (sequences, new, ...) into cache (blocks, block size, ...), which must be contiguous.

    block_table (sequences, blocks_max), int32 or int64, says which blocks are a sequence's, in order; positions
    (sequences) where its first new token goes. No gradient. IndexError for a block or position out of range, before
    anything is written (on CUDA an assertion in the kernel); RuntimeError for the rest.
    """
    torch.ops.callboard.paged_append.default(cache, tokens, block_table, positions)


def paged_gather(
    cache: torch.Tensor, block_table: torch.Tensor, lengths: torch.Tensor, max_length: int
) -> torch.Tensor:
    """(sequences, max_length, ...): each sequence's first lengths[i] tokens, then zeros. No gradient.

    Errors as of paged_append().
    """
    return cast(torch.Tensor, torch.ops.callboard.paged_gather.default(cache, block_table, lengths, max_length))
