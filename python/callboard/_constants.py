"""Parameters, buffers and constants of an exported program, by storage: tied weights and views stay one storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from callboard._arguments import dtype_name

if TYPE_CHECKING:
    from callboard.export import Builder


class UnsupportedTensorError(Exception):
    """A tensor that has no dense bytes on the CPU; the text says which and what it is."""


class ConstantTable:
    """Adds each constant to the builder once, when it is first used."""

    def __init__(self, exported: torch.export.ExportedProgram, builder: Builder) -> None:
        self._tensors: dict[str, torch.Tensor] = {**exported.state_dict}
        for name, value in exported.constants.items():
            if isinstance(value, torch.Tensor):
                self._tensors.setdefault(name, value)
        self._builder = builder
        self._ids: dict[str, int] = {}

    def add(self, name: str) -> int:
        """Id of the value that holds the constant."""
        if name not in self._ids:
            requires_grad = self._tensors[name].requires_grad
            tensor = dense(self._tensors[name].detach(), name)
            storage = tensor.untyped_storage()
            self._ids[name] = self._builder.add_constant(
                name,
                (storage.data_ptr(), storage.nbytes()),
                dtype_name(tensor.dtype),
                list(tensor.shape),
                list(tensor.stride()),
                int(tensor.storage_offset()),
                tensor,
                requires_grad,
            )
        return self._ids[name]


def dense(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """The tensor itself if its memory says all about it, a resolved copy for lazy conjugates and negatives."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else type(tensor).__name__
        raise UnsupportedTensorError(f"'{name}' is a {kind} tensor; only ordinary dense tensors are supported")
    if tensor.layout != torch.strided or tensor.is_mkldnn:
        raise UnsupportedTensorError(f"'{name}' has the layout {tensor.layout}; call .to_dense() first")
    if tensor.device.type != "cpu":
        raise UnsupportedTensorError(f"'{name}' is on {tensor.device}; call .cpu() first")
    if tensor.is_conj():
        tensor = tensor.resolve_conj()
    return tensor.resolve_neg() if tensor.is_neg() else tensor
