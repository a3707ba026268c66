"""Measures Callboard. Every figure is taken beside its yardstick in alternating rounds on this machine.

ratio = ours / yardstick, each round's own; value, yardstick and ratio shown are medians over the rounds (min and max of
the ratio beside them). Time in microseconds, memory in bytes. Where a figure has no yardstick, its target is absolute.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import callboard

BIN = pathlib.Path(os.environ.get("CALLBOARD_BIN_DIR", "build/release/bin"))
MIB = 1 << 20


@dataclass
class Figure:
    """One line of the result. `ok` compares `ratio` (with a yardstick) or `value` (without) with `target`."""

    name: str
    value: float
    unit: str
    yardstick: float | None
    ratio: float | None
    target: float
    ok: bool
    rounds: int
    min: float
    max: float
    what: str = ""


def with_yardstick(name: str, pairs: list[tuple[float, float]], unit: str, target: float, what: str) -> Figure:
    """pairs: (ours, yardstick) of each round."""
    ratios = [ours / yardstick for ours, yardstick in pairs]
    ratio = statistics.median(ratios)
    return Figure(name, statistics.median(p[0] for p in pairs), unit, statistics.median(p[1] for p in pairs), ratio,
                  target, ratio <= target, len(pairs), min(ratios), max(ratios), what)


def absolute(name: str, values: list[float], unit: str, target: float, what: str) -> Figure:
    value = statistics.median(values)
    return Figure(name, value, unit, None, None, target, value <= target, len(values), min(values), max(values), what)


@contextmanager
def ping_pong_server() -> Iterator[str]:
    """The echoing process of the ZeroMQ yardstick; yields its endpoint."""
    with tempfile.TemporaryDirectory(prefix="callboard-bench-") as folder:
        endpoint = f"ipc://{folder}/ping"
        server = subprocess.Popen([BIN / "bench-ping-pong", "serve", endpoint], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            if server.stdout.readline().strip() != "ready":
                raise RuntimeError("the ping-pong server did not start")
            yield endpoint
        finally:
            assert server.stdin is not None
            server.stdin.close()
            server.wait(timeout=5)


def json_of(*command: str | pathlib.Path) -> dict[str, float]:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.strip()[-2000:]}")
    answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


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


def pid_of(cluster: callboard.Cluster, actor: str) -> int:
    if actor == "coordinator":
        return int(cluster.record["coordinator_pid"])
    for entry in cluster.status()["actors"]:
        if entry["name"] == actor:
            return int(entry["pid"])
    raise RuntimeError(f"no actor {actor}")


def null_fragments(rounds: int, quick: bool) -> list[Figure]:
    """Both null fragment figures: C++ and Python client, against the same ping-pongs."""
    import torch

    import callboard

    count = 1_000 if quick else 5_000
    cpp: list[tuple[float, float]] = []
    python: list[tuple[float, float]] = []

    class Identity(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with ping_pong_server() as endpoint, callboard.launch({"devices": [{"kind": "cpu"}]}) as cluster:
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
    what = "one float through coordinator and device and back, against a raw ZMQ ipc ping-pong"
    return [with_yardstick("null_fragment_cpp", cpp, "us", 5.0, what),
            with_yardstick("null_fragment_python", python, "us", 8.0, what)]


def op_overhead(rounds: int, quick: bool) -> list[Figure]:
    pairs = []
    for _ in range(rounds):
        line = json_of(BIN / "bench-op-overhead")
        pairs.append((line["ours_us_per_op"], line["at_add_us_per_op"]))
    return [with_yardstick("op_overhead_vs_cpp", pairs, "us", 1.5,
                           "an operator in a chain of 1,000 one-element adds, against a C++ loop over at::add")]


def minilm_latency(rounds: int, quick: bool) -> list[Figure]:
    import torch

    import callboard
    import minilm

    torch.set_num_threads(1)
    model = minilm.load_model()
    # Eight tokens, the markers of beginning and end included.
    tokenizer = minilm.AutoTokenizer.from_pretrained(str(minilm.get_model_path()))
    coded = tokenizer(["The cast reads its calls."], padding="max_length", truncation=True, max_length=8,
                      return_tensors="pt")
    example = tokenizer(["One sentence.", "And another, longer one."], padding=True, return_tensors="pt")
    arguments = (coded["input_ids"], coded["attention_mask"])
    with torch.inference_mode():
        expected = model(*arguments)
    pairs = []
    with callboard.launch({"devices": [{"kind": "cpu", "count": 2, "threads": 1}]}) as cluster:
        program = minilm.compile_embedder(cluster, model, (example["input_ids"], example["attention_mask"]))
        torch.testing.assert_close(program(*arguments), expected, rtol=0, atol=0)
        inner = 20 if quick else 60
        for _ in range(rounds):
            ours, eager = [], []
            for _ in range(inner):
                begin = time.perf_counter()
                program(*arguments)
                ours.append(time.perf_counter() - begin)
                begin = time.perf_counter()
                with torch.inference_mode():
                    model(*arguments)
                eager.append(time.perf_counter() - begin)
            pairs.append((statistics.median(ours) * 1e6, statistics.median(eager) * 1e6))
    return [with_yardstick("minilm_latency", pairs, "us", 1.0,
                           "one sentence of 8 tokens over two devices, against eager in one process, one thread each")]


def memory(rounds: int, quick: bool) -> list[Figure]:
    import callboard

    coordinator, device = [], []
    for _ in range(min(rounds, 3)):
        with callboard.launch({"devices": [{"kind": "cpu"}]}) as cluster:
            time.sleep(2 if quick else 10)  # tidy: allow (the figure is of an idle cluster)
            coordinator.append(float(rss_bytes(pid_of(cluster, "coordinator"))))
            device.append(float(pss_bytes(pid_of(cluster, "cpu0"))))
    return [absolute("coordinator_memory", coordinator, "bytes", 25 * MIB, "resident, cluster idle"),
            absolute("device_memory", device, "bytes", 160 * MIB, "PSS of a CPU device actor without Python, idle")]


# Memory first: once this process has imported torch, it shares libtorch's pages with the device actor, whose
# proportional set size would come out a third too small.
GROUPS: list[tuple[tuple[str, ...], Callable[[int, bool], list[Figure]]]] = [
    (("coordinator_memory", "device_memory"), memory),
    (("null_fragment_cpp", "null_fragment_python"), null_fragments),
    (("op_overhead_vs_cpp",), op_overhead),
    (("minilm_latency",), minilm_latency),
]


def show_table(figures: list[Figure]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Callboard beside its yardsticks")
    for column in ("figure", "ours", "yardstick", "ratio (min … max)", "target", "rounds", ""):
        table.add_column(column, justify="left" if column == "figure" else "right")

    def text(value: float | None, unit: str) -> str:
        if value is None:
            return "–"
        return f"{value / MIB:.1f} MiB" if unit == "bytes" else f"{value:.2f} µs"

    for figure in figures:
        ratio = "–" if figure.ratio is None else f"{figure.ratio:.2f} ({figure.min:.2f} … {figure.max:.2f})"
        target = f"≤ {figure.target:g} ×" if figure.ratio is not None else f"≤ {text(figure.target, figure.unit)}"
        table.add_row(figure.name, text(figure.value, figure.unit), text(figure.yardstick, figure.unit), ratio, target,
                      str(figure.rounds), "[green]ok[/]" if figure.ok else "[red]missed[/]")
    Console().print(table)


def main() -> int:
    names = [name for group, _ in GROUPS for name in group]
    parser = argparse.ArgumentParser(prog="tools/bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="figures: " + ", ".join(names))
    parser.add_argument("--only", metavar="NAME[,NAME]", help="measure these only")
    parser.add_argument("--json", action="store_true", help="one JSON line a figure instead of the table")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions in a round (the rounds stay)")
    parser.add_argument("--rounds", type=int, default=7, help="alternating rounds (default and least for a claim: 7)")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",") if arguments.only else names
    unknown = [name for name in wanted if name not in names]
    if unknown:
        parser.error(f"no figure {', '.join(unknown)}; there are: {', '.join(names)}")
    figures: list[Figure] = []
    for group, measure in GROUPS:
        if not set(group) & set(wanted):
            continue
        print(f"measuring {', '.join(group)} …", file=sys.stderr, flush=True)
        figures += [f for f in measure(max(1, arguments.rounds), arguments.quick) if f.name in wanted]
    if arguments.json:
        for figure in figures:
            print(json.dumps(asdict(figure)))
    else:
        show_table(figures)
    return 0 if all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
