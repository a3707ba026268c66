"""Where a graph node comes from: the module that called it and the line of its source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

_TORCH_FOLDER = str(Path(torch.__file__).parent)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)\n(?P<code>[^\n]*)')
_REPEATED_CALL = re.compile(r"@\d+")
_CODE_LENGTH_MAX = 100


def module_path(node: torch.fx.Node) -> str:
    """encoder.layer.0.attention; empty for the outermost module."""
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or {}
    if not stack:
        return ""
    path = list(stack.values())[-1][0]
    path = path.removeprefix("L['self']").removeprefix("L__self__").lstrip(".")
    # torch marks the second call of the same module as layer@1; for placement it is the same module.
    path = _REPEATED_CALL.sub("", path)
    return "" if path.startswith("_empty_nn_module_stack") else path


def source_line(node: torch.fx.Node) -> str:
    """model.py:12 in forward: x = self.linear(x); the innermost line outside torch, empty if unknown."""
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    chosen = [frame for frame in frames if not frame["file"].startswith((_TORCH_FOLDER, "<"))]
    if not chosen:
        return ""
    frame = chosen[-1]
    code = frame["code"].strip()[:_CODE_LENGTH_MAX]
    return f"{Path(frame['file']).name}:{frame['line']} in {frame['function']}: {code}"
