"""Callboard: PyTorch programs on the devices of a cluster, from one controlling program.

    import callboard

    with callboard.launch("cluster.yaml") as cluster:
        program = cluster.compile(module, (x,), placement={"cpu0": ["embeddings"], "cpu1": ["encoder"]})
        y = program(x)

Importing this package needs neither a cluster nor torch; torch is imported when the first tensor is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from callboard import errors
from callboard.errors import CallboardError

if TYPE_CHECKING:
    from callboard._compile_backend import compile_backend
    from callboard._launch import launch
    from callboard._native import list_clusters
    from callboard._tensors import record_stream
    from callboard.cluster import Cluster, connect, empty
    from callboard.future import TensorFuture
    from callboard.kernels import kernel
    from callboard.program import Plan, Program

__all__ = [
    "CallboardError",
    "Cluster",
    "Plan",
    "Program",
    "TensorFuture",
    "compile_backend",
    "connect",
    "empty",
    "errors",
    "kernel",
    "launch",
    "list_clusters",
    "record_stream",
]

_WHERE = {
    "Cluster": "callboard.cluster",
    "Plan": "callboard.program",
    "Program": "callboard.program",
    "TensorFuture": "callboard.future",
    "compile_backend": "callboard._compile_backend",
    "connect": "callboard.cluster",
    "empty": "callboard.cluster",
    "kernel": "callboard.kernels",
    "launch": "callboard._launch",
    "list_clusters": "callboard._native",
    "record_stream": "callboard._tensors",
}


def __getattr__(name: str) -> Any:
    """Loads what is used when it is used."""
    if name == "__version__":
        from callboard._native import version

        return version()
    if name not in _WHERE:
        raise AttributeError(f"module 'callboard' has no attribute '{name}'")
    import importlib

    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
