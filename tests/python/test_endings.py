"""Ends that Python makes difficult: daemon threads at the interpreter's end, forked children."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_daemon_thread_in_a_call_does_not_spoil_the_end_of_the_process(cluster: Any) -> None:
    script = """
import sys, threading, torch, callboard
x = torch.ones(3)
c = callboard.connect(sys.argv[1])
p = c.compile(lambda a: a + 1, (x,))
begun = threading.Event()
def work():
    while True:
        p(x)
        begun.set()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
begun.wait()
print("end", flush=True)
"""
    for _ in range(3):
        done = run_script(script, cluster.run_dir)
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "end", "")


def test_a_forked_child_connects_by_itself(cluster: Any) -> None:
    script = """
import os, sys, torch, callboard
x = torch.ones(3)
parent = callboard.connect(sys.argv[1])
p = parent.compile(lambda a: a + 1, (x,))
assert p(x).tolist() == [2.0] * 3
child = os.fork()
if child == 0:
    try:
        p(x)
    except callboard.CallboardError as error:
        assert "connect in the child" in str(error), error
    own = callboard.connect(sys.argv[1], timeout=20)
    ok = own.compile(lambda a: a * 3, (x,))(x).tolist() == [3.0] * 3
    own.close()
    os._exit(0 if ok else 1)
_, status = os.waitpid(child, 0)
assert p(x).tolist() == [2.0] * 3
parent.close()
print(os.waitstatus_to_exitcode(status))
"""
    done = run_script(script, cluster.run_dir)
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr


def test_r57_a_closed_client_keeps_no_shared_memory(cluster: Any) -> None:
    """Descriptors and mappings of the inputs' memory go with the client, unless a tensor still lies there."""
    import callboard

    def memory() -> tuple[int, int]:
        links = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        return sum("memfd:callboard" in link for link in links), sum("memfd:callboard" in line for line in maps)

    x = torch.ones(700, 700)
    before = memory()
    for _ in range(3):
        with callboard.connect(cluster.run_dir) as client:
            torch.testing.assert_close(client.compile(lambda a: a + 1, (x,))(x), x + 1)
    assert memory() == before
    with callboard.connect(cluster.run_dir) as client:
        kept = client.empty(700, 700)
        kept.fill_(2)
    assert bool((kept == 2).all())
    assert memory() != before
    del kept
    assert memory() == before
