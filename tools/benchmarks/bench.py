"""Measures Callboard. Every figure is taken beside its yardstick in alternating rounds on this machine.

ratio = ours / yardstick, each round's own; value, yardstick and ratio shown are medians over the rounds (min and max of
the ratio beside them). Time in microseconds, memory in bytes, CPU as a fraction of one core. Where a figure has no
yardstick, its target is absolute.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict

import inline_threshold
import messages
import peers
import processes
import python_kernels
import tensors
import weights
from figure import MIB, Figure

import models
import operators

# Memory first: once this process has imported torch, it shares libtorch's pages with the device actor, whose
# proportional set size would come out a third too small.
GROUPS: list[tuple[tuple[str, ...], Callable[[int, bool], list[Figure]]]] = [
    (("coordinator_memory", "device_memory"), processes.memory),
    (("up_to_ready",), processes.up_to_ready),
    (("idle_cpu",), processes.idle_cpu),
    (("null_fragment_cpp", "null_fragment_python", "null_fragments_pipelined"), messages.null_fragments),
    (("op_overhead_vs_cpp", "op_overhead_vs_eager"), messages.op_overhead),
    (("return_1gib", "remote_add_64mib", "send_64mib"), tensors.hand_over),
    (("two_stage_chain",), tensors.two_stage_chain),
    (("weights_load", "weights_memory"), weights.load),
    (("python_kernel_inline",), python_kernels.inline),
    (("gil_does_not_block_streams",), python_kernels.streams),
    (("python_kernel_process",), python_kernels.process),
    (("python_kernel_64mib",), python_kernels.large_tensor),
    (("gil_domains_parallel",), python_kernels.parallel),
    (("domain_replacement",), python_kernels.replacement),
    (("minilm_latency", "minilm_throughput"), models.minilm),
    (("rms_norm_cpu",), operators.rms_norm),
    (("inline_threshold",), inline_threshold.sweep),
]
# Sweeps that choose a constant; their figures have names behind a slash. Only where they are asked for.
SWEEPS = {"inline_threshold"}


def text(value: float | None, unit: str) -> str:
    """A value with its unit, for the table."""
    if value is None:
        return "–"
    if unit == "bytes":
        return f"{value / MIB:.1f} MiB"
    if unit == "1/s":
        return f"{value:,.0f} /s"
    if unit == "cores":
        return f"{value:.4f} cores"
    return f"{value / 1e3:.2f} ms" if value >= 1e4 else f"{value:.2f} µs"


def show_table(figures: list[Figure]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Callboard beside its yardsticks")
    for column in ("figure", "ours", "yardstick", "ratio (min … max)", "target", "rounds", ""):
        table.add_column(column, justify="left" if column == "figure" else "right", no_wrap=column == "figure")
    for figure in figures:
        ratio = "–" if figure.ratio is None else f"{figure.ratio:.2f} ({figure.min:.2f} … {figure.max:.2f})"
        bound = "≥" if figure.at_least else "≤"
        target = f"{figure.target:g} ×" if figure.ratio is not None else text(figure.target, figure.unit)
        table.add_row(figure.name, text(figure.value, figure.unit), text(figure.yardstick, figure.unit), ratio,
                      f"{bound} {target}", str(figure.rounds), "[green]ok[/]" if figure.ok else "[red]missed[/]")
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
    parser.add_argument("--peer", metavar="BENCH", help="instead: one round of a benchmark of the peers, as JSON lines "
                        f"({', '.join(peers.PEERS)})")
    arguments = parser.parse_args()
    if arguments.peer:
        return peers.main(arguments.peer, arguments.quick)
    wanted = arguments.only.split(",") if arguments.only else [name for name in names if name not in SWEEPS]
    unknown = [name for name in wanted if name not in names]
    if unknown:
        parser.error(f"no figure {', '.join(unknown)}; there are: {', '.join(names)}")
    figures: list[Figure] = []
    for group, measure in GROUPS:
        if not set(group) & set(wanted):
            continue
        print(f"measuring {', '.join(group)} …", file=sys.stderr, flush=True)
        figures += [f for f in measure(max(1, arguments.rounds), arguments.quick) if f.name.split("/")[0] in wanted]
    if arguments.json:
        for figure in figures:
            print(json.dumps(asdict(figure)))
    else:
        show_table(figures)
    return 0 if all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
