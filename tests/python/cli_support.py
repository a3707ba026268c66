"""Runs the real `callboard` from CALLBOARD_BIN_DIR. Its absence is a failure, never a skip."""

from __future__ import annotations

import json
import os
import pathlib
import select
import subprocess
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("CALLBOARD_BIN_DIR", ROOT / "build/release/bin"))
FAKE = str(BIN / "callboard-fake-device")  # a stand-in device actor, which starts without LibTorch


class Callboard:
    def __init__(self) -> None:
        self.command = [str(BIN / "callboard")]

    def __call__(
        self, *arguments: str, env: dict[str, str] | None = None, stdin: str = "", timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        assert os.access(self.command[0], os.X_OK), (
            f"{self.command[0]} is not there: build it, or set CALLBOARD_BIN_DIR"
        )
        return subprocess.run(
            [*self.command, *arguments], env={**os.environ, **(env or {})}, input=stdin, capture_output=True, text=True,
            timeout=timeout, cwd="/",
        )  # fmt: skip


callboard = Callboard()


class Lab:
    """A run root of its own; stops everything that is left in it."""

    def __init__(self, root: str) -> None:
        self.root = pathlib.Path(root)
        self.env = {"CALLBOARD_RUN_DIR": str(self.root / "run"), "CALLBOARD_DEVICE_BINARY": FAKE}
        self.file = self.root / "cluster.yaml"
        self.write("name: lab\ndevices: [{kind: cpu, count: 2}]\n")

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def __call__(
        self, *arguments: str, env: dict[str, str] | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        return callboard(*arguments, env={**self.env, **(env or {})}, timeout=timeout)

    def up(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return self("up", str(self.file), "--detach", *arguments, env=env)

    def popen(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*callboard.command, *arguments], env={**os.environ, **self.env, **(env or {})}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, cwd=self.root,
        )  # fmt: skip

    def clusters(self) -> list[str]:
        run = self.root / "run"
        return sorted(path.name for path in run.iterdir()) if run.exists() else []

    def status(self, name: str = "") -> Any:
        result = self("status", *([name] if name else []), "-o", "json")
        assert result.returncode in (0, 5), result.stderr
        return json.loads(result.stdout)


def gone(pid: int, wait: float = 10) -> bool:
    """Waits for the end of a process that is not our child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], wait)[0])
    finally:
        os.close(handle)


def pids(lab: Lab, name: str = "") -> dict[str, int]:
    status = lab.status(name)
    found = {actor["name"]: actor["pid"] for actor in status["actors"] if "pid" in actor}
    return {**found, "node": status["node_pid"], "coordinator": status["coordinator_pid"]}
