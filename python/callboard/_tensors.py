"""Tensors between torch and the native module: checks on the way in, zero-copy views on the way out.

On the way in a tensor is described by address, sizes and strides rather than as a DLPack capsule: DLPack rewrites the
strides of dimensions of size one, and operators choose their kernels by strides.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from callboard import _native
from callboard.errors import InputError, from_fields

# A strided view is sent as the memory it spans; beyond this waste it is copied together first.
_WASTE_BYTES_MAX = 64 * 1024
_WASTE_FACTOR_MAX = 4

_DTYPE_NAMES = {
    dtype: str(dtype).removeprefix("torch.") for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)
}


def dtype_name(dtype: Any) -> str:
    """Its name on the wire; InputError where no dense tensor has it."""
    name = _DTYPE_NAMES.get(dtype) if isinstance(dtype, torch.dtype) else None
    if name is None:
        raise InputError(f"'dtype' is {dtype!r:.80}; allowed: a torch.dtype")
    return name


def to_native(value: Any, name: str) -> Any:
    """An argument of a call as the native module takes it; InputError names the argument and what is wrong with it."""
    if not isinstance(value, torch.Tensor):
        if value is None or isinstance(value, (bool, int, float)):
            return value
        raise InputError(
            f"argument '{name}' is a {type(value).__name__}, a tensor is expected",
            hint="torch.as_tensor(x) makes a tensor of an array or a list" if hasattr(value, "__len__") else "",
        )
    if value.is_nested or torch._C._functorch.is_functorch_wrapped_tensor(value):
        _refuse_wrapped(value, name)
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
    try:
        sizes, strides, address = value.shape, value.stride(), value.data_ptr()
    except (RuntimeError, NotImplementedError) as error:
        raise InputError(
            f"argument '{name}' is a tensor without memory of its own: {_first_line(error)}",
            hint="pass a plain torch.Tensor",
        ) from error
    extent = value.nbytes
    if extent and not value.is_contiguous():
        item = value.element_size()
        spanned = item * (1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)))
        if spanned > _WASTE_BYTES_MAX and spanned > _WASTE_FACTOR_MAX * extent:
            value = value.clone(memory_format=torch.preserve_format)
            strides, spanned, address = value.stride(), value.nbytes, value.data_ptr()
        extent = spanned
    return (address, _DTYPE_NAMES[value.dtype], sizes, strides, 0, extent, value)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


def from_native(value: Any) -> Any:
    """A result as torch has it, without a copy; numbers and None as they are."""
    if value is None or isinstance(value, (int, float, str)):
        return value
    return from_dlpack(value)


def record_stream(tensor: torch.Tensor, stream: Any = None) -> None:
    """Tells that `stream` reads a result that lies on a GPU (`output_device: cuda`), as Tensor.record_stream does of
    torch's own memory: what the stream is given from here on runs after whoever wrote the tensor, and the memory stays
    the tensor's until the stream has done what it had been given when the tensor was freed.

    Needed for every stream that reads it but the one that was current when the result was taken. `stream` is a
    torch.cuda.Stream of the tensor's GPU; None is the current one. InputError if the tensor is no such result,
    TensorLost if the device that made it has ended. Thread-safe.
    """
    if not isinstance(tensor, torch.Tensor) or not tensor.is_cuda:
        what = f"is on {tensor.device}" if isinstance(tensor, torch.Tensor) else f"is a {type(tensor).__name__}"
        raise InputError(f"record_stream takes a result on a GPU; 'tensor' {what}")
    handle = (torch.cuda.current_stream(tensor.device) if stream is None else stream).cuda_stream
    try:
        _native.record_stream(tensor.untyped_storage().data_ptr(), handle)
    except _native.NativeError as failure:
        raise from_fields(failure.error) from None


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


def _refuse_wrapped(value: torch.Tensor, name: str) -> None:
    """Neither has one block of memory with sizes and strides."""
    if value.is_nested:
        raise InputError(
            f"argument '{name}' is a nested tensor, a dense one is expected",
            hint="torch.nested.to_padded_tensor(x, 0.0) makes it one; or call the program for each of x.unbind()",
        )
    raise InputError(
        f"argument '{name}' is a tensor inside torch.func or torch.vmap, whose data are not there yet",
        hint="call the program outside of the transform; a batch is an argument with one more dimension "
        "(dynamic_shapes=…)",
    )


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
