"""Choices at the borders of their ranges, and what of a configuration reaches the launches that are made of it; nothing is compiled."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megamoe_dsl import Target, choose
from megamoe_dsl.arch import SM90, SM100
from megamoe_dsl.blocks.gemm import choose as gemm_choose
from megamoe_dsl.blocks.gemm.problem import GatherGemmProblem, GemmProblem, VarlenKProblem
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernel_cases.gather import factors_of_columns
from megamoe_dsl.kernel_cases.gemm import gemm_case
from megamoe_dsl.kernel_cases.gradients import gradient_case, varlen_k_case
from megamoe_dsl.kernels import expert_layer
from megamoe_dsl.kernels.decode.family import few_configs
from megamoe_dsl.kernels.decode.problem import DecodeProblem
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.kernels.expert_routing.problem import QuantizeProblem, QuantizeWeightsProblem, SumProblem, TopExpertsProblem
from megamoe_dsl.kernels.moe.choose import measured
from megamoe_dsl.kernels.moe.halves import family as halves
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig, GemmCombineConfig, RoutingTablesConfig
from megamoe_dsl.kernels.moe.layouts.smem_plan import CombinePlan, CombineRow
from megamoe_dsl.kernels.moe.sm90.choose import choose_cluster, choose_lookahead
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config, cluster_sizes
from megamoe_dsl.kernels.moe.sm90.memory_plan import pull_chunk
from megamoe_dsl.kernels.moe.unfused.config import STAGE_NAMES, StageConfig
from megamoe_dsl.kernels.moe.unfused.family import STAGES
from megamoe_dsl.kernels.registry import arch_of_recipe, family_of, find_kernel
from megamoe_dsl.presets import projection
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.recipe import COMBINE
from megamoe_dsl.tuned import DEFAULT_GPU, Entry, EpEntry, Table

MOE = Problem(1024, 512, 16, 4, 2, 2048, recipe="fp8xfp8")
PACKED = replace(MOE, recipe="fp8xmxfp4", num_ranks=1)
H200 = Target(SM90, 132, DEFAULT_GPU)


def test_a_kernel_is_not_chosen_for_an_architecture_that_it_is_not_written_for() -> None:
    with pytest.raises(ProblemError, match="arch = 'sm_100a': must be one that decode is written for: sm_90a"):
        choose(ExpertLayer(256, 128, 8, 2).decode, Target.typical("sm_100a"), 3)


def test_problems_that_are_alike_have_families_of_their_own() -> None:
    problems = GemmProblem(256, 128), GatherGemmProblem(256, 128, num_groups=2), VarlenKProblem(128, 128, num_groups=2)
    assert [family_of(one).name for one in problems] == ["gemm", "gather_gemm", "varlen_k_gemm"]


def test_formats_that_all_have_are_hopper_s_first() -> None:
    found = [arch_of_recipe(find_kernel("mega_moe"), recipe) for recipe in ("bf16xbf16", "fp8xfp8", "fp8xfp4")]
    assert found == [SM90, SM90, SM100]


def test_projections_of_experts_are_those_of_a_rank() -> None:
    fc1, fc2 = projection("gpt-oss-20b/fc1"), projection("gpt-oss-20b/fc2")
    assert ((fc1.n, fc1.k), (fc2.n, fc2.k), fc1.num_groups, fc1.problem.kind) == ((5888, 2944), (2944, 2944), 4, "packed")


# --- the fused layer on Hopper
def test_pairs_are_for_more_than_one_block_of_tokens_on_all_sms() -> None:
    wide = replace(MOE, hidden=6144, intermediate=2048)
    for problem in (PACKED, wide, replace(MOE, recipe="bf16xbf16")):
        found = [choose_cluster(problem, *at) for at in ((129.0, 128, 132), (128.0, 128, 132), (129.0, 128, 130), (129.0, 64, 132))]
        assert found == [2, 1, 1, 1]
    assert choose_cluster(replace(wide, hidden=6112), 129.0, 128, 132) == 1, "tiles that are shorter by a little"


def test_linear1_is_ahead_by_all_experts_up_to_one_block_of_tokens() -> None:
    assert [choose_lookahead(MOE, expected, 128, 4) for expected in (128.0, 128.1, 600.0)] == [8, 2, 1]
    assert choose_lookahead(replace(MOE, hidden=6144, intermediate=2048), 600.0, 128, 4) == 8


def test_a_ring_of_one_block_has_a_window() -> None:
    config = choose(MOE, Target(SM90, 132), 2048, block_m=128, pool_rows=128)
    assert (config.ring_blocks, config.window) == (1, 1)


def test_an_odd_grid_has_no_pairs() -> None:
    assert [cluster_sizes(MOE, 128, num_sms) for num_sms in (132, 131)] == [(1, 2), (1,)]
    assert {one.cluster for one in choose(MOE, Target(SM90, 131), 2048, block_m=128).siblings} == {1}


def test_what_is_timed_beside_a_choice_has_the_deepest_ring() -> None:
    chosen = choose(replace(MOE, recipe="mxf4xmxf4"), Target(SM100, 148), 512)
    found = chosen.replace(num_stages=2).siblings
    assert {one.block_k for one in found} == {128, 256} and {one.epilogue_warpgroups for one in found} == {1, 2}
    every = {
        m: [one.store_block_m for one in choose(replace(MOE, recipe="fp8xfp4"), Target(SM100, 148), 512, block_m=m).siblings]
        for m in (16, 96)
    }
    assert every[16][:1] == [16] and 32 not in every[16] and every[96][:2] == [16, 32]
    assert all(one == one.replace(num_stages=0) for one in found)
    assert chosen.replace(block_k=0, num_stages=0).block_k == 128


def test_a_row_is_pulled_in_equal_parts_or_in_kilobytes() -> None:
    assert [pull_chunk(row) for row in (128, 256, 768, 1024, 1152, 1280, 2048, 3072, 5376)] == [
        128,
        256,
        768,
        1024,
        1024,
        640,
        1024,
        1024,
        896,
    ]


def test_results_that_do_not_fit_are_summed_in_the_smallest_pieces() -> None:
    found = [CombinePlan(CombineRow(hidden, COMBINE["e4m3"]), 32, 8) for hidden in (32768, 131072)]
    assert [(one.sets, one.chunk, one.warps * one.slots * one.slot_bytes > one.budget) for one in found] == [
        (1, 512, False),
        (1, 256, True),
    ]


def test_pieces_are_shares_of_whole_vectors_but_for_the_last() -> None:
    assert [CombinePlan(CombineRow(hidden), 4, 8).chunk for hidden in (1280, 1056, 1024)] == [256, 768, 1024]


# --- its inputs
def test_inputs_take_what_they_read() -> None:
    """Scales of tokens that have them, factors of those that are quantized with one, and the first shared expert."""
    kernel, always = find_kernel("pre_dispatch"), ("sym", "x", "topk_idx", "topk_weights", "num_tokens")
    for recipe, given, more in (
        ("nvfp4xnvfp4", {}, ("factors",)),
        ("nvfp4xnvfp4", {"quantized": True}, ("x_sf",)),
        ("fp8xfp4", {"quantized": True, "shared": 2}, ("x_sf", "first_shared")),
        ("bf16xbf16", {}, ()),
    ):
        config = kernel.choose(replace(MOE, recipe=recipe), Target(SM100, 148), 8, **given)
        assert kernel.arguments(config).names == (*always, *more)


def test_a_rank_has_more_experts_than_shared_ones() -> None:
    """And a token more slots; a launch no more tokens than the layer."""
    kernel, target = find_kernel("pre_dispatch"), Target(SM90, 132)
    for problem, most in ((MOE, 3), (replace(MOE, num_experts=4), 1)):
        assert kernel.choose(problem, target, 2048, shared=most).shared == most
        with pytest.raises(ConfigError, match=f"shared = {most + 1}: must be between 0 and {most}"):
            kernel.choose(problem, target, 2048, shared=most + 1)
    with pytest.raises(ProblemError, match="num_tokens = 2049"):
        kernel.choose(MOE, target, 2049)


# --- stages of the unfused layer
@pytest.mark.parametrize("target", [Target(SM90, 132), Target(SM100, 148)], ids=str)
@pytest.mark.parametrize("name", STAGE_NAMES)
def test_a_stage_is_the_same_whatever_the_fused_kernel_has_beside_it(name: str, target: Target) -> None:
    """So that one kernel serves all; only stages that multiply have clusters."""
    recipe = find_kernel("mega_moe").recipes[target.arch.name][0]
    fused = choose(replace(MOE, recipe=recipe), target, 2048)
    stage = StageConfig(fused, name)
    for changes in ({"lookahead": 1}, {"num_stages": 2}, {"trace": True}):
        assert StageConfig(fused.replace(**changes), name) == stage
    if target.arch == SM90:
        pair, single = (StageConfig(fused.replace(block_m=128, cluster=cluster, num_stages=0), name) for cluster in (2, 1))
        assert (pair == single) != pair.multiplies and pair.cluster == (2 if pair.multiplies else 1)


def test_a_pair_that_decodes_has_stages_of_single_ctas() -> None:
    fused = choose(PACKED, Target(SM90, 132), 2048, block_m=128).replace(cluster=2, num_stages=0)
    assert fused.halves_decoding and {StageConfig(fused, name).fused.cluster for name in STAGE_NAMES} == {1}


def test_fields_of_a_stage_are_its_own() -> None:
    stage = StageConfig(choose(MOE, Target(SM90, 132), 64), "fc1")
    less = stage.replace(num_stages=2)
    assert (less.num_stages, less.fused, stage.num_stages > 2) == (2, stage.fused, True)
    assert less.replace(stage="fc2", num_stages=0) == StageConfig(stage.fused, "fc2")
    chosen = find_kernel("moe_fc1").choose(MOE, Target(SM90, 132), 64, num_stages=2, lookahead=3)
    assert chosen == less
    with pytest.raises(ConfigError, match=r"num_stages = 99: must be"):
        stage.replace(num_stages=99)


def test_stages_wait_for_all_ctas_where_they_talk_to_ranks_and_have_tensor_memory_where_they_multiply() -> None:
    assert [one.name for one in STAGES if one.resident] == ["moe_dispatch", "moe_combine"]
    fused = choose(replace(MOE, recipe="fp8xfp4"), Target(SM100, 148), 64)
    assert [one.name for one in STAGES if StageConfig(fused, one.stage.name).tmem is not None] == ["moe_fc1", "moe_fc2"]


def test_a_pool_that_any_routing_fits_is_no_ring_for_stages() -> None:
    fused = choose(MOE, Target(SM90, 132), 64)
    rows = fused.symmetric["fc1_topk_weights"].field.shape[0]
    whole = StageConfig(fused.replace(pool_rows=-(-rows // 128) * 128), "fc1")
    assert whole.results == StageConfig(fused, "fc1").results and whole.results["fc1_out"].field.shape[0] == rows


# --- halves of the layer
def test_an_odd_grid_of_a_half_has_no_pairs() -> None:
    for kernel in halves.EP_KERNELS:
        even, odd = (kernel.choose(MOE, Target(SM90, 132), 8, **given) for given in ({}, {"num_sms": 131}))
        assert (even.cluster, odd.cluster, odd.num_sms) == (2, 1, 131)


def test_the_nearest_point_of_a_half_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        EpEntry(1024, 512, 8, 4, tokens, "run.json", dispatch={"task_tokens": tokens // 100}, combine={"task_tokens": 1 + tokens // 100})
        for tokens in (100, 400, 200)
    ]
    monkeypatch.setattr(halves, "tuned_table", lambda gpu, kind: Table(gpu, tuple(entries), EpEntry))
    first, second = halves.EP_KERNELS
    for tokens, nearest in ((190, 2), (110, 1), (390, 4), (281, 2), (284, 4)):
        assert (first.choose(MOE, H200, tokens).task_tokens, second.choose(MOE, H200, tokens).task_tokens) == (nearest, nearest + 1)


@pytest.mark.parametrize("kind", [DispatchGemmConfig, GemmCombineConfig])
def test_a_backward_launch_has_the_deepest_ring_of_its_own(kind: Any) -> None:
    moe = replace(MOE, recipe="bf16xbf16")
    forward = kind(moe, num_sms=132, cluster=2, num_stages=2)
    assert forward.backward == kind(moe, num_sms=132, transposed=True) and forward.backward.num_stages > 2


def test_sms_that_copy_fetch_nothing() -> None:
    assert [DispatchGemmConfig(MOE, num_sms=132, tail_sms=tail).fetching_sms for tail in (0, 32)] == [132, 100]


def test_tables_are_those_that_a_dispatch_reads() -> None:
    for given in ({"token_saving": False}, {"token_sorting": False}, {}):
        assert RoutingTablesConfig.of(DispatchGemmConfig(MOE, **given)) == RoutingTablesConfig(MOE, **given)
    pairs = replace(MOE, recipe="fp8xfp4")
    assert RoutingTablesConfig.of(DispatchGemmConfig(pairs, 128, 256, arch_name="sm_100a")).arch == SM100


def test_tiles_whose_rows_are_counted_divide_the_blocks_of_scales() -> None:
    pairs: dict[str, Any] = {"num_sms": 148, "arch_name": "sm_100a"}
    assert GemmCombineConfig(replace(MOE, recipe="fp8xfp4"), 192, **pairs).interleaved
    with pytest.raises(ConfigError, match="block_m = 192: must be a divisor of 128"):
        GemmCombineConfig(replace(MOE, recipe="fp8xfp4"), 192, interleaved=False, **pairs)


# --- what was measured
def test_a_measured_point_has_its_grid_and_a_pool_that_is_asked_for() -> None:
    entry = Entry(1024, 512, 8, 4, 100, 2, 512, {"block_m": 32, "lookahead": 2, "num_stages": 3, "cluster": 1}, 1.0, "run.json")
    found = measured(Sm90Config, MOE, entry, 1024)
    assert (found.num_sms, found.pool_rows, found.num_stages) == (100, 1024, 3)
    assert measured(Sm90Config, MOE, replace(entry, choice={**entry.choice, "num_stages": 99})).num_stages < 99


def test_many_rows_of_a_gemm_are_alike_up_to_four_times_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of fewer, those from half as many on."""
    entries = [SimpleNamespace(expected=expected) for expected in (64.0, 128.0, 1024.0, 2048.0)]
    monkeypatch.setattr(gemm_choose, "tuned_table", lambda gpu, kind: SimpleNamespace(by_share={"share": entries}))
    monkeypatch.setattr(gemm_choose.GemmEntry, "share_of", lambda problem, num_sms: "share")
    borders = {31: None, 32: 64, 64: 64, 65: 128, 128: 128, 129: None, 511: None, 512: 1024, 1024: 1024, 1025: 2048, 8192: 2048, 8193: None}
    for rows, nearest in borders.items():
        found = gemm_choose.find_entry(GemmProblem(256, 128), 132, rows, DEFAULT_GPU)
        assert (found and found.expected) == nearest, rows


def test_what_was_measured_of_loaded_rows_says_nothing_of_gathered_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_choose, "find_entry", lambda *given: SimpleNamespace(choice={"block_m": 64, "block_n": 128, "warpgroups": 2}))
    for problem, tile in ((GemmProblem(4096, 7168), 64), (GatherGemmProblem(4096, 7168, num_groups=4), 128)):
        assert gemm_choose.choose(problem, H200, 4096).block_m == tile


@pytest.mark.parametrize(("gpu", "short"), [(DEFAULT_GPU, (129, 448)), ("NVIDIA H100 80GB HBM3", ())])
def test_short_tiles_of_gate_and_up_are_for_some_rows(gpu: str, short: tuple[int, ...]) -> None:
    problem = GatherGemmProblem(2048, 1024, num_groups=8, recipe="bf16xbf16", gate_up="gate_first", output="bf16")
    for rows in (128, 129, 448, 449):
        assert gemm_choose.choose(problem, Target(SM90, 132, gpu), 8 * rows).block_m == (64 if rows in short else 128), rows


# --- a layer on one GPU
def test_many_tokens_have_columns_of_linear2_that_fit_their_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a launch makes are those that the workspace holds and the sum reads; types of a call's tensors reach its launches."""
    layer = ExpertLayer(1024, 256, 8, 2, indices="i32", weights="bf16")
    monkeypatch.setattr(expert_layer, "ROWS_BYTES", 2 * 2 * 100 * 512)
    for tokens, columns in ((50, 1024), (51, 512), (100, 512), (101, 256), (1000, 256)):
        found, rows = layer.configs(Target(SM90, 132), tokens), expert_layer.workspace(layer, tokens)["rows"].field.shape
        part = columns < layer.hidden
        assert (found.fc2.problem.n, found.total.problem.hidden, rows) == (columns, columns, (2 * tokens, columns))
        assert (found.fc2.problem.b_rows, found.total.problem.width) == ((1024, 1024) if part else (0, 0))
        assert (found.route.indices, found.total.problem.weights) == ("i32", "bf16")
    (few,) = layer.kernels(Target(SM90, 132), 3)
    assert (few.indices, few.weights) == ("i32", "bf16")  # type: ignore[union-attr]


def test_a_layer_of_a_few_tokens_is_the_layer() -> None:
    layer = ExpertLayer(256, 128, 8, 2, gate_up="up_first", activation="swigluoai", activation_clamp=3.0, recipe="bf16xbf16")
    assert all(getattr(layer.decode, one.name) == getattr(layer, one.name) for one in fields(DecodeProblem) if hasattr(layer, one.name))


def test_gradients_are_of_the_layer_s_gate_and_up() -> None:
    layer = ExpertLayer(256, 128, 8, 2, gate_up="interleaved", activation="swigluoai", recipe="bf16xbf16")
    rows = layer.backward()[1]
    assert (rows.gradient, rows.activation, rows.n, rows.k) == (layer.gate_up, layer.activation, 128, 256)


def test_an_activation_that_is_not_there_is_named() -> None:
    with pytest.raises(ProblemError, match="activation = 'gelu'"):
        DecodeProblem(256, 128, 8, 2, activation="gelu")


def test_a_few_tokens_are_computed_as_the_layer_says() -> None:
    for given in ({}, {"fast_math": False}, {"weigh_results": True}, {"activation": "situ"}):
        layer = replace(PACKED, **given)
        found = few_configs(layer, Target(SM90, 20))
        assert [(one.max_tokens, one.block_m) for one in found] == [(8, 8), (16, 8)] and {one.num_sms for one in found} == {20}
        own = {one.name for one in fields(DecodeProblem)} & {one.name for one in fields(Problem)}
        assert all(getattr(one.problem, name) == getattr(layer, name) for one in found for name in own)


def test_grids_of_what_goes_over_tokens() -> None:
    """Kernels that wait for memory have four CTAs for each SM."""
    for name, problem, per_sm in (
        ("topk_sum", SumProblem(256, 2), 1),
        ("quantize_both", QuantizeProblem(256), 4),
        ("quantize_weights", QuantizeWeightsProblem(256, 128), 4),
    ):
        config = find_kernel(name).choose(problem, Target(SM90, 20), 128)
        assert (config.num_sms, config.arch) == (20 * per_sm, SM90)


@pytest.mark.parametrize("scale", [float("inf"), float("-inf"), float("nan"), "1"])
def test_a_scale_of_weights_is_a_number(scale: Any) -> None:
    with pytest.raises(ProblemError, match=f"scale = {scale!r}: must be a finite number"):
        TopExpertsProblem(8, 2, scale=scale)


def test_more_rows_than_a_kernel_counts_are_refused_before_a_launch() -> None:
    problem = GatherGemmProblem(256, 128, num_groups=2)
    with pytest.raises(ProblemError, match="m = 2147483648: must be between 0"):
        family_of(problem).parameters(choose(problem, H200, 64), {"m": 1 << 31})


# --- data of a GEMM
def test_a_case_has_factors_where_gate_and_up_lie() -> None:
    gate, up = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    for gate_up, first in (("gate_first", [1.0, 1.0, 3.0, 3.0]), ("up_first", [3.0, 3.0, 1.0, 1.0]), ("interleaved", [1.0, 3.0, 1.0, 3.0])):
        problem: Any = SimpleNamespace(n=4, gate_up=gate_up)
        assert factors_of_columns(problem, gate, up).tolist() == [first, [one + 1 for one in first]]


def test_a_case_has_no_fewer_rows_than_none() -> None:
    for counts, match in (([8, -1], "rows = -1: must be a number of rows, 0 or more"), ([8], r"len\(rows\) = 1: must be num_groups = 2")):
        with pytest.raises(ProblemError, match=match):
            gemm_case(GemmProblem(208, 256, "packed", 2), counts)


@pytest.mark.parametrize("side", ["left", "right"])
def test_sums_over_rows_are_the_two_sides_products_and_what_was_there(side: str) -> None:
    """Of rows behind the last group's nothing may be read: they have sources, and are NaN."""
    counts, problem = (5, 0, 9), VarlenKProblem(256, 128, num_groups=3, recipe="bf16xbf16", gathered=side, output="f32", accumulate=True)
    case = varlen_k_case(problem, counts, 1)
    t, (found, low, high) = case.tensors, case.compared(exact=True)["D"]
    assert t.sources is not None and len(t.sources) == len(t.b) == 17 and t.b[14:].isnan().all() and not t.b[:14].isnan().any()
    sides = t.a[t.sources[:14].long()].float(), t.b[:14].float()
    left, right = (one.split(counts) for one in (sides if side == "left" else sides[::-1]))
    sums = torch.stack([one.T @ other for one, other in zip(left, right, strict=True)])
    assert found is t.d and torch.equal(low, sums + t.d) and torch.equal(high, low) and (t.d == t.d[0, 0, 0]).all() and t.d.any()


@pytest.mark.parametrize(("recipe", "arch"), [("fp8xfp8", SM90), ("mxfp8xmxfp8", SM100)])
def test_scales_behind_the_rows_of_groups_are_nan(recipe: str, arch: Any) -> None:
    problem = VarlenKProblem(256, 128, num_groups=2, recipe=recipe, gathered="", output="f32", accumulate=True)
    case = varlen_k_case(problem, (128, 256), 1, arch=arch)
    for sf in (case.tensors.a_sf, case.tensors.b_sf):
        of_blocks = sf.isnan() if recipe == "fp8xfp8" else sf == -1  # four bytes of UE8M0's NaN
        assert of_blocks.all(dim=1).tolist() == [False, False, False, True] and not of_blocks[:3].any()
    _, low, high = case.compared(exact=True)["D"]
    assert torch.equal(low, high) and low.isfinite().all()


def test_gradients_of_rows_are_compared_closely() -> None:
    problem = GatherGemmProblem(256, 128, num_groups=2, recipe="bf16xbf16", gradient="gate_first", transposed_b=True)
    case = gradient_case(problem, (5, 9), 1)
    found, rows = case.compared(exact=True), case.reference(case.raw())
    assert list(found) == ["dH", "weighted", "dots"]
    room = [(high.float() - low.float()).abs() for _, low, high in found.values()]
    assert (room[0] <= rows.rows.float().abs() / 32).all() and room[0].any() and not room[1].any() and 0 < room[2].max() < 1e-3
    assert torch.equal(found["weighted"][1], rows.weighted) and found["weighted"][0] is case.tensors.weighted
    assert found["dots"][0] is case.tensors.dots and found["dH"][0] is case.tensors.d
    dots = found["dots"][1].sum(dim=0)
    torch.testing.assert_close(dots, rows.topk_weights.flatten()[case.metadata.sources.long()], rtol=1e-4, atol=1e-2)
