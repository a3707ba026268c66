"""What to add to the cluster file for a Python kernel that its devices lack.

Devices know the operator's name only; here the function is decorated.
"""

from __future__ import annotations

import sys

from callboard.errors import CallboardError, UnknownOperator

__all__ = ["named"]

_PLACEHOLDER = '"module:function"'  # in the hint of a device


def named(error: CallboardError) -> CallboardError:
    """The same error. Where an operator that a device lacks is a Python kernel here, the hint names its function."""
    for one in (error, *error.causes):
        if isinstance(one, UnknownOperator) and _PLACEHOLDER in one.hint:
            target = _target_of(one.operator)
            if target:
                one.hint = one.hint.replace(_PLACEHOLDER, f'"{target}"')
    return error


def _target_of(operator: str) -> str:
    """"module:function" of the decorated function in a module of this process; empty if there is none."""
    for module in list(sys.modules.values()):
        for value in list(getattr(module, "__dict__", {}).values()):
            kernel = getattr(value, "__dict__", {}).get("__callboard_kernel__") if callable(value) else None
            if kernel is not None and kernel.op == operator:
                return str(kernel.target)
    return ""
