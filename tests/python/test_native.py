"""The native module by itself: what needs no cluster."""

import ctypes
import fcntl
import gc
import hashlib
import json
import os
import signal
import struct
import threading
import weakref

import pytest

from callboard import _native
from callboard._native import FragmentBuilder, NativeError


class Owner:
    """Memory that Python owns, and that says when it goes."""

    def __init__(self, data: bytes) -> None:
        self.buffer = ctypes.create_string_buffer(data, len(data))

    @property
    def storage(self) -> tuple[int, int]:
        return ctypes.addressof(self.buffer), len(self.buffer)


def scaled(builder: FragmentBuilder | None = None) -> FragmentBuilder:
    builder = builder or FragmentBuilder("scaled")
    rows = builder.add_symbol("s0", 1, 64)
    x = builder.add_input("x", "float32", [("sym", rows), 4])
    owner = Owner(bytes(range(16)))
    w = builder.add_constant("w", owner.storage, "float32", [4], [1], owner=owner)
    (y,) = builder.add_node(
        "aten::mul.Tensor", [("tensor", x), ("tensor", w)], outputs=[("tensor", "y", "float32", [("sym", rows), 4])]
    )
    builder.add_output("y", ("tensor", y))
    builder.add_output("rows", ("expr", ("*", 2, ("sym", rows))))
    return builder


def refusal(call, *args, **kwargs) -> dict:
    with pytest.raises(NativeError) as caught:
        call(*args, **kwargs)
    assert caught.value.error["text"] == str(caught.value)
    return caught.value.error


def test_a_program_is_built_checked_and_encoded_the_same_each_time():
    builder = scaled()
    builder.check()
    assert builder.node_count == 1
    assert builder.constant_bytes == 16
    assert builder.encode() == scaled().encode()
    builder.set_annotation("tree", "{}")
    assert builder.encode() != scaled().encode()


def test_every_kind_of_argument_is_taken_and_kept_apart():
    def encoded(argument):
        builder = FragmentBuilder()
        builder.add_symbol("s", 0, 9)
        x = builder.add_input("x", None, [("sym", 0)])
        builder.add_input("n", kind="int")
        (y,) = builder.add_node("my::op", [("tensor", x), argument], {"k": argument}, [("tensor", "y", None, None)])
        builder.add_output("y", ("tensor", y))
        return builder.encode()

    arguments = [
        ("none",),
        ("tensor", 0),
        ("tensors", [0, 0]),
        ("tensors", []),
        ("optional_tensors", [None, 0]),
        ("int", 1),
        ("float", 1.0),
        ("float", float("inf")),
        ("float", -0.0),
        ("bool", True),
        ("complex", 1j),
        ("str", "1"),
        ("dtype", "int64"),
        ("layout", "strided"),
        ("memory_format", "channels_last"),
        ("device_slot", 0),
        ("expr", ("value", 1)),
        ("expr", ("+", 1, ("sym", 0), 2)),
        ("ints", [1]),
        ("ints", [1, ("//", ("sym", 0), 2)]),
        ("floats", [1.0]),
        ("bools", [True]),
        ("strs", ["1"]),
        ("scalar", 1),
        ("scalar", 1.0),
        ("scalar", True),
        ("scalar", 1j),
    ]
    assert len({encoded(argument) for argument in arguments}) == len(arguments)


def test_a_literal_device_is_taken_and_refused_with_its_node():
    builder = FragmentBuilder()
    x = builder.add_input("x")
    (y,) = builder.add_node("my::op", [("tensor", x), ("device", "cuda:1")], outputs=[("tensor", "y", None, None)])
    builder.add_output("y", ("tensor", y))
    error = refusal(builder.encode)
    assert (error["name"], error["node"]) == ("literal_device", 0)
    assert "cuda:1" in error["message"]


@pytest.mark.parametrize(
    "argument",
    [
        5,
        (),
        ("what", 1),
        ("int",),
        ("int", 1, 2),
        ("int", 1.0),
        ("int", True),
        ("float", 1),
        ("bool", 1),
        ("str", b"x"),
        ("ints", 3),
        ("tensor", "x"),
        ("tensor", None),
        ("floats", [1]),
        ("scalar", "x"),
        ("complex", 1.0),
        ("expr", ("+", 1)),
        ("expr", ("sym",)),
        ("expr", (1, 2)),
        ("expr", "s0"),
        ("expr", ("-", 1, 2, 3)),
        (None, 1),
    ],
)
def test_an_argument_of_the_wrong_form_is_a_type_error(argument):
    builder = FragmentBuilder()
    builder.add_input("x")
    with pytest.raises(TypeError):
        builder.add_node("my::op", [argument])
    assert builder.node_count == 0


@pytest.mark.parametrize(
    "argument", [("int", 2**63), ("tensor", -1), ("tensor", 2**32), ("expr", ("^", 1, 2)), ("device_slot", -1)]
)
def test_a_value_out_of_range_is_a_value_error(argument):
    with pytest.raises(ValueError):
        FragmentBuilder().add_node("my::op", [argument])


def test_a_deep_nest_of_expressions_is_refused():
    expr = 1
    for _ in range(100_000):
        expr = ("not", expr)
    with pytest.raises(ValueError):
        FragmentBuilder().add_node("my::op", [("expr", expr)])


def test_misuse_of_the_builder_names_what_is_wrong():
    builder = FragmentBuilder()
    builder.add_input("x")
    assert refusal(builder.add_input, "x")["code"] == 300
    error = refusal(builder.add_node, "aten::neg", [("tensor", 9)])
    assert (error["name"], error["op"], error["node"]) == ("use_before_definition", "aten::neg", 0)
    assert error["kind"] == "program"
    assert refusal(builder.add_input, "y", "float31")["name"] == "unsupported"
    owner = Owner(b"12345678")
    assert "w" in refusal(builder.add_constant, "w", owner.storage, "float32", [3], [1])["message"]
    assert refusal(builder.add_state, "s", 0, 0)["name"] == "bad_graph"
    with pytest.raises(ValueError):
        builder.add_input("z", kind="text")
    with pytest.raises(TypeError):
        builder.add_output("o", ("dtype", "int64"))
    refusal(builder.add_output, "o", ("tensor", 44))


def test_outputs_have_the_form_that_was_asked_for():
    builder = FragmentBuilder()
    x = builder.add_input("x")
    ids = builder.add_node(
        "my::op", [("tensor", x)], outputs=[None, ("int", "n"), [("tensor", "a", None, None), None], []]
    )
    assert ids == [None, 1, [2, None], []]


def test_constants_keep_their_owner_until_the_builder_goes():
    builder = FragmentBuilder()
    owner, twin = Owner(b"12345678"), Owner(b"12345678")
    refs = weakref.ref(owner), weakref.ref(twin)
    builder.add_constant("a", owner.storage, "float32", [2], [1], owner=owner)
    builder.add_constant("b", twin.storage, "float32", [2], [1], owner=twin)
    assert builder.constant_bytes == 8
    del owner, twin
    gc.collect()
    assert all(ref() is not None for ref in refs)
    del builder
    gc.collect()
    assert all(ref() is None for ref in refs)


def test_a_saved_program_holds_each_storage_once_under_its_hash(tmp_path):
    path = tmp_path / "p.safetensors"
    scaled().save(str(path), {"devices": ["cpu0"]})
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    digest = hashlib.sha256(bytes(range(16))).hexdigest()
    begin, end = header[digest]["data_offsets"]
    assert data[8 + length + begin : 8 + length + end] == bytes(range(16))
    assert header["__metadata__"]["format"] == "callboard-program"
    assert header["__metadata__"]["callboard_version"] == _native.version()
    assert refusal(scaled().save, str(tmp_path / "absent" / "p"))["name"] == "file_not_found"


@pytest.mark.parametrize("placement", [{"what": 1}, {"rules": [{"gpu": 1}]}])
def test_a_placement_with_an_unknown_key_is_refused(placement, tmp_path):
    with pytest.raises(ValueError):
        scaled().save(str(tmp_path / "p"), placement)


def test_builders_are_used_from_many_threads():
    builder = FragmentBuilder()
    x = builder.add_input("x")
    owner = Owner(bytes(1 << 20))

    def work(number):
        for i in range(50):
            builder.add_node("aten::neg", [("tensor", x)], outputs=[("tensor", "y", None, None)])
            builder.add_constant(f"c{number}.{i}", owner.storage, "uint8", [1 << 20], [1], owner=owner)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert builder.node_count == 200


def test_connecting_where_nothing_runs_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("CALLBOARD_RUN_DIR", str(tmp_path))
    assert refusal(_native.Client.connect, "absent", 0.1)["name"] == "cluster_not_found"
    assert refusal(_native.find_cluster)["name"] == "cluster_not_found"
    assert _native.list_clusters() == []


def test_a_signal_ends_a_call_that_waits(tmp_path, monkeypatch):
    """A cluster that is there by its lock and its record, but where nobody answers."""
    monkeypatch.setenv("CALLBOARD_RUN_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    run_dir = tmp_path / "silent"
    run_dir.mkdir(mode=0o700)
    record = {
        "name": "silent",
        "run_dir": str(run_dir),
        "node_pid": os.getpid(),
        "coordinator_pid": os.getpid(),
        "epoch": 1,
        "coordinator_endpoint": f"ipc://{run_dir}/coordinator.sock",
        "memory_socket": f"{run_dir}/memory.sock",
        "version": _native.version(),
    }
    (run_dir / "cluster.json").write_text(json.dumps(record))
    with (run_dir / "lock").open("w") as lock:
        fcntl.fcntl(lock, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        assert [each["name"] for each in _native.list_clusters()] == ["silent"]
        previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(KeyboardInterrupt):
                _native.Client.connect("silent", 60.0)
        finally:
            signal.signal(signal.SIGALRM, previous)
        assert refusal(_native.Client.connect, "silent", 0.1)["name"] == "not_ready"


def test_the_cluster_file_is_checked_by_the_same_parser():
    normal = _native.validate_config("devices: [{kind: cpu, count: 2}]\n", "a.yaml")
    assert _native.validate_config(normal) == normal
    error = refusal(_native.validate_config, "devces: []\n", "a.yaml")
    assert error["kind"] == "config"
    assert "a.yaml:1:1" in error["text"]
    assert json.loads(_native.config_schema())["type"] == "object"


def test_a_stream_is_recorded_for_results_on_gpus_only():
    """Everything else is refused with what it is."""
    import torch

    import callboard

    assert refusal(_native.record_stream, 4096, 0)["name"] == "bad_input"
    with pytest.raises(callboard.errors.InputError, match="'tensor' is on cpu"):
        callboard.record_stream(torch.ones(2))
    with pytest.raises(callboard.errors.InputError, match="'tensor' is a list"):
        callboard.record_stream([1.0])  # type: ignore[arg-type]
