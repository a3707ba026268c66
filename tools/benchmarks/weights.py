"""Loading a saved program: time, and the memory that its weights take."""

from __future__ import annotations

import gc
import hashlib
import os
import pathlib
import tempfile
import time

from figure import MIB, Figure, absolute, cpus, pids_of, timed, with_yardstick

LAYERS, WIDTH = 16, 4096  # 64 MiB a layer


def unreclaimable(pids: list[int]) -> int:
    """Bytes of the processes that the system could not take back: private and shared memory, and not files' pages."""
    total = 0
    for pid in pids:
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                total += int(line.split()[1]) * 1024
    return total


def shared_bytes() -> int:
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo does not tell of shared memory")


def load(rounds: int, quick: bool) -> list[Figure]:
    import torch

    import callboard

    torch.set_num_threads(1)
    layers = LAYERS // 4 if quick else LAYERS

    def wait_until_unused(before: int) -> None:
        """The last program's weights have left the host."""
        gc.collect()
        end = time.monotonic() + 30
        while shared_bytes() > before + 32 * MIB or held_files():
            if time.monotonic() > end:
                raise RuntimeError("the weights of a program that nobody has are still there")
            time.sleep(0.02)

    def held_files() -> bool:
        links = pathlib.Path(f"/proc/{node}/fd").iterdir()
        return any(path == link.readlink() for link in links if link.exists())

    with tempfile.TemporaryDirectory(prefix="callboard-bench-") as folder, callboard.launch(cpus(2)) as cluster:
        path = pathlib.Path(folder) / "weights.safetensors"
        pids = [*pids_of(cluster).values(), os.getpid()]
        node = pids_of(cluster)["node"]
        torch.manual_seed(3)
        module = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)])
        x = torch.randn(1, WIDTH)
        before = shared_bytes()
        half = [str(layer) for layer in range(layers // 2)]
        rest = [str(layer) for layer in range(layers // 2, layers)]
        program = cluster.compile(module, (x,), placement={"cpu0": half, "cpu1": rest})
        program.save(path)
        with torch.no_grad():
            expected = module(x)
        del program, module
        wait_until_unused(before)

        def hashed() -> str:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()

        pairs, grown = [], []
        hashed()
        for _ in range(rounds):
            wait_until_unused(before)
            empty = unreclaimable(pids)
            begin = time.perf_counter()
            program = cluster.load(path)
            took = (time.perf_counter() - begin) * 1e6
            torch.testing.assert_close(program(x), expected, rtol=0, atol=0)
            grown.append(float(unreclaimable(pids) - empty))
            del program
            pairs.append((took, timed(hashed)))
        size = path.stat().st_size / MIB
    return [with_yardstick("weights_load", pairs, "us", 1.5,
                           f"load() of a saved program with {size:.0f} MiB of weights on two devices, against reading "
                           "and hashing the file once"),
            absolute("weights_memory", grown, "bytes", 64 * MIB,
                     "what node, devices and client together grew by, without files' pages")]
