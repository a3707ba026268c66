"""The package's build backend: scikit-build-core's, told which Python has the torch to compile with.

    $CALLBOARD_VENV, if it is set
    this Python, if it has torch (pip's --no-build-isolation; what pip installed for the build)
    the environment that tools/setup made, if its Python is of the same version
    otherwise torch is named as a requirement of the build, and pip installs it for the build alone (5 GB)

The package runs with the torch of the environment that it is installed in, of the same version.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from scikit_build_core import build as backend
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = dict[str, Any] | None  # what `pip -C name=value` gives
_ROOT = Path(__file__).resolve().parents[2]
_HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def _minor(interpreter: Path) -> str | None:
    """'3.11' of an interpreter that has torch, else None."""
    script = ("import importlib.util, sys; sys.exit(1) if importlib.util.find_spec('torch') is None else "
              "print(f'{sys.version_info.major}.{sys.version_info.minor}')")
    try:
        done = subprocess.run([interpreter, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _interpreter_with_torch() -> Path | None:
    chosen = os.environ.get("CALLBOARD_VENV")
    if chosen:
        interpreter = Path(chosen) / "bin/python"
        found = _minor(interpreter)
        if found == _HERE:
            return interpreter
        why = "has no bin/python with torch" if found is None else f"is Python {found}, the package is for {_HERE}"
        raise SystemExit(f"CALLBOARD_VENV={chosen}: {why}")
    if importlib.util.find_spec("torch") is not None:
        return Path(sys.executable)
    setup = _ROOT / "tools/setup"
    if not setup.exists():
        return None
    # Without what pip puts there for its own isolation.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([setup, "--print-env"], capture_output=True, text=True, timeout=60, check=False, env=plain)
    interpreter = Path(done.stdout.strip()) / "bin/python"
    return interpreter if done.returncode == 0 and _minor(interpreter) == _HERE else None


def _torch_requirement() -> list[str]:
    if _interpreter_with_torch() is not None:
        return []
    match = re.search(r'"(torch==[^"]+)"', (_ROOT / "pyproject.toml").read_text())
    if match is None:
        raise SystemExit("pyproject.toml names no version of torch")
    return [match.group(1)]


def _with_torch(settings: Settings) -> dict[str, Any]:
    interpreter = _interpreter_with_torch()
    if interpreter is None:
        raise SystemExit("there is no torch to build with: run tools/setup, or set CALLBOARD_VENV")
    # scikit-build-core would take the compiler that Python itself was built with. The usual one, as tools/build has it:
    # then ccache finds what that compiled.
    os.environ.setdefault("CXX", "c++")
    return {"cmake.define.CALLBOARD_INTERPRETER": str(interpreter), **(settings or {})}


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """What pip installs for the build."""
    return backend.get_requires_for_build_wheel(config_settings) + _torch_requirement()


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """The same for `pip install --editable`."""
    return backend.get_requires_for_build_editable(config_settings) + _torch_requirement()


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Compiles and packs; gives the wheel's file name."""
    return backend.build_wheel(wheel_directory, _with_torch(config_settings), metadata_directory)


def build_editable(wheel_directory: str, config_settings: Settings = None,
                   metadata_directory: str | None = None) -> str:
    """The same, with the Python sources left where they are."""
    return backend.build_editable(wheel_directory, _with_torch(config_settings), metadata_directory)
