"""Tensors between torch and the native module: checks on the way in, zero-copy views on the way out.

On the way in a tensor is described by address, sizes and strides rather than as a DLPack capsule: DLPack rewrites the
strides of dimensions of size one, and operators choose their kernels by strides.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from callboard.errors import InputError

# A strided view is sent as the memory it spans; beyond this waste it is copied together first.
_WASTE_BYTES_MAX = 64 * 1024
_WASTE_FACTOR_MAX = 4

_DTYPE_NAMES = {
    dtype: str(dtype).removeprefix("torch.") for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)
}


def to_native(value: Any, name: str) -> Any:
    """An argument of a call as the native module takes it; InputError names the argument and what is wrong with it."""
    if not isinstance(value, torch.Tensor):
        if value is None or isinstance(value, (bool, int, float)):
            return value
        raise InputError(
            f"argument '{name}' is a {type(value).__name__}, a tensor is expected",
            hint="torch.as_tensor(x) makes a tensor of an array or a list" if hasattr(value, "__len__") else "",
        )
    if value.requires_grad and not torch.is_grad_enabled():
        value = value.detach()  # shares the memory; eager would record nothing either
    if value.requires_grad or value.layout is not torch.strided or not value.is_cpu or value.is_quantized:
        _refuse(value, name)
    if value.is_conj():
        value = value.resolve_conj()
    if value.is_neg():
        value = value.resolve_neg()
    if type(value) is not torch.Tensor:
        value = _unwrapped(value, name)
    sizes, strides = value.shape, value.stride()
    extent = value.nbytes
    if extent and not value.is_contiguous():
        item = value.element_size()
        spanned = item * (1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)))
        if spanned > _WASTE_BYTES_MAX and spanned > _WASTE_FACTOR_MAX * extent:
            value = value.clone(memory_format=torch.preserve_format)
            strides, spanned = value.stride(), value.nbytes
        extent = spanned
    return (value.data_ptr(), _DTYPE_NAMES[value.dtype], sizes, strides, 0, extent, value)


def from_native(value: Any) -> Any:
    """A result as torch has it, without a copy; numbers and None as they are."""
    if value is None or isinstance(value, (int, float, str)):
        return value
    return from_dlpack(value)


def _unwrapped(value: torch.Tensor, name: str) -> torch.Tensor:
    """Parameters are plain tensors; other subclasses may hold their data elsewhere."""
    if isinstance(value, (torch.nn.Parameter, torch.nn.Buffer)):
        return value.detach()
    if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise InputError(
            f"argument '{name}' is a {type(value).__name__}, a subclass of Tensor that does not say where its data are",
            hint="pass a plain torch.Tensor",
        )
    return value.as_subclass(torch.Tensor)


def _refuse(value: torch.Tensor, name: str) -> None:
    if value.requires_grad:
        raise InputError(
            f"argument '{name}' requires grad; a cluster computes no gradients",
            hint="detach it (x.detach()) or run under torch.no_grad()",
        )
    if value.is_quantized:
        raise InputError(f"argument '{name}' is quantized", hint="call x.dequantize()")
    if value.layout is not torch.strided:
        raise InputError(f"argument '{name}' has the layout {value.layout}", hint="call x.to_dense()")
    raise InputError(
        f"argument '{name}' is on {value.device}, arguments are taken from the CPU",
        hint="call x.cpu(); the placement decides where the program runs",
    )
