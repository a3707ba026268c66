"""Runs one pair on a device and compares it with eager PyTorch."""

from __future__ import annotations

import pathlib
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import torch
from op_db_pairs import Call, Pair
from torch.utils import _pytree as pytree

import callboard
from callboard import errors
from callboard._capture import FunctionModule

HERE = pathlib.Path(__file__).resolve().parent

PASSED = "passed"
NOT_EXPORTABLE = "not exportable"  # torch.export itself refuses, or its own program does not give what eager gives
NO_SAMPLE = "no sample"  # eager PyTorch refuses the sample, or there is none
FAILED = "failed"

# op_db's own wrappers of random operators set this one, while the operator is called and while it is exported.
RUN_SEED = 42
DEVICE = "cpu0"
_WRITES = "writes to its argument"  # so the exporter refuses operators in place, with the hint to clone
# Results of these are whatever the memory held.
UNINITIALISED = frozenset(
    ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
)


@dataclass
class Verdict:
    """`stage` is where a pair ended: samples, eager, export, load, run, compare, process; `reason` is one line. `note`
    says what was done differently for a pair that passed.
    """

    entry: str
    sample: int
    status: str
    stage: str = ""
    reason: str = ""
    device_died: bool = False
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def launch() -> callboard.Cluster:
    """One CPU device with one thread, as eager has here; its Python kernel seeds its generator."""
    torch.set_num_threads(1)
    package = str(pathlib.Path(callboard.__file__).parent.parent)
    return callboard.launch(
        {
            "devices": [{"kind": "cpu", "count": 1, "threads": 1, "python": "inline"}],
            "python": {"path": [str(HERE), package], "kernels": [{"target": "op_db_seed:seed"}]},
        }
    )


class Judge:
    """Over one cluster. Used by one thread."""

    def __init__(self, cluster: callboard.Cluster) -> None:
        import op_db_seed

        self._cluster = cluster
        self._seed = cluster.compile(op_db_seed.seed, (torch.tensor(RUN_SEED),), placement=DEVICE)

    def judge(self, pair: Pair, call: Call) -> Verdict:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            verdict = self._judge(pair, call)
        died = [event for event in self._cluster.events() if event["event"] in ("down", "failed")]
        if died:
            self._cluster.operation("wait_ready", timeout_ms=60_000, timeout=65)
            verdict.device_died = True
        return verdict

    def _judge(self, pair: Pair, call: Call) -> Verdict:
        def verdict(status: str, stage: str = "", reason: str = "", note: str = "") -> Verdict:
            return Verdict(pair.entry, pair.sample, status, stage, reason, note=note)

        values = pair.entry not in UNINITIALISED
        torch.manual_seed(RUN_SEED)
        try:
            want = on_clones(call).function(*call.tensors)
        except Exception as error:
            return verdict(NO_SAMPLE, "eager", one_line(error))
        failed = self._run(call, want, values)
        if failed is None:
            return verdict(PASSED)
        if _WRITES in failed[1] and self._run(on_clones(call), want, values) is None:
            return verdict(PASSED, note="given clones of its arguments, which it writes to")
        refusal = refused_by_torch(call, want, values)
        return verdict(FAILED, *failed) if refusal is None else verdict(NOT_EXPORTABLE, *refusal)

    def _run(self, call: Call, want: Any, values: bool) -> tuple[str, str] | None:
        """On the device; (stage, reason) if that does not give what eager gave."""
        stage = "export"
        try:
            program = self._cluster.compile(call.function, call.tensors, placement=DEVICE)
            stage = "run"
            self._seed(torch.tensor(RUN_SEED))
            got = program(*call.tensors)
        except errors.ExportError as error:
            return "export", one_line(error)
        except Exception as error:
            return ("load" if stage == "export" else stage), one_line(error)
        difference = differs(want, got, values=values)
        return ("compare", difference) if difference else None


def on_clones(call: Call) -> Call:
    """The call that leaves its arguments as they were."""
    return Call(lambda *given: call.function(*map(_clone, given)), call.tensors)


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    """With its strides and offset. A view that others may reach beyond keeps all of its memory."""
    if tensor.layout != torch.strided or isinstance(tensor, torch.nn.Parameter):
        return tensor.clone()
    memory = torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    return torch.as_strided(memory.clone(), tensor.shape, tensor.stride(), tensor.storage_offset())


def refused_by_torch(call: Call, want: Any, values: bool) -> tuple[str, str] | None:
    """(stage, reason) if torch.export, called as its documentation says, does not take the pair, or if the program that
    it makes, run by PyTorch itself, does not give what eager gave either. Callboard has no part in this.
    """
    try:
        exported = torch.export.export(FunctionModule(call.function), call.tensors, strict=False)
    except Exception as error:
        return "export", one_line(error)
    torch.manual_seed(RUN_SEED)
    try:
        got = exported.module()(*map(_clone, call.tensors))
    except Exception as error:
        return "run by PyTorch", one_line(error)
    difference = differs(want, got, values=values)
    return ("run by PyTorch", difference) if difference else None


def one_line(error: BaseException) -> str:
    """The error's first line with its first cause's, of a length for a table."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    causes = getattr(error, "causes", ())
    if causes:
        text += f": {causes[0].message} {causes[0].operator}"
    return f"{type(error).__name__}: {text}"[:400]


def differs(want: Any, got: Any, *, values: bool) -> str:
    """Empty if two results are equal: structure, types, dtypes, sizes, strides and, unless `values` is false, every
    bit; NaN equals NaN. Else what differs first.
    """
    want_leaves, want_spec = pytree.tree_flatten(want)
    got_leaves, got_spec = pytree.tree_flatten(got)
    if want_spec != got_spec:
        return f"structure {got_spec} instead of {want_spec}"[:400]
    for number, (left, right) in enumerate(zip(want_leaves, got_leaves, strict=True)):
        difference = _leaf_differs(left, right, values)
        if difference:
            return f"result {number}: {difference}"[:400]
    return ""


def _leaf_differs(want: Any, got: Any, values: bool) -> str:
    if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
        if type(want) is not type(got):
            return f"a {type(got).__name__} instead of a {type(want).__name__}"
        return "" if want == got or (want != want and got != got) else f"{got!r} instead of {want!r}"
    for name, left, right in (
        ("layout", want.layout, got.layout),
        ("dtype", want.dtype, got.dtype),
        ("sizes", list(want.shape), list(got.shape)),
    ):
        if left != right:
            return f"{name} {right} instead of {left}"
    if want.layout != torch.strided:
        return "" if torch.equal(want.to_dense(), got.to_dense()) else "other values"
    if want.stride() != got.stride():
        return f"strides {got.stride()} instead of {want.stride()} for sizes {list(want.shape)}"
    if not values or _bits(want) == _bits(got):
        return ""
    left, right = want.resolve_conj().resolve_neg(), got.resolve_conj().resolve_neg()
    unequal = ~((left == right) | ((left != left) & (right != right)))
    count = int(unequal.sum())
    if count == 0:
        if left.dtype.is_floating_point and bool((torch.signbit(left) != torch.signbit(right))[left == left].any()):
            return "zeros of the other sign"
        return ""
    return f"{count} of {want.numel()} values, e.g. {right[unequal][0]} instead of {left[unequal][0]}"


def _bits(tensor: torch.Tensor) -> bytes:
    plain = torch.empty(tensor.numel(), dtype=tensor.dtype)  # which one element of stride 0 is not
    plain.copy_(tensor.resolve_conj().resolve_neg().reshape(-1))
    return plain.view(torch.uint8).numpy().tobytes()
