"""Pages of docs/ do what they say: their blocks are run in order, and print what stands behind `print`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import client_environment

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```(?:python|yaml) *(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)


@pytest.mark.timeout(700)  # a fusion is compiled, unless an earlier run left the code in the cache
@pytest.mark.parametrize("page", ["python-kernels.md", "custom-operators.md"])
def test_the_page_s_blocks_run_and_print_what_it_says(tmp_path: Path, page: str) -> None:
    script = ""
    for name, code in BLOCK.findall((DOCS / page).read_text(encoding="utf-8")):
        if name:
            (tmp_path / name).write_text(code.replace("MODULES", str(tmp_path)), encoding="utf-8")
        else:
            script += code
    (tmp_path / "page.py").write_text(script, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env=client_environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    said = PRINTED.findall(script)
    assert len(said) == script.count("print(") and said
    assert ended.stdout.splitlines() == said
