"""The exporter against eager, through the interpreter in graph_oracle.py. No cluster, no native module."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from torch import nn
from torch.export import Dim

from callboard import export
from callboard._structure import ANNOTATION, Structure
from callboard.errors import ExportError, UnsupportedError
from graph_oracle import GraphOracle
from models import CASES, Case, Mlp, Repeated, Tied, rand, same


def build(module, args, kwargs=None, dynamic_shapes=None):
    """(oracle, structure)."""
    exported = export.export(module, args, kwargs, dynamic_shapes)
    oracle = GraphOracle()
    forward = module.forward if isinstance(module, nn.Module) else module
    return oracle, export.build_program(exported, oracle, forward=forward, dynamic_shapes=dynamic_shapes)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_exported_program_gives_what_eager_gives_bit_for_bit(case: Case) -> None:
    eager, exported = case.make(), case.make()
    (args, kwargs), *_ = case.calls
    oracle, structure = build(exported, args, kwargs, case.dynamic_shapes)
    for args, kwargs in case.calls:
        with torch.no_grad():
            want = eager(*args, **kwargs)
        got = structure.unflatten(oracle.run(list(structure.flatten(args, kwargs))))
        assert same(want, got) == ""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_structure_survives_being_saved(case: Case) -> None:
    (args, kwargs), *_ = case.calls
    oracle, structure = build(case.make(), args, kwargs, case.dynamic_shapes)
    loaded = Structure.loads(oracle.annotations[ANNOTATION])
    assert (loaded.in_spec, loaded.out_spec, loaded.parameters) == (
        structure.in_spec, structure.out_spec, structure.parameters,
    )  # fmt: skip
    assert loaded.leaves == structure.leaves


def test_nothing_is_decomposed() -> None:
    oracle, _ = build(Mlp(), (rand(3, 8),))
    assert [node.op for node in oracle.nodes] == ["aten::linear", "aten::relu", "aten::linear"]


def test_nodes_say_where_they_come_from() -> None:
    oracle, _ = build(Mlp(), (rand(3, 8),))
    first = oracle.nodes[0]
    assert first.module_path == "first"
    assert first.source.startswith("models.py:")
    assert "in forward: return self.second(torch.relu(self.first(x)))" in first.source


def test_the_second_call_of_a_module_has_the_same_path() -> None:
    oracle, _ = build(Repeated(), (rand(2, 4),))
    assert [node.module_path for node in oracle.nodes if node.op == "aten::linear"] == ["layer", "layer"]


def test_tied_weights_and_views_share_one_storage() -> None:
    oracle, _ = build(Tied(), (torch.tensor([[1, 2]]),))
    storages = {constant.name: constant.storage for constant in oracle.constants.values()}
    assert storages["table"] == storages["diagonal"]
    assert len(set(storages.values())) == 2


def test_a_symbol_has_the_name_and_range_of_its_dimension() -> None:
    oracle, _ = build(Mlp(), (rand(3, 8),), None, ({0: Dim("batch", min=1, max=64)},))
    assert oracle.symbols == [("batch", 1, 64)]
    assert oracle.inputs[0][:4] == ("x", "float32", [("sym", 0), 8], "tensor")


def test_matrix_products_cost_more_than_what_moves_no_data() -> None:
    oracle, _ = build(Mlp(), (rand(3, 8),))
    linear, relu, _ = (node.cost for node in oracle.nodes)
    assert linear > relu > 0


def test_the_module_is_left_as_it_was() -> None:
    module = Mlp()
    before = copy.deepcopy(module.state_dict())
    build(module, (rand(3, 8),))
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_inputs_are_called_what_the_caller_calls_them() -> None:
    case = next(case for case in CASES if case.name == "nested arguments by name")
    oracle, _ = build(case.make(), *case.calls[0])
    assert [name for name, *_ in oracle.inputs] == ["data['a']", "data['b'][0]", "data['b'][1]", "extra[0]"]


def test_a_function_keeps_the_names_of_its_parameters() -> None:
    n = Dim("rows", min=2, max=9)
    oracle, _ = build(lambda x, y: x @ y, (rand(2, 3), rand(3, 4)), None, ({0: n}, None))
    assert [name for name, *_ in oracle.inputs] == ["x", "y"]
    assert oracle.symbols == [("rows", 2, 9)]


def test_a_plain_function_is_a_program_too() -> None:
    oracle, structure = build(lambda x, y: x @ y, (rand(2, 3), rand(3, 4)))
    (y,) = oracle.run(list(structure.flatten((rand(2, 3), rand(3, 4)), {})))
    assert torch.equal(y, rand(2, 3) @ rand(3, 4))


# -- what cannot be exported ------------------------------------------------------------------------------------------


class Branches(nn.Module):
    """Decides in Python by the contents of a tensor."""

    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1


def test_a_module_that_torch_cannot_export_is_refused_with_its_line() -> None:
    with pytest.raises(ExportError) as caught:
        build(Branches(), (rand(3),))
    error = caught.value
    assert error.code == 311
    assert "test_export.py:" in str(error)
    assert "x.sum() > 0" in str(error)
    assert "torch.where" in error.hint
    assert "torch.cond" not in error.hint  # which is refused in its turn, below


def test_nothing_but_our_message_is_printed_when_torch_cannot_export(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ExportError):
        build(Branches(), (rand(3),))
    assert capfd.readouterr() == ("", "")


class Prints(nn.Module):
    """Says something while it is exported."""

    def forward(self, x):
        print("the module's own words", file=sys.stderr)
        return x + 1


def test_what_the_module_prints_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    build(Prints(), (rand(3),))
    assert "the module's own words" in capfd.readouterr().err


class ManyGaps(nn.Module):
    """Two things that a program cannot express, and one that it can."""

    def forward(self, x):
        y = torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, (x,))
        z = x.to_sparse()
        return y, z.to_dense(), x * 2


def test_everything_that_is_unsupported_is_named_at_once() -> None:
    with pytest.raises(ExportError) as caught:
        build(ManyGaps(), (rand(3),))
    text = str(caught.value)
    assert len(caught.value.causes) == 2
    assert "cond" in text
    assert "sparse" in text
    assert all(
        isinstance(cause, UnsupportedError) and "test_export.py:" in cause.detail for cause in caught.value.causes
    )


class WritesInput(nn.Module):
    """Changes the caller's tensor."""

    def forward(self, x):
        x.add_(1)
        return x * 2


def test_a_write_to_an_argument_is_refused() -> None:
    with pytest.raises(ExportError, match="writes to its argument 'x'.*clone"):
        build(WritesInput(), (rand(3),))


@pytest.mark.parametrize(
    ("forward", "operator"),
    [
        (lambda x: x.resize_(5, 5) + 1, "aten::resize_"),
        (lambda x: x.resize_(2, 2) + 1, "aten::resize_"),
        (lambda x: x.set_(torch.zeros(2, 2)) + 1, "aten::set_"),
    ],
)
def test_a_resize_of_an_argument_is_refused_with_what_to_do_in_the_module(forward, operator) -> None:
    with pytest.raises(ExportError, match=f"argument 'x' by {operator}") as caught:
        build(forward, (rand(3, 4),))
    assert "x = x.clone()" in caught.value.hint


@pytest.mark.parametrize("size", [(2, 3), (3, 4)])
def test_a_resize_of_the_modules_own_tensor_is_what_the_hint_says_and_works(size) -> None:
    oracle, structure = build(lambda x: x.clone().resize_(*size) + 1, (rand(3, 4),))
    (y,) = oracle.run(list(structure.flatten((rand(3, 4),), {})))
    assert torch.equal(y, rand(3, 4).clone().resize_(*size) + 1)


def with_stream(x):
    """Tells the CUDA allocator which stream uses y."""
    y = x + 1
    y.record_stream(torch.Stream(device="cpu"))
    return y


def test_record_stream_is_refused_with_what_to_do_in_the_module() -> None:
    with pytest.raises(ExportError, match="test_export.py:.*record_stream") as caught:
        build(with_stream, (rand(3),))
    assert "leave record_stream, streams and events out" in caught.value.hint


class SharedState(nn.Module):
    """Two buffers over one memory, one of them written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(4))
        self.register_buffer("b", self.a[:2])

    def forward(self, x):
        self.a.add_(x)
        return self.b + 1


def test_a_written_buffer_that_shares_memory_is_refused() -> None:
    with pytest.raises(ExportError, match="shares its memory with another one: a, b"):
        build(SharedState(), (rand(4),))


def test_a_module_elsewhere_is_refused() -> None:
    with torch.device("meta"):
        module = nn.Linear(2, 2)
    with pytest.raises(ExportError, match="not on the CPU: .*weight on meta"):
        build(module, (rand(1, 2),))


def test_examples_must_be_a_tuple() -> None:
    with pytest.raises(ExportError, match="tuple of example arguments"):
        build(Mlp(), rand(3, 8))


def test_examples_must_be_dense_tensors() -> None:
    nested = torch.nested.nested_tensor([rand(2, 3), rand(1, 3)], layout=torch.jagged)
    with pytest.raises(ExportError, match=r"example args\[0\] is a nested tensor"):
        build(lambda x: x + 1, (nested,))
    with pytest.raises(ExportError, match=r"example kwargs\['x'\] is a nested tensor"):
        build(lambda x: x + 1, (), {"x": nested})
    with pytest.raises(ExportError, match=r"example args\[0\]\[1\] is a tensor inside torch.func"):
        torch.vmap(lambda x: build(lambda pair: pair[1], ((1, x),)))(rand(2, 3))


def test_example_arguments_by_name_must_be_a_dict() -> None:
    with pytest.raises(ExportError, match="kwargs is int 5; allowed: a dict"):
        export.export(Mlp(), (rand(3, 8),), 5)


def test_wrong_dynamic_shapes_are_refused_with_advice() -> None:
    with pytest.raises(ExportError) as caught:
        build(Mlp(), (rand(3, 8),), None, ({0: Dim("n"), 1: Dim("m")},))
    assert "dynamic_shapes" in caught.value.hint


# -- calls ------------------------------------------------------------------------------------------------------------


def nested_structure() -> tuple[Structure, tuple, dict]:
    case = next(case for case in CASES if case.name == "nested arguments by name")
    args, kwargs = case.calls[0]
    return build(case.make(), args, kwargs)[1], args, kwargs


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda a, k: (a[:1], k), "missing: flag"),
        (lambda a, k: ((*a, 1), k), "not expected: argument 2"),
        (lambda a, k: (a, {**k, "other": 1}), "not expected: other"),
        (lambda a, k: (a, {**k, "flag": True}), "'flag' is given twice"),
        (lambda a, k: (a, {**k, "scale": 3.0}), "'scale' is 3.0, the program was compiled for 2.0"),
        (lambda a, k: (a, {**k, "scale": 2}), "'scale' is 2, the program was compiled for 2.0"),
        (lambda a, k: (a, {**k, "bias": rand(3)}), "'bias' is a tensor of"),
        (lambda a, k: (({"a": a[0]["a"]}, a[1]), k), "'data' has another structure.*dict with the keys a"),
        (lambda a, k: (({**a[0], "b": [rand(3)]}, a[1]), k), "'data' has another structure"),
    ],
)
def test_arguments_that_do_not_fit_are_named(change, text) -> None:
    structure, args, kwargs = nested_structure()
    with pytest.raises(ValueError, match=text) as caught:
        structure.flatten(*change(args, kwargs))
    assert caught.value.code == 400


def test_arguments_may_be_given_by_name_or_position() -> None:
    structure, args, kwargs = nested_structure()
    want = structure.flatten(args, kwargs)
    got = structure.flatten((), {"data": args[0], "flag": args[1], **kwargs})
    assert all(left is right for left, right in zip(want, got, strict=True))
