"""What clusters leave behind: their logs, and the run directories of killed ones."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal

from cli_support import Lab, gone, pids


def kill_node(lab: Lab, name: str) -> None:
    """SIGKILL for the node actor of a cluster and the wait for all of its processes."""
    everyone = pids(lab, name)
    os.kill(everyone["node"], signal.SIGKILL)
    assert all(gone(pid) for pid in everyone.values())


def test_what_a_killed_cluster_left_goes_with_status_up_and_down_and_a_live_one_stays(lab: Lab) -> None:
    for name in ("one", "alive"):
        assert lab.up("--name", name).returncode == 0
    kill_node(lab, "one")
    status = lab("status")
    assert status.returncode == 0, status.stderr
    assert f"removed {lab.root}/run/one: " in status.stderr
    assert sorted(path.name for path in (lab.root / "run/one").iterdir()) == ["lock", "logs"]
    assert "one" not in lab("status").stderr
    assert lab.up("--name", "two").returncode == 0
    assert lab.clusters() == ["alive", "two"]
    assert "run_dir_removed" in (lab.root / "run/two/logs/node.log").read_text()
    assert f"{lab.root}/run/one of a cluster that has ended: logs" in (lab.root / "run/two/logs/node.log").read_text()
    kill_node(lab, "two")
    down = lab("down", "alive")
    assert down.returncode == 0, down.stderr
    assert f"removed {lab.root}/run/two of a cluster that has ended: " in down.stderr
    assert lab.clusters() == []


def test_the_logs_of_a_cluster_whose_coordinator_was_killed_stay_until_the_next_one(lab: Lab) -> None:
    assert lab.up().returncode == 0
    everyone = pids(lab)
    os.kill(everyone["coordinator"], signal.SIGKILL)
    assert all(gone(pid) for pid in everyone.values())
    assert lab("status").returncode == 1
    logs = lab("logs")
    assert logs.returncode == 0, logs.stderr
    assert "cluster 'lab' has ended" in logs.stderr
    assert "cluster_failed" in logs.stdout
    assert lab("down").returncode == 0
    assert lab.clusters() == []
    assert lab("logs").returncode == 1


# -- logs ------------------------------------------------------------------------------------------------------------


def test_logs_show_the_last_lines_of_all_or_of_some_actors(lab: Lab) -> None:
    assert lab.up().returncode == 0
    every = lab("logs")
    assert every.returncode == 0, every.stderr
    headers = re.findall(r"^==> (\S+) \((\S+)\)$", every.stdout, re.M)
    assert [name for name, _ in headers] == ["node", "coordinator", "cpu0", "cpu1"]
    assert all(pathlib.Path(file).is_file() for _, file in headers)
    log = lab.root / "run/lab/logs/cpu0.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)) + "\x1b[31mcut off")
    assert lab("logs", "cpu0").stdout.splitlines() == [f"line {number}" for number in range(51, 100)] + [" [31mcut off"]
    assert lab("logs", "cpu0", "-n", "2").stdout.splitlines() == ["line 99", " [31mcut off"]
    assert lab("logs", "cpu0", "--lines", "0").stdout == ""
    found = json.loads(lab("logs", "cpu0", "cpu1", "--lines", "1", "-o", "json").stdout)
    assert (found["ok"], found["cluster"], found["running"]) == (True, "lab", True)
    assert found["logs"][0] == {"name": "cpu0", "file": str(log), "lines": [" [31mcut off"]}
    assert found["logs"][1]["name"] == "cpu1"
    assert lab("logs", "--cluster", "lab").returncode == 0


def test_logs_of_one_start_of_an_actor(lab: Lab) -> None:
    assert lab.up().returncode == 0
    log = lab.root / "run/lab/logs/cpu0.log"
    stamp = "2026-01-01T00:00:00.000001Z info"
    lines = [f"{stamp} cpu0#1 ready", "Traceback", f"{stamp} cpu0#2 ready"]
    log.write_text("\n".join(lines) + "\n")
    assert lab("logs", "cpu0#1").stdout.splitlines() == lines[:2]
    assert lab("logs", "cpu0#2").stdout.splitlines() == lines[2:]
    assert lab("logs", "cpu0").stdout.splitlines() == lines


def test_logs_of_what_is_not_there_name_what_is(lab: Lab) -> None:
    assert lab("logs").returncode == 1
    assert lab.up().returncode == 0
    every = "it has those of node, coordinator, cpu0 and cpu1"
    for name, hint in (("cpu3", "did you mean 'cpu"), ("frobnicate", every)):
        unknown = lab("logs", name)
        assert unknown.returncode == 2
        assert f"no log of '{name}'" in unknown.stderr
        assert hint in unknown.stderr
    assert lab("logs", "cpu0#x").returncode == 2
    assert lab("logs", "--lines", "-1").returncode == 2
    nowhere = lab("logs", "--cluster", "lba")
    assert nowhere.returncode == 1
    assert "running: lab" in nowhere.stderr
    assert "did you mean 'lab'?" in nowhere.stderr


def test_logs_are_followed_until_an_interrupt_or_the_end_of_the_cluster(lab: Lab) -> None:
    assert lab.up().returncode == 0
    log = lab.root / "run/lab/logs/cpu0.log"
    log.write_text("first\n")
    process = lab.popen("logs", "cpu0", "--follow")
    assert process.stdout is not None
    assert process.stdout.readline() == "first\n"
    with log.open("a") as file:
        file.write("sec")
        file.flush()
        file.write("ond\n")
    assert process.stdout.readline() == "second\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    following = lab.popen("logs", "cpu0", "-f", "-o", "json")
    assert following.stdout is not None
    assert json.loads(following.stdout.readline()) == {"name": "cpu0", "line": "first"}
    assert lab("down").returncode == 0
    _, errors = following.communicate(timeout=30)
    assert following.returncode == 0
    assert "cluster 'lab' has ended" in errors
