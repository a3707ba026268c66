"""Builds the kernels, the CUDA plug-in and their tests with PyTorch, nvcc and a C++ compiler alone, and runs them.

Sources and test programs are read from the CMakeLists.txt of their folders, so what is added there is checked here.
Where a GPU is, every test that needs one must run, and a table of figures follows. Where there is none, all is built
and run that can be, and what was skipped is counted.

A few headers (Catch2, expected, nlohmann/json, spdlog, fmt) come from a folder that `--collect` makes on a machine that
has them; carry it along. Exit status: 0 all passed, 1 something failed, 3 this machine lacks something.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[2]
TORCH = "2.11."
HEADERS_MAX = 20 << 20
# What is taken along, and whose licence goes with it (Debian's package).
HEADERS = {
    "catch2/catch.hpp": "catch2",
    "tl/expected.hpp": "libexpected-dev",
    "nlohmann": "nlohmann-json3-dev",
    "spdlog": "libspdlog-dev",
    "fmt": "libfmt-dev",
}
CXX_FLAGS = ["-std=c++20", "-fPIC", "-O1", "-g1", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-pthread",
             "-DFMT_HEADER_ONLY", "-DSPDLOG_FMT_EXTERNAL", "-D_GLIBCXX_USE_CXX11_ABI=1",
             "-DCALLBOARD_WITHOUT_PROCESSES"]
ARCHITECTURES = ["-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=[sm_90,compute_90]"]
# Of the messages: all but the codec, which needs a library of its own, with the portable hash in place of OpenSSL's.
WITHOUT = re.compile(r"(^|/)(codec|frame|content_hash\.cpp|domain_messages|process_domain/)")
RUNTIME_TABLE = "callboard_cuda_runtime_table"
TABLE_SOURCE = "kernels/cuda/runtime_table_cuda.cpp"
TEST_FOLDERS = ["tests/kernels", "tests/kernels/memory", "tests/kernels/cuda", "tests/kernels/cuda_plugin",
                "tests/kernels/custom_ops", "tests/conformance"]


class Missing(Exception):
    """This machine lacks something; what and what to do."""


def say(text: str) -> None:
    print(f"[gpu_check] {text}", flush=True)


@dataclass
class Machine:
    """What the build uses."""

    torch: pathlib.Path
    cxx: str
    nvcc: str
    cudart: pathlib.Path
    cuda_include: pathlib.Path
    headers: pathlib.Path


@dataclass
class Program:
    """One executable or plug-in."""

    name: str
    sources: list[str]
    links: list[str] = field(default_factory=list)
    definitions: list[str] = field(default_factory=list)
    is_test: bool = False
    shared: bool = False
    cuda: bool = False  # links LibTorch's CUDA part
    runtime: bool = False  # links the CUDA runtime alone


def calls(folder: str, function: str) -> list[list[str]]:
    """The arguments of each call of a CMake function in a folder's CMakeLists.txt."""
    path = ROOT / folder / "CMakeLists.txt"
    if not path.exists():
        return []
    text = re.sub(r"#[^\n]*", "", path.read_text())
    return [match.split() for match in re.findall(rf"\b{function}\(([^)]*)\)", text)]


def sources_of(folder: str, function: str) -> list[str]:
    found = []
    for call in calls(folder, function):
        for word in call:
            word = word.strip('"').replace("${PROJECT_SOURCE_DIR}/", "/")
            if word.endswith((".cpp", ".cu")):
                found.append(word[1:] if word.startswith("/") else f"{folder}/{word}")
    if not found:
        raise Missing(f"{folder}/CMakeLists.txt names no sources in {function}(): teach this check its new form")
    return found


def words_after(call: list[str], key: str) -> list[str]:
    if key not in call:
        return []
    out = []
    for word in call[call.index(key) + 1:]:
        if word in {"SOURCES", "LINK", "LABELS", "HEAVY", "TIMEOUT", "PUBLIC", "PRIVATE"}:
            break
        out.append(word)
    return out


def test_programs(bin_dir: pathlib.Path, cuda_include: pathlib.Path) -> tuple[list[Program], list[str]]:
    """The test programs that need nothing but what is built here, and the names of those that do."""
    programs, left = [], []
    have = {"callboard::memory", "callboard::kernels", "callboard::kernels_core", "callboard::cuda_memory",
            "callboard_kernels_testing", "callboard_fake_cuda", RUNTIME_TABLE, "Threads::Threads"}
    definitions = {"cuda_memory": [f'CALLBOARD_CUDA_INCLUDE="{cuda_include}"'],
                   "conformance_cuda_memory": [f'CALLBOARD_CUDA_PEER="{bin_dir}/cuda_memory_peer_fake"'],
                   "conformance_cuda_memory_gpu": [f'CALLBOARD_CUDA_PEER="{bin_dir}/cuda_memory_peer_gpu"'],
                   "segment_map": [f'CALLBOARD_MEMORY_PEER="{bin_dir}/memory_peer"'],
                   "cuda_plugin": [f'CALLBOARD_CUDA_PEER="{bin_dir}/cuda_peer"']}
    for folder in TEST_FOLDERS:
        for call in calls(folder, "callboard_test"):
            name = call[0]
            if set(words_after(call, "LINK")) - have:
                left.append(name)
                continue
            sources = [f"{folder}/{source}" for source in words_after(call, "SOURCES")]
            table = RUNTIME_TABLE in words_after(call, "LINK")
            programs.append(Program(f"test_{name}", sources + ([TABLE_SOURCE] if table else []), is_test=True,
                                    definitions=definitions.get(name, []), runtime=table))
    if not any(program.name == "test_conformance_cuda" for program in programs):
        raise Missing("no CMakeLists.txt names test_conformance_cuda: teach this check their new form")
    return programs, left


def find_machine(headers: pathlib.Path) -> Machine:
    import importlib.metadata
    import importlib.util

    version = importlib.metadata.version("torch")
    if not version.startswith(TORCH):
        raise Missing(f"torch {version} is installed in {sys.prefix}; {TORCH}x is needed")
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    torch = pathlib.Path(spec.origin).parent
    if not (torch / "lib" / "libtorch_cuda.so").exists():
        raise Missing(f"torch {version} in {torch} is a build without CUDA")
    cxx = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if not cxx:
        raise Missing("no C++ compiler was found; set CXX")
    places = [os.environ.get("CUDACXX"), shutil.which("nvcc"), os.environ.get("CUDA_HOME", "") + "/bin/nvcc",
              "/usr/local/cuda/bin/nvcc"]
    nvcc = next((place for place in places if place and pathlib.Path(place).exists()), None)
    if not nvcc:
        raise Missing("no nvcc was found; set CUDA_HOME")
    toolkit = pathlib.Path(nvcc).resolve().parents[1]
    include = toolkit / "include"
    if not (include / "cuda_runtime_api.h").exists():
        candidates = sorted(toolkit.glob("targets/*/include/cuda_runtime_api.h"))
        if not candidates:
            raise Missing(f"{nvcc} has no cuda_runtime_api.h beside it")
        include = candidates[0].parent
    # The runtime that torch itself loads: two in a process would not share streams.
    runtimes = sorted((torch.parent / "nvidia").glob("*/lib/libcudart.so.*")) + sorted(
        (torch / "lib").glob("libcudart*.so*")) + sorted(toolkit.glob("lib64/libcudart.so"))
    if not runtimes:
        raise Missing("no libcudart was found with torch or nvcc")
    for name in HEADERS:
        if not (headers / name).exists():
            raise Missing(f"{headers}/{name} is not there: make the folder where the headers are installed "
                          "(tools/gpu_check --collect) and bring it along")
    return Machine(torch, cxx, nvcc, runtimes[0], include, headers)


def collect(to: pathlib.Path) -> None:
    """Copies the headers and their licences from this machine."""
    shutil.rmtree(to, ignore_errors=True)
    for name, package in HEADERS.items():
        source = pathlib.Path("/usr/include") / name
        if not source.exists():
            raise Missing(f"{source} is not there: install {package}")
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
        licence = pathlib.Path("/usr/share/doc") / package / "copyright"
        if not licence.exists():
            raise Missing(f"{licence} is not there: headers travel with their licence only")
        (to / "licences").mkdir(exist_ok=True)
        shutil.copy(licence, to / "licences" / package)
    size = sum(path.stat().st_size for path in to.rglob("*") if path.is_file())
    if size > HEADERS_MAX:
        raise Missing(f"{to} has {size} bytes, above {HEADERS_MAX}")
    say(f"headers: {to}, {size / (1 << 20):.1f} MiB")


class Build:
    """Compiles and links; what did not change is left alone."""

    def __init__(self, machine: Machine, folder: pathlib.Path, deadline: float) -> None:
        self.machine, self.folder, self.deadline = machine, folder, deadline
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True, exist_ok=True)
        self.jobs = max(1, int(os.environ.get("CALLBOARD_JOBS", 0)) or min(os.cpu_count() or 1, 16))

    def run(self, command: list[str], what: str) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise RuntimeError(f"out of time before {what}")
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=left, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{what} failed:\n$ {' '.join(command)}\n{(done.stdout + done.stderr)[-6000:]}")

    def includes(self) -> list[str]:
        machine = self.machine
        return [f"-I{ROOT}", "-isystem", str(machine.headers), "-isystem", str(machine.torch / "include"), "-isystem",
                str(machine.torch / "include/torch/csrc/api/include")]

    def compile(self, unit: pathlib.Path, key: str, flags: list[str]) -> pathlib.Path:
        out = self.folder / "obj" / f"{key}.o"
        depends = out.with_suffix(".d")
        out.parent.mkdir(parents=True, exist_ok=True)
        cuda_file = unit.suffix == ".cu"
        if cuda_file:
            command = [self.machine.nvcc, "-ccbin", self.machine.cxx, "-std=c++20", "-O2", "-Xcompiler",
                       "-fPIC,-fvisibility=hidden", "-cudart=none", "--expt-relaxed-constexpr", *ARCHITECTURES,
                       *self.includes(), "-D_GLIBCXX_USE_CXX11_ABI=1", "-MD", "-MF", str(depends), "-c", str(unit),
                       "-o", str(out)]
        else:
            command = [self.machine.cxx, *CXX_FLAGS, *flags, *self.includes(), "-isystem",
                       str(self.machine.cuda_include), "-MD", "-MF", str(depends), "-c", str(unit), "-o", str(out)]
        stamp = out.with_suffix(".cmd")
        if out.exists() and stamp.exists() and stamp.read_text() == " ".join(command) and self.fresh(out, depends):
            return out
        self.run(command, f"compiling {unit.name}")
        stamp.write_text(" ".join(command))
        return out

    @staticmethod
    def fresh(out: pathlib.Path, depends: pathlib.Path) -> bool:
        if not depends.exists():
            return False
        built = out.stat().st_mtime
        for name in depends.read_text().replace("\\\n", " ").split(":", 1)[-1].split():
            path = pathlib.Path(name) if name.startswith("/") else ROOT / name
            if not path.exists() or path.stat().st_mtime > built:
                return False
        return True

    def units(self, program: Program, together: int) -> list[tuple[pathlib.Path, str]]:
        """Several sources in one: reading LibTorch's headers costs more than compiling what uses them."""
        plain = [source for source in program.sources if source.endswith(".cpp")]
        out = [(ROOT / source, f"{program.name}/{pathlib.Path(source).stem}") for source in program.sources
               if source.endswith(".cu")]
        for i in range(0, len(plain), together):
            part = plain[i:i + together]
            text = "".join(f'#include "{ROOT}/{source}"\n' for source in part)
            unit = self.folder / "units" / f"{program.name}_{hashlib.sha1(text.encode()).hexdigest()[:10]}.cpp"
            unit.parent.mkdir(parents=True, exist_ok=True)
            if not unit.exists() or unit.read_text() != text:
                unit.write_text(text)
            out.append((unit, f"{program.name}/{unit.stem}"))
        return out

    def link(self, program: Program, objects: list[pathlib.Path]) -> None:
        machine = self.machine
        out = self.bin / program.name
        torch = machine.torch / "lib"
        libraries = [f"-L{torch}", f"-Wl,-rpath,{torch}"]
        if program.cuda:
            runtime = machine.cudart
            libraries += ["-Wl,--no-as-needed", "-ltorch_cuda", "-lc10_cuda", "-Wl,--as-needed", "-ltorch_cpu", "-lc10",
                          str(runtime), f"-Wl,-rpath,{runtime.parent}", f"-Wl,-rpath-link,{runtime.parent}",
                          "-Wl,--no-undefined", "-Wl,--allow-shlib-undefined"]
        else:
            libraries += ["-ltorch_cpu", "-lc10", "-rdynamic", f"-Wl,-rpath-link,{machine.cudart.parent}",
                          "-Wl,--allow-shlib-undefined"]
        if program.runtime:
            libraries += [str(machine.cudart), f"-Wl,-rpath,{machine.cudart.parent}"]
        kind = ["-shared"] if program.shared else []
        command = [machine.cxx, "-pthread", *kind, "-o", str(out), *map(str, objects), *libraries, "-ldl"]
        newest = max(path.stat().st_mtime for path in objects)
        if not out.exists() or out.stat().st_mtime < newest:
            self.run(command, f"linking {program.name}")


def build_all(build: Build) -> tuple[list[Program], list[str]]:
    tests, left = test_programs(build.bin, build.machine.cuda_include)
    messages = [source for source in sources_of("messages", "callboard_component") if not WITHOUT.search(source)]
    messages.append("messages/base/content_hash_portable.cpp")
    memory = sources_of("kernels/memory", "callboard_component") + sources_of("kernels/cuda", "callboard_component")
    plain = messages + memory
    kernels = [source for source in sources_of("kernels", "callboard_component") if not WITHOUT.search(source)]
    testing = sources_of("tests/kernels", "add_library") + sources_of("tests/kernels/cuda", "add_library")
    for program in tests:  # every program gets the helpers whole
        program.sources = [source for source in program.sources if source not in testing]
    plugin_sources = sources_of("kernels/cuda_plugin", "add_library")
    operators = sources_of("kernels/custom_ops", "add_library") + sources_of("kernels/custom_ops", "target_sources")
    place = [f'-DCALLBOARD_PLUGIN_DIR="{build.bin}"']
    libraries = {"plain": Program("plain", plain), "kernels": Program("kernels", kernels),
                 "testing": Program("testing", testing), "catch": Program("catch", ["tests/support/catch_main.cpp"])}
    others = [
        Program("callboard_cuda.so", plugin_sources, shared=True, cuda=True),
        Program("callboard_cuda_testing.so", ["tests/kernels/cuda_plugin/test_operators_cuda.cu"], shared=True,
                cuda=True),
        Program("callboard_ops.so", operators, shared=True, runtime=True),
        Program("memory_peer", ["tests/kernels/memory/memory_peer.cpp"]),
        Program("cuda_memory_peer_fake", ["tests/conformance/cuda_memory_peer.cpp"]),
        Program("cuda_memory_peer_gpu", ["tests/conformance/cuda_memory_peer.cpp", TABLE_SOURCE],
                definitions=["CALLBOARD_REAL_CUDA"], runtime=True),
        Program("cuda_peer", ["tests/kernels/cuda_plugin/cuda_peer.cpp"]),
        Program("bench-cuda", ["tests/kernels/cuda_plugin/cuda_bench.cpp"]),
    ]
    together = 1 if build.jobs >= 16 else 3 if build.jobs >= 4 else 9
    jobs: dict[str, list[concurrent.futures.Future[pathlib.Path]]] = {}
    with concurrent.futures.ThreadPoolExecutor(build.jobs) as pool:
        for program in [*libraries.values(), *others, *tests]:
            flags = place + [f"-D{definition}" for definition in program.definitions]
            jobs[program.name] = [pool.submit(build.compile, unit, key, flags)
                                  for unit, key in build.units(program, together)]
        total = sum(len(futures) for futures in jobs.values())
        say(f"compiling {total} units, {build.jobs} at once")
        try:
            objects = {name: [future.result() for future in futures] for name, futures in jobs.items()}
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        links = []
        for program in [*others, *tests]:
            own = objects[program.name]
            if program.name == "callboard_cuda.so":
                own = own + objects["plain"]
            elif not program.shared:
                own = own + objects["testing"] + objects["kernels"] + objects["plain"]
            if program.is_test:
                own = own + objects["catch"]
            links.append(pool.submit(build.link, program, own))
        for link in links:
            link.result()
    return tests, left


def count_gpus(build: Build) -> tuple[int, str]:
    """How many GPUs torch sees, and what it says if there are none."""
    code = "import torch; n = torch.cuda.device_count() if torch.cuda.is_available() else 0; print(n)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    last = done.stdout.strip().splitlines()[-1:] or ["0"]
    return (int(last[0]) if last[0].isdigit() else 0), done.stderr.strip().splitlines()[-1] if done.stderr else ""


def run_tests(build: Build, tests: list[Program], gpu: bool) -> tuple[int, int, list[str]]:
    passed, failed, skipped = 0, 0, []
    environment = {**os.environ, **({"CALLBOARD_REQUIRE_GPU": "1"} if gpu else {})}
    for program in sorted(tests, key=lambda test: test.name):
        left = build.deadline - time.monotonic()
        begin = time.monotonic()
        try:
            done = subprocess.run([str(build.bin / program.name)], cwd=build.folder, capture_output=True, text=True,
                                  errors="replace", timeout=max(1.0, min(left, 240.0)), env=environment, check=False)
            output, code = done.stdout + done.stderr, done.returncode
        except subprocess.TimeoutExpired as late:
            output = (late.stdout or b"").decode(errors="replace") + "\nended after its time"
            code = 124
        told = [line for line in output.splitlines() if line.lower().startswith("skipped:")]
        skipped += told
        # The second form is that of cases which checked nothing, as skipped ones do.
        whole = re.search(r"All tests passed \(.* in (\d+) test cases?\)|test cases: +(\d+) \| +\2 passed", output)
        part = re.search(r"test cases: +\d+ \| +(?:(\d+) passed \| +)?(\d+) failed", output)
        if code == 0 and whole:
            passed += int(whole.group(1) or whole.group(2)) - len(told)
        else:
            passed += int(part.group(1) or 0) - len(told) if part else 0
            failed += int(part.group(2)) if part else 1
            print(output[-4000:], flush=True)
        say(f"{program.name}: {'passed' if code == 0 and whole else 'FAILED'}"
            f"{f', {len(told)} skipped' if told else ''} ({time.monotonic() - begin:.1f} s)")
    return passed, failed, skipped


def bench(build: Build) -> bool:
    left = max(1.0, build.deadline - time.monotonic())
    done = subprocess.run([str(build.bin / "bench-cuda"), str(build.bin / "cuda_peer")], capture_output=True, text=True,
                          timeout=left, check=False)
    import json

    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for row in rows:
        figure = row.pop("figure")
        print(f"  {figure:<12} " + "  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if done.returncode != 0 or not rows:
        print((done.stdout + done.stderr)[-4000:], flush=True)
    return done.returncode == 0 and bool(rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/gpu_check", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", action="store_true", help="make the folder of headers from this machine, and end")
    parser.add_argument("--headers", type=pathlib.Path, default=ROOT / "build" / "gpu-headers",
                        help="that folder (default: build/gpu-headers)")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "gpu-check", help="where to build")
    parser.add_argument("--limit", type=float, default=480, help="seconds for all of it (default: 480)")
    parser.add_argument("--no-bench", action="store_true", help="tests only")
    arguments = parser.parse_args()
    begin = time.monotonic()
    try:
        if arguments.collect:
            collect(arguments.headers)
            return 0
        machine = find_machine(arguments.headers.resolve())
        build = Build(machine, arguments.build.resolve(), begin + arguments.limit)
        tests, left = build_all(build)
        say(f"built {len(tests)} test programs after {time.monotonic() - begin:.0f} s"
            + (f"; not built here, since they need more: {', '.join(left)}" if left else ""))
        gpus, why = count_gpus(build)
        say(f"{gpus} GPUs" if gpus else f"no GPU is here{': ' + why if why else ''}")
        passed, failed, skipped = run_tests(build, tests, gpus > 0)
        if gpus and skipped:
            failed += len(skipped)
            say("skipped in spite of the GPU, which counts as failed")
        if not gpus and not skipped:
            failed += 1
            say("no test said that it was skipped: the tests that need a GPU are not there")
        if gpus and not arguments.no_bench and not bench(build):
            failed += 1
    except Missing as missing:
        print(f"gpu_check: {missing}", file=sys.stderr)
        return 3
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"gpu_check: FAILED: {error}", file=sys.stderr)
        return 1
    if skipped:
        say(f"no GPU: the following {len(skipped)} tests were skipped")
        for line in skipped:
            print("  " + line.partition(":")[2].strip())
    verdict = "FAILED" if failed else "passed"
    print(f"gpu_check: {verdict}: {passed} tests passed, {failed} failed, {len(skipped)} skipped"
          f"{' (no GPU here)' if not gpus else ''}, {time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
