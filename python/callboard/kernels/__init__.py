"""Python functions as operators of a cluster: the decorator, and the kernels that come with Callboard.

    callboard.kernels.fusions         layer norm, modulation, rotary embedding as one compiled kernel each
    callboard.kernels.sdpa            attention by PyTorch or by SageAttention

Importing this package imports torch, but neither compiles nor connects anything: devices do it before they
are ready.
"""

from __future__ import annotations

from callboard.kernels._registration import KernelSpec, kernel

__all__ = ["KernelSpec", "kernel"]
