"""A Python kernel that calls one of Callboard's operators, for test_ops.py; devices import it."""

from __future__ import annotations

import torch

import callboard
from callboard import ops


@callboard.kernel(op="ops_kernels::normed", fake=lambda x, weight: torch.empty_like(x))
def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """rms_norm from Python, in a device."""
    return ops.rms_norm(x, weight)
