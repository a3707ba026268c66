"""Builds my_ops.cpp with torch.utils.cpp_extension, for the torch of this Python: python build.py FOLDER

Prints the library's path, which goes to the cluster file: operators: [{path: …}].
"""

from __future__ import annotations

import sys
from pathlib import Path

from torch.utils import cpp_extension


def build(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    cpp_extension.load(
        name="myops",
        sources=[str(Path(__file__).with_name("my_ops.cpp"))],
        build_directory=str(folder),
        is_python_module=False,
        # Only what it uses. Without this it links libtorch_python and CUDA's libraries: devices load such a library,
        # too, but with all of that.
        extra_ldflags=["-Wl,--as-needed"],
    )
    return folder / "myops.so"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: build.py FOLDER")
    print(build(Path(sys.argv[1])))
