"""The proof's table: what passed, what PyTorch cannot export, what failed and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from op_db_judge import FAILED, NO_SAMPLE, NOT_EXPORTABLE, PASSED, Verdict


@dataclass
class Totals:
    """Pairs by what became of them. `deaths` counts pairs after which a device actor was gone."""

    entries: int
    passed: int
    failed: int
    not_exportable: int
    no_sample: int
    deaths: int
    on_clones: int

    @staticmethod
    def of(verdicts: list[Verdict]) -> Totals:
        by_status = Counter(verdict.status for verdict in verdicts)
        return Totals(
            len({verdict.entry for verdict in verdicts}), by_status[PASSED], by_status[FAILED],
            by_status[NOT_EXPORTABLE], by_status[NO_SAMPLE], sum(verdict.device_died for verdict in verdicts),
            sum(bool(verdict.note) for verdict in verdicts),
        )  # fmt: skip

    @property
    def share(self) -> float:
        """Of the pairs that PyTorch can export, those that pass; 0 if there are none."""
        exportable = self.passed + self.failed
        return self.passed / exportable if exportable else 0.0

    def line(self) -> str:
        return (
            f"{self.entries} entries: {self.passed} of {self.passed + self.failed} pairs that PyTorch can export pass "
            f"({100 * self.share:.2f} %), {self.not_exportable} pairs cannot be exported by PyTorch, "
            f"{self.no_sample} have no sample, {self.deaths} device actors died"
        )


def table(verdicts: list[Verdict]) -> str:
    """Markdown."""
    totals = Totals.of(verdicts)
    lines = [
        "# PyTorch's operator tests on a device actor",
        "",
        f"Made by `tools/op_db`, with PyTorch {torch.__version__}. Each pair is an entry of "
        "`torch.testing._internal.common_methods_invocations.op_db` and one of its first float32 samples, captured "
        "with `torch.export`, run by a CPU device actor and compared with eager bit for bit (`tools/op_db --help`).",
        "",
        "| | pairs |",
        "|---|---|",
        f"| passed | {totals.passed} |",
        f"| failed | {totals.failed} |",
        f"| share of the pairs that PyTorch can export | {100 * totals.share:.2f} % |",
        f"| PyTorch itself cannot export | {totals.not_exportable} |",
        f"| no sample (no float32 kernel on the CPU, or eager refuses it) | {totals.no_sample} |",
        f"| device actors that died | {totals.deaths} |",
        "",
        f"Of {totals.entries} entries {_passing_entries(verdicts)} pass with every sample. "
        f"{totals.on_clones} of the passing pairs write to their arguments, which a program refuses: they ran on "
        "clones, as the error's hint says. PyTorch cannot export a pair if torch.export refuses it, or if the program "
        "that it makes does not give eager's results when PyTorch itself runs it. What did not pass:",
        "",
        "| entry | samples | result | where | why |",
        "|---|---|---|---|---|",
    ]
    lines += _rows(verdict for verdict in verdicts if verdict.status != PASSED)
    return "\n".join(lines) + "\n"


def _passing_entries(verdicts: list[Verdict]) -> int:
    statuses: dict[str, set[str]] = defaultdict(set)
    for verdict in verdicts:
        statuses[verdict.entry].add(verdict.status)
    return sum(found == {PASSED} for found in statuses.values())


def _rows(verdicts: Iterable[Verdict]) -> list[str]:
    """One for the samples of an entry that ended alike; failures first."""
    groups: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for verdict in verdicts:
        groups[(verdict.entry, verdict.status, verdict.stage, verdict.reason)].append(verdict.sample)
    order = [FAILED, NOT_EXPORTABLE, NO_SAMPLE]
    found = sorted(groups.items(), key=lambda item: (order.index(item[0][1]), item[0][0]))
    return [
        f"| `{entry}` | {_numbers(samples)} | {status} | {stage} | {_cell(reason)} |"
        for (entry, status, stage, reason), samples in found
    ]


def _numbers(samples: list[int]) -> str:
    return ", ".join(str(number) for number in samples if number >= 0) or "–"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")[:240]
