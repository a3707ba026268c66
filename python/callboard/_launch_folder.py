"""The folder that launch() keeps its cluster file and the node actor's output in, and those of killed launchers.

A folder's name says whose it is: process id, start time and pid namespace of its launcher. So the mark is there from
the moment the folder is, nobody needs to guess about a folder without one, and a process id that was given out again
does not look like the launcher. A name is never used twice, since it has a random part, too.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
import weakref
from pathlib import Path

__all__ = ["LaunchFolder", "remove_forgotten"]

_PREFIX = "callboard-launch-"
_MARKED = re.compile(rf"{_PREFIX}(?P<pid>[0-9]+)-(?P<start>[0-9]+)-(?P<namespace>[0-9]+)-[^/]+")


class LaunchFolder:
    """Made empty, for this user alone; removed by remove(), with this object or at the interpreter's end, but never by
    a forked child.
    """

    def __init__(self) -> None:
        mark = f"{os.getpid()}-{_start_time(os.getpid())}-{_pid_namespace()}"
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{mark}-"))
        self._end = weakref.finalize(self, _remove_own, str(self.path), os.getpid())

    def remove(self) -> None:
        """Idempotent."""
        self._end()


def remove_forgotten(parent: str | None = None) -> None:
    """Removes the folders of this user's launchers that have ended without removing them (SIGKILL). Whatever is in
    doubt stays: another user's, one of another pid namespace, one without a mark. What cannot be removed stays, too.
    """
    with contextlib.suppress(OSError), os.scandir(parent or tempfile.gettempdir()) as entries:
        for entry in entries:
            marked = _MARKED.fullmatch(entry.name)
            if marked is None or int(marked["namespace"]) != _pid_namespace():
                continue
            # After this check nobody can become the owner: no later process has both this id and this start time.
            if _start_time(int(marked["pid"])) != int(marked["start"]):
                _remove(entry.path)


def _remove_own(path: str, owner: int) -> None:
    if os.getpid() == owner:
        _remove(path)


def _remove(path: str) -> None:
    """A folder of this user with its files. Neither follows links nor goes into folders: launchers make none there."""
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(folder).st_uid != os.geteuid():
                return
            for name in os.listdir(folder):  # noqa: PTH208 (a descriptor: what was checked is what is listed)
                if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=folder)
        finally:
            os.close(folder)
        Path(path).rmdir()


def _start_time(pid: int) -> int:
    """In clock ticks since the machine's start; 0 if there is no such process. A zombie counts as one: its threads may
    still run.
    """
    try:
        # The second field is the program's name in brackets, which may hold spaces and brackets itself.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(fields[19])


def _pid_namespace() -> int:
    """Process ids mean something within one namespace only, and containers may share a temporary folder. 0: unknown."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0
