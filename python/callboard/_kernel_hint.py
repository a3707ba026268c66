"""What to add to the cluster file for an operator that its devices lack.

Devices know the operator's name only; here the function is decorated, or the library is loaded.
"""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

from callboard.errors import CallboardError, UnknownOperator

__all__ = ["named"]

_FUNCTION = '"module:function"'  # both in the hint of a device
_LIBRARY = "/path/of/its/library.so"


def named(error: CallboardError) -> CallboardError:
    """The same error. Where an operator that a device lacks is a Python kernel here, the hint names its function; where
    a library that was loaded here brings it, its file."""
    for one in (error, *error.causes):
        if not isinstance(one, UnknownOperator):
            continue
        target = _target_of(one.operator) if _FUNCTION in one.hint else ""
        if target:
            one.hint = one.hint.replace(_FUNCTION, f'"{target}"')
        library = _library_of(one.operator) if _LIBRARY in one.hint and not target else ""
        if library:
            one.hint = f"add the library that brings it to the cluster file: operators: [{{path: {library}}}]"
    return error


def _target_of(operator: str) -> str:
    """"module:function" of the decorated function in a module of this process; empty if there is none."""
    for module in list(sys.modules.values()):
        for value in list(getattr(module, "__dict__", {}).values()):
            kernel = getattr(value, "__dict__", {}).get("__callboard_kernel__") if callable(value) else None
            if kernel is not None and kernel.op == operator:
                return str(kernel.target)
    return ""


def _library_of(operator: str) -> str:
    """The file given to torch.ops.load_library() here that has the names of the operator in it; empty if none has.
    LibTorch does not say which library registered what."""
    torch = sys.modules.get("torch")
    if torch is None:
        return ""
    space, _, name = operator.partition("::")
    wanted = [part.encode() for part in (space, name.partition(".")[0])]
    for path in sorted(torch.ops.loaded_libraries):
        try:
            with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if all(content.find(part) >= 0 for part in wanted):
                    return str(path)
        except (OSError, ValueError):  # gone, or empty
            continue
    return ""
