"""What the shipped binaries load: the coordinator neither LibTorch nor Python, a CPU device no CUDA library."""

from __future__ import annotations

import os
import pathlib
import subprocess
from typing import Any

import pytest

BIN = pathlib.Path(os.environ.get("CALLBOARD_BIN_DIR", "build/release/bin"))


def needed(binary: str) -> list[str]:
    """Every shared library that the dynamic linker would load, transitively."""
    done = subprocess.run(["ldd", str(BIN / binary)], capture_output=True, text=True, timeout=60, check=True)
    return [line.split()[0] for line in done.stdout.splitlines() if line.strip()]


def test_the_command_and_coordinator_binary_links_neither_torch_nor_python() -> None:
    libraries = needed("callboard")
    assert any("libzmq" in name for name in libraries), "ldd told nothing"
    for word in ("torch", "c10", "python", "cuda"):
        assert not [name for name in libraries if word in name.lower()]


@pytest.mark.parametrize("word", ["torch_cuda", "c10_cuda", "cudnn", "nccl", "libpython"])
def test_a_cpu_device_actor_does_not_link(word: str) -> None:
    libraries = needed("callboard-device")
    assert any("libtorch_cpu" in name for name in libraries), "ldd told nothing"
    assert not [name for name in libraries if word in name.lower()]


def test_a_running_cpu_device_has_no_cuda_library_and_the_plug_in_is_where_they_are(cluster: Any) -> None:
    """What ldd cannot see: libraries opened at run time."""
    pids = [actor["pid"] for actor in cluster.status()["actors"] if actor["name"].startswith("cpu")]
    assert pids
    for pid in pids:
        maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
        assert "libtorch_cpu" in maps
        for word in ("libtorch_cuda", "libc10_cuda", "libcudnn", "libnccl", "libcublas", "callboard_cuda"):
            assert word not in maps
    if (BIN / "callboard_cuda.so").exists():
        assert any("libtorch_cuda" in name for name in needed("callboard_cuda.so"))
