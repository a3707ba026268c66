"""Where the installed programs and plug-ins are, and the native client that uses them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from callboard import _native
from callboard.errors import StartError


def find_program(name: str) -> str:
    """$CALLBOARD_BIN_DIR, the package's own bin, the build tree's, this Python's, $PATH."""
    # Not resolved: a build tree holds links to the sources, and its programs are beside it.
    package = Path(__file__).absolute().parent
    folders = [package / "bin", package.parent.parent / "bin", Path(sys.executable).parent]
    chosen = os.environ.get("CALLBOARD_BIN_DIR")
    if chosen:
        folders = [Path(chosen).absolute()]
    for folder in folders:
        candidate = folder / name
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate)
    found = None if chosen else shutil.which(name)
    if found is None:
        raise StartError(
            f"the program '{name}' is not in {', '.join(map(str, folders))}" + ("" if chosen else ", nor in PATH"),
            hint="CALLBOARD_BIN_DIR names the folder that holds it",
        )
    return found


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
