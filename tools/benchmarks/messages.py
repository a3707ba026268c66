"""Round trips without work in them, and what an operator costs besides the operator."""

from __future__ import annotations

import statistics
import time

from figure import BIN, Figure, absolute, cpus, json_of, ping_pong_server, with_yardstick

IN_FLIGHT = 256


def null_fragments(rounds: int, quick: bool) -> list[Figure]:
    """C++ and Python client, one call at a time, against the same ping-pongs; then many at once."""
    import torch

    import callboard

    count = 1_000 if quick else 5_000
    cpp: list[tuple[float, float]] = []
    python: list[tuple[float, float]] = []
    pipelined: list[float] = []

    class Identity(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with ping_pong_server() as endpoint, callboard.launch(cpus(1)) as cluster:
        x = torch.tensor([1.5])
        program = cluster.compile(Identity(), (x,))
        for _ in range(rounds):
            floor = json_of(BIN / "bench-ping-pong", "ping", endpoint, str(count))["p50_us"]
            cpp.append((json_of(BIN / "bench-null-fragment", cluster.run_dir, str(count))["p50_us"], floor))
            times = []
            for _ in range(count):
                begin = time.perf_counter()
                program(x)
                times.append(time.perf_counter() - begin)
            python.append((statistics.median(times) * 1e6, floor))
            many = json_of(BIN / "bench-null-fragment", cluster.run_dir, str(10 * count), str(IN_FLIGHT))
            pipelined.append(many["per_second"])
    what = "one float through coordinator and device and back, against a raw ZMQ ipc ping-pong"
    return [with_yardstick("null_fragment_cpp", cpp, "us", 3.5, what),
            with_yardstick("null_fragment_python", python, "us", 5.0, what),
            absolute("null_fragments_pipelined", pipelined, "1/s", 50_000,
                     f"the same, {IN_FLIGHT} in flight, from C++", at_least=True)]


def op_overhead(rounds: int, quick: bool) -> list[Figure]:
    import torch

    torch.set_num_threads(1)
    one = torch.ones(1)
    cpp, eager = [], []
    for _ in range(rounds):
        line = json_of(BIN / "bench-op-overhead", "20" if quick else "60")
        cpp.append((line["ours_us_per_op"], line["at_add_us_per_op"]))
        times = []
        with torch.inference_mode():
            for _ in range(20):
                total = torch.zeros(1)
                begin = time.perf_counter()
                for _ in range(1_000):
                    total = torch.add(total, one)
                times.append((time.perf_counter() - begin) * 1e3)
        eager.append((line["ours_us_per_op"], statistics.median(times)))
    what = "an operator in a chain of 1,000 one-element adds, against "
    return [with_yardstick("op_overhead_vs_cpp", cpp, "us", 1.25, what + "a C++ loop over at::add"),
            with_yardstick("op_overhead_vs_eager", eager, "us", 0.6, what + "torch.add from Python, inference mode")]
