"""What a cluster's processes cost while they do nothing, and how long they take to start."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import time

from figure import BIN, MIB, Figure, absolute, cpus, pids_of, timed, with_yardstick


def all_threads_stopped(pid: int) -> bool:
    """Whether a SIGSTOP has reached every thread of a process."""
    tasks = pathlib.Path(f"/proc/{pid}/task")
    return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in tasks.glob("*/stat"))


def pss_bytes(pid: int) -> int:
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no Pss of process {pid}")


def rss_bytes(pid: int) -> int:
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no VmRSS of process {pid}")


def cpu_seconds(pid: int) -> float:
    """Of all threads, by the scheduler's own nanoseconds."""
    total = 0
    for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
        total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def memory(rounds: int, quick: bool) -> list[Figure]:
    import callboard

    coordinator, device = [], []
    for _ in range(min(rounds, 3)):
        with callboard.launch(cpus(1)) as cluster:
            time.sleep(2 if quick else 10)  # tidy: allow (the figure is of an idle cluster)
            pids = pids_of(cluster)
            coordinator.append(float(rss_bytes(pids["coordinator"])))
            device.append(float(pss_bytes(pids["cpu0"])))
    return [absolute("coordinator_memory", coordinator, "bytes", 25 * MIB, "resident, cluster idle"),
            absolute("device_memory", device, "bytes", 140 * MIB, "PSS of a CPU device actor without Python, idle")]


def idle_cpu(rounds: int, quick: bool) -> list[Figure]:
    import callboard

    shares = []
    span = 2.0 if quick else 5.0
    with callboard.launch(cpus(4)) as cluster:
        pids = list(pids_of(cluster).values())
        time.sleep(1)  # tidy: allow (start-up is not idleness)
        for _ in range(rounds):
            before, begin = sum(map(cpu_seconds, pids)), time.perf_counter()
            time.sleep(span)  # tidy: allow (the figure is of an idle cluster)
            shares.append((sum(map(cpu_seconds, pids)) - before) / (time.perf_counter() - begin))
    return [absolute("idle_cpu", shares, "cores", 0.01, "all processes of a cluster of four idle devices together")]


def up_to_ready(rounds: int, quick: bool) -> list[Figure]:
    callboard = str(BIN / "callboard")
    pairs = []
    with tempfile.TemporaryDirectory(prefix="callboard-bench-") as folder:
        config = pathlib.Path(folder) / "cluster.yaml"
        config.write_text("name: bench-start\ndevices: [{kind: cpu, count: 2}]\n")
        environment = {**os.environ, "CALLBOARD_RUN_DIR": folder}

        def run(*command: str) -> None:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()[-2000:]}")

        for number in range(rounds + 1):
            ours = timed(lambda: run(callboard, "up", "--detach", str(config)))
            run(callboard, "down", "bench-start")
            yardstick = timed(lambda: run(sys.executable, "-c", "import torch"))
            if number > 0:  # the first one reads the libraries from disk
                pairs.append((ours, yardstick))
    return [with_yardstick("up_to_ready", pairs, "us", 1.0,
                           "`callboard up` of two CPU devices, against `python -c 'import torch'`")]
