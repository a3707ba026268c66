"""@callboard.kernel: what it registers, what it refuses, and that torch keeps to it. No cluster, no native module."""

from __future__ import annotations

import importlib
import itertools
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.export import Dim

import callboard
import kernel_examples
from callboard import export
from callboard.errors import InputError, KernelError, OutputMismatch
from callboard.kernels import KernelSpec
from conftest import client_environment
from graph_oracle import GraphOracle

_NUMBERS = itertools.count()
_HEAD = "import torch, callboard\nfrom torch import Tensor\n"


@pytest.fixture
def make(tmp_path, monkeypatch) -> Iterator[object]:
    """make(source) imports it as a module of its own: kernels stand at the top of one."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def from_source(source: str, name: str = "") -> ModuleType:
        name = name or f"made_kernels_{next(_NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(_HEAD + textwrap.dedent(source))
        importlib.invalidate_caches()
        made.append(name)
        return importlib.import_module(name)

    yield from_source
    for name in made:
        sys.modules.pop(name, None)


def refusal(make, source: str) -> InputError:
    with pytest.raises(InputError) as caught:
        make(source)
    assert caught.value.hint
    return caught.value


# -- what it registers ------------------------------------------------------------------------------------------------


def test_a_fake_may_be_a_function_of_torch_itself(make) -> None:
    module = make("""
        @callboard.kernel(schema="of_torch::like(Tensor x) -> Tensor", fake=torch.empty_like)
        def like(x: Tensor) -> Tensor:
            return x + 1
    """)
    with FakeTensorMode() as mode:
        assert module.like(mode.from_tensor(torch.ones(2, 3))).shape == (2, 3)


def test_a_spec_says_what_a_device_needs() -> None:
    spec = kernel_examples.scale.__callboard_kernel__
    assert isinstance(spec, KernelSpec)
    assert (spec.op, spec.target) == ("kernel_examples::scale", "kernel_examples:scale")
    assert spec.schema == "kernel_examples::scale(Tensor x, float factor) -> Tensor"
    assert (spec.mutates, spec.deterministic, spec.warm_up) == ((), True, None)
    assert not hasattr(spec.fn, "__callboard_kernel__")
    assert torch.equal(spec.fn(torch.ones(2), 3.0), torch.tensor([3.0, 3.0]))


def test_a_target_leads_to_the_same_spec() -> None:
    module, _, function = kernel_examples.scale.__callboard_kernel__.target.partition(":")
    assert getattr(importlib.import_module(module), function).__callboard_kernel__ is (
        kernel_examples.scale.__callboard_kernel__
    )


@pytest.mark.parametrize(
    ("function", "schema", "mutates"),
    [
        ("extremes", "examples::extremes(Tensor x, Tensor? bias=None, *, bool upper=False) -> (Tensor, Tensor)", ()),
        ("accumulate", "kernel_examples::accumulate(Tensor(a0!) total, Tensor x) -> ()", ("total",)),
        ("count_and_copy", "kernel_examples::count_and_copy(Tensor(a!) counts, Tensor x) -> Tensor", ("counts",)),
        ("each_negated", "kernel_examples::each_negated(Tensor[] xs) -> Tensor[]", ()),
    ],
)
def test_schemas_come_from_text_and_from_annotations(function: str, schema: str, mutates: tuple[str, ...]) -> None:
    spec = getattr(kernel_examples, function).__callboard_kernel__
    assert (spec.schema, spec.mutates) == (schema, mutates)


def test_a_kernel_keeps_its_name_and_documentation() -> None:
    assert kernel_examples.scale.__name__ == "scale"
    assert kernel_examples.scale.__module__ == "kernel_examples"


def test_what_is_not_deterministic_is_tagged_so_that_compilers_do_not_merge_calls() -> None:
    assert not kernel_examples.noise.__callboard_kernel__.deterministic
    assert torch.Tag.nondeterministic_seeded in torch.ops.kernel_examples.noise.default.tags
    assert torch.Tag.nondeterministic_seeded not in torch.ops.kernel_examples.scale.default.tags


def test_a_warm_up_is_handed_on(make) -> None:
    module = make("""
        seen = []
        @callboard.kernel(fake=lambda x: torch.empty_like(x), warm_up=seen.append)
        def warmed(x: Tensor) -> Tensor:
            return x + 1
    """)
    module.warmed.__callboard_kernel__.warm_up(torch.device("cpu"))
    assert module.seen == [torch.device("cpu")]


# -- calls ------------------------------------------------------------------------------------------------------------

MODES = {
    "eager": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_calls_work_with_and_without_gradients(mode) -> None:
    with mode():
        x = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
        assert torch.equal(kernel_examples.scale(x, 2.0), x * 2)
        low, high = kernel_examples.extremes(x, torch.tensor([0.0, 1.0]))
        assert torch.equal(low, torch.tensor([-1.0, 3.0]))
        assert torch.equal(high, torch.tensor([1.0, 5.0]))
        assert torch.equal(kernel_examples.extremes(x, upper=True)[0], x.amax(-1))
        assert [y.tolist() for y in kernel_examples.each_negated([x, x[0]])] == [(-x).tolist(), (-x[0]).tolist()]
        total = torch.zeros(2, 2)
        kernel_examples.accumulate(total, x)
        kernel_examples.accumulate(total, x)
        assert torch.equal(total, 2 * x)


def test_a_call_with_parameters_works_and_has_no_gradient() -> None:
    y = kernel_examples.scale(nn.Parameter(torch.ones(3)), 2.0)
    assert torch.equal(y.detach(), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="backward|autograd"):
        y.sum().backward()


def test_writing_to_an_argument_without_saying_so_is_an_error(make) -> None:
    module = make("""
        @callboard.kernel(fake=lambda x, ys: torch.empty_like(x))
        def sly(x: Tensor, ys: list[Tensor]) -> Tensor:
            ys[1].add_(1)
            return x + 1
    """)
    with pytest.raises(KernelError, match="writes to its argument 'ys'") as caught:
        module.sly(torch.ones(2), [torch.ones(1), torch.ones(1)])
    assert caught.value.operator.endswith("::sly")
    assert "mutates=('ys',)" in caught.value.hint


@pytest.mark.parametrize(
    ("annotation", "result", "said"),
    [
        ("Tensor", "None", "None"),
        ("Tensor", "[x + 1]", "a list of one tensor"),
        ("Tensor", "{'y': x}", "a dict"),
        ("tuple[Tensor, Tensor]", "(x + 1,)", "a tuple of one tensor"),
        ("tuple[Tensor, Tensor]", "(x + 1, (x + 2,))", "a tuple of one tensor, a tuple of one tensor"),
        ("tuple[Tensor, Tensor]", "(x + 1, None)", "a tuple of one tensor, None"),
        ("list[Tensor]", "x + 1", "one tensor"),
        ("None", "x + 1", "one tensor"),
    ],
)
def test_results_that_are_not_what_the_schema_says_are_an_error(make, annotation, result, said) -> None:
    module = make(f"""
        @callboard.kernel(fake=lambda x: {result})
        def wrong(x: Tensor) -> {annotation}:
            return {result}
    """)
    with pytest.raises(OutputMismatch, match="the kernel gives") as caught:
        module.wrong(torch.ones(2))
    assert f"gives {said};" in caught.value.message
    if annotation != "None":  # there is nothing that its fake could describe
        with pytest.raises(OutputMismatch, match="fake implementation gives"):
            module.wrong(torch.ones(2, device="meta"))


@pytest.mark.parametrize(
    ("parameters", "annotation", "result", "owner"),
    [
        ("x: Tensor", "Tensor", "x", "the argument 'x'"),
        ("x: Tensor", "Tensor", "x[:1].detach()", "the argument 'x'"),
        ("n: int, xs: list[Tensor]", "Tensor", "xs[1].view(-1)", "the argument 'xs'"),
        ("x: Tensor", "tuple[Tensor, Tensor]", "(x + 1,) * 2", "result 0"),
        ("x: Tensor", "list[Tensor]", "list((x + 1).chunk(2))", "result 0"),
    ],
)
def test_a_result_that_shares_memory_is_refused_as_on_a_device(make, parameters, annotation, result, owner) -> None:
    module = make(f"""
        @callboard.kernel(fake=lambda *_: torch.empty(2))
        def shares({parameters}) -> {annotation}:
            return {result}
    """)
    arguments = (1, [torch.ones(2), torch.ones(2)]) if "n: int" in parameters else (torch.ones(2),)
    with pytest.raises(OutputMismatch, match=f"shares its memory with {owner}") as caught:
        module.shares(*arguments)
    assert ".clone()" in caught.value.hint


# -- torch's own checks -----------------------------------------------------------------------------------------------

OPCHECKS = {
    "scale": lambda: (torch.randn(3, 4), 2.0),
    "scale of a view": lambda: (torch.randn(4, 3).t(), 2.0),
    "extremes": lambda: (torch.randn(3, 4), None),
    "extremes with a bias": lambda: (torch.randn(3, 4), torch.randn(4)),
    "accumulate": lambda: (torch.zeros(3), torch.randn(3)),
    "count_and_copy": lambda: (torch.zeros(3), torch.randn(2)),
    "each_negated": lambda: ([torch.randn(2), torch.randn(3)],),
}


@pytest.mark.parametrize("name", OPCHECKS)
def test_torch_finds_nothing_wrong(name: str) -> None:
    spec = getattr(kernel_examples, name.split()[0]).__callboard_kernel__
    namespace, operator = spec.op.split("::")
    torch.library.opcheck(getattr(getattr(torch.ops, namespace), operator).default, OPCHECKS[name]())


class Model(nn.Module):
    """Kernels of several kinds between ordinary operators."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = kernel_examples.scale(self.linear(x), 0.5)
        low, high = kernel_examples.extremes(y, upper=True)
        first, second = kernel_examples.each_negated([low, high])
        return torch.relu(first), second


def test_export_keeps_each_call_as_one_node_that_gives_what_eager_gives() -> None:
    model, x = Model(), torch.randn(3, 4)
    shapes = ({0: Dim("batch", min=1, max=64)},)
    exported = export.export(model, (x,), None, shapes)
    oracle = GraphOracle()
    structure = export.build_program(exported, oracle, forward=model.forward, dynamic_shapes=shapes)
    assert [node.op for node in oracle.nodes] == [
        "aten::linear",
        "kernel_examples::scale",
        "examples::extremes",
        "kernel_examples::each_negated",
        "aten::relu",
    ]
    for batch in (3, 1, 7):
        x = torch.randn(batch, 4)
        with torch.no_grad():
            want = model(x)
        got = structure.unflatten(oracle.run(list(structure.flatten((x,), {}))))
        assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


def test_export_functionalises_a_kernel_that_writes_to_a_buffer() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kernel_examples.accumulate(self.total, x)
            return self.total + 0

    exported = torch.export.export(Counter(), (torch.ones(2),))
    targets = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert "kernel_examples.accumulate.default" in targets


# -- importing again --------------------------------------------------------------------------------------------------

RELOADED = """
    @callboard.kernel(fake=lambda x: torch.empty_like(x))
    def step(x: Tensor) -> Tensor:
        return x + {}
"""


def test_importing_a_module_again_puts_the_new_function_in_place(make, tmp_path) -> None:
    module = make(RELOADED.format("1"))
    old = module.step
    path = tmp_path / f"{module.__name__}.py"
    path.write_text(path.read_text().replace("x + 1", "x + 10"))
    importlib.invalidate_caches()
    for _ in range(2):  # and once more, unchanged
        module = importlib.reload(module)
        x = torch.ones(2)
        assert torch.equal(module.step(x), x + 10)
        assert torch.equal(old(x), x + 10)  # one operator: whoever holds it gets the new function
        namespace = getattr(torch.ops, module.__name__)
        assert torch.equal(namespace.step(x), x + 10)
        assert torch.equal(module.step.__callboard_kernel__.fn(x), x + 10)


def test_another_schema_needs_another_process(make, tmp_path) -> None:
    module = make(RELOADED.format("1"))
    path = tmp_path / f"{module.__name__}.py"
    path.write_text(path.read_text().replace("def step(x: Tensor)", "def step(y: Tensor)").replace("x + 1", "y + 1"))
    importlib.invalidate_caches()
    with pytest.raises(InputError, match="another schema in this process") as caught:
        importlib.reload(module)
    assert "Tensor y" in caught.value.detail
    assert torch.equal(module.step(torch.ones(1)), torch.tensor([2.0]))


# -- what it refuses --------------------------------------------------------------------------------------------------

GOOD_FAKE = "fake=lambda *_, **__: torch.empty(0)"
REFUSED = {
    "a schema that is none": (f"schema='Tensor x to Tensor', {GOOD_FAKE}", "x: Tensor) -> Tensor", "cannot be read"),
    "an unknown type": (f"schema='(Tensr x) -> Tensor', {GOOD_FAKE}", "x: Tensor) -> Tensor", "cannot be read"),
    "no annotation": (GOOD_FAKE, "x)", "annotations from which no schema follows"),
    "no result annotation": (GOOD_FAKE, "x: Tensor)", "annotations from which no schema follows"),
    "an annotation of no use": (GOOD_FAKE, "x: dict) -> Tensor", "annotations from which no schema follows"),
    "a result that is no tensor": (GOOD_FAKE, "x: Tensor) -> float", "gives float as result 0"),
    "a result that is its argument": (
        f"schema='(Tensor(a!) x) -> Tensor(a!)', {GOOD_FAKE}",
        "x: Tensor) -> Tensor",
        "is one of its arguments",
    ),
    "a view": (f"schema='(Tensor(a) x) -> Tensor', {GOOD_FAKE}", "x: Tensor) -> Tensor", "alias that nothing writes"),
    "a tensor by keyword": (GOOD_FAKE, "*, x: Tensor) -> Tensor", "takes the tensor 'x' by keyword only"),
    "mutates that names nothing": (f"mutates=('y',), {GOOD_FAKE}", "x: Tensor) -> Tensor", "no argument 'y' to write"),
    "mutates that is a string": (f"mutates='x', {GOOD_FAKE}", "x: Tensor) -> Tensor", "mutates='x'"),
    "mutates of a number": (f"mutates=('n',), {GOOD_FAKE}", "n: int, x: Tensor) -> Tensor", "no schema follows"),
    "a written argument without its mark": (
        f"schema='(Tensor x) -> Tensor', mutates=('x',), {GOOD_FAKE}",
        "x: Tensor) -> Tensor",
        "writes to 'x', which its schema does not say",
    ),
    "a mark that mutates leaves out": (
        f"schema='(Tensor(a!) x) -> Tensor', mutates=(), {GOOD_FAKE}",
        "x: Tensor) -> Tensor",
        "writes to 'x' by its schema, not by mutates=",
    ),
    "no fake": ("", "x: Tensor) -> Tensor", "no fake implementation"),
    "a fake that is no function": ("fake=3", "x: Tensor) -> Tensor", "a fake that is no function"),
    "a fake of other parameters": ("fake=lambda: None", "x: Tensor) -> Tensor", "a fake with other parameters"),
    "other parameters than the schema": (
        f"schema='(Tensor x, float eps) -> Tensor', {GOOD_FAKE}",
        "x: Tensor) -> Tensor",
        "has the parameters (x), its schema has others",
    ),
    "another default": (
        f"schema='(Tensor x, float eps=1.0) -> Tensor', {GOOD_FAKE}",
        "x: Tensor, eps: float = 2.0) -> Tensor",
        "has eps=2.0, its schema 1.0",
    ),
    "a default of one side": (
        f"schema='(Tensor x, float eps=1.0) -> Tensor', {GOOD_FAKE}",
        "x: Tensor, eps: float) -> Tensor",
        "differ in whether 'eps' has a default",
    ),
    "by keyword only on one side": (
        f"schema='(Tensor x, *, float eps) -> Tensor', {GOOD_FAKE}",
        "x: Tensor, eps: float) -> Tensor",
        "differ in whether 'eps' is by keyword only",
    ),
    "any number of parameters": (
        f"schema='(Tensor x) -> Tensor', {GOOD_FAKE}",
        "*x) -> Tensor",
        "that no schema can say",
    ),
    "arguments without names": (
        f"schema='(Tensor x, ...) -> Tensor', {GOOD_FAKE}",
        "x: Tensor) -> Tensor",
        "has a schema with '...'",
    ),
    "two names": (f"op='a::b', schema='a::c(Tensor x) -> Tensor', {GOOD_FAKE}", "x: Tensor) -> Tensor", "two names"),
    "an overload": (f"op='a::b.c', {GOOD_FAKE}", "x: Tensor) -> Tensor", "has the operator name 'a::b.c'"),
    "a name without a namespace": (f"op='b', {GOOD_FAKE}", "x: Tensor) -> Tensor", "has the operator name 'b'"),
    "a name of torch": (f"op='aten::mine', {GOOD_FAKE}", "x: Tensor) -> Tensor", "whose namespace is not free"),
    "a name of ours": (f"op='callboard::mine', {GOOD_FAKE}", "x: Tensor) -> Tensor", "whose namespace is not free"),
    "another function's name": (
        f"op='kernel_examples::scale', {GOOD_FAKE}",
        "x: Tensor) -> Tensor",
        "is kernel_examples:scale already",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_refuses(make, case: str) -> None:
    options, signature, said = REFUSED[case]
    error = refusal(make, f"@callboard.kernel({options})\ndef refused({signature}:\n    return x\n")
    assert said in error.message


def test_it_refuses_the_name_of_an_operator_from_elsewhere(make) -> None:
    with torch.library._scoped_library("taken_elsewhere", "FRAGMENT") as library:
        library.define("here(Tensor x) -> Tensor")
        error = refusal(
            make,
            f"""
            @callboard.kernel(op='taken_elsewhere::here', {GOOD_FAKE})
            def refused(x: Tensor) -> Tensor:
                return x
            """,
        )
    assert "is there already" in error.message


NO_FUNCTIONS = {
    "a lambda": ("decorate(lambda x: x)", "cannot be found by its name"),
    "a nested function": (
        "def outer():\n    @decorate\n    def inner(x: Tensor) -> Tensor:\n        return x\nouter()",
        "cannot be found by its name",
    ),
    "a method": (
        "class Holder:\n    @decorate\n    def method(self, x: Tensor) -> Tensor:\n        return x",
        "cannot be found by its name",
    ),
    "a class": ("@decorate\nclass Thing: pass", "is no function"),
    "an object that can be called": ("import functools\ndecorate(functools.partial(print))", "is no function"),
    "a built-in function": ("decorate(len)", "is no function"),
    "a coroutine": ("@decorate\nasync def later(x: Tensor) -> Tensor:\n    return x", "is a coroutine or a generator"),
    "a generator": ("@decorate\ndef some(x: Tensor) -> Tensor:\n    yield x", "is a coroutine or a generator"),
}


@pytest.mark.parametrize("case", NO_FUNCTIONS)
def test_it_refuses_what_another_process_cannot_find(make, case: str) -> None:
    source, said = NO_FUNCTIONS[case]
    assert said in refusal(make, f"decorate = callboard.kernel({GOOD_FAKE})\n{source}").message


def test_it_refuses_a_function_of_the_script_that_runs() -> None:
    code = f"{_HEAD}@callboard.kernel({GOOD_FAKE})\ndef f(x: Tensor) -> Tensor:\n    return x\n"
    ended = subprocess.run(
        [sys.executable, "-c", code], env=client_environment(), capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 1
    assert "in the script that runs" in ended.stderr


# -- the package ------------------------------------------------------------------------------------------------------


def test_importing_callboard_imports_no_torch_and_the_decorator_no_native_module() -> None:
    code = textwrap.dedent("""
        import sys
        import callboard
        assert "kernel" in dir(callboard)
        assert "torch" not in sys.modules, "import callboard"
        callboard.kernel
        assert "torch" in sys.modules
        assert "callboard._native" not in sys.modules, "callboard.kernel"
    """)
    ended = subprocess.run(
        [sys.executable, "-c", code], env=client_environment(), capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_the_decorator_is_the_package_s() -> None:
    from callboard.kernels import kernel

    assert callboard.kernel is kernel
