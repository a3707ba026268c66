"""Proves Callboard over PyTorch's own operator tests, and makes the table.

Every pair (entry of torch.testing._internal's op_db, one of its first float32 samples) is captured with torch.export as
Cluster.compile() does it, run by a real device actor and compared with eager PyTorch: structure, dtypes, sizes, strides
and bits (NaN equals NaN; random operators start from the same seed; of uninitialised results everything but the
values). The results file has a JSON line for each pair as soon as it is judged; run again with the same file, the
command goes on where it was interrupted.

Exit status: 0 if enough pairs pass and no device actor died, 1 if not, 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator

from op_db_judge import FAILED, Verdict
from op_db_pairs import Pair
from op_db_table import Totals, table

SHARE_MIN = 0.95  # of the pairs that PyTorch can export
START_DEADLINE = 180.0  # seconds until a worker has imported torch and launched its cluster


class Worker:
    """A child process that judges one pair after the other on a cluster of its own. An operator that ends or hangs its
    process costs one pair, not the run.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(pathlib.Path(__file__).with_name("op_db_worker.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=False,
        )
        self._selector = selectors.DefaultSelector()
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._buffer = b""
        self.entries: list[str] = json.loads(self._read_line(START_DEADLINE))  # all of op_db

    def judge(self, pair: Pair, deadline: float) -> Verdict | None:
        """None if the entry has no such sample. After TimeoutError or EOFError the worker is of no use any more."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(pair).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EOFError from None
        answer = json.loads(self._read_line(deadline))
        return None if answer is None else Verdict(**answer)

    def _read_line(self, deadline: float) -> bytes:
        end = time.monotonic() + deadline
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            if not self._selector.select(max(0.0, end - time.monotonic())):
                raise TimeoutError
            chunk = self._process.stdout.read()
            if chunk == b"":
                raise EOFError
            self._buffer += chunk or b""
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def end(self) -> str:
        """Ends it, by force after a while, and says how it ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone already
            self._process.stdin.close()
        try:
            code = self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._selector.close()
        self._process.stdout.close()
        return f"signal {-code}" if code < 0 else f"exit status {code}"


class Bench:
    """Gives a verdict for each pair, whatever becomes of the process that runs it."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._worker = Worker()
        self.entries = self._worker.entries

    def judge(self, pair: Pair) -> Verdict | None:
        try:
            return self._worker.judge(pair, self._deadline)
        except (TimeoutError, EOFError) as problem:
            ending = self._worker.end()
            self._worker = Worker()
            late = isinstance(problem, TimeoutError)
            reason = f"no verdict within {self._deadline:g} s" if late else f"the client's process ended ({ending})"
            return Verdict(pair.entry, pair.sample, FAILED, "process", reason)

    def end(self) -> None:
        self._worker.end()


def read_results(path: pathlib.Path) -> list[Verdict]:
    """What is in a results file; a last line that was not written whole counts for nothing."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [Verdict(**json.loads(line)) for line in lines if line.endswith("\n")]


def drop_partial_line(path: pathlib.Path) -> None:
    """Of an interruption in the midst of a write."""
    content = path.read_bytes() if path.exists() else b""
    if content and not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)


def shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"'{text}' is no shard; allowed: I/N with 1 <= I <= N, such as 1/4")
    return int(number), int(count)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/op_db", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("build/op_db.jsonl"),
                        help="results file, a JSON line a pair (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=3, metavar="N", help="of each entry (default: 3)")
    parser.add_argument("--only", metavar="ENTRY[,ENTRY]", help="these entries, by name and variant")
    parser.add_argument("--shard", type=shard, default=(1, 1), metavar="I/N", help="every Nth entry, from the Ith on")
    parser.add_argument("--deadline", type=float, default=120, metavar="S", help="seconds for a pair (default: 120)")
    parser.add_argument("--retry", action="store_true", help="judge failed pairs of the results file again")
    parser.add_argument("--table", type=pathlib.Path, metavar="FILE", help="write the table here, as Markdown")
    parser.add_argument("--merge", type=pathlib.Path, nargs="+", metavar="FILE", default=[],
                        help="run nothing: put these results files together")
    return parser.parse_args()


def chosen(entries: list[str], arguments: argparse.Namespace) -> list[str]:
    names = arguments.only.split(",") if arguments.only else entries
    unknown = [name for name in names if name not in entries]
    if unknown:
        sys.exit(f"tools/op_db: op_db has no entry {', '.join(unknown)}")
    first, step = arguments.shard
    return list(names[first - 1 :: step])


def missing(names: list[str], samples: int, known: list[Verdict]) -> list[list[Pair]]:
    """The pairs that have no verdict yet, by entry."""
    there = {Pair(verdict.entry, verdict.sample) for verdict in known}
    without = {verdict.entry for verdict in known if verdict.sample < 0}
    return [
        [pair for pair in (Pair(name, number) for number in range(samples)) if pair not in there]
        for name in names
        if name not in without
    ]


def run(arguments: argparse.Namespace) -> list[Verdict]:
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    drop_partial_line(arguments.output)
    known = [v for v in read_results(arguments.output) if not (arguments.retry and v.status == FAILED)]
    if arguments.retry:
        arguments.output.write_text("".join(json.dumps(verdict.as_dict()) + "\n" for verdict in known))
    begin = time.monotonic()
    bench = Bench(arguments.deadline)
    try:
        todo = missing(chosen(bench.entries, arguments), arguments.samples, known)
        with arguments.output.open("a") as file:
            for number, pairs in enumerate(todo, 1):
                for verdict in judged(bench, pairs):
                    file.write(json.dumps(verdict.as_dict()) + "\n")
                    file.flush()
                    known.append(verdict)
                    if verdict.status == FAILED:
                        say(f"{verdict.entry} {verdict.sample}: failed, {verdict.stage}: {verdict.reason}")
                if number % 25 == 0 or number == len(todo):
                    say(f"{number} of {len(todo)} entries, {time.monotonic() - begin:.0f} s")
    finally:
        bench.end()
    return known


def judged(bench: Bench, pairs: list[Pair]) -> Iterator[Verdict]:
    """Of one entry, which may have fewer samples."""
    for pair in pairs:
        verdict = bench.judge(pair)
        if verdict is None:
            return
        yield verdict
        if verdict.sample < 0:
            return


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    arguments = parse()
    if arguments.merge:
        verdicts = [verdict for path in arguments.merge for verdict in read_results(path)]
    else:
        verdicts = run(arguments)
    totals = Totals.of(verdicts)
    print(totals.line())
    if arguments.table is not None:
        arguments.table.write_text(table(verdicts))
    return 0 if totals.share >= SHARE_MIN and totals.deaths == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
