"""From torch.export to a program: every operator of the exported graph becomes a node, in the exporter's order.

Which graph. torch.export gives the operators that eager calls (linear, layer_norm, scaled_dot_product_attention, …),
and devices call exactly those through the same dispatcher: results are bit for bit those of eager without gradients.
Nothing is decomposed. The one exception are programs in which some operator writes to a tensor (y.add_(1), a buffer's
counter, y[:, 0] = 3), and those with autocast regions: they are rewritten by torch's functionalisation
(run_decompositions with an empty table, which keeps composite operators). A write is an effect on shared memory, and
after a split the memory is not shared any more: a tensor that crosses to another device is that device's private view.
Written buffers become states of the program.

What is left out, and why that is safe: aten::_assert_tensor_metadata restates dtype and layout that the program
declares of each value anyway and every device checks; size arithmetic (sym_size, mul and add of sizes) is evaluated
from expressions where it is used; assertions that hold whatever the input is. All other assertions become
callboard_sym::assert nodes.

What differs from eager all the same, by a rounding: nn.TransformerEncoderLayer has a second implementation for
inference that torch.export never sees (torch.backends.mha.set_fastpath_enabled(False) makes eager take the exported
one); and MKL rounds by the alignment of memory: weights that are mapped from a file at odd addresses are aligned on a
device (copy.deepcopy(module) aligns them here). Whether a parameter requires grad travels with it: torch's matmul
chooses its path by that, even under no_grad.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from callboard import _capture
from callboard._arguments import Argument
from callboard._checked import shown
from callboard._convert import Converter
from callboard._structure import Structure
from callboard._symbols import Expr
from callboard.errors import ExportError

__all__ = ["Builder", "build_program", "export"]

# torch.export patches global state while it traces.
_EXPORT_LOCK = threading.Lock()


class Builder(Protocol):
    """What the exporter needs of the native module's FragmentBuilder; tests have one in Python."""

    def add_symbol(self, name: str, min: int = 0, max: int | None = None) -> int: ...
    def add_input(
        self, name: str, dtype: str | None = None, sizes: list[Expr] | None = None, kind: Any = "tensor"
    ) -> int: ...
    def add_constant(
        self,
        name: str,
        storage: tuple[int, int],
        dtype: str,
        sizes: list[int],
        strides: list[int],
        offset: int = 0,
        owner: object = None,
        requires_grad: bool = False,
    ) -> int: ...
    def add_state(self, name: str, before: int, after: int) -> None: ...
    def add_node(
        self,
        op: str,
        args: list[Argument] = ...,
        kwargs: dict[str, Argument] | None = None,
        outputs: list[Any] = ...,
        name: str = "",
        module_path: str = "",
        source: str = "",
        cost: float = 0.0,
    ) -> list[Any]: ...
    def add_output(self, name: str, source: Argument) -> None: ...
    def set_annotation(self, key: str, value: str) -> None: ...


def export(
    module: torch.nn.Module | Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> torch.export.ExportedProgram:
    """torch.export without gradients, functionalised where need be; ExportError says what to change in the module."""
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ExportError(
            f"kwargs is {shown(kwargs)}; allowed: a dict of example arguments by name, or None",
            hint="kwargs={'mask': mask}",
        )
    with _EXPORT_LOCK:
        return _capture.capture(module, args, dict(kwargs or {}), dynamic_shapes)


def build_program(
    exported: torch.export.ExportedProgram,
    builder: Builder,
    *,
    forward: Callable[..., Any] | None = None,
    dynamic_shapes: Any = None,
) -> Structure:
    """Fills `builder` with the program and returns how it is called. ExportError has everything that is unsupported as
    causes, not the first thing only. `forward` gives parameters their names; `dynamic_shapes` gives symbols theirs.
    """
    return Converter(exported, builder, forward, dynamic_shapes).convert()
