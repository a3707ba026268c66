"""What tools/test counts: a program that can run nothing here is skipped, one that is missing has failed."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
import time
import types

import pytest


@pytest.fixture(scope="module")
def run_tests() -> types.ModuleType:
    path = pathlib.Path(__file__).resolve().parents[2] / "tools" / "checks" / "run_tests.py"
    spec = importlib.util.spec_from_file_location("run_tests", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["run_tests"] = module
    spec.loader.exec_module(module)
    return module


def report(folder: pathlib.Path, status: str, body: str) -> pathlib.Path:
    path = folder / "report.xml"
    path.write_text(f'<testsuite><testcase name="some_test" status="{status}">{body}</testcase></testsuite>')
    return path


def test_a_program_that_passes_counts_its_cases(run_tests: types.ModuleType, tmp_path: pathlib.Path) -> None:
    text = "<system-out>All tests passed (90 assertions in 7 test cases)</system-out>"
    outcome = run_tests.read_ctest_report(report(tmp_path, "run", text))
    assert (outcome.passed, outcome.failed, outcome.skipped) == (7, 0, 0)


def test_a_skipped_program_has_not_failed(run_tests: types.ModuleType, tmp_path: pathlib.Path) -> None:
    text = '<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/><system-out>SKIPPED: no GPU here</system-out>'
    outcome = run_tests.read_ctest_report(report(tmp_path, "notrun", text))
    assert (outcome.passed, outcome.failed, outcome.skipped) == (0, 0, 1)
    assert outcome.notes == ["some_test: SKIPPED: no GPU here"]


def test_a_skipped_program_that_says_nothing_is_named(run_tests: types.ModuleType, tmp_path: pathlib.Path) -> None:
    outcome = run_tests.read_ctest_report(report(tmp_path, "notrun", '<skipped message="SKIP_RETURN_CODE=4"/>'))
    assert (outcome.failed, outcome.skipped) == (0, 1)
    assert outcome.notes == ["some_test: skipped: SKIP_RETURN_CODE=4"]


def test_a_missing_program_has_failed(run_tests: types.ModuleType, tmp_path: pathlib.Path) -> None:
    outcome = run_tests.read_ctest_report(report(tmp_path, "notrun", '<skipped message="Unable to find executable"/>'))
    assert outcome.failed == 1
    assert outcome.failures == ["some_test (notrun)"]


def test_a_failed_case_is_counted_and_its_program_named(run_tests: types.ModuleType, tmp_path: pathlib.Path) -> None:
    text = '<failure message=""/><system-out>test cases: 5 | 3 passed | 2 failed</system-out>'
    outcome = run_tests.read_ctest_report(report(tmp_path, "fail", text))
    assert (outcome.passed, outcome.failed) == (3, 2)
    assert outcome.failures == ["some_test"]


def test_a_program_ended_at_its_limit_has_failed(run_tests: types.ModuleType, tmp_path: pathlib.Path) -> None:
    outcome = run_tests.read_ctest_report(report(tmp_path, "fail", '<failure message="Timeout"/>'))
    assert outcome.failures == ["some_test (fail)"]


def test_a_failed_program_is_quoted_from_where_it_says_why(run_tests: types.ModuleType, tmp_path: pathlib.Path) -> None:
    noise = "\n".join(f"info number {i}" for i in range(100))
    text = f"{noise}\nWARNING: ThreadSanitizer: data race\n  Read of size 8\n{noise}"
    outcome = run_tests.read_ctest_report(
        report(tmp_path, "fail", f"<failure message=''/><system-out>{text}</system-out>")
    )
    said = outcome.said["some_test (fail)"].splitlines()
    assert [line.strip() for line in said[:5]] == [
        "info number 97",
        "info number 98",
        "info number 99",
        "WARNING: ThreadSanitizer: data race",
        "Read of size 8",
    ]
    assert len(said) == 40
    assert run_tests.excerpt("short\ntext").split() == ["short", "text"]


def test_a_command_over_its_time_is_ended_with_all_that_it_started(
    run_tests: types.ModuleType, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what a build had begun would go on beside the stages that follow."""
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setattr(run_tests.Clock, "end", time.monotonic() + 2)  # sooner than the command's own time
    number = tmp_path / "number"
    command = ["bash", "-c", f"sleep 600 & echo $! > {number}.new; mv {number}.new {number}; wait"]
    assert run_tests.run(tmp_path / "log", command, timeout=600) == 124
    assert "ended after" in (tmp_path / "log").read_text()
    pid = int(number.read_text())
    state = pathlib.Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().split(")")[1].split()[0] in "ZX"
