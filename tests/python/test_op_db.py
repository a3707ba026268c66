"""A slice of the proof over PyTorch's operator tests (tools/op_db): entries of each kind, on a real device."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools" / "operators"))
import op_db_judge
from op_db_judge import FAILED, NOT_EXPORTABLE, PASSED, Verdict
from op_db_pairs import Call, Pair, load_entries, sample_calls
from op_db_table import Totals, table

KINDS = {
    "pointwise": ["add", "clamp", "where", "nn_functional_gelu"],
    "views": ["transpose", "unsqueeze", "expand_as", "as_strided"],
    "lists": ["cat", "split", "meshgrid_list_of_tensors"],
    "optional arguments": ["nn_functional_layer_norm", "index_put"],
    "complex results": ["fft_fft", "complex"],
    "random": ["bernoulli", "rand_like"],
    "reductions": ["sum", "logsumexp", "std"],
    "several results": ["svd", "topk", "var_mean"],
    "sizes that depend on data": ["nonzero"],
    "uninitialised results": ["empty"],
    "in place": ["uniform"],
    "products": ["matmul", "nn_functional_conv2d"],
}


@pytest.fixture(scope="module")
def entries() -> dict[str, Any]:
    return load_entries()


@pytest.fixture(scope="module")
def judge(run_root: pathlib.Path) -> Iterator[op_db_judge.Judge]:
    with op_db_judge.launch() as cluster:
        yield op_db_judge.Judge(cluster)


@pytest.mark.parametrize("kind", KINDS)
def test_operators_give_what_eager_gives(judge: Any, entries: dict[str, Any], kind: str) -> None:
    for name in KINDS[kind]:
        calls = sample_calls(entries[name], 2)
        assert calls, name
        for number, call in enumerate(calls):
            verdict = judge.judge(Pair(name, number), call)
            assert (verdict.status, verdict.reason, verdict.device_died) == (PASSED, "", False), verdict


# -- the judge itself -------------------------------------------------------------------------------------------------


def test_another_result_is_a_failure(judge: Any) -> None:
    assert op_db_judge.differs(torch.ones(3), torch.tensor([1.0, 1.0, 2.0]), values=True).startswith("result 0: 1 of 3")
    assert op_db_judge.differs(torch.ones(2, 2), torch.ones(2, 2).t().contiguous().t(), values=True) != ""
    assert op_db_judge.differs((torch.ones(1),), [torch.ones(1)], values=True).startswith("structure")
    assert op_db_judge.differs(torch.tensor(0.0), torch.tensor(-0.0), values=True) != ""
    assert op_db_judge.differs(torch.tensor(float("nan")), torch.tensor(float("nan")), values=True) == ""
    assert op_db_judge.differs(torch.ones(3), torch.zeros(3), values=False) == ""


def test_what_only_the_product_refuses_is_a_failure_and_what_torch_refuses_is_not(judge: Any) -> None:
    sparse = judge.judge(Pair("sparse", 0), Call(lambda x: x.to_sparse(), (torch.ones(3),)))
    assert (sparse.status, sparse.stage) == (FAILED, "export")
    branch = judge.judge(Pair("branch", 0), Call(lambda x: x + 1 if x.sum() > 0 else x, (torch.ones(3),)))
    assert (branch.status, branch.stage) == (NOT_EXPORTABLE, "export")


def test_the_table_counts_what_it_lists() -> None:
    verdicts = [
        Verdict("a", 0, PASSED),
        Verdict("a", 1, PASSED, note="given clones"),
        Verdict("b", 0, FAILED, "compare", "strides"),
        Verdict("c", 0, NOT_EXPORTABLE, "export", "a | b"),
    ]
    totals = Totals.of(verdicts)
    assert (totals.entries, totals.passed, totals.failed, totals.on_clones) == (3, 2, 1, 1)
    assert totals.share == pytest.approx(2 / 3)
    text = table(verdicts)
    assert "| `b` | 0 | failed | compare | strides |" in text
    assert "a \\| b" in text
