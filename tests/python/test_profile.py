"""compile(profile=True): measured costs, what is split by them, and what plan() says."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

import callboard
from callboard.errors import InputError
from models import rand

SIZE = 300


class Misjudged(nn.Module):
    """Products, which estimates count by their operations, and then inverses, which they take for mere copies."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.weight = nn.Parameter(torch.randn(SIZE, SIZE) / SIZE**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = x @ self.weight
        for _ in range(8):
            x = torch.linalg.inv(x + torch.eye(SIZE))
        return x


def slowest(costs: list[float], cut: int) -> float:
    return max(sum(costs[:cut]), sum(costs[cut:]))


def cut_of(program: Any) -> int:
    return int(program.plan()[0]["node_ranges"][-1][1]) + 1


def test_a_profile_run_finds_the_split_that_estimates_miss(cluster: Any) -> None:
    x = rand(SIZE, SIZE)
    module = Misjudged().eval()
    estimated = cluster.compile(module, (x,))
    measured = cluster.compile(module, (x,), profile=True)
    costs = measured._native.node_costs
    assert len(costs) == measured._native.node_count
    assert all(cost >= 1 for cost in costs)
    best = min(slowest(costs, cut) for cut in range(len(costs) + 1))
    assert slowest(costs, cut_of(measured)) <= 1.1 * best
    assert slowest(costs, cut_of(estimated)) > 1.1 * best
    with torch.no_grad():
        want = module(x)
    assert torch.equal(measured(x), want)
    assert torch.equal(estimated(x), want)


def test_plan_says_whether_times_are_measured_and_shows_edges_and_real_runs(cluster: Any) -> None:
    x = rand(SIZE, SIZE)
    module = Misjudged().eval()
    program = cluster.compile(module, (x,), profile=True)
    plan = program.plan()
    assert plan.times == "measured"
    assert "measured on cpu0, median of 5 runs" in plan.note
    assert [part["device"] for part in plan] == ["cpu0", "cpu1"]
    assert [part["time_source"] for part in plan] == ["measured", "measured"]
    assert plan[0]["time_ns"] == pytest.approx(sum(program._native.node_costs[: cut_of(program)]))
    (edge,) = plan[0]["edges"]  # of one value or two, as the measured times have it
    assert edge == {"to": 1, "bytes": edge["bytes"], "exact": True}
    assert edge["bytes"] in (SIZE * SIZE * 4, 2 * SIZE * SIZE * 4)
    assert plan[1]["edges"] == []
    assert all(part["runs"] == 0 and part["mean_run_ns"] is None for part in plan)
    for _ in range(3):
        program(x)
    plan = program.plan()
    assert [part["runs"] for part in plan] == [3, 3]
    assert all(part["mean_run_ns"] > 0 for part in plan)
    text = str(plan)
    assert f"{edge['bytes'] / 1024:.1f} KiB to 1" in text
    assert "times are measured on cpu0" in text
    estimated = cluster.compile(module, (x,)).plan()
    assert estimated.times == "estimated"
    assert all(part["time_ns"] > 0 for part in estimated)
    assert "times are estimated" in str(estimated)
    # The command line prints the same fields: it shows what this operation answers.
    told = cluster.operation("programs", program=program.id)["programs"][0]
    assert told["costs"] == plan.note
    for part, stage in zip(plan, told["fragments"], strict=True):
        for field in ("node_ranges", "device", "edges", "peak_bytes", "time_ns", "time_source", "runs", "mean_run_ns"):
            assert json.loads(json.dumps(part[field])) == stage[field]


def test_buffers_keep_their_initial_values(cluster: Any) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x + self.count

    x = torch.zeros(2)
    # The same module unprofiled is loaded, too: it shares nothing with the profiled one.
    plain = cluster.compile(Counter(), (x,), placement="cpu0")
    assert plain(x).tolist() == [1, 1]
    program = cluster.compile(Counter(), (x,), placement="cpu0", profile=True)
    future = program.submit(x)
    assert future.get().tolist() == [1, 1]
    assert future.state_version == 1
    assert plain(x).tolist() == [2, 2]


def test_the_profiled_program_is_gone_afterwards(cluster: Any) -> None:
    before = {entry["program"] for entry in cluster.operation("programs")["programs"]}
    program = cluster.compile(lambda x: x * 2 + 1, (rand(4),), profile=True, name="measured-once")
    left = {entry["program"] for entry in cluster.operation("programs")["programs"]} - before
    assert program.id in left
    names = [entry for entry in cluster.operation("programs")["programs"] if entry["name"] == "measured-once"]
    assert len(names) == 1


def test_measured_costs_are_saved_with_the_program(cluster: Any, tmp_path: Any) -> None:
    program = cluster.compile(lambda x: x * 2 + 1, (rand(4),), profile=True)
    program.save(tmp_path / "measured")
    again = cluster.load(tmp_path / "measured")
    assert again.plan().times == "measured"
    assert again._native.node_costs == program._native.node_costs


def test_what_fits_no_device_whole_is_balanced_by_estimates_and_says_so(run_root: Any) -> None:
    small = {"devices": [{"kind": "cpu", "count": 2, "threads": 1, "memory_limit": "96MiB"}]}

    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(2048, 2048) for _ in range(6))  # 16 MiB each

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    module = Large().eval()
    x = rand(1, 2048)
    with callboard.launch(small) as cluster:
        program = cluster.compile(module, (x,), profile=True)
        plan = program.plan()
        assert plan.times == "estimated"
        assert "fits no device whole" in plan.note
        assert "fits no device whole" in str(plan)
        assert {part["device"] for part in plan} == {"cpu0", "cpu1"}
        with torch.no_grad():
            assert torch.equal(program(x), module(x))


def test_wrong_uses_are_refused(cluster: Any) -> None:
    with pytest.raises(InputError, match="'profile' is True together with 'replicas'"):
        cluster.compile(lambda x: x, (rand(2),), profile=True, replicas=2)
    with pytest.raises(InputError, match="'profile'"):
        cluster.compile(lambda x: x, (rand(2),), profile=1)


def test_a_module_that_fails_on_the_example_fails_the_profile_by_its_own_error(cluster: Any) -> None:
    class Checked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._assert_async(x.sum() > 0, "the sum must be positive")
            return x + 1

    with pytest.raises(callboard.errors.CallboardError, match="profile run on 'cpu0' failed.*the sum must be positive"):
        cluster.compile(Checked(), (-torch.ones(2),), placement="cpu0", profile=True)
