"""Runs the real `callboard` from CALLBOARD_BIN_DIR. Its absence is a failure, never a skip."""

from __future__ import annotations

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("CALLBOARD_BIN_DIR", ROOT / "build/release/bin"))


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
