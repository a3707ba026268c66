"""House rules that a compiler does not check: lengths, banned calls, files that nothing builds, stray machine paths."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINE_MAX = 120
FILE_MAX = 600
CODE = {".h", ".cpp", ".cu", ".py"}
# What is banned, where, and why.
BANNED = [
    (r"\bstd::this_thread::sleep_(for|until)\b|\busleep\s*\(|\btime\.sleep\(", r"^(?!tools/benchmarks/).*",
     "sleeping is no synchronisation"),
    (r"\.detach\(\)", r".*\.(h|cpp)$", "a thread has an owner that joins it"),
    (r"\bstd::recursive_mutex\b", r".*", "say who holds the lock"),
    (r"\b(import pickle|pickle\.loads?|\beval\()", r"^(?!tests/).*\.py$", "no pickle, no eval"),
    (r"using namespace std;", r".*", "no using namespace"),
    (r"\bsystem\s*\(", r".*\.(h|cpp)$", "no shell"),
    (r"torch/(torch|extension)\.h", r".*\.(h|cpp)$", "includes all of LibTorch; include what is used"),
    (r"[\"' (=](/home|/root|/work)/", r"^(?!tools/checks/).*", "a path of one machine"),
    (r"catch \(\.\.\.\) *\{ *\}", r".*", "an error disappears"),
]


def tracked() -> list[str]:
    listing = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                             capture_output=True, text=True, check=True).stdout
    return [name for name in listing.splitlines() if (ROOT / name).is_file()]


def check_source(name: str, text: str, problems: list[str]) -> None:
    lines = text.splitlines()
    if len(lines) > FILE_MAX:
        problems.append(f"{name}: {len(lines)} lines, more than {FILE_MAX}: split it by what it hides")
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_MAX:
            problems.append(f"{name}:{number}: {len(line)} columns, more than {LINE_MAX}")
        for pattern, where, why in BANNED:
            if re.match(where, name) and re.search(pattern, line) and "tidy: allow" not in line:
                problems.append(f"{name}:{number}: {why}: {line.strip()[:80]}")
        if line.rstrip() != line:
            problems.append(f"{name}:{number}: trailing white space")


def check_built(names: list[str], problems: list[str]) -> None:
    """Each .cpp is named by a CMake file of its folder or above."""
    cmake = "\n".join((ROOT / n).read_text() for n in names if n.endswith(("CMakeLists.txt", ".cmake")))
    for name in names:
        file = pathlib.Path(name).name
        by_pattern = file.startswith("fuzz_") and f" {file[5:-4]}" in cmake  # foreach(subject …)
        if name.endswith((".cpp", ".cu")) and file not in cmake and not by_pattern:
            problems.append(f"{name}: no CMake file builds it")


def main() -> int:
    names = tracked()
    problems: list[str] = []
    checked = 0
    for name in names:
        if pathlib.Path(name).suffix not in CODE or name == "tools/checks/tidy.py":
            continue
        checked += 1
        check_source(name, (ROOT / name).read_text(errors="replace"), problems)
    check_built(names, problems)
    print("\n".join(problems) or f"tidy: {checked} files clean")
    return 1 if problems or checked == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
