"""Calls: what is refused, futures, deadlines, cancelling, asyncio, threads, Ctrl-C, single operators."""

from __future__ import annotations

import asyncio
import gc
import re
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

from callboard import _native, errors
from callboard._tensors import to_native
from conftest import SLOW_SIZE, client_environment, eventually, python_command, slow_steps
from models import rand, same

_N = Dim("n", min=2, max=8)


def pair(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Sizes n by 3 and 2 n."""
    return x.sum() + y


@pytest.fixture(scope="module")
def program(shared_cluster: Any) -> Any:
    """Two tensors, the second twice as long as the first."""
    sizes = ({0: _N}, {0: 2 * _N})
    return shared_cluster.compile(pair, (rand(3, 3), rand(6)), dynamic_shapes=sizes, placement="cpu0")


@pytest.fixture(scope="module")
def slow(shared_cluster: Any) -> Any:
    """On the other device."""
    return shared_cluster.compile(slow_steps, (rand(SLOW_SIZE, SLOW_SIZE),), placement="cpu1", name="slow")


# -- what is refused --------------------------------------------------------------------------------------------------

X, Y = rand(3, 3), rand(6)

BAD = {
    "requires grad": (
        lambda: (X.clone().requires_grad_(), Y),
        r"'x' requires grad.*detach it \(x\.detach\(\)\) or run under torch\.no_grad\(\)",
    ),
    "a parameter": (lambda: (torch.nn.Parameter(X), Y), r"'x' requires grad.*torch\.no_grad\(\)"),
    "sparse": (lambda: (X.to_sparse(), Y), "'x' has the layout torch.sparse_coo.*to_dense"),
    "nested": (
        lambda: (torch.nested.nested_tensor([rand(2, 3), rand(1, 3)]), Y),
        "'x' is a nested tensor.*to_padded_tensor",
    ),
    "jagged": (
        lambda: (torch.nested.nested_tensor([rand(2, 3), rand(1, 3)], layout=torch.jagged), Y),
        "'x' is a nested tensor",
    ),
    "quantized": (lambda: (torch.quantize_per_tensor(X, 0.1, 0, torch.qint8), Y), "'x' is quantized"),
    "on the meta device": (lambda: (X.to("meta"), Y), "'x' is on meta"),
    "a list": (lambda: ([1.0, 2.0], Y), "'x' is a list, a tensor is expected"),
    "a number": (lambda: (X, 3), "y"),
    "None": (lambda: (X, None), "y"),
    "wrong dtype": (lambda: (X.double(), Y), "'?x'?.*float64"),
    "wrong rank": (lambda: (X[0], Y), "x"),
    "wrong fixed size": (lambda: (rand(3, 4), Y), "x.*4"),
    "size out of range": (lambda: (rand(9, 3), rand(18)), "9.*2.*8"),
    "size below range": (lambda: (rand(1, 3), rand(2)), "1.*2.*8"),
    "derived size": (lambda: (X, rand(7)), "y.*7"),
    "too few": (lambda: (X,), "missing: y"),
    "too many": (lambda: (X, Y, Y), "not expected"),
}


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad], ids=["vmap", "grad"])
def test_a_tensor_inside_a_transform_is_refused_with_its_name(program: Any, transform: Any) -> None:
    with pytest.raises(errors.InputError, match="argument 'x' is a tensor inside torch.func") as caught:
        transform(lambda x: program(x, Y)[0].sum())(rand(2, 3, 3))
    assert caught.value.code == 400


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_anything_runs(program: Any, name: str) -> None:
    make, text = BAD[name]
    with pytest.raises(errors.InputError) as caught:
        program(*make())
    message = " ".join(str(caught.value).split())
    assert re.search(text, message), message
    assert caught.value.code == 400
    assert same(program(X, Y), pair(X, Y)) == ""


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.set_grad_enabled(False)])
@pytest.mark.parametrize("make", [lambda x: x.clone().requires_grad_(), lambda x: torch.nn.Parameter(x.clone())])
def test_what_requires_grad_is_taken_where_no_gradients_are_recorded(program: Any, make: Any, mode: Any) -> None:
    x = make(X)
    with mode():
        assert same(program(x, Y), pair(X, Y)) == ""
        assert same(program.submit(x, Y).get(), pair(X, Y)) == ""
    assert x.requires_grad
    with pytest.raises(errors.InputError, match="requires grad"):
        program(x, Y)


def test_what_requires_grad_goes_in_without_a_copy() -> None:
    x = torch.nn.Parameter(X.clone())
    with torch.no_grad():
        address, *_, owner = to_native(x, "x")
    assert address == x.data_ptr() == owner.data_ptr()
    assert not owner.requires_grad


def test_an_operator_that_no_device_has_is_refused_with_its_name(cluster: Any) -> None:
    @torch.library.custom_op("callboard_tests::only_here", mutates_args=())
    def only_here(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @only_here.register_fake
    def _(x):
        return torch.empty_like(x)

    with pytest.raises(errors.UnknownOperator, match="callboard_tests::only_here") as caught:
        cluster.compile(lambda x: only_here(x) + only_here(x + 1), (rand(3),))
    assert caught.value.code == 301


def test_a_failing_operator_is_named_with_its_node_and_line(cluster: Any) -> None:
    program = cluster.compile(lambda x, i: x[i] * 2, (rand(3), torch.tensor([0])), placement="cpu0")
    with pytest.raises(errors.CallboardError) as caught:
        program(rand(3), torch.tensor([7]))
    error = caught.value
    assert error.code == 401
    assert error.operator.startswith("aten::index")
    assert error.node is not None
    assert error.actor.startswith("cpu0#")
    assert "out of bounds" in str(error) or "out of range" in str(error)
    assert same(program(rand(3), torch.tensor([2])), rand(3)[torch.tensor([2])] * 2) == ""


def test_an_assertion_of_the_module_fails_the_call(cluster: Any) -> None:
    def forward(n, x):
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= 4)
        return x.narrow(0, 0, k)

    program = cluster.compile(forward, (torch.tensor(2), rand(4)))
    assert same(program(torch.tensor(4), rand(4)), rand(4)) == ""
    with pytest.raises(errors.InputError):
        program(torch.tensor(5), rand(4))


# -- futures ----------------------------------------------------------------------------------------------------------


def test_a_future_gives_its_result_again_and_again(program: Any) -> None:
    future = program.submit(X, Y)
    future.wait()
    assert future.is_ready()
    assert future.wait_for(0)
    assert future.get() is future.get()
    assert same(future.get(timeout=1), pair(X, Y)) == ""
    future.cancel()  # too late
    assert same(future.get(), pair(X, Y)) == ""


def test_many_calls_are_in_flight_and_each_gives_its_own_result(program: Any) -> None:
    calls = [(rand(n, 3, seed=number), rand(2 * n, seed=number)) for number in range(60) for n in (2, 5)]
    futures = [program.submit(*call) for call in calls]
    for future, call in zip(futures, calls, strict=True):
        assert same(future.get(), pair(*call)) == ""


def test_a_deadline_ends_a_call_that_takes_longer(slow: Any, program: Any) -> None:
    start = time.monotonic()
    with pytest.raises(errors.DeadlineExceeded):
        slow.submit(rand(SLOW_SIZE, SLOW_SIZE), deadline=0.5).get()
    assert time.monotonic() - start < 10
    assert same(program(X, Y), pair(X, Y)) == ""


def test_a_deadline_is_a_timeout_error(slow: Any) -> None:
    with pytest.raises(TimeoutError):
        slow.submit(rand(SLOW_SIZE, SLOW_SIZE), deadline=0.2).get()


def test_a_call_can_be_cancelled(slow: Any) -> None:
    future = slow.submit(rand(SLOW_SIZE, SLOW_SIZE))
    assert not future.wait_for(0.3)
    with pytest.raises(errors.DeadlineExceeded, match="goes on"):
        future.get(timeout=0.1)
    future.cancel()
    with pytest.raises(errors.Cancelled):
        future.get()
    assert future.is_ready()


def test_a_call_that_waits_behind_another_can_be_cancelled(slow: Any) -> None:
    first, second = slow.submit(rand(SLOW_SIZE, SLOW_SIZE)), slow.submit(rand(SLOW_SIZE, SLOW_SIZE))
    second.cancel()
    with pytest.raises(errors.Cancelled):
        second.get()
    assert not first.is_ready()
    first.cancel()
    first.wait()


def test_a_dropped_future_cancels_its_call(cluster: Any, slow: Any) -> None:
    future = slow.submit(rand(SLOW_SIZE, SLOW_SIZE))
    other = slow.submit(rand(SLOW_SIZE, SLOW_SIZE))
    eventually(lambda: len(cluster.operation("requests")["requests"]) == 2, "both calls are in flight")
    native = future._native
    start = time.monotonic()
    del future
    assert time.monotonic() - start < 1  # asked for, not waited for
    eventually(lambda: len(cluster.operation("requests")["requests"]) == 1, "the dropped call is gone", 10)
    with pytest.raises(_native.NativeError) as caught:
        native.result()
    assert caught.value.error["name"] == "cancelled"
    assert not other.is_ready()
    other.cancel()
    other.wait()


def test_a_dropped_future_in_a_cycle_cancels_its_call_when_it_is_collected(cluster: Any, slow: Any) -> None:
    holder: dict[str, Any] = {"future": slow.submit(rand(SLOW_SIZE, SLOW_SIZE))}
    holder["self"] = holder
    eventually(lambda: cluster.operation("requests")["requests"], "the call runs")
    del holder
    gc.collect()
    eventually(lambda: not cluster.operation("requests")["requests"], "the dropped call is gone", 10)


def test_a_result_outlives_its_future(program: Any) -> None:
    assert same(program.submit(X, Y).get(), pair(X, Y)) == ""


def test_dropped_calls_do_not_make_later_ones_overloaded(cluster: Any) -> None:
    """One client has at most 1,024 calls in flight; without the end of dropped ones the 1,025th is refused."""
    x = rand(1)
    program = cluster.compile(lambda x: slow_steps(x.expand(SLOW_SIZE, SLOW_SIZE)), (x,), placement="cpu1")
    kept = program.submit(x)
    for _ in range(11):
        natives = [program.submit(x)._native for _ in range(100)]  # each future is dropped at once
        assert all(native.wait(20) for native in natives)
    assert not kept.is_ready()
    kept.cancel()
    kept.wait()


DROPPED = """
import os, sys, torch, callboard
cluster = callboard.connect(sys.argv[1])
program = cluster.load(sys.argv[2])
future = program.submit(torch.randn(1600, 1600))
pid = os.fork()
if pid == 0:
    del future  # its copy of the parent's future
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), future.wait_for(0.5), flush=True)
"""


def test_a_forked_child_and_the_interpreters_end_drop_futures_in_silence(
    cluster: Any, slow: Any, tmp_path: Path
) -> None:
    slow.save(tmp_path / "slow")
    command = python_command(DROPPED, cluster.run_dir, str(tmp_path / "slow"))
    done = subprocess.run(command, env=client_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 False\n", "")
    eventually(lambda: not cluster.operation("requests")["requests"], "the client's calls are gone")


def test_threads_call_at_the_same_time(program: Any) -> None:
    wrong: list[str] = []

    def work(seed: int) -> None:
        for number in range(25):
            call = (rand(3, 3, seed=seed * 100 + number), rand(6, seed=seed))
            wrong.append(same(program(*call), pair(*call)))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(wrong) == {""}
    assert len(wrong) == 150


# -- asyncio ----------------------------------------------------------------------------------------------------------


def test_futures_can_be_awaited_and_gathered(program: Any) -> None:
    async def work() -> None:
        calls = [(rand(3, 3, seed=number), rand(6)) for number in range(40)]
        results = await asyncio.gather(*(program.submit(*call) for call in calls))
        for call, result in zip(calls, results, strict=True):
            assert same(result, pair(*call)) == ""
        future = program.submit(X, Y)
        first, second = await asyncio.gather(_await(future), _await(future))
        assert first is second
        assert (await future) is first

    asyncio.run(work())
    asyncio.run(work())  # a second loop over the same descriptor


async def _await(future: Any) -> Any:
    return await future


def test_the_loop_runs_on_while_a_call_runs(slow: Any, program: Any) -> None:
    async def work() -> int:
        waiting = asyncio.ensure_future(_await(slow.submit(rand(SLOW_SIZE, SLOW_SIZE))))
        for number in range(5):
            await program.submit(X, Y)
            assert not waiting.done(), number
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return 5

    assert asyncio.run(work()) == 5


def test_cancelling_the_task_cancels_the_call(slow: Any) -> None:
    async def work() -> Any:
        future = slow.submit(rand(SLOW_SIZE, SLOW_SIZE))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_await(future), 0.3)
        return future

    future = asyncio.run(work())
    with pytest.raises(errors.Cancelled):
        future.get()


def test_an_error_comes_out_of_await(slow: Any) -> None:
    async def work() -> None:
        with pytest.raises(errors.DeadlineExceeded):
            await slow.submit(rand(SLOW_SIZE, SLOW_SIZE), deadline=0.2)

    asyncio.run(work())


def test_two_loops_in_two_threads(program: Any) -> None:
    wrong: list[str] = []

    async def work() -> None:
        for number in range(20):
            call = (rand(3, 3, seed=number), rand(6))
            wrong.append(same(await program.submit(*call), pair(*call)))

    threads = [threading.Thread(target=asyncio.run, args=(work(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(wrong) == 40
    assert set(wrong) == {""}


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------

INTERRUPTED = """
import sys, torch, callboard
cluster = callboard.connect(sys.argv[1])
program = cluster.load(sys.argv[2])
x = torch.randn(1600, 1600)
print("calling", flush=True)
try:
    program(x)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    print(cluster.op("aten::add.Tensor", torch.ones(2), 1).tolist(), flush=True)
"""


def test_ctrl_c_interrupts_a_call_at_once_and_the_client_goes_on(cluster: Any, slow: Any, tmp_path: Path) -> None:
    slow.save(tmp_path / "slow")
    command = python_command(INTERRUPTED, cluster.run_dir, str(tmp_path / "slow"))
    # A shell that runs the tests in the background has set SIGINT to "ignored", and children inherit that.
    process = subprocess.Popen(
        command, env=client_environment(), stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "calling\n"
    eventually(lambda: cluster.operation("requests")["requests"], "the call runs")
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    assert time.monotonic() - start < 5
    assert process.stdout.readline() == "[2.0, 2.0]\n"
    assert process.wait(20) == 0
    eventually(lambda: not cluster.operation("requests")["requests"], "the interrupted call is cancelled")


# -- single operators -------------------------------------------------------------------------------------------------


def test_one_operator_runs_by_name(cluster: Any) -> None:
    x, y = rand(3, 4), rand(3, 4, seed=3)
    assert same(cluster.op("aten::add.Tensor", x, y, alpha=2), torch.add(x, y, alpha=2)) == ""
    assert same(cluster.op("aten::mm", x, y.t()), x @ y.t()) == ""
    assert same(cluster.op("aten::mm.default", x, y.t()), x @ y.t()) == ""  # as torch.ops.aten.mm.default says it
    assert same(cluster.op("aten::split.Tensor", x, 2), list(x.split(2))) == ""
    assert same(cluster.op("aten::topk", x, 2), tuple(x.topk(2))) == ""
    assert same(cluster.op("aten::cat", [x, y], dim=1), torch.cat([x, y], 1)) == ""
    assert cluster.op("aten::item", torch.tensor(3)) == 3
    assert same(cluster.op("aten::zeros", [2, 3], dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int64)) == ""


def test_int_float_and_bool_constants_stay_distinct(cluster: Any) -> None:
    x = torch.arange(3)
    results = [cluster.op("aten::mul.Tensor", x, number) for number in (1, 1.0, True)]
    assert [result.dtype for result in results] == [torch.int64, torch.float32, torch.int64]


def test_operators_that_do_not_exist_are_refused_with_near_names(cluster: Any) -> None:
    with pytest.raises(errors.UnknownOperator) as caught:
        cluster.op("aten::ad.Tensor", X, X)
    assert "aten::add.Tensor" in caught.value.hint
    with pytest.raises(errors.UnknownOperator, match="no overload 'Tensr'"):
        cluster.op("aten::add.Tensr", X, X)


@pytest.mark.parametrize("name", ["aten::mul", "aten::mul.default", "aten::mul.int", "aten::mul.Tensr"])
def test_an_operator_without_its_overload_is_refused_here_with_those_that_there_are(cluster: Any, name: str) -> None:
    """TorchScript has aten::mul and aten::mul.int; devices do not."""
    with pytest.raises(errors.UnknownOperator, match="overload") as caught:
        cluster.op(name, X, X)
    assert caught.value.hint == "there are: aten::mul.Scalar, aten::mul.Tensor"
    assert (caught.value.actor, caught.value.operator) == ("", name)


def test_an_operator_of_torchscript_alone_is_refused_here(cluster: Any) -> None:
    with pytest.raises(errors.UnknownOperator, match="TorchScript's own") as caught:
        cluster.op("aten::len.t", [1, 2])
    assert caught.value.actor == ""


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("aten::add_.Tensor", "call aten::add.Tensor, which returns a new tensor"),
        ("aten::resize_", "call aten::resize, which returns a new tensor"),
        ("aten::mm.out", "call aten::mm, which returns a new tensor"),
        ("aten::add.out", "call aten::add.Scalar or aten::add.Tensor, which returns a new tensor"),
        ("aten::record_stream", "leave it out: a device orders the reuse of its memory itself"),
        ("aten::__ilshift__.Tensor", "cluster.compile() a module that calls it on a tensor of its own"),
    ],
)
def test_an_operator_that_writes_is_refused_with_what_to_call_instead(cluster: Any, name: str, hint: str) -> None:
    with pytest.raises(errors.UnsupportedError, match="writes to its arguments") as caught:
        cluster.op(name, X, X)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda c: c.op("aten::add_.Tensor", X, X), errors.UnsupportedError, "writes to its arguments"),
        (lambda c: c.op(5, X), errors.InputError, "the operator is int 5; allowed: its name"),
        (lambda c: c.op("aten::add.Tensor", X), errors.InputError, "lacks its argument 'other'"),
        (lambda c: c.op("aten::add.Tensor", X, "a"), errors.InputError, "argument 'other': a tensor is expected"),
        (lambda c: c.op("aten::add.Tensor", X, X, aplha=2), errors.InputError, "did you mean 'alpha'"),
        (lambda c: c.op("aten::mm", X, rand(4, 4)), errors.KernelError, "aten::mm"),
    ],
)
def test_wrong_calls_of_operators_are_refused(cluster: Any, call: Any, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text):
        call(cluster)
