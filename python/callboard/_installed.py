"""Where the installed programs, plug-ins and libraries are. Devices import this: it needs nothing native."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from callboard.errors import StartError

__all__ = ["find_program"]


def find_program(name: str) -> str:
    """$CALLBOARD_BIN_DIR, the package's own bin, the build tree's, this Python's, $PATH."""
    # Not resolved: a build tree holds links to the sources, and its programs are beside it.
    package = Path(__file__).absolute().parent
    folders = [
        package / "bin",
        package.parent.parent / "bin",  # a build tree's
        package.parent / "bin",  # pip install --target
        *(prefix / "bin" for prefix in package.parents[3:4]),  # pip install --user, and any environment
        Path(sys.executable).parent,
        Path(sysconfig.get_path("scripts")),
        Path(sysconfig.get_path("platlib")) / "callboard" / "bin",  # pip install --editable
    ]
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
            f"the program '{name}' is not in {', '.join(dict.fromkeys(map(str, folders)))}"
            + ("" if chosen else ", nor in PATH"),
            hint="CALLBOARD_BIN_DIR names the folder that holds it",
        )
    return found
