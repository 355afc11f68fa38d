"""The expert-parallel kernels on GPUs: tables, rows and y are the reference's to the bit, as the simulator's are; a soak; a CUDA graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ep_ranks import (
    CHECKS,
    ONCE,
    SETS,
    TILES,
    Made,
    inputs_of,
    ranks_of,
    routed_case,
    small_configs,
    soak,
    synchronize,
    whole_case,
)
from gpu_options import GpuOptions
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.ep import swiglu
from megamoe_dsl.cases import Case
from megamoe_dsl.kernel_cases.halves import combined, draw_activations, linear1_rows
from megamoe_dsl.kernels.moe.halves.config import RoutingTablesConfig
from megamoe_dsl.recipe import RECIPES
from megamoe_dsl.runtime.ep.buffers import RowActivations
from megamoe_dsl.runtime.ep.layer import EpMoE
from megamoe_dsl.runtime.ep.routing import RoutingTables, scatter_indices

pytestmark = pytest.mark.gpu


def check_reference(case: Case, config: RoutingTablesConfig, made: list[Made], tables: list[RoutingTables]) -> None:
    """Every element of a launch, and every entry of its tables, which are made as `config` says."""
    moe, accumulate = case.problem, torch.float64 if case.exact else "hopper"
    order = {"token_saving": config.token_saving, "token_sorting": config.token_sorting}
    every = RoutingTables.of(moe, [idx.cpu() for idx in case.topk_idx], **order)
    ys = combined(case, [draw_activations(case, rank) for rank in range(moe.num_ranks)], accumulate)
    for rank, (one, found, wanted) in enumerate(zip(made, tables, every, strict=True)):
        for name in ("pair_rows", "recv_pairs", "expert_rows"):
            assert torch.equal(getattr(found, name).cpu(), getattr(wanted, name))
        for owner, count in enumerate(int(other.recv_pairs[rank]) for other in every):
            assert torch.equal(found.send_pairs[owner, :count].cpu(), wanted.send_pairs[owner, :count])
        rows = torch.cat(linear1_rows(case, rank, accumulate))
        assert torch.equal(one.rows.cpu().view(torch.int16), rows.view(torch.int16))
        assert torch.equal(one.y.cpu().view(torch.int16), ys[rank].view(torch.int16))


@pytest.mark.parametrize(("way", "recipe", "exact"), ONCE)
def test_once(way: str, recipe: str, exact: bool, options: GpuOptions, devices: list[torch.device]) -> None:
    """One launch of each kernel on one GPU."""
    case = routed_case(whole_case(1, exact=exact, recipe=recipe), 1)
    wanted = small_configs(options.gpu_sms, len(devices), 1, way, recipe)
    ranks = ranks_of(case, devices, ArtifactStore(options.kernels), wanted)
    for rank, one in zip(ranks, inputs_of(case, ranks), strict=True):
        rank.launch(one, options.watchdog_s * 10**9)
    synchronize(ranks)
    count = len(case.x[0])
    check_reference(case, wanted[0], [Made.of(ranks[0], count)], [ranks[0].buffers.tables(count)])


@pytest.mark.parametrize(
    ("number", "way", "recipe", "exact"),
    [*((*check, True) for check in CHECKS), *((*check, False) for check in CHECKS if check[1] == "defaults")],
)
def test_launches_have_the_references_bits(
    number: int, way: str, recipe: str, exact: bool, options: GpuOptions, devices: list[torch.device]
) -> None:
    """Changing numbers of tokens, uneven routing, dropped pairs, ranks without any: the first launch of each set is compared with the
    reference (of data that rounds, whose reference takes seconds, that of the first set), all others with it."""
    whole = whole_case(number, exact=exact, recipe=recipe)
    wanted = small_configs(options.gpu_sms, len(devices), number, way, recipe)
    ranks = ranks_of(whole, devices, ArtifactStore(options.kernels), wanted)
    cases = [routed_case(whole, index) for index in range(SETS)]
    sets, first, watchdog_ns = [inputs_of(case, ranks) for case in cases], [], options.watchdog_s * 10**9
    for case, inputs in zip(cases, sets, strict=True):
        for rank, one in zip(ranks, inputs, strict=True):
            rank.launch(one, watchdog_ns)
        synchronize(ranks)
        first.append([Made.of(rank, one.num_tokens) for rank, one in zip(ranks, inputs, strict=True)])
        if exact or case is cases[0]:
            check_reference(
                case, wanted[0], first[-1], [rank.buffers.tables(one.num_tokens) for rank, one in zip(ranks, inputs, strict=True)]
            )
    assert soak(ranks, sets, first, options.soak_launches, watchdog_ns) == 0
    elements = sum(one.rows.numel() + one.y.numel() for made in first for one in made)
    data = "exact" if exact else "rounding"
    where = f"{way}, {recipe}: {number} ranks on {min(number, len(devices))} GPUs"
    print(f"{where}: {options.soak_launches} launches of {SETS} {data} sets with {elements:,} elements")


def test_a_graph_of_the_layer(options: GpuOptions, devices: list[torch.device], tmp_path: Path) -> None:
    """Tables, dispatch, activation and combine captured once; its replays are as calls are, with a caller's scatter indices, too."""
    case = whole_case(1, exact=False)
    fields = {name: getattr(small_configs(options.gpu_sms, len(devices), 1)[1], name) for name in TILES}
    weights = case.to("cuda").weights[0]
    layer = EpMoE(case.problem, weights, activation=swiglu, store=ArtifactStore(options.kernels), dispatch=fields, combine=fields)
    x, idx, topk_weights = case.x[0].float().bfloat16().cuda(), case.topk_idx[0].cuda(), case.topk_weights[0].cuda()
    y = layer(x, idx, topk_weights)  # warms up
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer(x, idx, topk_weights, out=y)
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        x.copy_(torch.randn(x.shape, generator=generator))
        idx.copy_(torch.rand(len(idx), case.problem.num_experts, generator=generator).topk(idx.shape[1]).indices)
        wanted = layer(x, idx, topk_weights).clone()
        captured.fill_(float("nan"))
        graph.replay()
        layer.synchronize()
        assert torch.equal(captured.view(torch.int16), wanted.view(torch.int16))
        backwards = scatter_indices(case.problem, idx, -torch.arange(len(idx), device="cuda"))
        assert torch.equal(layer(x, idx, topk_weights, scatter_indices=backwards).view(torch.int16), wanted.view(torch.int16))
    other = torch.cuda.CUDAGraph()
    with torch.cuda.graph(other):
        captured = layer(x, idx, topk_weights, scatter_indices=backwards)
    captured.fill_(float("nan"))
    other.replay()
    layer.synchronize()
    assert torch.equal(captured.view(torch.int16), wanted.view(torch.int16))


@pytest.mark.parametrize("name", ["fp8xfp4", "mxf4xmxf4"])
def test_a_graph_of_scales_that_are_powers_of_two(name: str) -> None:
    """What the layer on SM100 does with an activation's result: torch's work, on any GPU."""
    form, generator = RECIPES[name].activations, torch.Generator("cuda").manual_seed(0)
    rows = torch.randn(256, 512, generator=generator, device="cuda").bfloat16()
    RowActivations.of(rows, form)  # warms up
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = RowActivations.of(rows, form)
    rows.copy_(torch.randn(rows.shape, generator=generator, device="cuda"))
    graph.replay()
    wanted = RowActivations.of(rows.cpu(), form)
    for one, other in ((found.values, wanted.values), (found.scales, wanted.scales)):
        assert torch.equal(one.view(torch.uint8).cpu(), other.view(torch.uint8))
