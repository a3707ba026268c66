"""The native client of the installed programs and plug-ins."""

from __future__ import annotations

from pathlib import Path

from callboard import _native
from callboard._installed import find_program
from callboard.errors import StartError

__all__ = ["connect_client", "find_program"]


def connect_client(cluster: str, timeout: float, memory_limit: int = 0) -> _native.Client:
    """A client whose results may come as CUDA tensors, where this torch can hold them."""
    import torch  # here: importing the package must not take torch's second

    if torch.version.cuda is None:
        return _native.Client.connect(cluster, timeout, memory_limit)
    try:
        plugins = str(Path(find_program("callboard-device")).parent)
    except StartError:
        plugins = ""  # then there is no plug-in either, which the client tells the cluster
    return _native.Client.connect(cluster, timeout, memory_limit, True, plugins)
