"""Starting, finding and ending clusters; saving and loading programs."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import callboard
from callboard import errors
from conftest import (
    SLOW_SIZE,
    TWO_CPU,
    client_environment,
    device_pid,
    eventually,
    kill_device,
    python_command,
    slow_steps,
)
from models import CASES, Mlp, rand, same

ONE_CPU = {"devices": [{"kind": "cpu", "count": 1, "threads": 1}]}


def is_alive(pid: int) -> bool:
    """Runs, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# -- import -----------------------------------------------------------------------------------------------------------


def test_importing_the_client_needs_no_cluster_and_no_torch() -> None:
    code = "import callboard, sys; callboard.launch; callboard.connect; print('torch' in sys.modules)"
    done = subprocess.run(
        python_command(code), env=client_environment(), capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False\n"


# -- launch -----------------------------------------------------------------------------------------------------------


def test_a_cluster_from_a_file_runs_and_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("name: from-file\ndevices:\n  - {kind: cpu, count: 2, threads: 1}\n")
    with callboard.launch(file) as cluster:
        assert cluster.name == "from-file"
        assert cluster.devices == ["cpu0", "cpu1"]
        status = cluster.status()
        pids = [actor["pid"] for actor in status["actors"] if actor["role"] == "device"]
        pids += [cluster.record["node_pid"], cluster.record["coordinator_pid"]]
        run_dir = cluster.run_dir
        assert status["ready"] is True
        assert all(map(is_alive, pids))
        assert cluster.op("aten::add.Tensor", torch.ones(2), 1).tolist() == [2, 2]
    assert not any(map(is_alive, pids))
    assert not Path(run_dir).exists()


def test_two_clusters_run_side_by_side() -> None:
    with callboard.launch(ONE_CPU) as one, callboard.launch(ONE_CPU) as two:
        assert one.name != two.name
        x = rand(4, 4)
        first, second = one.compile(lambda x: x + 1, (x,)), two.compile(lambda x: x + 2, (x,))
        futures = [(first.submit(x), x + 1) if n % 2 else (second.submit(x), x + 2) for n in range(20)]
        assert all(same(future.get(), want) == "" for future, want in futures)
        assert {record["name"] for record in callboard.list_clusters()} >= {one.name, two.name}


def test_a_second_cluster_of_the_same_name_is_refused_and_the_first_unharmed() -> None:
    config = {"name": "only-once", **ONE_CPU}
    with callboard.launch(config) as cluster:
        with pytest.raises(errors.CallboardError, match="only-once"):
            callboard.launch(config)
        assert cluster.op("aten::neg", torch.ones(1)).tolist() == [-1]


def test_connecting_by_name_and_by_run_directory(cluster: Any) -> None:
    for address in (cluster.name, cluster.run_dir):
        with callboard.connect(address) as other:
            assert other.name == cluster.name
            assert other.op("aten::add.Tensor", torch.ones(1), 1).tolist() == [2]
    assert cluster.op("aten::add.Tensor", torch.ones(1), 1).tolist() == [2]


def test_a_cluster_that_does_not_run_is_not_found(cluster: Any) -> None:
    with pytest.raises(errors.ClusterNotFound, match="no-such-cluster") as caught:
        callboard.connect("no-such-cluster")
    assert cluster.name in str(caught.value)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"devices": [{"kind": "cpu", "cuont": 2}]}, "count"),
        ({"devices": [{"kind": "gpu"}]}, "cuda"),
        ({"devices": [{"kind": "cpu", "count": -1}]}, "count"),
        ({"nmae": "x", "devices": []}, "name"),
    ],
)
def test_a_wrong_configuration_is_refused_with_the_nearest_name(config: dict, text: str) -> None:
    with pytest.raises(errors.ConfigError, match=text) as caught:
        callboard.launch(config)
    assert 200 <= caught.value.code < 300


def test_a_wrong_cluster_file_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("devices:\n  - kind: cpu\n    cuont: 2\n")
    with pytest.raises(errors.ConfigError, match=r"wrong\.yaml:3:"):
        callboard.launch(file)


def test_a_cluster_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match=r"missing\.yaml") as caught:
        callboard.launch(tmp_path / "missing.yaml")
    assert caught.value.code == 211


def test_a_program_folder_without_programs_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CALLBOARD_BIN_DIR", str(tmp_path))
    with pytest.raises(errors.StartError, match="CALLBOARD_BIN_DIR"):
        callboard.launch(ONE_CPU)


def test_a_device_that_cannot_start_is_the_reason_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from callboard._launch import find_program

    shutil.copy(find_program("callboard"), tmp_path / "callboard")
    broken = tmp_path / "callboard-device"
    broken.write_text("#!/bin/sh\necho the device has no luck today >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CALLBOARD_BIN_DIR", str(tmp_path))
    config = {**ONE_CPU, "restart": {"policy": "never"}}
    with pytest.raises(errors.StartError) as caught:
        callboard.launch(config, timeout=30)
    text = str(caught.value)
    assert "cpu0" in text
    assert "3" in text
    assert "no luck today" in text


LAUNCHES = """
import sys, time, callboard
cluster = callboard.launch({"devices": [{"kind": "cpu", "count": 2, "threads": 1}]})
pids = [actor["pid"] for actor in cluster.status()["actors"] if actor["role"] == "device"]
print(*pids, cluster.record["node_pid"], cluster.record["coordinator_pid"], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_a_launched_cluster_ends_with_its_client(how: str) -> None:
    process = subprocess.Popen(
        python_command(LAUNCHES), env=client_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 4
    if how == "killed":
        process.kill()
    else:
        process.stdin.close()
    process.wait(20)
    eventually(lambda: not any(map(is_alive, pids)), "every process of the cluster has ended")


def test_a_forked_child_does_not_keep_the_cluster_alive() -> None:
    with callboard.launch(ONE_CPU) as cluster:
        node = cluster.record["node_pid"]
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
        pid = os.fork()
        if pid == 0:
            signal.pause()
            os._exit(0)
    try:
        assert not is_alive(node)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert child.stdin is not None
        child.stdin.close()
        child.wait(10)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_closed_cluster_keeps_no_descriptor(cluster: Any) -> None:
    def used() -> Any:
        other = callboard.connect(cluster.name)
        assert same(other.compile(lambda x: x + 1, (rand(3),))(rand(3)), rand(3) + 1) == ""
        other.op("aten::neg", rand(3))
        other.close()
        return other

    first = used()
    gc.collect()  # what earlier tests left behind may go at any time
    before = open_files()
    kept = [used() for _ in range(5)]
    gc.collect()
    assert open_files() <= before
    del first, kept


def test_a_closed_cluster_keeps_no_descriptor_for_an_event_loop_either(cluster: Any) -> None:
    other = callboard.connect(cluster.name)
    program = other.compile(slow_steps, (rand(SLOW_SIZE, SLOW_SIZE),))

    async def wait_and_close() -> None:
        async def result() -> Any:
            return await program.submit(rand(SLOW_SIZE, SLOW_SIZE))

        waiting = asyncio.ensure_future(result())
        await asyncio.sleep(0)  # it waits now
        await asyncio.get_running_loop().run_in_executor(None, other.close)
        with pytest.raises(errors.Cancelled):
            await waiting

    asyncio.run(wait_and_close())
    assert other._client.completion_fd() == -1


def test_one_client_too_many_is_told_the_limit() -> None:
    with callboard.launch({**ONE_CPU, "limits": {"clients": 2}}) as cluster, callboard.connect(cluster.name):
        for _ in range(2):
            with pytest.raises(errors.Overloaded, match="2 clients, as many as limits.clients allows"):
                callboard.connect(cluster.name)


def test_a_closed_cluster_refuses_calls_and_closing_again_does_nothing() -> None:
    cluster = callboard.launch(ONE_CPU)
    program = cluster.compile(lambda x: x + 1, (rand(2),))
    cluster.close()
    cluster.close()
    with pytest.raises(errors.CallboardError):
        program(rand(2))


# -- faults -----------------------------------------------------------------------------------------------------------


def test_a_device_killed_in_a_call_is_the_cause_and_the_cluster_goes_on(unforgiving_cluster: Any) -> None:
    slow = unforgiving_cluster.compile(slow_steps, (rand(SLOW_SIZE, SLOW_SIZE),), placement="cpu1")
    quick = unforgiving_cluster.compile(lambda x: x + 1, (rand(3),), placement="cpu0")
    on_dead = unforgiving_cluster.compile(lambda x: x - 1, (rand(3),), placement="cpu1")
    future = slow.submit(rand(SLOW_SIZE, SLOW_SIZE))
    eventually(lambda: unforgiving_cluster.operation("requests")["requests"], "the call runs")
    start = time.monotonic()
    os.kill(device_pid(unforgiving_cluster, "cpu1"), signal.SIGKILL)
    with pytest.raises(errors.ActorDied) as caught:
        future.get()
    assert time.monotonic() - start < 10
    assert "cpu1" in str(caught.value)
    assert "9" in str(caught.value)
    assert same(quick(rand(3)), rand(3) + 1) == ""
    unforgiving_cluster.operation("wait_ready", timeout_ms=30_000, timeout=35)
    assert same(on_dead(rand(3)), rand(3) - 1) == ""
    assert any(event["event"] == "down" and event["name"] == "cpu1" for event in unforgiving_cluster.events())


def test_a_result_outlives_the_device_that_made_it(own_cluster: Any) -> None:
    """R5: the memory stays mapped and unchanged."""
    x = rand(600, 600)
    program = own_cluster.compile(lambda x: x * 3, (x,), placement="cpu0")
    y = program(x)
    kill_device(own_cluster, "cpu0")
    assert same(y, x * 3) == ""
    assert same(program(y), x * 3 * 3) == ""
    assert same(y, x * 3) == ""


def test_state_starts_anew_after_its_device_died(own_cluster: Any) -> None:
    """R39: never a half state."""
    case = next(case for case in CASES if case.name == "R39: a counter in a buffer")
    program = own_cluster.compile(case.make(), (torch.tensor(1),), placement="cpu0")
    assert [program(torch.tensor(1)).item() for _ in range(3)] == [1, 2, 3]
    future = program.submit(torch.tensor(10))
    assert future.get().item() == 13
    assert future.state_version == 4
    kill_device(own_cluster, "cpu0")
    try:
        after = program(torch.tensor(1)).item()
    except errors.StateLost:
        after = program(torch.tensor(1)).item()
    assert after == 1


IN_FLIGHT = """
import sys, torch, callboard
cluster = callboard.connect(sys.argv[1])
program = cluster.load(sys.argv[2])
futures = [program.submit(torch.randn(1600, 1600)) for _ in range(3)]
print("in flight", flush=True)
futures[0].wait()
"""


def test_a_client_killed_with_calls_in_flight_leaves_the_cluster_working(cluster: Any, tmp_path: Path) -> None:
    slow = cluster.compile(slow_steps, (rand(SLOW_SIZE, SLOW_SIZE),), placement="cpu1")
    slow.save(tmp_path / "slow")
    command = python_command(IN_FLIGHT, cluster.run_dir, str(tmp_path / "slow"))
    process = subprocess.Popen(command, env=client_environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "in flight\n"
    eventually(lambda: len(cluster.operation("requests")["requests"]) == 3, "three calls are in flight")
    process.kill()
    process.wait(20)
    eventually(lambda: not cluster.operation("requests")["requests"], "its calls are gone")
    program = cluster.compile(lambda x: x + 1, (rand(3),), placement="cpu1")
    assert same(program(rand(3)), rand(3) + 1) == ""


# -- saved programs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["mlp", "tied weights and views of one storage", "nested arguments by name", "every structure of results"]
)
def test_a_saved_program_gives_the_same_in_another_cluster(cluster: Any, tmp_path: Path, name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    args, kwargs = case.calls[0]
    file = tmp_path / "program.safetensors"
    program = cluster.compile(case.make(), args, kwargs, case.dynamic_shapes, placement="cpu1")
    program.save(file)
    with callboard.launch(TWO_CPU) as other:
        loaded = other.load(file)
        assert {fragment["device"] for fragment in loaded.plan()} <= {"cpu1"}
        eager = case.make()
        for args, kwargs in case.calls:
            with torch.no_grad():
                want = eager(*args, **kwargs)
            assert same(want, loaded(*args, **kwargs)) == ""


def test_a_saved_program_can_be_placed_elsewhere_and_saved_again(cluster: Any, tmp_path: Path) -> None:
    cluster.compile(Mlp(), (rand(3, 8),), placement="cpu1").save(tmp_path / "a")
    loaded = cluster.load(tmp_path / "a", placement="cpu0")
    assert [fragment["device"] for fragment in loaded.plan()] == ["cpu0"]
    loaded.save(tmp_path / "b")
    with torch.no_grad():
        want = Mlp()(rand(3, 8))
    assert same(cluster.load(tmp_path / "b")(rand(3, 8)), want) == ""


def test_a_loaded_program_is_saved_whatever_lies_at_its_path_now(cluster: Any, tmp_path: Path) -> None:
    cluster.compile(Mlp(), (rand(3, 8),)).save(tmp_path / "mlp")
    cluster.compile(lambda x: -x, (rand(3, 8),)).save(tmp_path / "negate")
    loaded = cluster.load(tmp_path / "mlp")
    want = loaded(rand(3, 8))
    (tmp_path / "negate").replace(tmp_path / "mlp")
    loaded.save(tmp_path / "again")
    assert same(cluster.load(tmp_path / "again")(rand(3, 8)), want) == ""
    (tmp_path / "mlp").unlink()
    loaded.save(tmp_path / "mlp")
    assert same(cluster.load(tmp_path / "mlp")(rand(3, 8)), want) == ""


def test_a_loaded_program_whose_file_was_written_to_is_not_saved(cluster: Any, tmp_path: Path) -> None:
    file = tmp_path / "mlp"
    cluster.compile(Mlp(), (rand(3, 8),)).save(file)
    loaded = cluster.load(file)
    with file.open("r+b") as opened:
        opened.seek(-200, os.SEEK_END)
        opened.write(b"\xff" * 100)
    with pytest.raises(errors.CallboardError, match="was written to since it was loaded") as caught:
        loaded.save(tmp_path / "again")
    assert str(file) in str(caught.value)
    assert not (tmp_path / "again").exists()


def test_what_is_no_regular_file_is_not_replaced(cluster: Any, tmp_path: Path) -> None:
    program = cluster.compile(Mlp(), (rand(3, 8),))
    program.save(tmp_path / "mlp")
    os.mkfifo(tmp_path / "pipe")
    for each in (program, cluster.load(tmp_path / "mlp")):
        for path, kind in (("/dev/full", "a device"), (tmp_path / "pipe", "a pipe"), (tmp_path, "a folder")):
            with pytest.raises(errors.InputError, match=f"it is {kind}"):
                each.save(path)
        with pytest.raises(errors.CallboardError, match="/nonexistent"):
            each.save("/nonexistent/program")
    assert Path("/dev/full").is_char_device()
    assert (tmp_path / "pipe").is_fifo()


def test_a_file_that_is_no_program_is_refused(cluster: Any, tmp_path: Path) -> None:
    for name, content in (("empty", b""), ("text", b"hello"), ("huge", b"\xff" * 64)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(errors.CallboardError):
            cluster.load(tmp_path / name)
    with pytest.raises(errors.CallboardError, match="missing"):
        cluster.load(tmp_path / "missing")


class Unsaved:
    """Registered without a name to be saved under."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class ReturnsUnsaved(nn.Module):
    """Works, but cannot be saved."""

    def forward(self, x):
        return Unsaved(x + 1)


def test_a_structure_without_a_name_runs_and_cannot_be_saved(cluster: Any, tmp_path: Path) -> None:
    torch.utils._pytree.register_pytree_node(Unsaved, lambda u: ([u.value], None), lambda leaves, _: Unsaved(*leaves))
    program = cluster.compile(ReturnsUnsaved(), (rand(3),))
    assert same(program(rand(3)).value, rand(3) + 1) == ""
    with pytest.raises(errors.UnsupportedError, match="serialized"):
        program.save(tmp_path / "never")


# -- what is there to see ---------------------------------------------------------------------------------------------


def test_a_trace_is_a_chrome_trace_with_every_operator(cluster: Any, tmp_path: Path) -> None:
    program = cluster.compile(Mlp(), (rand(3, 8),), placement={"cpu0": "first", "cpu1": "second"})
    with cluster.trace(tmp_path / "trace.json") as trace:
        program(rand(3, 8))
    events = json.loads(trace.path.read_text())["traceEvents"]
    text = json.dumps(events)
    assert "aten::linear" in text
    assert len({event["pid"] for event in events}) >= 2


def test_a_cluster_file_with_tracing_leaves_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    with callboard.launch({**ONE_CPU, "tracing": {"enabled": True, "file": str(file)}}) as cluster:
        cluster.op("aten::neg", torch.ones(1))
    assert "aten::neg" in json.dumps(json.loads(file.read_text())["traceEvents"])


@pytest.mark.parametrize("path", ["/proc/x/t.json", "/nonexistent/t.json", "/dev/full"])
def test_a_trace_that_cannot_be_written_is_refused_before_anything_starts(cluster: Any, path: str) -> None:
    with pytest.raises(errors.ConfigError, match=f"tracing.file: '{path}' cannot be written"):
        callboard.launch({**ONE_CPU, "tracing": {"enabled": True, "file": path}})
    with pytest.raises(errors.CallboardError, match=f"'{path}' cannot be written"):
        cluster.trace(path)
    assert not Path("/nonexistent").exists()
    assert Path("/dev/full").is_char_device()


def test_a_trace_that_cannot_be_written_in_the_end_is_an_error_of_ours(cluster: Any, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(errors.CallboardError, match="trace.json"), cluster.trace(folder / "trace.json"):
        folder.rmdir()


def test_status_shows_devices_programs_and_counters(cluster: Any) -> None:
    program = cluster.compile(Mlp(), (rand(3, 8),), name="Shown")
    program(rand(3, 8))
    status = cluster.status()
    assert status["name"] == cluster.name
    assert program.id in {entry["program"] for entry in status["programs"]}
    assert status["counters"]["ok"] >= 1


def test_an_operation_that_does_not_exist_is_refused(cluster: Any) -> None:
    with pytest.raises(errors.CallboardError, match="statsu") as caught:
        cluster.operation("statsu")
    assert "status" in str(caught.value)
