"""Checks who may include whom: folders in one order, and each library fenced to named files.

messages → {config | kernels} → actors → python → tools → tests;
inside actors: core → {coordinator | node | device | client}.
"""

from __future__ import annotations

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# A folder may include itself and what is listed here.
ALLOWED = {
    "messages": [],
    "config": ["messages"],
    "kernels/memory": ["messages"],
    "kernels/cuda": ["messages", "kernels/memory"],
    "kernels/process_domain": ["messages", "kernels", "kernels/memory"],
    "kernels/python": ["messages", "kernels"],
    "kernels/custom_ops": [],
    "kernels": ["messages", "kernels/memory", "kernels/cuda", "kernels/process_domain"],
    "actors/core": ["messages", "config", "kernels/memory"],
    "actors/coordinator": ["messages", "config", "actors/core"],
    "actors/node": ["messages", "config", "kernels/memory", "actors/core"],
    "actors/client": ["messages", "kernels/memory", "kernels/cuda/gpu_results.h", "actors/core"],
    "actors/device": ["messages", "config", "kernels/memory", "kernels/runtime.h", "actors/core"],
    "python": ["messages", "config", "kernels", "actors"],
    "tools": ["messages", "config", "kernels", "actors", "python"],
    "tests": ["messages", "config", "kernels", "actors", "python", "tools"],
}

# Third-party headers and the only files that may include them.
FENCES = {
    "msgpack": (r"^msgpack(\.hpp|/)", r"^messages/codec[a-z_]*\.(h|cpp)$"),
    "ZeroMQ": (r"^zmq\.h", r"^(actors/core/(transport|loop)[a-z_]*\.cpp|tests/actors/core/.*|tools/benchmarks/.*)$"),
    "yaml-cpp": (r"^yaml-cpp/", r"^config/[a-z_]+\.(h|cpp)$"),
    "spdlog": (r"^spdlog/", r"^messages/base/log\.cpp$"),
    "Boost": (r"^boost/(?!container/)", r"^(actors/coordinator/rest_[a-z_]+\.(h|cpp)|tools/.*)$"),
    "CLI11": (r"^CLI/", r"^tools/.*$"),
    "LibTorch": (r"^(torch|ATen|c10)/", r"^(kernels/(?!memory/|cuda/|runtime\.h)[a-z_0-9/]+\.(h|cpp|cu)|python/.*"
                                        r"|tests/(kernels|conformance|python)/.*|tools/benchmarks/.*)$"),
    "pybind11": (r"^pybind11/", r"^python/.*$"),
    "CUDA": (r"^(cuda|cublas|cudnn|nccl)[a-z_]*\.h", r"^.*cuda[^/]*$|^.*\.cu$"),
    "Catch2": (r"^catch2/", r"^tests/support/.*$"),
}
# nlohmann/json compiles slowly and must not spread through headers.
JSON_HEADER = re.compile(r"^nlohmann/")
SPAWN = re.compile(r"\b(fork|vfork|execve|execvp|execv|posix_spawn|popen)\s*\(")
SPAWN_ALLOWED = re.compile(r"^(actors/core/process\.cpp|tests/.*)$")


def folder_of(path: str) -> str:
    best = ""
    for folder in ALLOWED:
        if path.startswith(folder + "/") and len(folder) > len(best):
            best = folder
    return best


def may_include(folder: str, target: str) -> bool:
    if folder_of(target) == folder:
        return True
    for allowed in ALLOWED[folder]:
        if target == allowed:
            return True
        if "." in allowed.rsplit("/", 1)[-1]:
            continue
        # "kernels" as a whole includes kernels/memory, but "messages" alone stays itself.
        whole = folder in ("python", "tools", "tests") or folder_of(target) == allowed
        if target.startswith(allowed + "/") and whole:
            return True
    return False


def main() -> int:
    problems = []
    sources = [p for folder in {name.split("/")[0] for name in ALLOWED} for p in (ROOT / folder).rglob("*")
               if p.suffix in {".h", ".cpp", ".cu"}]
    checked = 0
    for source in sorted(sources):
        name = source.relative_to(ROOT).as_posix()
        folder = folder_of(name)
        if not folder:
            continue
        checked += 1
        for number, line in enumerate(source.read_text(errors="replace").splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
            if match:
                target = match.group(2)
                if match.group(1) == '"' and not may_include(folder, target):
                    problems.append(f"{name}:{number}: {folder} must not include {target}")
                for library, (pattern, allowed) in FENCES.items():
                    if re.match(pattern, target) and not re.match(allowed, name):
                        problems.append(f"{name}:{number}: {library} is fenced off here ({target})")
                if JSON_HEADER.match(target) and name.endswith(".h") and not name.startswith(("tests/", "tools/")):
                    problems.append(f"{name}:{number}: nlohmann/json in a header")
            elif SPAWN.search(line) and not SPAWN_ALLOWED.match(name) and not re.match(r"\s*(//|\*)", line):
                problems.append(f"{name}:{number}: processes are started in actors/core/process.cpp only")
    print("\n".join(problems) or f"layers: {checked} files in order")
    return 1 if problems or checked == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
