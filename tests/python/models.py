"""The models that tests run: once through the exporter and the interpreter in graph_oracle.py, once on a real cluster.

Each case has example arguments, further arguments of other sizes, and dynamic shapes. Eager PyTorch is the oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree


@dataclass
class Case:
    """A model and calls of it. `calls` are (args, kwargs); the first is the example."""

    name: str
    make: Callable[[], Any]
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    dynamic_shapes: Any = None


CASES: list[Case] = []

# nn.TransformerEncoderLayer has a second implementation that eager prefers without gradients and torch.export never
# sees (torch's own exported program differs from it by a rounding, too).
torch.backends.mha.set_fastpath_enabled(False)


def case(name: str, *calls: Any, dynamic_shapes: Any = None) -> Callable[[type], type]:
    """Registers a module class. Each call is a tuple of arguments, or a (tuple, dict)."""

    def register(make: type) -> type:
        normal = [c if len(c) == 2 and isinstance(c[0], tuple) and isinstance(c[1], dict) else (c, {}) for c in calls]
        CASES.append(Case(name, make, normal, dynamic_shapes))
        return make

    return register


def rand(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 7) -> torch.Tensor:
    """Reproducible contents."""
    generator = torch.Generator().manual_seed(seed + sum(sizes))
    if dtype == torch.bool:
        return torch.rand(*sizes, generator=generator) > 0.5
    if dtype.is_floating_point or dtype.is_complex:
        real = torch.randn(*sizes, generator=generator, dtype=torch.float32)
        if dtype.is_complex:
            return torch.complex(real, real.flip(-1)).to(dtype)
        return real.to(dtype)
    return torch.randint(0, 100, sizes, generator=generator).to(dtype)


class Seeded(nn.Module):
    """Parameters are the same in every process."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)


# -- networks ---------------------------------------------------------------------------------------------------------


@case("mlp", (rand(3, 8),), (rand(1, 8),), (rand(64, 8),), dynamic_shapes=({0: Dim("batch", min=1, max=64)},))
class Mlp(Seeded):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


@case("tied weights and views of one storage", (torch.tensor([[1, 2, 3]]),))
class Tied(Seeded):
    """The embedding is the output layer too; a buffer is a strided view of another."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.out = nn.Linear(8, 16, bias=False)
        self.out.weight = self.embed.weight
        table = torch.randn(8, 8)
        self.register_buffer("table", table)
        self.register_buffer("diagonal", table.t()[::2, 1])

    def forward(self, ids):
        return self.out(self.embed(ids) @ self.table), self.diagonal * 2


@case("convolution and batch norm in eval", (rand(2, 3, 9, 9),))
class Conv(Seeded):
    """As image models begin."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6)
        self.eval()

    def forward(self, x):
        return nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)


@case("batch norm in training", (rand(8, 3),), (rand(8, 3, seed=9),), (rand(8, 3, seed=10),))
class BatchNormTraining(Seeded):
    """Running statistics are written by an operator whose schema does not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(x), self.norm.running_mean.clone()


@case(
    "transformer encoder layer",
    (rand(2, 5, 16),),
    (rand(3, 9, 16),),
    dynamic_shapes=({0: Dim("batch", min=2, max=8), 1: Dim("length", min=2, max=32)},),
)
class Encoder(Seeded):
    """Self-attention and a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()

    def forward(self, x):
        return self.layer(x)


@case("multihead attention whose weights require grad", (rand(5, 2, 16),))
class Attention(Seeded):
    """torch's matmul folds its operands another way where a weight requires grad, even under no_grad."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4).eval()

    def forward(self, x):
        output, weights = self.attention(x, x, x)
        return output, weights


@case("lstm", (rand(4, 2, 6),))
class Lstm(Seeded):
    """Several results and an operator that takes lists of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, num_layers=2)

    def forward(self, x):
        y, (h, c) = self.lstm(x)
        return y, h, c


@case("the same module twice", (rand(2, 4),))
class Repeated(Seeded):
    """Two calls of one layer are two nodes with one module path."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


# -- structure of arguments and results -------------------------------------------------------------------------------


class Pair(NamedTuple):
    """A named tuple as a result."""

    left: torch.Tensor
    right: torch.Tensor


@dataclass
class Answer:
    """A dataclass as a result."""

    value: torch.Tensor
    parts: list[torch.Tensor] = field(default_factory=list)


torch.export.register_dataclass(Answer, serialized_type_name="callboard.tests.Answer")
pytree._register_namedtuple(Pair, serialized_type_name="callboard.tests.Pair")


@case(
    "nested arguments by name",
    (({"a": rand(2, 3), "b": [rand(3), rand(3)]}, True), {"scale": 2.0, "bias": None, "extra": (rand(3), "sum")}),
    (
        ({"b": [rand(3, seed=1), rand(3)], "a": rand(2, 3)}, True),
        {"extra": (rand(3), "sum"), "scale": 2.0, "bias": None},
    ),
)
class Nested(nn.Module):
    """Dicts, lists, tuples, None, numbers and strings in the arguments."""

    def forward(self, data, flag, *, scale, bias, extra):
        y = data["a"] * scale if flag else data["a"]
        if bias is not None:
            y = y + bias
        return y + data["b"][1] - data["b"][0] + extra[0]


@case("every structure of results", (rand(2, 4),))
class Results(nn.Module):
    """Dict, tuple, list, None, numbers, strings, a dataclass, a named tuple, an input, a duplicate and views."""

    def forward(self, x):
        y = x * 2
        return {
            "y": y,
            "input": x,
            "again": [y, (y, None)],
            "view": y.t(),
            "numbers": (x.shape[0], 3, 0.5, True, "text"),
            "answer": Answer(y + 1, [y.sum(), x.select(0, 1)]),
            "pair": Pair(y, x),
        }


@case("no tensors come out", (rand(3),))
class NoTensors(nn.Module):
    """Only constants."""

    def forward(self, x):
        return None, x.dim()


@case("parameters and constants as results", (rand(2),))
class Parameters(Seeded):
    """What comes out was never computed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3).t(), requires_grad=False)

    def forward(self, x):
        return self.weight, torch.tensor([1.0, 2.0]), x


@case("unused arguments", (rand(2), rand(3)))
class Unused(nn.Module):
    """The second one is not read."""

    def forward(self, x, y):
        return x.exp()


# -- sizes ------------------------------------------------------------------------------------------------------------


_N = Dim("n", min=2, max=20)


@case(
    "sizes that follow from others",
    (rand(3, 2), rand(6), rand(4)),
    (rand(5, 2), rand(10), rand(6)),
    dynamic_shapes=({0: _N}, {0: 2 * _N}, {0: _N + 1}),
)
class Derived(nn.Module):
    """2 n, n + 1, and arithmetic on sizes inside."""

    def forward(self, x, y, z):
        n = x.shape[0]
        return x.reshape(-1) + y, z.roll(n // 2), torch.zeros(n * 3 - 1) + max(n, 4), n % 3


@case(
    "a size only bound through an expression",
    (rand(6),),
    (rand(14),),
    dynamic_shapes=({0: 2 * Dim("half", min=2, max=50)},),
)
class OnlyDerived(nn.Module):
    """Nobody passes `half` itself."""

    def forward(self, x):
        return x.view(2, -1).sum(0)


@case(
    "automatic dynamic sizes",
    (rand(3, 4), rand(3, 1)),
    (rand(7, 4), rand(7, 1)),
    dynamic_shapes={"x": {0: Dim.AUTO}, "y": {0: Dim.AUTO}},
)
class Automatic(nn.Module):
    """torch finds out that both sizes are one."""

    def forward(self, x, y):
        return torch.cat([x, y], 1).softmax(-1)


@case(
    "floats and bools from sizes",
    (rand(4, 3),),
    (rand(9, 3),),
    (rand(16, 3),),
    dynamic_shapes=({0: Dim("n", min=2, max=64)},),
)
class FloatsFromSizes(nn.Module):
    """Scale factors, as attention has them."""

    def forward(self, x):
        n = x.shape[0]
        return x / torch.sym_float(n), x * (n / 2), x * n**0.5, n / 4, n > 5


@case("sizes that depend on data", (torch.tensor([1.0, 0.0, 2.0, -1.0]),), (torch.tensor([0.0, 0.0, 0.0, 1.0]),))
class DataDependent(nn.Module):
    """nonzero, masks, item."""

    def forward(self, x):
        found = x.nonzero()
        positive = x[x > 0]
        count = (x > 0).sum().item()
        torch._check(count >= 0)
        torch._check(count <= 4)
        return found, positive * 2, torch.zeros(count), x * x.max().item(), (x.sum() > 0).item(), count + 1, count > 1


@case("data-dependent sizes in arithmetic", (torch.tensor([1, 0, 2, 3]),), (torch.tensor([0, 0, 0, 1]),))
class DataDependentArithmetic(nn.Module):
    """A size that nobody reads but arithmetic."""

    def forward(self, x):
        size = x.nonzero().shape[0]
        return torch.ones(size * 2 + 1), x.masked_select(x > 1).new_zeros(size)


@case("item in the middle", (torch.tensor(3), rand(8)), (torch.tensor(0), rand(8)), (torch.tensor(8), rand(8)))
class Item(nn.Module):
    """An offset that is a tensor."""

    def forward(self, n, x):
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= x.shape[0])
        return x.narrow(0, 0, k)


@case(
    "a whole number as a free argument",
    (rand(6), 2),
    (rand(6), 5),
    dynamic_shapes={"x": None, "n": Dim.DYNAMIC},
)
class FreeInteger(nn.Module):
    """It becomes an input of the program."""

    def forward(self, x, n):
        return x * n, torch.ones(n), n + 1


# -- effects ----------------------------------------------------------------------------------------------------------


@case("R39: a counter in a buffer", *[(torch.tensor(1),)] * 4)
class Counter(nn.Module):
    """1, 2, 3."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.n += x
        return self.n.clone()


@case("R39: buffers that are replaced, swapped and read after", (rand(3),), (rand(3, seed=1),), (rand(3, seed=2),))
class Buffers(nn.Module):
    """Each buffer is written another way."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(3))
        self.register_buffer("total", torch.zeros(3), persistent=False)

    def forward(self, x):
        previous = self.last.clone()
        self.last.copy_(x)
        self.total.add_(previous)
        self.total[0] = 5
        return previous, self.total.clone(), self.last + 1


@case("in-place operators and views", (rand(3, 4),))
class InPlace(nn.Module):
    """Writes through views of tensors that the program made."""

    def forward(self, x):
        y = x.clone()
        y[:, 0] = 3
        z = y.view(-1)
        z += 1
        y.t()[1].mul_(2).relu_()
        return y, z, torch.zeros(2, 2).fill_diagonal_(1)


@case("no_grad and autocast regions", (rand(4, 4),))
class Regions(Seeded):
    """Regions that become graphs within the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        with torch.enable_grad():
            y = self.layer(x).detach()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = self.layer(y)
        return y, z


# -- operators --------------------------------------------------------------------------------------------------------


@case("R37: unused, None and list outputs", (rand(4, 6),))
class UnusedOutputs(nn.Module):
    """Only some outputs of an operator have a reader."""

    def forward(self, x):
        normal, _, _ = torch.native_layer_norm(x, [6], None, None, 1e-5)
        first = x.split(2, 1)[1]
        whole = torch.cat(x.chunk(3, 1), 0)
        values, _ = x.topk(2)
        x.unbind(0)
        return normal, first, whole, values, x.index_put((torch.tensor([0, 1]),), torch.zeros(())), x[:, [0, 2]]


@case("R41: inf, NaN and -0.0 constants", (rand(2, 2),))
class NonFinite(nn.Module):
    """Numbers that text formats lose."""

    def forward(self, x):
        infinity = float("inf")
        mask = torch.full((2, 2), -infinity).triu(1)
        return (
            mask + x,
            x * float("nan"),
            x * -0.0,
            x + 1e308 * 10,
            torch.full((2,), -0.0),
            x.clamp(-infinity, infinity),
        )


@case(
    "R35: scalar and 0-dim type promotion",
    (torch.arange(4), rand(4), torch.tensor(2.0, dtype=torch.float64), rand(4, dtype=torch.bool)),
)
class Promotion(nn.Module):
    """Numbers and 0-dim tensors must not widen what they meet."""

    def forward(self, integers, floats, double, bools):
        return (
            integers * 0.5, bools + 1, double + floats, integers < 1.5, integers / 2, integers // 2, bools * True,
            floats * 3, integers + True, 2 - integers, 2.5 ** floats, floats.to(torch.bfloat16) + 1,
            integers * (1 + 2j), double * integers,
        )  # fmt: skip


@case("argument kinds", (rand(2, 3, 8, 8),))
class ArgumentKinds(nn.Module):
    """int[2] from an int, dtypes, layouts, memory formats, devices, strings, float and bool lists, holes."""

    def forward(self, x):
        pooled = nn.functional.avg_pool2d(x, 2, padding=1)
        resized = nn.functional.interpolate(x, scale_factor=(1.5, 2.0), mode="bilinear", align_corners=False)
        last = x.to(memory_format=torch.channels_last)
        made = torch.arange(6, dtype=torch.float64, device=x.device, layout=torch.strided).view(2, 3)
        gathered = x[:, :, torch.tensor([0, 1]), torch.tensor([1, 0])]
        rolled = x.roll((1, 2), (2, 3))
        gelu = nn.functional.gelu(x, approximate="tanh")
        std = x.std((1, 2), correction=0, keepdim=True)
        return pooled, resized, last * 2, made, gathered, rolled, gelu, std, x.permute(1, 0, 3, 2).contiguous()


@case("complex numbers", (rand(4, dtype=torch.complex64), torch.complex(rand(3, 3), rand(3, 3)).conj()))
class Complex(nn.Module):
    """Lazy conjugates come in and go out."""

    def forward(self, x, y):
        return x.conj(), y * (1 + 2j), torch._neg_view(x), x.conj().imag, torch.view_as_real(x), torch.fft.fft(y), y


_ALL_DTYPES = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
    torch.float16, torch.float32, torch.float64, torch.bfloat16, torch.complex32, torch.complex64, torch.complex128,
    torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)  # fmt: skip


@case("R45: every dtype", tuple(rand(3, 4).to(d) if d.is_complex else rand(3, 4).abs().to(d) for d in _ALL_DTYPES))
class EveryDtype(nn.Module):
    """In and out as they are, and as bytes."""

    def forward(self, *tensors):
        return [t.clone() for t in tensors], [t.t() for t in tensors], tensors


@case(
    "layouts of inputs and results",
    (
        rand(6, 8)[::2, 1::3], rand(4).expand(3, 4), rand(3, 4).t(),
        rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.tensor(2.5), rand(0, 3), rand(1, 1, 5).as_strided((1, 1, 5), (7, 9, 1)), rand(9)[3:7],
    ),
)  # fmt: skip
class Layouts(nn.Module):
    """Strided, expanded, transposed, 0-dim, empty; sums depend on the order of memory, so strides must arrive."""

    def forward(self, *tensors):
        return [t + 1 for t in tensors], [t.sum() for t in tensors], [t.expand(2, *t.shape) for t in tensors], tensors


@case("many nodes in a row", (rand(16),))
class Long(nn.Module):
    """Longer than any queue's first block."""

    def forward(self, x):
        for number in range(400):
            x = x + 1 if number % 3 else x * 0.99
        return x


def same(left: Any, right: Any) -> str:
    """Empty if two results are the same bit for bit, structure, dtypes and sizes included; else what differs."""
    left_leaves, left_spec = pytree.tree_flatten(left)
    right_leaves, right_spec = pytree.tree_flatten(right)
    if left_spec != right_spec:
        return f"structure {left_spec} and {right_spec}"
    for number, (a, b) in enumerate(zip(left_leaves, right_leaves, strict=True)):
        if type(a) is not type(b) and not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
            return f"leaf {number}: {type(a).__name__} and {type(b).__name__}"
        if isinstance(a, torch.Tensor):
            if a.dtype != b.dtype or a.shape != b.shape:
                return f"leaf {number}: {a.dtype} {list(a.shape)} and {b.dtype} {list(b.shape)}"
            if to_bytes(a) != to_bytes(b):
                return f"leaf {number}: {a} and {b}"
        elif a != b and not (a != a and b != b):
            return f"leaf {number}: {a!r} and {b!r}"
    return ""


def to_bytes(tensor: torch.Tensor) -> bytes:
    """The logical contents: NaN payloads and the sign of zero count."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return bytes(plain.reshape(-1).view(torch.uint8).tolist()) if plain.numel() else b""
