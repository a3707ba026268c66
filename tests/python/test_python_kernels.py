"""Python kernels on real clusters: compiled into programs, named in the cluster file, run by devices.

What users see is the same in both kinds of GIL domains; where it is not, the test says so.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import callboard
import cli_support
import standin_kernels
from conftest import device_pid, eventually, kill_device
from models import rand, same

HERE = str(pathlib.Path(__file__).parent)
GOOD = ["scale", "pair", "add_to", "join", "warmed", "helper_process", "starts_thread", "keeps_argument"]
BAD = [
    "raises", "exits", "writes_secretly", "connects_back", "wrong_shape", "ends_process", "spins", "returns_argument",
    "raises_long_and_coloured",
]  # fmt: skip
OWN = ["process_number", "kept_sum", "spoils_kept"]


def config(functions: list[str], domain: str = "inline", **further: Any) -> dict[str, Any]:
    kernels = [{"target": f"standin_kernels:{name}"} for name in functions]
    package = str(pathlib.Path(callboard.__file__).parent.parent)  # for connects_back
    return {
        "devices": [{"kind": "cpu", "count": 2, "threads": 1, "python": domain}],
        "python": {"path": [HERE, package], "kernels": kernels},
        **further,
    }


@pytest.fixture(scope="module", params=["inline", "process"])
def domain(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def python_cluster(run_root: pathlib.Path, domain: str) -> Iterator[Any]:
    with callboard.launch(config(GOOD + BAD + OWN, domain)) as cluster:
        yield cluster


@pytest.fixture
def cluster(python_cluster: Any) -> Any:
    """Every device is ready again before the next test."""
    python_cluster.operation("wait_ready", timeout_ms=60_000, timeout=65)
    return python_cluster


def python_of(cluster: Any, name: str = "cpu0") -> dict[str, Any]:
    """What a device tells of its domain now."""
    answer = cluster.operation("device_query", device=name, name="describe")
    found: dict[str, Any] = answer["python"]
    return found


class Scaled(nn.Module):
    """C++ operators around a Python kernel."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = standin_kernels.scale(torch.relu(self.first(x)), 1.5)
        return self.second(x)


def failing(name: str) -> Any:
    return lambda x: getattr(standin_kernels, name)(x) + 1


def test_a_module_with_a_python_kernel_gives_what_eager_gives(cluster: Any) -> None:
    module = Scaled()
    x = rand(8, 32)
    for placement in ("cpu0", "cpu1", {"cpu0": "first", "cpu1": "second"}):
        program = cluster.compile(module, (x,), placement=placement)
        for seed in range(3):
            x = rand(8, 32, seed=seed)
            with torch.no_grad():
                assert same(program(x), module(x)) == ""


def test_large_results_of_a_python_kernel_are_handed_over_between_devices(cluster: Any) -> None:
    def two(x: torch.Tensor) -> Any:
        a, b = standin_kernels.pair(x)
        return standin_kernels.scale(a, 0.5), standin_kernels.join([b, a])

    x = rand(300, 300)
    program = cluster.compile(two, (x,), placement=["cpu0", "cpu1"])
    with torch.no_grad():
        assert same(program(x), two(x)) == ""


def test_a_declared_write_is_the_programs_own(cluster: Any) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            standin_kernels.add_to(self.total, x)
            return self.total * 2

    program = cluster.compile(Counter(), (torch.ones(4),), placement="cpu0")
    assert [program(torch.ones(4))[0].item() for _ in range(3)] == [2.0, 4.0, 6.0]


def test_a_declared_write_through_a_view_and_into_an_input(cluster: Any) -> None:
    def rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        standin_kernels.add_to(x[1], y)
        standin_kernels.add_to(x[:, 1:3], torch.ones(3, 2))
        return x

    x, y = rand(3, 4), rand(4)
    program = cluster.compile(rows, (x, y), placement="cpu0")
    assert same(program(x, y), rows(x, y)) == ""
    assert same(program(x, y), rows(x, y)) == ""


def test_a_write_to_a_view_by_strides_holds_for_whatever_strides_arrive(cluster: Any) -> None:
    def diagonal(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        copy = torch.relu(x)
        standin_kernels.add_to(copy.diagonal(), y)
        return copy

    x, y = rand(4, 4), rand(4)
    program = cluster.compile(diagonal, (x, y), placement="cpu0")
    for given in (x, x.t(), rand(4, 8)[:, ::2]):
        torch.testing.assert_close(program(given, y), diagonal(given, y), rtol=0, atol=0)


def test_a_write_and_its_copy_are_on_one_device(cluster: Any) -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x = torch.relu(x) * 2
            copy = x.clone()
            standin_kernels.add_to(copy[1:3], x[:2])
            standin_kernels.add_to(self.total, copy)
            return copy + self.total, torch.sigmoid(copy)

    x = rand(4)
    eager = Writes()
    expected = [eager(x) for _ in range(3)]
    moved = 0
    for node in range(20):
        try:
            program = cluster.compile(Writes(), (x,), placement={"cpu0": [""], "cpu1": [(node, node)]})
        except callboard.errors.PlacementError:  # no such node, or it would part a state
            continue
        moved += 1
        for want in expected:
            assert all(torch.equal(got, one) for got, one in zip(program(x), want, strict=True))
    assert moved >= 3
    program = cluster.compile(Writes(), (x,), placement="auto")
    for want in expected:
        assert all(torch.equal(got, one) for got, one in zip(program(x), want, strict=True))


def test_weights_reach_a_python_kernel_where_they_lie(cluster: Any) -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(9)
            self.weight = nn.Parameter(torch.rand(400, 300))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return standin_kernels.join([self.weight, x], None)

    module, x = Weighted(), rand(2, 300)
    program = cluster.compile(module, (x,), placement="cpu0")
    before = cluster.operation("device_query", device="cpu0", name="memory")["in_use_bytes"]
    for _ in range(5):
        with torch.no_grad():
            assert same(program(x), module(x)) == ""
    # The weight itself is copied nowhere.
    after = cluster.operation("device_query", device="cpu0", name="memory")["in_use_bytes"]
    assert after - before < 64 << 20


def test_an_operator_that_the_cluster_file_does_not_name_is_refused_with_what_to_add(cluster: Any) -> None:
    x = rand(4)
    with pytest.raises(callboard.errors.UnknownOperator) as refused:
        cluster.compile(lambda x: standin_kernels.noise(x), (x,), placement="cpu0")
    assert "python.kernels of the cluster file does not name" in refused.value.message
    assert "standin_kernels:noise" in refused.value.message
    assert "python: {kernels:" in refused.value.hint


def test_a_cluster_without_python_says_what_to_add(shared_cluster: Any) -> None:
    with pytest.raises(callboard.errors.UnknownOperator) as refused:
        shared_cluster.compile(lambda x: standin_kernels.scale(x, 2.0), (rand(4),), placement="cpu0")
    assert refused.value.operator == "standin::scale"
    assert "python: {kernels: [{target: \"standin_kernels:scale\"}]}" in refused.value.hint


def test_kernels_that_come_with_callboard_run_on_devices(run_root: pathlib.Path, domain: str) -> None:
    """Without a word on where the package is."""
    from callboard.kernels import fusions
    from callboard.kernels import sdpa as attention

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.qkv = nn.Linear(32, 96)

        def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
            query, key, value = self.qkv(x).chunk(3, -1)
            query, key, value = (part.reshape(1, 2, -1, 16).contiguous() for part in (query, key, value))
            query = fusions.apply_rotary_emb(query, cos, sin, True)
            return attention.attention(query, key, value, is_causal=True)

    x, cos, sin = rand(1, 6, 32), rand(6, 16), rand(6, 16)
    file = {
        "devices": [{"kind": "cpu", "threads": 1, "python": domain}],
        "python": {
            "kernels": [
                {"target": "callboard.kernels.sdpa:attention"},
                {"target": "callboard.kernels.fusions:apply_rotary_emb"},
            ],
            "watchdog": "2min",
        },
    }
    module = Block()
    with callboard.launch(file) as cluster:
        program = cluster.compile(module, (x, cos, sin), placement="cpu0")
        with torch.no_grad():
            torch.testing.assert_close(program(x, cos, sin), module(x, cos, sin))


def test_an_exception_arrives_with_operator_node_and_traceback(cluster: Any) -> None:
    program = cluster.compile(failing("raises"), (rand(4),), placement="cpu0")
    with pytest.raises(callboard.errors.PythonError) as failed:
        program(rand(4))
    assert failed.value.message.endswith("raised ValueError: nothing to do for (4,)")
    assert failed.value.operator == "standin::raises"
    assert failed.value.node is not None
    assert "standin_kernels.py" in failed.value.detail
    assert failed.value.code == 407


def test_a_long_and_coloured_exception_arrives_short_and_plain(cluster: Any) -> None:
    program = cluster.compile(failing("raises_long_and_coloured"), (rand(4),), placement="cpu0")
    with pytest.raises(callboard.errors.PythonError) as failed:
        program(rand(4))
    text = str(failed.value)
    assert "raised RuntimeError: red and mmm" in text
    assert "bytes left out) …" in text
    assert len(text) < 8_000
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]|\[31m", text)


@pytest.mark.parametrize(
    ("name", "kind", "part"),
    [
        ("exits", "PythonError", "raised SystemExit: 3"),
        ("returns_argument", "OutputMismatch", "shares its memory with the argument 'x'"),
        ("writes_secretly", "PythonError", "wrote to its argument 'x'"),
        ("wrong_shape", "OutputMismatch", "found float32[2, 2] on cpu"),
        ("connects_back", "PythonError", "cannot be a client of that cluster"),
    ],
)
def test_bad_kernels_fail_their_call_only(cluster: Any, name: str, kind: str, part: str) -> None:
    pid = device_pid(cluster, "cpu0")
    program = cluster.compile(failing(name), (rand(4),), placement="cpu0")
    with pytest.raises(getattr(callboard.errors, kind)) as failed:
        program(rand(4))
    assert part in failed.value.message
    good = cluster.compile(lambda x: standin_kernels.scale(x, 2.0), (rand(4),), placement="cpu0")
    assert torch.equal(good(torch.ones(4)), torch.full((4,), 2.0))
    assert device_pid(cluster, "cpu0") == pid


def test_a_kernel_that_ends_its_process_costs_a_call_and_the_next_one_works(cluster: Any, domain: str) -> None:
    """Inline it is the device's process: the actor dies, and again when the call runs again. In a process of its own
    the device stays as it is.
    """
    pid = device_pid(cluster, "cpu0")
    program = cluster.compile(failing("ends_process"), (rand(4),), placement="cpu0")
    kind = callboard.errors.Quarantined if domain == "inline" else callboard.errors.PythonError
    with pytest.raises(kind) as failed:
        program(rand(4))
    if domain == "process":
        assert "exit status 9" in failed.value.message
        assert failed.value.operator == "standin::ends_process"
        assert device_pid(cluster, "cpu0") == pid
    cluster.operation("wait_ready", timeout_ms=60_000, timeout=65)
    good = cluster.compile(lambda x: standin_kernels.scale(x, 2.0), (rand(4),), placement="cpu0")
    assert torch.equal(good(torch.ones(4)), torch.full((4,), 2.0))


def test_a_killed_domain_is_replaced_and_the_call_after_it_works(cluster: Any, domain: str) -> None:
    """Inline it is the device itself, which starts anew; a process is replaced behind the device's back."""
    pid = device_pid(cluster, "cpu0")
    program = cluster.compile(lambda x: standin_kernels.process_number(x), (rand(1),), placement="cpu0")
    first = int(program(rand(1)).item())
    assert (first == pid) == (domain == "inline")
    if domain == "inline":
        kill_device(cluster, "cpu0")
    else:
        os.kill(first, signal.SIGKILL)
    second = int(program(rand(1)).item())
    assert second not in (first, pid)
    if domain == "process":
        assert device_pid(cluster, "cpu0") == pid
        assert python_of(cluster)["ended"] >= 1


def test_deadlines_and_cancellation_reach_running_python(cluster: Any) -> None:
    pid = device_pid(cluster, "cpu0")
    program = cluster.compile(failing("spins"), (rand(4),), placement="cpu0")
    good = cluster.compile(lambda x: standin_kernels.scale(x, 2.0), (rand(4),), placement="cpu0")
    with pytest.raises(callboard.errors.DeadlineExceeded):
        program.submit(rand(4), deadline=0.5).get()
    assert torch.equal(good.submit(torch.ones(4), deadline=20).get(), torch.full((4,), 2.0))
    calls = python_of(cluster)["gil"]["acquired"]["call"]
    future = program.submit(rand(4))
    eventually(lambda: python_of(cluster)["gil"]["acquired"]["call"] > calls, "the kernel runs")
    future.cancel()
    assert torch.equal(good.submit(torch.ones(4), deadline=20).get(), torch.full((4,), 2.0))
    assert device_pid(cluster, "cpu0") == pid


def test_an_undeclared_write_into_a_weight_never_reaches_what_others_compute_with(cluster: Any, domain: str) -> None:
    """Inline the weight is spoilt and the device starts anew; a process has written to a copy of its own."""

    class Damaged(nn.Module):
        def __init__(self, secretly: bool) -> None:
            super().__init__()
            torch.manual_seed(5)
            self.weight = nn.Parameter(torch.rand(100))
            self.secretly = secretly

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + (standin_kernels.writes_secretly(self.weight) if self.secretly else self.weight)

    pid = device_pid(cluster, "cpu0")
    x = torch.zeros(100)
    good = cluster.compile(Damaged(False), (x,), placement="cpu0")
    bad = cluster.compile(Damaged(True), (x,), placement="cpu0")
    with pytest.raises(callboard.errors.PythonError, match="wrote to its argument 'x'"):
        bad(x)
    if domain == "inline":
        eventually(lambda: device_pid(cluster, "cpu0") != pid, "the device is another process", 60)
    cluster.operation("wait_ready", timeout_ms=60_000, timeout=65)
    assert torch.equal(good(x), Damaged(False).weight.detach())


def test_devices_tell_their_python(cluster: Any) -> None:
    cluster.compile(lambda x: standin_kernels.scale(x, 2.0), (rand(4),), placement="cpu0")(rand(4))
    python = python_of(cluster)
    assert python["torch"] == torch.__version__
    assert {"op": "standin::scale", "target": "standin_kernels:scale"} in python["operators"]
    assert python["gil"]["acquired"]["call"] >= 1
    # The same at status, from the device's hello.
    actor = next(a for a in cluster.status()["actors"] if a["name"] == "cpu0")
    assert actor["description"]["runtime"]["python"]["prefix"] == python["prefix"]
    assert actor["description"]["runtime"]["python"]["domain"] == python["domain"]


def test_the_loop_never_takes_the_gil_whatever_kernels_do(cluster: Any) -> None:
    x = rand(200, 200)
    both = lambda x: standin_kernels.keeps_argument(x) + standin_kernels.starts_thread(x)  # noqa: E731
    program = cluster.compile(both, (x,), placement="cpu0")
    futures = [program.submit(x) for _ in range(50)]
    for future in futures:
        future.get()
    gil = python_of(cluster)["gil"]
    assert gil["acquired"]["call"] >= 100
    assert gil["refused_on_loop"] == 0
    assert set(gil["acquired"]) == {"start", "import", "warm_up", "call", "thread_end", "stop"}


def test_r28_a_helper_process_is_the_configured_python(cluster: Any) -> None:
    program = cluster.compile(lambda x: standin_kernels.helper_process(x), (rand(1),), placement="cpu0")
    minor = program(rand(1)).item()
    assert f".{int(minor)}." in python_of(cluster)["python"]


def test_warm_up_runs_before_a_device_is_ready(cluster: Any) -> None:
    program = cluster.compile(lambda x: standin_kernels.warmed(x), (rand(2),), placement="cpu1")
    assert torch.equal(program(rand(2)), torch.ones(2))


def test_a_device_with_its_domain_in_processes_loads_no_python(cluster: Any, domain: str) -> None:
    maps = pathlib.Path(f"/proc/{device_pid(cluster, 'cpu0')}/maps").read_text()
    for word in ("libpython", "libtorch_python", "callboard_python"):
        assert (word in maps) == (domain == "inline")


def test_domains_end_with_their_device(run_root: pathlib.Path) -> None:
    """Whatever ends it: also one whose process hangs with the GIL held."""
    with callboard.launch(config(["holds_the_gil", "process_number"], "process")) as cluster:
        number = cluster.compile(lambda x: standin_kernels.process_number(x), (rand(1),), placement="cpu0")
        child = int(number(rand(1)).item())
        os.kill(device_pid(cluster, "cpu0"), signal.SIGKILL)
        eventually(lambda: not pathlib.Path(f"/proc/{child}").exists(), "the child is gone")
        cluster.operation("wait_ready", timeout_ms=60_000, timeout=65)
        child = int(number(rand(1)).item())
        hangs = cluster.compile(lambda x: standin_kernels.holds_the_gil(x), (rand(1),), placement="cpu0")
        future = hangs.submit(rand(1))
        eventually(lambda: python_of(cluster)["children"][0]["state"] == "busy", "the kernel runs")
    with pytest.raises(callboard.errors.CallboardError):
        future.get()
    assert not pathlib.Path(f"/proc/{child}").exists()


def test_only_devices_with_python_load_it(run_root: pathlib.Path) -> None:
    file = config(["scale"])
    file["devices"] = [{"kind": "cpu", "name": "with"}, {"kind": "cpu", "name": "without", "python": "none"}]
    with callboard.launch(file) as cluster:
        pids = {name: device_pid(cluster, name) for name in ("with", "without")}
        maps = {name: pathlib.Path(f"/proc/{pid}/maps").read_text() for name, pid in pids.items()}
        for word in ("libpython", "libtorch_python", "callboard_python"):
            assert word in maps["with"]
            assert word not in maps["without"]
        with pytest.raises(callboard.errors.UnknownOperator, match="standin::scale"):
            cluster.compile(lambda x: standin_kernels.scale(x, 2.0), (rand(4),), placement="without")


@pytest.mark.parametrize(
    ("python", "part"),
    [
        ({"kernels": [{"target": "no_such_module:f"}]}, "No module named 'no_such_module'"),
        ({"kernels": [{"target": "standin_kernels:no_such"}]}, "has no function 'no_such'"),
        ({"kernels": [{"target": "standin_kernels:plain"}]}, "has no schema"),
        ({"executable": "/no/such/python", "kernels": []}, "the Python '/no/such/python' cannot be used"),
    ],
)
def test_a_python_that_cannot_start_is_a_start_error_that_says_so(
    run_root: pathlib.Path, python: dict[str, Any], part: str
) -> None:
    file = config([])
    file["devices"] = [{"kind": "cpu", "python": "inline"}]
    file["python"] = {"path": [HERE], **python}
    file["restart"] = {"policy": "never"}
    with pytest.raises(callboard.errors.StartError) as failed:
        callboard.launch(file)
    assert part in str(failed.value)


def start_error(module: str, domain: str, **further: Any) -> callboard.errors.StartError:
    """Of a cluster whose one device has kernels of this module."""
    file = config([], domain, **further)
    file["devices"] = [{"kind": "cpu", "threads": 1, "python": domain}]
    file["python"]["kernels"] = [{"target": f"{module}:f"}]
    with pytest.raises(callboard.errors.StartError) as failed:
        callboard.launch(file, timeout=300)
    return failed.value


def test_a_module_that_crashes_at_its_import_is_named_and_tried_twice(run_root: pathlib.Path, domain: str) -> None:
    error = start_error("crashes_at_import", domain)
    assert "cpu0 ended while it started" in error.message
    assert [cause.actor for cause in error.causes] == ["cpu0#1", "cpu0#2"]
    for cause in error.causes:
        assert "importing the module 'crashes_at_import'" in cause.detail
        assert "crashes_at_import.py" in cause.detail  # where, by Python's own handler
        assert "signal 11" in (cause.message if domain == "inline" else cause.detail)


def test_a_module_whose_import_hangs_is_named(run_root: pathlib.Path, domain: str) -> None:
    for seconds in (10, 40, 160):  # on a busy machine the time may be up before torch is imported
        limits = {"start_timeout": f"{seconds}s"}
        text = str(start_error("hangs_at_import", domain, limits=limits, restart={"policy": "never"}))
        assert f"not ready within limits.start_timeout of {seconds}000 ms, while " in text
        if "while starting the interpreter and importing torch" not in text:
            break
    assert "while importing the module 'hangs_at_import'" in text


def test_status_shows_the_processes_of_a_domain_and_does_not_count_itself(cluster: Any, domain: str) -> None:
    status = cli_support.callboard("status", cluster.name)
    assert status.returncode == 0, status.stderr
    rows = re.findall(r"^ *(cpu[01]\.py[0-9]+) +(idle|busy) +([0-9]+)", status.stdout, re.M)
    shown = json.loads(cli_support.callboard("status", cluster.name, "-o", "json").stdout)
    children = {
        f"{actor['name']}.py{child['number']}": child
        for actor in shown["actors"]
        for child in actor.get("python", {}).get("children", [])
    }
    assert {name for name, _, _ in rows} == set(children)
    assert len(children) == (2 if domain == "process" else 0)
    for name, _, pid in rows:
        assert children[name]["pid"] == int(pid)
        assert pathlib.Path(f"/proc/{pid}").exists()
    assert [client["pid"] for client in shown["clients"]] == [os.getpid()]
    assert "clients 1," in status.stdout


def test_r17_a_cluster_stops_while_kernels_sleep_in_python(run_root: pathlib.Path) -> None:
    """The running kernel is not waited for beyond the grace time, and nothing of the cluster stays."""
    file = config(["sleeps"], limits={"stop_grace": "1s"})
    with callboard.launch(file) as cluster:
        pids = [device_pid(cluster, name) for name in cluster.devices]
        program = cluster.compile(lambda x: standin_kernels.sleeps(x), (rand(1),), placement="cpu0")
        future = program.submit(rand(1))
        eventually(lambda: python_of(cluster)["gil"]["acquired"]["call"] >= 1, "the kernel runs")
    with pytest.raises(callboard.errors.CallboardError):
        future.get()
    for pid in pids:
        assert not pathlib.Path(f"/proc/{pid}").exists()
