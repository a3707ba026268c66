"""The native module: the C++ client, the graph builder and the cluster file's parser. It does not link LibTorch.

Rules that hold everywhere: no call holds the GIL while it waits, a wait wakes at least every 50 ms for signals, and no
thread of the module ever takes the GIL. A failure raises NativeError; a wrong Python type raises TypeError.
Dtypes are torch's names without "torch.": "float32", "bfloat16", "int64", "bool", ...
"""

from typing import Any, Literal, Sequence, TypedDict

class ErrorDict(TypedDict):
    code: int  # 400; see messages/base/error.h
    name: str  # "bad_input"
    kind: str  # class of the code: "message" | "config" | "program" | "request" | "actor" | "environment" | "internal"
    message: str
    hint: str
    actor: str
    op: str
    node: int  # -1: none
    detail: str
    causes: list["ErrorDict"]
    text: str  # all of it, for a person

class NativeError(Exception):
    """The only exception of this module besides TypeError, ValueError (argument values that no Error describes) and
    KeyboardInterrupt."""

    error: ErrorDict

# An integer over the program's symbols: 3, ("sym", 0), ("value", 12), ("+", ("sym", 0), 1).
# Operators: + - * // % min max ** == != < <= > >= and or (two operands; + * min max and or: two or more), not (one).
Expr = int | tuple[Any, ...]

# One argument of a node, tagged:
#   ("none",)                       ("tensor", id)               ("tensors", [id, ...])
#   ("optional_tensors", [id|None]) ("int", 3)                   ("float", 1.0)
#   ("bool", True)                  ("complex", 1j)              ("str", "x")
#   ("dtype", "float32")            ("layout", "strided")        ("memory_format", "channels_last")
#   ("device", "cpu")               ("device_slot", 0)           ("expr", Expr)
#   ("ints", [int|Expr, ...])       ("floats", [1.0, ...])       ("bools", [True, ...])
#   ("strs", ["x", ...])            ("scalar", bool|int|float|complex)
# "tensor" names any value, also a number that a node made. "device" is a literal device; loading it is refused.
Argument = tuple[Any, ...]

ValueKind = Literal["tensor", "int", "float", "bool", "none"]

# What an output position of a node makes: None (nobody wants it), one value, or a list of values (Tensor[]).
#   ("tensor", name, dtype | None, sizes | None) | ("int", name) | ("float", name) | ("bool", name) | ("none", name)
OutputSpec = tuple[Any, ...]

class PlacementRule(TypedDict, total=False):
    device: str
    module_prefixes: list[str]
    node_ranges: list[tuple[int, int]]  # inclusive

class PlacementDict(TypedDict, total=False):
    """Without rules the placement is automatic. `devices`: what automatic may use, in order; empty is all."""

    automatic: bool
    devices: list[str]
    rules: list[PlacementRule]

class FragmentBuilder:
    """Builds a program. Ids are given by the builder; misuse raises NativeError at once, what only the whole shows at
    encode(), save() and Client.load()."""

    def __init__(self, name: str = "") -> None: ...
    def add_symbol(self, name: str, min: int = 0, max: int | None = None) -> int:
        """Number of the symbol, for ("sym", number)."""

    def add_input(
        self,
        name: str,
        dtype: str | None = None,
        sizes: Sequence[Expr] | None = None,
        kind: ValueKind = "tensor",
    ) -> int:
        """Id of the value."""

    def add_constant(
        self,
        name: str,
        storage: tuple[int, int],
        dtype: str,
        sizes: Sequence[int],
        strides: Sequence[int],
        offset: int = 0,
        owner: object = None,
        requires_grad: bool = False,
    ) -> int:
        """`storage`: (address, bytes) of the whole storage, on the CPU. `owner` is kept as long as the builder, and
        with it the storage, which must not change meanwhile. Equal storages are hashed and kept once. `offset` and
        strides in elements. `requires_grad`: as it is in the module, because some kernels choose their path by it. Id
        of the value."""

    def add_state(self, name: str, before: int, after: int) -> None:
        """The constant `before` is a buffer that the program replaces by `after`."""

    def add_node(
        self,
        op: str,
        args: Sequence[Argument] = (),
        kwargs: dict[str, Argument] | None = None,
        outputs: Sequence[OutputSpec | list[OutputSpec | None] | None] = (),
        name: str = "",
        module_path: str = "",
        source: str = "",
        cost: float = 0.0,
    ) -> list[Any]:
        """Ids in the form of `outputs`: int, None, or a list of them."""

    def add_output(self, name: str, source: Argument) -> None:
        """Source: ("tensor", id), ("none",), ("bool", b), ("int", i), ("float", f), ("str", s) or ("expr", e)."""

    def set_annotation(self, key: str, value: str) -> None: ...
    @property
    def node_count(self) -> int: ...
    @property
    def constant_bytes(self) -> int:
        """Of all storages, each once."""

    def check(self) -> None:
        """Raises NativeError with every structural fault."""

    def encode(self) -> bytes:
        """Checks, then gives the program's deterministic encoding (without the constants' bytes)."""

    def save(self, path: str, placement: PlacementDict | None = None) -> None:
        """Program and constants as one safetensors file, for Client.load_file and `callboard run`."""

class InputInfo(TypedDict):
    name: str
    kind: ValueKind
    dtype: str | None  # None: any
    sizes: list[int | str] | None  # an expression as text, "2*s0"; None: any

class FragmentInfo(TypedDict):
    index: int
    device: str
    node_ranges: list[tuple[int, int]]
    modules: list[str]
    cost: float
    constant_bytes: int
    edge_bytes: int
    peak_bytes: int
    pure: bool
    random: bool
    time_ns: float  # of one run, from the nodes' costs
    time_source: Literal["measured", "estimated"]  # what the costs are

class EdgeInfo(TypedDict):
    to: int  # the fragment that reads it
    bytes: int  # in each run, at least
    exact: bool  # always so many

class StageReport(TypedDict):
    edges: list[EdgeInfo]
    runs: int  # finished since it was loaded, for all clients
    mean_run_ns: int | None  # of these, measured by the device; None: no runs

class StageInfo(FragmentInfo, StageReport):
    """What Program.plan() has of each fragment."""

# Tensors go out as DLPack capsules ("dltensor", CPU; every dtype of torch.from_dlpack). They come in as such capsules,
# or as raw tuples, which keep the strides of dimensions of size one:
#   (address, dtype, sizes, strides, offset, bytes, owner)  address and bytes of the whole storage, offset in elements;
#   `owner` is kept until no device reads the memory any more
InputValue = None | int | float | bool | object | tuple[int, str, Sequence[int], Sequence[int], int, int, object]
OutputValue = None | int | float | bool | str | object

class NativeFuture:
    @property
    def id(self) -> int:
        """Unique within the client; what drain_completed() gives."""

    def is_ready(self) -> bool: ...
    def wait(self, seconds: float | None = None) -> bool:
        """True if ready. None: until it is, which the request's deadline bounds."""

    def result(self) -> list[OutputValue]:
        """Waits. Raises the request's NativeError. May be called again: the tensors share their memory."""

    @property
    def state_version(self) -> int:
        """Of the program's state after this request; 0 if it has none, failed or is not ready."""

    def cancel(self) -> None: ...
    def notify(self) -> None:
        """From now on: once ready, the id appears in drain_completed() and completion_fd() becomes readable."""

class NativeProgram:
    @property
    def id(self) -> str:
        """Content hash, 64 hexadecimal digits."""

    @property
    def name(self) -> str: ...
    @property
    def plan(self) -> list[FragmentInfo]: ...
    @property
    def costs(self) -> str:
        """Where the costs come from: "measured on cpu0, median of 5 runs", "estimated: why"; "" is estimated, too."""

    @property
    def node_costs(self) -> list[float]:
        """By node; nanoseconds where they are measured."""

    def stages(self, timeout: float | None = None) -> list[StageReport]:
        """Asks the cluster; one for each fragment of `plan`."""

    @property
    def inputs(self) -> list[InputInfo]: ...
    @property
    def output_names(self) -> list[str]: ...
    @property
    def symbols(self) -> list[tuple[str, int, int]]:
        """(name, min, max), inclusive."""

    @property
    def node_count(self) -> int: ...
    @property
    def annotations(self) -> dict[str, str]: ...
    def submit(
        self, inputs: Sequence[InputValue], deadline: float | None = None, wait: bool = True
    ) -> NativeFuture:
        """Waits only for room, in line with other threads: for one of limits.requests_per_client places, or for memory
        that large inputs need; `wait` False raises "overloaded" or "out_of_memory" instead, at once. `deadline` in
        seconds from now, for the wait and the request; None: 120 s for the wait, then the cluster's own for the
        request. A capsule given here is consumed. Small tensors are copied during the call; larger ones once into shared memory, unless they came
        from Client.allocate."""

    def batched(
        self, max_batch: int, max_delay: float, dim: int | dict[str, int], max_queued: int
    ) -> "NativeProgram":
        """The same program, whose requests run together where they come together: actors/client/batching.h.
        `max_delay` in seconds. `dim`: of the batch in all inputs, or by the input's name."""

    def close(self) -> None:
        """Of a batched program: what waits for its batch, and whatever is submitted later, ends with "cancelled"."""

    def save(self, path: str) -> None:
        """Of a program that load_file() gave: the file that was loaded, whatever lies at its path now."""

class ActorEventDict(TypedDict):
    actor: str  # "cpu0#2"
    name: str  # "cpu0"
    event: str  # "ready", "down", "restarting", "failed"
    error: ErrorDict | None

class ClusterDict(TypedDict):
    name: str
    run_dir: str
    node_pid: int
    coordinator_pid: int
    epoch: int
    coordinator_endpoint: str
    memory_socket: str
    version: str

class GpuTensor:
    """A result that was left on a GPU, for torch.from_dlpack(). Nobody may write to it."""

    def __dlpack__(self, stream: int | None = None, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

def record_stream(address: int, stream: int) -> None:
    """`stream` (a cudaStream_t; 0: the legacy default one) reads the result on a GPU whose memory holds `address`."""

class Client:
    """One connection to a cluster. Any thread may call; close() (or the end of the object) cancels what is pending."""

    @staticmethod
    def connect(
        cluster: str = "",
        timeout: float = 10.0,
        memory_limit: int = 0,
        gpu_results: bool = False,
        plugin_folder: str = "",
    ) -> "Client":
        """`cluster`: a name, a run directory, or empty for the only one that runs."""

    @property
    def cluster(self) -> ClusterDict: ...
    @property
    def closed(self) -> bool: ...
    def load(
        self, program: FragmentBuilder | bytes, placement: PlacementDict | None = None, timeout: float | None = None
    ) -> NativeProgram:
        """`bytes`: from encode(); its constants must be known to the host already."""

    def load_file(
        self, path: str, placement: PlacementDict | None = None, timeout: float | None = None
    ) -> NativeProgram:
        """From save(). `placement` None: the one in the file."""

    def load_replicas(
        self,
        program: FragmentBuilder,
        placements: Sequence[PlacementDict],
        scatter: bool = True,
        dim: int | dict[str, int] = 0,
        timeout: float | None = None,
    ) -> NativeProgram:
        """The program once for each placement, as one: actors/client/replicas.h."""

    def profile(
        self,
        program: FragmentBuilder,
        inputs: Sequence[InputValue],
        placement: PlacementDict | None = None,
        runs: int = 5,
        timeout: float | None = None,
    ) -> str:
        """Measures the nodes' costs with these inputs and sets them in `program`: actors/client/profile.h. Gives
        NativeProgram.costs of what is loaded from it then."""

    def operation(self, name: str, arguments_json: str = "{}", timeout: float | None = None) -> str:
        """An entry of the coordinator's table of operations; JSON objects both ways."""

    def allocate(self, dtype: str, sizes: Sequence[int]) -> object:
        """A DLPack capsule: an uninitialised contiguous tensor that devices can read without a copy. Leave it unchanged
        while a request that got it runs."""

    def completion_fd(self) -> int:
        """An eventfd, readable when drain_completed() or drain_events() has something; owned by the client. -1 after
        close_completion_fd()."""

    def close_completion_fd(self) -> None:
        """After close(), once nobody polls it any more. Otherwise it goes with this object and the last future."""

    def drain_completed(self) -> list[int]:
        """Ids of futures that notify() was called on and that are ready now. Resets the eventfd."""

    def drain_events(self) -> list[ActorEventDict]:
        """Actor events since the last call; at most 1,024, older ones are dropped."""

    def close(self) -> None:
        """Idempotent. Futures that have no result end with "cancelled"."""

def version() -> str: ...
def protocol_version() -> int: ...
def validate_config(text: str, file: str = "<string>") -> str:
    """The effective cluster file as normalized YAML; NativeError with every finding."""

def config_schema() -> str:
    """JSON Schema of the cluster file."""

def check_output_file(path: str) -> None:
    """NativeError where a file cannot be written there, for example because the path names a device. Makes nothing."""

def list_clusters() -> list[ClusterDict]: ...
def find_cluster(name_or_path: str = "") -> ClusterDict: ...
