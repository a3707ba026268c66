"""Folders of launchers that were killed go with the next launch; nothing else does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import callboard
from callboard._launch_folder import LaunchFolder, _pid_namespace, _start_time, remove_forgotten
from conftest import client_environment, python_command

ONE_CPU = {"devices": [{"kind": "cpu", "count": 1, "threads": 1}]}


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process and its children make their folders."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def ended() -> str:
    """The mark of a process of this user that has ended."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mark = f"{child.pid}-{_start_time(child.pid)}-{_pid_namespace()}"
    child.communicate(b"\n")
    return mark


@pytest.fixture
def running() -> Iterator[tuple[int, int]]:
    """Another process of this user: id and start time."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child.pid, _start_time(child.pid)
    child.communicate(b"\n")


def folder(parent: Path, mark: str) -> Path:
    made = parent / f"callboard-launch-{mark}-abcd1234"
    made.mkdir(mode=0o700)
    (made / "cluster.json").write_text("{}")
    (made / "node.log").write_text("")
    return made


LAUNCHES = """
import sys, callboard
cluster = callboard.launch({"devices": [{"kind": "cpu", "count": 1, "threads": 1}]})
print("ready", flush=True)
sys.stdin.read()
"""


def launched() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        python_command(LAUNCHES), env=client_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_the_folder_of_a_killed_launcher_goes_with_the_next_launch_and_a_live_ones_stays(parent: Path) -> None:
    killed, alive = launched(), launched()
    assert len(list(parent.glob("callboard-launch-*"))) == 2
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    (kept,) = parent.glob(f"callboard-launch-{alive.pid}-*")
    with callboard.launch(ONE_CPU):
        assert len(list(parent.glob("callboard-launch-*"))) == 2  # the live one's and ours
        assert sorted(entry.name for entry in kept.iterdir()) == ["cluster.json", "node.log"]
    assert list(parent.glob("callboard-launch-*")) == [kept]
    alive.communicate("")
    assert list(parent.glob("callboard-launch-*")) == []


def test_only_a_folder_whose_launcher_has_ended_is_removed(parent: Path, ended: str, running: tuple[int, int]) -> None:
    pid, start = running
    here = _pid_namespace()
    gone = [folder(parent, ended), folder(parent, f"{pid}-{start - 1}-{here}")]  # the second id was given out again
    kept = [
        folder(parent, f"{pid}-{start}-{here}"),
        folder(parent, f"{os.getpid()}-{_start_time(os.getpid())}-{here}"),
        folder(parent, ended.rpartition("-")[0] + f"-{here + 1}"),  # an id of another namespace says nothing here
        folder(parent, "x"),  # without a mark
        folder(parent, "1-2"),
    ]
    (parent / f"callboard-launch-{ended}-file").write_text("no folder")
    remove_forgotten()
    assert not any(map(Path.exists, gone))
    assert all((path / "cluster.json").exists() for path in kept)
    assert (parent / f"callboard-launch-{ended}-file").exists()


def test_links_are_never_followed(parent: Path, ended: str) -> None:
    precious = parent / "precious"
    precious.mkdir()
    (precious / "file").write_text("keep")
    (parent / f"callboard-launch-{ended}-link").symlink_to(precious)
    made = folder(parent, ended)
    (made / "folder").symlink_to(precious)
    (made / "file").symlink_to(precious / "file")
    remove_forgotten()
    assert not made.exists()
    assert (precious / "file").read_text() == "keep"
    assert (parent / f"callboard-launch-{ended}-link").is_symlink()


def test_a_folder_with_a_folder_in_it_is_none_of_ours(parent: Path, ended: str) -> None:
    made = folder(parent, ended)
    (made / "work").mkdir()
    (made / "work" / "file").write_text("keep")
    remove_forgotten()
    assert (made / "work" / "file").read_text() == "keep"


def test_a_folder_of_another_user_stays(parent: Path, ended: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a folder of another user")
    made = folder(parent, ended)
    os.chown(made, 65534, -1)
    remove_forgotten()
    assert (made / "cluster.json").exists()


def test_a_folder_ends_with_its_object_but_not_with_a_forked_child(parent: Path) -> None:
    made = LaunchFolder()
    path = made.path
    (path / "node.log").write_text("")
    pid = os.fork()
    if pid == 0:
        made.remove()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert (path / "node.log").exists()
    remove_forgotten()
    assert (path / "node.log").exists()
    del made
    assert not path.exists()


def test_a_folder_that_is_not_there_is_no_fault(tmp_path: Path) -> None:
    remove_forgotten(str(tmp_path / "missing"))
