"""Builds and runs every kind of test, one stage after the other, and prints a count.

Stages: checks (layers, tidy, Python lint and types), unit (C++ against the release build), python (the package against
real clusters), asan, tsan (everything that does not link LibTorch), fuzz (each decoder for some seconds), dev (each
source compiled by itself; only with --full).
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "test-logs"


class Clock:
    """Until when all of it may take (time.monotonic)."""

    end = float("inf")


@dataclass
class Outcome:
    """What one stage found. A stage that ran nothing counts as failed."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    said: dict[str, str] = field(default_factory=dict)  # by failure: the part of its output that tells why

    def fail(self, name: str, text: str) -> None:
        self.failures.append(name)
        self.said[name] = excerpt(text)


def run(log: pathlib.Path, command: list[str], timeout: float, env: dict[str, str] | None = None) -> int:
    """Runs a command with its output in `log`; prints the log's end if it fails. 124 after a time-out, which ends all
    that the command has started.
    """
    timeout = max(1.0, min(timeout, Clock.end - time.monotonic()))
    with log.open("ab") as out:
        out.write(f"$ {' '.join(command)}\n".encode())
        out.flush()
        with subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                              env={**os.environ, **(env or {})}, start_new_session=True) as process:
            try:
                code = process.wait(timeout)
            except BaseException as problem:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if not isinstance(problem, subprocess.TimeoutExpired):
                    raise
                out.write(f"\nended after {timeout:.0f} s\n".encode())
                code = 124
    if code != 0:
        lines = log.read_text(errors="replace").splitlines()
        print("\n".join("    " + line for line in lines[-60:]))
        print(f"    (exit status {code}; whole log: {log.relative_to(ROOT)})", flush=True)
    return code


def build(log: pathlib.Path, preset: str, targets: list[str] | None = None) -> bool:
    return run(log, ["bash", "tools/build", preset, *(targets or [])], timeout=2400) == 0


def ctest(log: pathlib.Path, preset: str, arguments: list[str]) -> Outcome:
    """Runs ctest and counts what it ran."""
    folder = ROOT / "build" / preset
    report = LOGS / f"ctest-{preset}.xml"
    report.unlink(missing_ok=True)
    env = {
        "TSAN_OPTIONS": f"halt_on_error=1 second_deadlock_stack=1 suppressions={ROOT}/tools/checks/tsan.supp",
        "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    command = ["ctest", "--test-dir", str(folder), "--output-on-failure", "--no-tests=error", "-j2", "--output-junit",
               str(report), *arguments]
    code = run(log, command, timeout=2400, env=env)
    if not report.exists():
        return Outcome(failed=1, failures=["ctest wrote no report"])
    outcome = read_ctest_report(report)
    if code != 0 and outcome.failed == 0:
        outcome.failed += 1
        outcome.failures.append(f"ctest ended with status {code}")
    return outcome


FIRST_SIGNS = re.compile(r"ThreadSanitizer:|AddressSanitizer|LeakSanitizer:|runtime error:|FAILED:|due to unexpected|"
                         r"due to a fatal|Assertion|terminate called|\*\*\*Timeout|ERROR: libFuzzer")


def excerpt(text: str, lines: int = 40) -> str:
    """What a failed program said, from the first line that tells why; its end if no line looks like that."""
    said = text.splitlines()
    first = next((number for number, line in enumerate(said) if FIRST_SIGNS.search(line)), len(said) - lines)
    return "\n".join("        " + line[:200] for line in said[max(first - 3, 0):][:lines])


def read_ctest_report(report: pathlib.Path) -> Outcome:
    """Counts Catch2 test cases where the programs tell them, programs otherwise."""
    outcome = Outcome()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        text = (case.findtext("system-out") or "")
        counts = re.search(r"All tests passed \(\d+ assertions? in (\d+) test cases?\)", text)
        partial = re.search(r"test cases: +(\d+) \| +(?:(\d+) passed \| +)?(\d+) failed", text)
        skipped = case.find("skipped")
        if case.get("status") == "run":
            outcome.passed += int(counts.group(1)) if counts else 1
        elif skipped is not None and skipped.get("message", "").startswith("SKIP_"):
            # The program itself says that it can run nothing here; a program that is not there has another message.
            if "skipped:" not in text.lower():
                outcome.notes.append(f"{case.get('name')}: skipped: {skipped.get('message')}")
        elif partial:
            outcome.passed += int(partial.group(2) or 0)
            outcome.failed += int(partial.group(3))
            outcome.fail(case.get("name", "?"), text)
        else:
            outcome.failed += 1
            outcome.fail(f"{case.get('name')} ({case.get('status')})", text)
        outcome.notes += [f"{case.get('name')}: {line.strip()}" for line in text.splitlines()
                          if line.strip().lower().startswith("skipped:")]
    outcome.skipped = len(outcome.notes)
    return outcome


def stage_checks(log: pathlib.Path, _: argparse.Namespace) -> Outcome:
    outcome = Outcome()
    python = sys.executable
    commands = {
        "layers": [python, "tools/checks/layers.py"],
        "tidy": [python, "tools/checks/tidy.py"],
        "ruff": [python, "-m", "ruff", "check", "python", "examples", "tests/python", "tools"],
        "mypy": [python, "-m", "mypy", "--strict", "python/callboard"],
    }
    for name, command in commands.items():
        good = run(log, command, timeout=300) == 0
        outcome.passed += good
        outcome.failed += not good
        if not good:
            outcome.failures.append(name)
    return outcome


def stage_unit(log: pathlib.Path, arguments: argparse.Namespace) -> Outcome:
    if not build(log, "release"):
        return Outcome(failed=1, failures=["the release build failed"])
    return ctest(log, "release", [] if arguments.full else ["-LE", "slow"])


def stage_python(log: pathlib.Path, arguments: argparse.Namespace) -> Outcome:
    if not build(log, "release"):
        return Outcome(failed=1, failures=["the release build failed"])
    report = LOGS / "pytest.xml"
    report.unlink(missing_ok=True)
    env = {
        "PYTHONPATH": str(ROOT / "build/release/python"),
        "CALLBOARD_BIN_DIR": str(ROOT / "build/release/bin"),
        "CALLBOARD_BUILD_DIR": str(ROOT / "build/release"),
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", "pytest", "tests/python", "-q", "-x" if arguments.fail_fast else "-q",
               f"--junitxml={report}", "--timeout=300", "-ra", *([] if arguments.full else ["-m", "not slow"])]
    code = run(log, command, timeout=2400, env=env)
    outcome = Outcome()
    if not report.exists():
        return Outcome(failed=1, failures=["pytest wrote no report"])
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        tests, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
        bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        outcome.failed += bad
        outcome.skipped += skipped
        outcome.passed += tests - bad - skipped
        for case in suite.iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                why = case.find("failure") if case.find("failure") is not None else case.find("error")
                outcome.fail(f"{case.get('classname')}::{case.get('name')}", "" if why is None else why.text or "")
            for skip in case.iter("skipped"):
                outcome.notes.append(f"{case.get('name')} skipped: {skip.get('message')}")
    if code != 0 and outcome.failed == 0:
        outcome.failed += 1
    return outcome


def sanitizer_stage(preset: str) -> Callable[[pathlib.Path, argparse.Namespace], Outcome]:
    def stage(log: pathlib.Path, arguments: argparse.Namespace) -> Outcome:
        if not build(log, preset):
            return Outcome(failed=1, failures=[f"the {preset} build failed"])
        return ctest(log, preset, ["-LE", "fuzz" if arguments.full else "slow|fuzz"])

    return stage


def stage_fuzz(log: pathlib.Path, _: argparse.Namespace) -> Outcome:
    if not build(log, "asan"):
        return Outcome(failed=1, failures=["the build with the fuzz targets failed"])
    return ctest(log, "asan", ["-L", "fuzz"])


def stage_dev(log: pathlib.Path, _: argparse.Namespace) -> Outcome:
    """Compiled together, a source may live from another one's includes; here it cannot."""
    if not build(log, "dev"):
        return Outcome(failed=1, failures=["the dev build failed"])
    return Outcome(passed=1)


STAGES: dict[str, Callable[[pathlib.Path, argparse.Namespace], Outcome]] = {
    "checks": stage_checks,
    "unit": stage_unit,
    "python": stage_python,
    "asan": sanitizer_stage("asan"),
    "tsan": sanitizer_stage("tsan"),
    "fuzz": stage_fuzz,
    "dev": stage_dev,
}
DEFAULT_STAGES = ("checks", "unit", "python", "asan", "tsan", "fuzz")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/test", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="also what takes long (label or marker 'slow')")
    parser.add_argument("--only", metavar="STAGE[,STAGE]",
                        help=f"some of: {', '.join(STAGES)} (default: {', '.join(DEFAULT_STAGES)}; with --full all)")
    parser.add_argument("--limit", type=float, metavar="MINUTES",
                        help="what has not ended by then is ended and counts as failed (default: 80, with --full none)")
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first stage that fails")
    arguments = parser.parse_args()
    default = list(STAGES) if arguments.full else list(DEFAULT_STAGES)
    wanted = arguments.only.split(",") if arguments.only else default
    unknown = [name for name in wanted if name not in STAGES]
    if unknown:
        parser.error(f"no stage {', '.join(unknown)}; there are: {', '.join(STAGES)}")
    LOGS.mkdir(parents=True, exist_ok=True)
    total = Outcome()
    failures: list[str] = []
    begin = time.monotonic()
    limit = arguments.limit if arguments.limit is not None or arguments.full else 80.0
    if limit is not None:
        Clock.end = begin + 60 * limit
    for name in wanted:
        log = LOGS / f"{name}.log"
        log.write_bytes(b"")
        stage_begin = time.monotonic()
        print(f"[test] {name} … (after {stage_begin - begin:.0f} s)", flush=True)
        outcome = STAGES[name](log, arguments)
        if outcome.passed + outcome.failed == 0:
            outcome.failed = 1
            outcome.failures.append("ran no test")
        total.passed += outcome.passed
        total.failed += outcome.failed
        total.skipped += outcome.skipped
        print(f"[test] {name}: {outcome.passed} passed, {outcome.failed} failed, {outcome.skipped} skipped "
              f"({time.monotonic() - stage_begin:.0f} s)", flush=True)
        for note in outcome.notes:
            print(f"    {note}")
        failures += [f"{name}: {failure}\n{outcome.said.get(failure, '')}".rstrip() for failure in outcome.failures]
        if outcome.failed and arguments.fail_fast:
            break
    for failure in failures:
        print(f"[test] FAILED in {failure}")
    print(f"[test] {time.monotonic() - begin:.0f} s in all")
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
