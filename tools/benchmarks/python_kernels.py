"""Python kernels: what a call costs, what crosses to a process, and what Python does to others while it runs."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

from figure import BIN, MIB, Figure, Pairs, alternating, json_of, ping_pong_server, with_yardstick

MODULES = pathlib.Path(__file__).parent / "kernels"
FLOAT = 4


def inline(rounds: int, quick: bool) -> list[Figure]:
    what = "an empty Python kernel in a chain of 1,000, against a C++ loop of take the GIL, wrap, call, unwrap, release"
    return [with_yardstick("python_kernel_inline", _pairs("calls", rounds, quick), "us", 1.6, what)]


def streams(rounds: int, quick: bool) -> list[Figure]:
    what = "a C++ kernel in a chain of 1,000 while another thread holds the GIL, against nobody holding it"
    return [with_yardstick("gil_does_not_block_streams", _pairs("streams", rounds, quick), "us", 1.2, what)]


def process(rounds: int, quick: bool) -> list[Figure]:
    """A fresh device and child each round."""
    count = "500" if quick else "3000"
    pairs = []
    with ping_pong_server() as endpoint:
        for _ in range(rounds):
            ours = json_of(BIN / "bench-python-kernel", "process", "3" if quick else "10")["ours_us"]
            pairs.append((ours, json_of(BIN / "bench-ping-pong", "ping", endpoint, count)["p50_us"]))
    what = "an empty Python kernel in a process domain, there and back, against a raw ZMQ ipc ping-pong"
    return [with_yardstick("python_kernel_process", pairs, "us", 2, what)]


def _pairs(what: str, rounds: int, quick: bool) -> Pairs:
    """A fresh process each round."""
    pairs = []
    for _ in range(rounds):
        line = json_of(BIN / "bench-python-kernel", what, "5" if quick else "20")
        pairs.append((line["ours_us"], line["yardstick_us"]))
    return pairs


def _config(devices: list[dict[str, Any]], **python: Any) -> dict[str, Any]:
    package = str(pathlib.Path(sys.modules["callboard"].__file__ or "").parent.parent)
    kernels = [{"target": f"bench_python_kernels:{name}"} for name in ("add_one", "count_up", "process_number")]
    return {"devices": devices, "python": {"path": [str(MODULES), package], "kernels": kernels, **python}}


def _device(name: str, domain: str) -> dict[str, Any]:
    return {"kind": "cpu", "name": name, "threads": 1, "python": domain}


def _kernels() -> Any:
    sys.path.insert(0, str(MODULES))
    import bench_python_kernels

    return bench_python_kernels


def large_tensor(rounds: int, quick: bool) -> list[Figure]:
    import torch

    import callboard

    torch.set_num_threads(1)
    kernels = _kernels()
    with callboard.launch(_config([_device("here", "inline"), _device("there", "process")])) as cluster:
        x = cluster.empty(64 * MIB // FLOAT)
        x.copy_(torch.arange(x.numel()) % 7)
        there, here = (cluster.compile(kernels.add_one, (x,), placement=name) for name in ("there", "here"))
        for program in (there, here):
            torch.testing.assert_close(program(x), x + 1, rtol=0, atol=0)
        pairs = alternating(rounds, 5 if quick else 15, lambda: there(x), lambda: here(x))
    what = "64 MiB of a client through x + 1 in a process domain and back, against the same inline"
    return [with_yardstick("python_kernel_64mib", pairs, "us", 1.2, what)]


# Python without torch, twice the same work: what two processes gain on this machine.
PLAIN = """
import sys
n = int(sys.argv[1])
sys.stdin.readline()
total = 0
for i in range(n):
    total += i & 3
print(total, flush=True)
"""


def _plain_seconds(count: int, processes: int) -> float:
    """All wait for the word, then run; until the last one is done."""
    started = [
        subprocess.Popen([sys.executable, "-S", "-c", PLAIN, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(processes)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.flush()
    begin = time.perf_counter()
    for process in started:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    took = time.perf_counter() - begin
    for process in started:
        process.communicate()
    return took


def parallel(rounds: int, quick: bool) -> list[Figure]:
    """Speed-ups: two kernels one after the other in one inline domain, over both at once."""
    import torch

    import callboard

    kernels = _kernels()
    count = 2_000_000 if quick else 6_000_000
    x = torch.ones(1)

    def two(x: torch.Tensor) -> torch.Tensor:
        return kernels.count_up(x, count) + kernels.count_up(x, count + 1)

    def one(x: torch.Tensor) -> torch.Tensor:
        return kernels.count_up(x, count)

    devices = [_device("a", "inline"), _device("b", "inline"), _device("c", "process")]
    with callboard.launch(_config(devices, count=2)) as cluster:
        single = cluster.compile(two, (x,), placement="a")
        halves = [cluster.compile(one, (x,), placement=name) for name in ("a", "b")]
        processes = cluster.compile(two, (x,), placement="c")
        for program in (single, *halves, processes):
            program(x)

        def seconds(work: Any) -> float:
            begin = time.perf_counter()
            work()
            return time.perf_counter() - begin

        def both_devices() -> None:
            for future in [half.submit(x) for half in halves]:
                future.get()

        over_processes: Pairs = []
        over_devices: Pairs = []
        for _ in range(rounds):
            alone = seconds(lambda: single(x))
            plain = 2 * _plain_seconds(count, 1) / _plain_seconds(count, 2)
            over_processes.append((alone / seconds(lambda: processes(x)), plain))
            over_devices.append((alone / seconds(both_devices), plain))
    what = "speed-up of two GIL-bound kernels {} over one inline domain, against that of two plain Python processes"
    return [
        with_yardstick("gil_domains_parallel/processes", over_processes, "x", 0.9,
                       what.format("in two process domains of one device"), at_least=True),
        with_yardstick("gil_domains_parallel/devices", over_devices, "x", 0.9,
                       what.format("inline on two devices"), at_least=True),
    ]  # fmt: skip


def replacement(rounds: int, quick: bool) -> list[Figure]:
    """From the kill of a domain's process to the end of the next call."""
    import torch

    import callboard

    kernels = _kernels()
    x = torch.ones(1)

    def import_torch() -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        return time.perf_counter() - begin

    def measure(spare: int) -> Pairs:
        pairs: Pairs = []
        with callboard.launch(_config([_device("there", "process")], spare=spare)) as cluster:
            number = cluster.compile(lambda x: kernels.process_number(x), (x,), placement="there")

            def idle() -> int:
                python = cluster.operation("device_query", device="there", name="describe")["python"]
                return sum(child["state"] == "idle" for child in python["children"])

            for _ in range(rounds):
                yardstick = import_torch()
                end = time.monotonic() + 60
                while idle() < 1 + spare:
                    if time.monotonic() > end:
                        raise RuntimeError("the domain's processes do not come back")
                serving = int(number(x).item())
                begin = time.perf_counter()
                os.kill(serving, signal.SIGKILL)
                after = int(number(x).item())
                pairs.append(((time.perf_counter() - begin) * 1e6, yardstick * 1e6))
                if after == serving:
                    raise RuntimeError("the killed process has answered")
        return pairs

    what = "kill -9 of a domain's process until the next call returned, {}against starting Python and importing torch"
    return [
        with_yardstick("domain_replacement", measure(0), "us", 1.2, what.format("")),
        with_yardstick("domain_replacement/spare", measure(1), "us", 0.1, what.format("with spare: 1, ")),
    ]
