"""The layer over nodes without processes: its part on a node, its chunks, and what is ended when a rank is lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_nodes import problem_of

from megamoe_dsl import Problem, ProblemError, WatchdogError
from megamoe_dsl.arch import SM90
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.runtime import moe_layer, nodes
from megamoe_dsl.runtime.nodes import NodeLayer, Rails, default_chunks, node_problem, row_bytes, split_rows


def test_a_layer_over_nodes_is_what_its_domain_s_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it takes a bound, scales and gradients; compilers leave a call with those alone, in which the host waits."""
    monkeypatch.setattr(NodeLayer, "train_call", lambda layer, x: x + 1)
    rails: Any = SimpleNamespace(traffic=None, nodes=2, ranks=2, device=torch.device("cpu"))
    found = {}
    for takes in (False, True):
        weights = () if takes else (torch.zeros(1),)
        domain = SimpleNamespace(takes_scales=takes, takes_bound=takes, trained=weights)
        found[takes] = NodeLayer(problem_of(4, "fp8xfp8"), domain, rails, 1)
    assert [(one.takes_scales, one.takes_bound, len(one.trained)) for one in found.values()] == [(False, False, 1), (True, True, 0)]
    x = torch.ones(2)
    assert torch.compile(lambda one: found[True].untraced_call(one), fullgraph=True, backend="eager")(x).eq(2).all()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(lambda one: found[False].untraced_call(one), fullgraph=True, backend="eager")(x)


def test_the_layer_of_a_node() -> None:
    """Room for all that a chunk can bring."""
    problem = problem_of(4, "fp8xfp8")
    assert node_problem(problem, 2, 2).max_tokens_per_rank == 8 and node_problem(problem, 2).max_tokens_per_rank == 14
    assert node_problem(problem, 1, 2).num_ranks == 1 and node_problem(problem, 1).num_experts == 3
    for ranks, chunks, message in ((2, 0, "chunks = 0: must be 1 or more"), (3, 1, "domain = 3: must be a divisor of the group's 4 ranks")):
        with pytest.raises(ProblemError, match=message):
            node_problem(problem, ranks, chunks)
    with pytest.raises(ProblemError, match="topk = 4: must be at most the 3 experts of a node"):
        node_problem(replace(problem, topk=4), 1)


@pytest.mark.parametrize(
    ("preset", "nodes", "tokens", "groups", "chunks"),
    [
        ("deepseek-v3", 2, 2048, 4, 1),  # 15/16 rows of 21.2 KiB a token: 42 MB
        ("deepseek-v3", 2, 4096, 4, 2),
        ("deepseek-v3", 8, 1024, 4, 2),  # 2.9 rows: 64 MB
        ("deepseek-v3", 8, 512, 8, 2),  # 4.6 rows: 51 MB
        ("deepseek-v3", 8, 2048, 1, 1),  # 7/8 rows: 39 MB
        ("flash", 8, 1024, 8, 1),  # 3.9 rows of 12.1 KiB, to 6 experts: 49 MB
    ],
)
def test_a_second_chunk_is_for_calls_that_send_more_than_50_mb(preset: str, nodes: int, tokens: int, groups: int, chunks: int) -> None:
    problem = PRESETS[preset].problem(8192, num_ranks=8 * nodes, recipe="fp8xfp8")
    assert default_chunks(problem, 8, tokens, groups) == chunks


@pytest.mark.parametrize(
    ("ranks", "chunks", "sms", "made"), [(2, None, None, (4, 16)), (2, 2, 8, (2, 8)), (1, 2, None, (2, 16)), (2, 1, None, (1, 0))]
)
def test_chunks_leave_sms_to_the_network(
    ranks: int, chunks: int | None, sms: int | None, made: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On GPUs, by default as many chunks as the tokens ask for; a launch that fills its SMs would keep the next exchange from running."""
    problem, cuda, seen, asked = problem_of(4, "fp8xfp8"), torch.device("cuda"), [], list[Any]()

    def rails(group: Any, ranks: int, device: torch.device, most: int) -> Rails:
        seen.append(most)
        return Rails(group, 0, 0, 4 // ranks, ranks, None, None, torch.device("cpu"))

    def inner(node: Problem, weights: Any, group: Any, device: torch.device, **options: Any) -> Any:
        seen.extend((node.max_tokens_per_rank, options.get("reserved_sms", 0)))
        return SimpleNamespace(takes_scales=True, takes_bound=True, trained=())

    for name, stand_in in {
        "rails_of": rails,
        "domain_layer": inner,
        "default_chunks": lambda *given: asked.append(given) or 4,
        "device_arch": lambda _: SM90,
    }.items():
        monkeypatch.setattr(moe_layer, name, stand_in)
    others: dict[str, Any] = {"launch": None, "activation": None, "tokens": 0, **({} if sms is None else {"reserved_sms": sms})}
    layer = moe_layer.node_layer(problem, None, None, cuda, ranks, chunks, None, **others)
    if chunks is None:
        for groups in (4, 1):
            router = moe_layer.Router(torch.zeros(12, 256), groups=groups, topk_groups=1)
            moe_layer.node_layer(problem, None, None, cuda, ranks, None, router, **{**others, "tokens": 5})
        assert asked == [(problem, ranks, 7, problem.topk), (problem, ranks, 5, 1), (problem, ranks, 5, problem.topk)]
        del seen[3:]
    assert (layer.chunks, seen) == (made[0], [made[1], -(-7 // made[0]) * 4 // ranks, made[1]])
    for refused in ({"reserved_sms": 0}, {"launch": "ep_moe"}):
        with pytest.raises(ProblemError, match="chunks = 2: must be 1 on nodes of several GPUs, unless MegaMoE"):
            moe_layer.node_layer(problem, None, None, cuda, 2, 2, None, **{**others, **refused, **({"reserved_sms": 0} if sms else {})})


def test_a_lost_rank_ends_kernels_of_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the layer's groups are aborted, at once: NCCL's kernels would wait for ever."""
    done: list[str] = []

    class Group:
        """A process group, and its NCCL backend."""

        group_name = "all"

        def __init__(self, name: str) -> None:
            self.name = name
            self._group_start, self._group_end = (lambda: done.append("start")), (lambda: done.append("end"))

        def _get_backend(self, device: torch.device) -> Group:
            return self

        def abort(self) -> None:
            done.append(self.name)

    stand_ins = {"is_nccl": lambda _: True, "silent_ranks": lambda *_: [3], "timeout_of": lambda *_: timedelta(seconds=1)}
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(nodes, name, stand_in)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: None)
    rails = Rails(Group("all"), 0, 0, 2, 2, Group("rail"), Group("within"), torch.device("cpu"))
    with (
        pytest.raises(WatchdogError, match=r"rank 0, rows: not done in 1 s; rank 3 did not report a wait within 6 s"),
        rails.naming_lost_ranks("rows"),
    ):
        raise RuntimeError("not done in 1 s\nmore")
    assert done == ["start", "all", "rail", "within", "end"]


@pytest.mark.parametrize(
    ("rows", "widths"), [(4, (8, 2, 2, 16)), (0, (8, 2, 2, 16)), (4, (6, 3, 1, 8)), (0, (6, 3, 1, 8)), (4, (7, 2, 4, 2)), (4, (6, 3, 1, 5))]
)
def test_rows_as_bytes_come_back(rows: int, widths: tuple[int, ...]) -> None:
    """Their parts' bytes have 8, 4, 2 and 1 as the largest common divisor up to 8."""
    bf16, int32, float32, codes = ((rows, width) for width in widths)
    parts = torch.randn(bf16).bfloat16(), torch.randint(0, 9, int32).int(), torch.rand(float32), torch.randint(0, 256, codes).byte()
    assert all(torch.equal(one, other) for one, other in zip(split_rows(row_bytes(parts), parts), parts, strict=True))
