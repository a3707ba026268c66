"""The command line, run as users run it. Clusters here have stand-in device actors, which start without LibTorch."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

from cli_support import BIN, FAKE, ROOT, Lab, callboard, gone, pids

TWO = str(ROOT / "config/examples/two_cpu.yaml")


# -- what needs no cluster -------------------------------------------------------------------------------------------


def test_no_arguments_print_help_and_are_a_usage_error() -> None:
    result = callboard()
    assert result.returncode == 2
    assert "callboard up cluster.yaml" in result.stdout


def test_every_command_teaches_with_examples_and_exit_codes() -> None:
    top = callboard("--help")
    assert top.returncode == 0
    assert "coordinator" not in re.findall(r"^  (\w+) ", top.stdout, re.M)  # the roles are hidden
    for command in ("validate", "up", "down", "status", "logs", "run", "doctor"):
        result = callboard(command, "--help")
        assert callboard("help", command).stdout == result.stdout
        assert result.returncode == 0
        assert f"callboard {command}" in result.stdout
        assert "Examples:" in result.stdout
        assert "Exit status:" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["statsu"], "'callboard' has no command 'statsu'"),
        (["statsu"], "did you mean 'status'?"),
        (["frobnicate"], "commands are validate, up"),
        (["help", "statsu"], "did you mean 'status'?"),
        (["--frob"], "'callboard' has no option '--frob'"),
        (["--verison"], "did you mean '--version'?"),
        (["-x"], "callboard --help shows what is possible"),
        (["config", "schem"], "'callboard config' has no command 'schem'\n  hint: did you mean 'schema'?"),
        (["up", "--detahc", TWO], "'callboard up' has no option '--detahc'\n  hint: did you mean '--detach'?"),
        (["status", "--output", "json"], "did you mean '--output-format'?"),
        (["status", "one", "two"], "'callboard status' does not take 'two'"),
        (["up"], "FILE is required"),
        (["up", "--bogus", TWO], "--bogus"),
        (["validate", TWO, "-o", "xml"], "xml"),
        (["up", TWO, "--wait", "60"], "needs a unit"),
        (["up", TWO, "--name", "A/B"], "is not a cluster name"),
        (["run", "x", "--deadline", "fast"], "wants a duration"),
    ],
)
def test_wrong_arguments_are_usage_errors_with_a_hint(arguments: list[str], expected: str) -> None:
    result = callboard(*arguments)
    assert result.returncode == 2
    assert expected in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("command", ["--help", "--version", "version", "config schema", "config reference"])
def test_output_that_cannot_be_written_is_a_failure(command: str) -> None:
    with pathlib.Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [str(BIN / "callboard"), *command.split()], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "callboard: the output could not be written: No space left on device\n"


def test_help_is_a_command_too() -> None:
    for arguments in (["help"], ["help", "--help"], ["--help"], ["-h"]):
        result = callboard(*arguments)
        assert (result.returncode, result.stderr) == (0, "")
        assert "callboard help COMMAND" in result.stdout
    assert callboard("help", "config", "show").stdout == callboard("config", "show", "--help").stdout != ""


def test_version() -> None:
    version = json.loads(callboard("version", "-o", "json").stdout)
    assert version["version"] in callboard("--version").stdout
    assert version["version"] in callboard("version").stdout


def test_validate_prints_place_line_and_caret(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "lab.yaml"
    file.write_text("devices:\n  - {kind: cpu, memroy_limit: 1GiB}\n")
    result = callboard("validate", str(file))
    assert result.returncode == 2
    assert result.stdout == (
        f"{file}:2:17: error[E201] unknown key 'memroy_limit' in devices[0]: did you mean 'memory_limit'?\n"
        "    2 |   - {kind: cpu, memroy_limit: 1GiB}\n"
        "      |                 ^^^^^^^^^^^^\n"
        "1 error, 0 warnings\n"
    )
    found = json.loads(callboard("validate", str(file), "-o", "json").stdout)
    assert (found["ok"], found["findings"][0]["line"], found["findings"][0]["column"]) == (False, 2, 17)


def test_validate_reads_standard_input_and_says_ok() -> None:
    result = callboard("validate", "-", stdin="devices: [{kind: cpu, count: 2}]")
    assert (result.returncode, result.stdout) == (0, "<stdin>: ok, cluster 'local' with 2 devices\n")


def test_a_missing_or_unreadable_file_is_no_stack_trace(tmp_path: pathlib.Path) -> None:
    for path in ("/nonexistent.yaml", str(tmp_path), "/dev/zero"):
        for command in (["validate", path], ["up", path], ["config", "show", path]):
            result = callboard(*command)
            assert result.returncode != 0
            assert path in result.stderr
            assert "terminate" not in result.stderr


def test_a_pipe_without_a_writer_is_not_waited_for_and_a_substituted_one_is_read(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused = callboard("validate", str(tmp_path / "pipe"), timeout=8)
    assert refused.returncode == 2
    assert "a pipe to which nobody writes" in refused.stderr
    script = f"'{BIN}/callboard' validate <(echo 'devices: [{{kind: cpu}}]')"
    assert subprocess.run(["bash", "-c", script], capture_output=True, timeout=30).returncode == 0
    assert callboard("validate", "/dev/stdin", stdin="devices: [{kind: cpu}]").returncode == 0


def test_what_validate_shows_of_a_binary_file_is_text() -> None:
    shown = subprocess.run([*callboard.command, "validate", "/bin/ls"], capture_output=True, timeout=30)
    assert shown.returncode == 2
    assert b"is it the right file? It is not text" in shown.stdout
    assert all(byte == 0x0A or 0x20 <= byte < 0x7F for byte in shown.stdout)


def test_r53_a_long_run_directory_is_found_before_anything_starts() -> None:
    env = {"CALLBOARD_RUN_DIR": "/tmp/" + "r" * 115}
    for command in ("validate", "up"):
        result = callboard(command, TWO, env=env)
        assert result.returncode == 2
        assert "rrrr/two-cpu has 128 bytes; at most 74 are possible" in result.stdout + result.stderr
    assert not pathlib.Path(env["CALLBOARD_RUN_DIR"]).exists()


def test_config_show_is_a_fixed_point(tmp_path: pathlib.Path) -> None:
    shown = callboard("config", "show", TWO).stdout
    file = tmp_path / "shown.yaml"
    file.write_text(shown)
    assert callboard("config", "show", str(file)).stdout == shown
    assert "heartbeat:\n  interval: 500ms\n" in shown


def test_doctor_reports_and_names_what_is_missing() -> None:
    env = {"CALLBOARD_DEVICE_BINARY": FAKE}
    result = callboard("doctor", "-o", "json", env=env)
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert result.returncode == (3 if any(check["state"] == "fail" for check in checks.values()) else 0)
    assert set(checks) >= {
        "kernel",
        "memfd",
        "pidfd",
        "overcommit",
        "open files",
        "file size",
        "memory",
        "cores",
        "libzmq",
        "GPUs",
    }
    assert checks["device actor"]["state"] == "ok"
    assert "version fake" in checks["device actor"]["found"]
    missing = callboard("doctor", env={"CALLBOARD_DEVICE_BINARY": "/nonexistent/device"})
    assert missing.returncode == 3
    assert "/nonexistent/device" in missing.stdout


def test_bash_completion_knows_commands_and_options() -> None:
    script = callboard("completion", "bash").stdout
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    ask = script + '\nCOMP_WORDS=(callboard up --d); COMP_CWORD=2; _callboard; echo "${COMPREPLY[@]}"'
    assert subprocess.run(["bash", "-c", ask], capture_output=True, text=True).stdout == "--detach\n"
    ask = script + '\nCOMP_WORDS=(callboard st); COMP_CWORD=1; _callboard; echo "${COMPREPLY[@]}"'
    assert subprocess.run(["bash", "-c", ask], capture_output=True, text=True).stdout == "status\n"
    ask = script + '\nCOMP_WORDS=(callboard help lo); COMP_CWORD=2; _callboard; echo "${COMPREPLY[@]}"'
    assert subprocess.run(["bash", "-c", ask], capture_output=True, text=True).stdout == "logs\n"


def test_no_colour_without_a_terminal(tmp_path: pathlib.Path) -> None:
    for arguments in (["doctor"], ["validate", TWO], ["status", "nobody"]):
        result = callboard(*arguments, env={"TERM": "xterm"})
        assert "\x1b" not in result.stdout + result.stderr


def test_output_into_a_closed_pipe_is_no_error() -> None:
    process = subprocess.Popen(
        [*callboard.command, "config", "reference"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert b"terminate" not in process.stderr.read()
    process.wait(30)


# -- clusters --------------------------------------------------------------------------------------------------------


def test_up_detach_status_down_and_nothing_is_left(lab: Lab) -> None:
    up = lab.up()
    assert up.returncode == 0, up.stderr
    for word in ("coordinator", "cpu0", "cpu1", "callboard down lab"):
        assert word in up.stdout
    assert "cpu0 started" in up.stderr
    status = lab("status")
    assert status.returncode == 0, status.stderr
    assert "cluster 'lab'" in status.stdout
    assert "clients 0," in status.stdout  # the command is none
    assert lab.status()["clients"] == []
    everyone = pids(lab)
    assert set(everyone) == {"node", "coordinator", "cpu0", "cpu1"}
    down = lab("down")
    assert (down.returncode, down.stdout) == (0, "cluster 'lab' has stopped\n")
    assert all(gone(pid) for pid in everyone.values())
    assert lab.clusters() == []
    again = lab("down")
    assert (again.returncode, again.stdout) == (0, "no cluster is running\n")
    assert lab("down", "lab").returncode == 0


def test_up_as_json(lab: Lab) -> None:
    up = lab.up("-o", "json")
    assert up.returncode == 0, up.stderr
    answer = json.loads(up.stdout)
    assert (answer["ok"], answer["name"]) == (True, "lab")
    assert [actor["name"] for actor in answer["actors"]] == ["node", "coordinator", "cpu0", "cpu1"]
    for actor in answer["actors"]:
        assert pathlib.Path(actor["log"]).is_file()
    assert json.loads(lab("down", "-o", "json").stdout) == {"ok": True, "stopped": True, "name": "lab"}


def test_a_second_cluster_of_the_name_is_refused_naming_the_pid(lab: Lab) -> None:
    assert lab.up().returncode == 0
    node = pids(lab)["node"]
    second = lab.up()
    assert second.returncode == 3, second.stderr
    assert f"pid {node}" in second.stderr
    assert "callboard down lab" in second.stderr
    assert lab("status").returncode == 0  # the first is not harmed


def test_two_clusters_side_by_side(lab: Lab) -> None:
    assert lab.up().returncode == 0
    assert lab.up("--name", "other").returncode == 0
    unnamed = lab("status")
    assert unnamed.returncode != 0
    assert "lab, other" in unnamed.stderr
    assert lab("down").returncode == 2  # which one?
    assert lab("down", "other").returncode == 0
    assert lab("status").returncode == 0
    assert lab.status()["name"] == "lab"


def test_status_of_no_cluster_fails_and_lists_those_that_run(lab: Lab) -> None:
    none = lab("status", "-o", "json")
    assert none.returncode == 1
    assert json.loads(none.stdout)["error"]["name"] == "cluster_not_found"
    assert json.loads(none.stdout)["error"]["message"] == "no cluster is running"
    assert lab.up().returncode == 0
    assert "running: lab" in lab("status", "nobody").stderr


def test_a_device_that_cannot_start_gives_cause_and_log_lines_and_leaves_nothing(lab: Lab) -> None:
    up = lab.up(env={"CALLBOARD_FAKE_DEVICE": "exit"})
    assert up.returncode == 1, up.stderr
    assert "exit status 3" in up.stderr
    assert "the fake device was told to fail" in up.stderr
    assert lab.clusters() == []
    assert json.loads(lab("status", "-o", "json").stdout)["error"]["name"] == "cluster_not_found"


def test_a_device_that_crashes_at_its_start_is_started_twice_and_no_more(lab: Lab) -> None:
    up = lab.up(env={"CALLBOARD_FAKE_DEVICE": "crash"})
    assert up.returncode == 1, up.stderr
    assert "ended while it started: signal 11" in up.stderr
    assert "the fake device was told to crash" in up.stderr
    assert max(up.stderr.count(f"{name} started (pid ") for name in ("cpu0", "cpu1")) == 2
    assert lab.clusters() == []


def test_a_device_that_hangs_gives_not_ready_and_leaves_nothing(lab: Lab) -> None:
    up = lab.up("--wait", "1500ms", "-o", "json", env={"CALLBOARD_FAKE_DEVICE": "hang"})
    assert up.returncode == 4, up.stderr
    assert "cpu0" in json.loads(up.stdout)["error"]["message"]
    assert lab.clusters() == []


def test_a_missing_device_program_is_an_error_of_the_environment(lab: Lab) -> None:
    up = lab.up(env={"CALLBOARD_DEVICE_BINARY": "/nonexistent/device"})
    assert up.returncode == 3
    assert "/nonexistent/device" in up.stderr


def read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    seen = ""
    while text not in seen:
        line = process.stdout.readline()
        assert line, f"ended before '{text}': {seen} {process.stderr.read() if process.stderr else ''}"
        seen += line
    return seen


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_foreground_stops_in_order_on_a_signal(lab: Lab, number: signal.Signals) -> None:
    process = lab.popen("up", str(lab.file))
    read_until(process, "Ctrl-C")
    everyone = pids(lab)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert all(gone(pid) for pid in everyone.values())
    assert lab.clusters() == []


def test_an_interrupt_before_ready_is_130_and_leaves_nothing(lab: Lab) -> None:
    process = lab.popen("up", str(lab.file), env={"CALLBOARD_FAKE_DEVICE": "hang"})
    assert process.stderr is not None
    while "cpu1 started" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert lab.clusters() == []


def test_killing_the_foreground_command_ends_the_cluster(lab: Lab) -> None:
    process = lab.popen("up", str(lab.file))
    read_until(process, "Ctrl-C")
    everyone = pids(lab)
    process.kill()
    process.communicate(timeout=30)
    assert all(gone(pid) for pid in everyone.values())


def test_down_from_elsewhere_ends_the_foreground_command_with_0(lab: Lab) -> None:
    process = lab.popen("up", str(lab.file))
    read_until(process, "Ctrl-C")
    assert lab("down").returncode == 0
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors


def test_status_is_degraded_while_a_device_is_down(lab: Lab) -> None:
    lab.write("name: lab\ndevices: [{kind: cpu, count: 2}]\nrestart: {policy: never}\n")
    assert lab.up().returncode == 0
    os.kill(pids(lab)["cpu1"], signal.SIGKILL)
    deadline = time.monotonic() + 20
    while (result := lab("status")).returncode != 5:  # each look waits for the coordinator's answer
        assert time.monotonic() < deadline, result.stdout
    assert "signal 9" in result.stdout
    assert lab("status", "-o", "json").returncode == 5


def test_down_kills_a_cluster_that_does_not_stop(lab: Lab) -> None:
    assert lab.up().returncode == 0
    everyone = pids(lab)
    os.kill(everyone["node"], signal.SIGSTOP)
    os.kill(everyone["coordinator"], signal.SIGSTOP)
    down = lab("down", "--wait", "1s")
    assert down.returncode == 0, down.stderr
    assert "by force" in down.stderr
    assert all(gone(pid) for pid in everyone.values())
    assert lab.clusters() == []


def test_validate_of_a_file_that_is_too_large_is_a_usage_error(tmp_path: pathlib.Path) -> None:
    large = tmp_path / "large.yaml"
    large.write_text("# " + "x" * (1 << 20) + "\n")
    refused = callboard("validate", str(large))
    assert refused.returncode == 2
    assert "1048576 bytes" in refused.stderr


def test_a_gpu_that_is_not_here_is_refused_before_anything_starts(lab: Lab, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "gpu.yaml"
    file.write_text("devices: [{kind: cpu}, {kind: cuda, index: 1023}]\n")
    before = set(pathlib.Path("/tmp").glob("callboard-probe-*"))
    up = lab("up", str(file), env={"CALLBOARD_DEVICE_BINARY": str(BIN / "callboard-device")})
    assert "'cuda1023'" in up.stderr
    if (BIN / "callboard_cuda.so").exists():
        assert up.returncode == 3, up.stderr
        assert "no NVIDIA driver" in up.stderr or "no GPU" in up.stderr or "asks for GPU 1023" in up.stderr
        assert "hint" in up.stderr
    else:
        assert up.returncode == 1, up.stderr
        assert "no backend" in up.stderr
    assert "starting" not in up.stderr
    assert lab.clusters() == []
    assert set(pathlib.Path("/tmp").glob("callboard-probe-*")) <= before


def test_doctor_says_why_no_gpu_can_be_used(lab: Lab) -> None:
    told = lab("doctor", "-o", "json", env={"CALLBOARD_DEVICE_BINARY": str(BIN / "callboard-device")})
    gpus = next(check for check in json.loads(told.stdout)["checks"] if check["name"] == "GPUs")
    assert gpus["state"] in ("ok", "warn")
    assert "capability" in gpus["found"] or "devices of kind cuda do not start here: " in gpus["found"]
