"""Processes of one cluster in several pid namespaces, where the same number names several processes."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import callboard
from callboard._launch import find_program
from conftest import TWO_CPU, client_environment, python_command
from models import rand, same

NEW_PID_NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


@pytest.fixture(scope="module", autouse=True)
def namespaces_are_allowed() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("the program unshare (util-linux) is not here")
    done = subprocess.run([*NEW_PID_NAMESPACE, "true"], capture_output=True, text=True, timeout=20)
    if done.returncode != 0:
        pytest.skip(f"this user may not make a pid namespace: {done.stderr.strip()}")


class TwoStages(nn.Module):
    """What passes between the stages is large enough to go through shared memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(300, 300), nn.Linear(300, 300)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def check_two_stages(cluster: Any) -> None:
    x = rand(300, 300)
    program = cluster.compile(TwoStages(), (x,), placement={"cpu0": "first", "cpu1": "second"})
    for seed in range(5):
        x = rand(300, 300, seed=seed)
        with torch.no_grad():
            assert same(program(x), TwoStages()(x)) == ""


def programs_with_device(folder: Path, script: str) -> Path:
    """A folder of Callboard's programs, with this one as the device."""
    shutil.copy(find_program("callboard"), folder / "callboard")
    device = folder / "callboard-device"
    device.write_text(f"#!/bin/sh\n{script}\n")
    device.chmod(0o755)
    return folder


@pytest.mark.parametrize("isolated", [("cpu0",), ("cpu0", "cpu1")], ids=["one device", "both devices, with one pid"])
def test_devices_in_other_pid_namespaces_share_memory(
    isolated: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """R10: what two devices share is proved by using it, not by host or pid."""
    real = shlex.quote(find_program("callboard-device"))
    patterns = "|".join(f'*" --name {name} "*' for name in isolated)
    script = f'case " $* " in {patterns}) exec {" ".join(NEW_PID_NAMESPACE)} {real} "$@";; esac\nexec {real} "$@"'
    monkeypatch.setenv("CALLBOARD_BIN_DIR", str(programs_with_device(tmp_path, script)))
    with callboard.launch(TWO_CPU) as cluster:
        said = {actor["name"]: actor["pid"] for actor in cluster.status()["actors"] if actor["role"] == "device"}
        assert [name for name, pid in said.items() if pid == 1] == list(isolated)
        check_two_stages(cluster)


ISOLATED_CLIENT = """
import os, sys
import callboard
from test_namespaces import check_two_stages
with callboard.connect(sys.argv[1]) as cluster:
    for line in sys.stdin:
        check_two_stages(cluster)
        print("same", os.getpid(), flush=True)
"""

# $1 is the pid that the command behind it gets. A shell's background job would have no stdin of its own.
WITH_PID = 'exec 3<&0; echo $(($1 - 1)) > /proc/sys/kernel/ns_last_pid && shift && { "$@" <&3 & } && wait'


def test_a_client_in_another_pid_namespace_does_not_end_with_a_stranger_that_has_its_pid(cluster: Any) -> None:
    """R10: nor does it take a stranger for the coordinator."""
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with_pid = [*NEW_PID_NAMESPACE, "sh", "-c", WITH_PID, "sh", str(stranger.pid)]
    client = subprocess.Popen(
        [*with_pid, *python_command(ISOLATED_CLIENT, cluster.run_dir)],
        env=client_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert client.stdin is not None
        assert client.stdout is not None
        for _ in range(2):
            client.stdin.write("go on\n")
            client.stdin.flush()
            assert client.stdout.readline() == f"same {stranger.pid}\n"
            before = len(cluster.status()["clients"])
            stranger.kill()
            stranger.wait(20)
            assert len(cluster.status()["clients"]) == before
        client.stdin.close()
        assert client.wait(20) == 0
    finally:
        stranger.kill()
        client.kill()
        client.wait(20)


def test_a_cluster_of_another_pid_namespace_is_not_stopped_by_number(cluster: Any) -> None:
    """R10: a signal would meet a stranger."""
    command = [*NEW_PID_NAMESPACE, find_program("callboard"), "down", "--force", cluster.name]
    done = subprocess.run(command, env=client_environment(), capture_output=True, text=True, timeout=30)
    assert done.returncode != 0
    assert "another pid namespace" in done.stderr
    check_two_stages(cluster)
