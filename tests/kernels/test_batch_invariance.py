"""A token's y depends on nothing but its inputs and the weights (docs/explanation/batch_invariance.md), in the simulator.

Sums cancel (`fuzzing.trial`), so that y is made of roundings: additions in another order give other bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from ep_runs import small_config
from mega_moe_runs import inputs

from fuzzing.trial import CANCELLING, FuzzedCall, case_of, repeated
from megamoe_dsl import Target, choose, gemm
from megamoe_dsl.blocks.gemm.choose import DECODED, NARROW, TILES, WIDE
from megamoe_dsl.blocks.gemm.config import GemmConfig
from megamoe_dsl.blocks.gemm.problem import GemmProblem
from megamoe_dsl.blocks.gemm.sm100.config import Sm100GemmConfig
from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.kernel_cases.gemm import gemm_case
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.kernels.moe.halves.config import GemmCombineConfig
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.kernels.moe.unfused.family import STAGES, stage_configs
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import no_scales, quantize_e4m3_f32, quantize_weight_e4m3
from megamoe_dsl.runtime import device_gemm
from megamoe_dsl.runtime import gemm as gemm_module
from megamoe_dsl.runtime.ep.simulated import SimulatedEp
from megamoe_dsl.runtime.expert_call import ExpertCall, LayerOperands
from megamoe_dsl.runtime.gemm import gemm_op
from megamoe_dsl.runtime.simulated import SimulatedMoE, simulate_gemm
from megamoe_dsl.tuned import DEFAULT_GPU, GemmEntry, tuned_table
from ptx_of import artifact
from sampled import sampled
from simulated_experts import simulate_experts
from simulated_tables import both_halves
from sweep import sample

KINDS: dict[str, type[MegaMoeConfig]] = {str(kind.arch): kind for kind in (Sm90Config, Sm100Config)}
LAYERS = [(arch, recipe) for arch, kind in KINDS.items() for recipe in kind.recipes]
TOKENS = 6
ALONE, SOME = [4], [5, 0, 4]
"""Tokens of a batch of one, and of one of three in another order."""


def problem_of(recipe: str, **fields: Any) -> Problem:
    """Four K blocks a linear, two of which take away the others."""
    return Problem(512, 512, 4, 2, max_tokens_per_rank=TOKENS, recipe=recipe, **fields)


@lru_cache
def whole_case(problem: Problem) -> Case:
    """All tokens, on the last rank."""
    return case_of(problem, FuzzedCall((*[0] * (problem.num_ranks - 1), TOKENS), values=CANCELLING))


def bits(y: torch.Tensor) -> list[list[int]]:
    return y.view(torch.int16 if y.dtype == torch.bfloat16 else torch.int32).tolist()


def y_of(config: MegaMoeConfig, case: Case, tokens: Sequence[int] | None = None, *, fused: bool = True) -> list[list[int]]:
    """Bits of y of these tokens of the last rank, by a launch of them alone."""
    if tokens is not None:
        case = sampled(case, [torch.arange(0)] * (case.problem.num_ranks - 1) + [torch.tensor(tokens)])
    moe = SimulatedMoE([artifact(one) for one in ([config] if fused else stage_configs(config))], case.weights, race=False)
    return bits(moe(inputs(case))[0][-1])


@lru_cache
def wanted(arch: str, recipe: str) -> list[list[int]]:
    """Of all tokens at once, in the recipe's smallest tile."""
    problem = problem_of(recipe)
    return y_of(choose(problem, Target.typical(arch, 4), TOKENS, block_m=KINDS[arch].tiles_of(problem)[0]), whole_case(problem))


def tiers(arch: str, recipe: str) -> list[tuple[int, int]]:
    """Tiles, and sizes of clusters, of a recipe."""
    problem = problem_of(recipe)
    chosen = [choose(problem, Target.typical(arch, 4), TOKENS, block_m=tile) for tile in KINDS[arch].tiles_of(problem)]
    return sorted({(one.block_m, one.cluster) for config in chosen for one in config.siblings})


CASES = [(*layer, *tier) for layer in LAYERS for tier in tiers(*layer)]


@sample("sm_90a-fp8xfp8-128-1")
@pytest.mark.parametrize(("arch", "recipe", "tile", "cluster"), CASES, ids=["-".join(map(str, one)) for one in CASES])
def test_every_tile_and_batch_gives_a_token_the_same_bits(arch: str, recipe: str, tile: int, cluster: int) -> None:
    problem = problem_of(recipe)
    config = choose(problem, Target.typical(arch, 4), TOKENS, block_m=tile)
    config = next(one for one in config.siblings if one.cluster == cluster)
    for tokens in (ALONE, SOME):
        assert y_of(config, whole_case(problem), tokens) == [wanted(arch, recipe)[token] for token in tokens]


@pytest.mark.sweep
@pytest.mark.parametrize(("arch", "recipe"), LAYERS)
def test_so_do_more_ranks(arch: str, recipe: str) -> None:
    """The same experts on two ranks, the tokens on the second."""
    problem, case = problem_of(recipe), whole_case(problem_of(recipe))
    two = replace(problem, num_ranks=2)
    (weights,) = case.weights
    halves = [weights.map(lambda tensor, part=part: tensor.chunk(2)[part].contiguous()) for part in range(2)]
    apart = replace(whole_case(two), problem=two, weights=halves)
    fields = {name: [getattr(apart, name)[0], getattr(case, name)[0]] for name in ("x", "x_sf", "topk_idx", "topk_weights")}
    assert y_of(choose(two, Target.typical(arch, 4), TOKENS), with_inputs(apart, fields)) == wanted(arch, recipe)


def with_inputs(case: Case, fields: dict[str, list[torch.Tensor]]) -> Case:
    """The same case with other inputs of every rank."""
    for name, values in fields.items():
        getattr(case, name)[:] = values
    return case


@pytest.mark.sweep
@pytest.mark.parametrize(("arch", "recipe"), [(arch, one) for arch, names in STAGES[0].recipes.items() for one in names])
def test_so_does_the_unfused_layer(arch: str, recipe: str) -> None:
    problem = problem_of(recipe)
    assert y_of(choose(problem, Target.typical(arch, 4), TOKENS), whole_case(problem), fused=False) == wanted(arch, recipe)


@pytest.mark.sweep
def test_so_does_a_ring() -> None:
    problem = problem_of("fp8xfp8")
    config = choose(problem, Target.typical("sm_90a", 4), TOKENS, block_m=128, pool_rows=128)
    assert config.ring_blocks and y_of(config, whole_case(problem)) == wanted("sm_90a", "fp8xfp8")


def expert_call(recipe: str, x: torch.Tensor) -> ExpertCall:
    """The layer on one GPU on BF16 tokens, with the weights of `problem_of`; BF16 weights are normal ones."""
    layer = ExpertLayer(512, 512, 4, 2, recipe=recipe)
    case = whole_case(problem_of("fp8xfp8"))
    if recipe == "fp8xfp8":
        (w,) = case.weights
        weights = LayerOperands(w.fc1, w.fc1_sf, w.fc2, w.fc2_sf)
    else:
        w1, w2 = (one.bfloat16() for one in torch.randn(2, 4, 1024, 512, generator=torch.Generator().manual_seed(0)) / 16)
        w2 = w2[:, :512].contiguous()
        weights = LayerOperands(w1, no_scales(w1), w2, no_scales(w2))
    return ExpertCall(layer, x, case.topk_idx[0], case.topk_weights[0], weights)


def y_of_call(call: ExpertCall, tokens: Sequence[int], expected: int) -> list[list[int]]:
    """Bits of y of these tokens, by the kernels that are chosen for `expected` tokens."""
    own = replace(call, x=call.x[tokens], topk_idx=call.topk_idx[tokens], topk_weights=call.topk_weights[tokens])
    artifacts = [artifact(config) for config in call.layer.configs(Target.typical("sm_90a", 3), expected)]
    return bits(simulate_experts(artifacts, own, race=False)[0])


@pytest.mark.sweep
@pytest.mark.parametrize("recipe", ["fp8xfp8", "bf16xbf16"])
@pytest.mark.parametrize("expected", [1, 30, 100, 200, 400, 2000])
def test_so_does_the_layer_of_four_launches(recipe: str, expected: int) -> None:
    x = torch.randn(TOKENS, 512, generator=torch.Generator().manual_seed(1)).bfloat16()
    call = expert_call(recipe, repeated(x, 1))
    assert y_of_call(call, SOME, expected) == [y_of_call(call, range(TOKENS), TOKENS)[token] for token in SOME]


@pytest.mark.sweep
def test_the_layer_of_four_launches_has_the_bits_of_the_fused_one() -> None:
    """Where that weighs results, as the four launches do."""
    x = repeated(torch.randn(TOKENS, 512, generator=torch.Generator().manual_seed(1)).bfloat16(), 1)
    problem = problem_of("fp8xfp8", weigh_results=True)
    codes, scales = quantize_e4m3_f32(x.float())
    case = with_inputs(case_of(problem, FuzzedCall((TOKENS,), values=CANCELLING)), {"x": [codes], "x_sf": [scales]})
    assert y_of(choose(problem, Target.typical("sm_90a", 4), TOKENS), case) == y_of_call(expert_call("fp8xfp8", x), range(TOKENS), TOKENS)


@pytest.mark.sweep
@pytest.mark.parametrize("recipe", ["fp8xfp8", "bf16xbf16", "fp8xfp4"])
def test_so_do_the_halves(recipe: str) -> None:
    """Every tile of dispatch and combine, with an activation that takes each row alone."""
    problem = problem_of(recipe)
    normal = recipe == "bf16xbf16"
    case = random_case(problem, [TOKENS], 0, exact=False) if normal else case_of(problem, FuzzedCall((TOKENS,), values=CANCELLING))
    small, found = small_config(problem), []
    for block_m in (one for one in small.part.allowed["block_m"] if one <= 128):
        dispatch = small.replace(block_m=block_m, num_stages=0, block_wise=small.block_wise and block_m == 128)
        same = {name: getattr(dispatch, name) for name in ("block_m", "block_n", "num_sms", "task_tokens", "arch_name")}
        ep = SimulatedEp(artifact(dispatch), artifact(GemmCombineConfig(problem, **same)), case.weights, race=False)
        for tokens in (range(TOKENS), SOME):
            own = sampled(case, [torch.tensor(list(tokens))])
            y, _ = both_halves(ep, inputs(own), lambda rows: rows.nan_to_num()[:, : problem.intermediate] * 0.5)
            found.append(dict(zip(tokens, bits(y[0]), strict=True)))
    assert all(one[token] == found[0][token] for one in found for token in one)


# --- GEMMs
GEMM_TILES = {
    "fp8xfp8": [*NARROW, *WIDE, {"block_m": 8, "block_n": 128, "swap_ab": True, "k_in_flight": 2}],
    "fp8xmxfp4": [*({"block_m": 24, **one} for one in TILES if not one.get("split_k")), *DECODED],
}
SPLIT = {"block_m": 64, "block_n": 64, "warpgroups": 1, "cluster": 2, "k_in_flight": 4, "split_k": True}


def d_of(recipe: str, tile: dict[str, Any], rows: int) -> list[list[int]]:
    """Bits of the first rows of D, FP32, in a batch of so many; the second half of K takes away the first."""
    problem = GemmProblem(128 if recipe == "fp8xfp8" else 256, 512, output="f32", recipe=recipe)
    t = gemm_case(problem, [70], exact=False).tensors
    a, a_sf = repeated(t.a, 1)[:rows].contiguous(), repeated(t.a_sf, 1)[:rows].contiguous()
    if recipe == "fp8xfp8":
        b, b_sf = quantize_weight_e4m3(torch.randn(128, 256, generator=torch.Generator().manual_seed(1)))
        minus = (b.view(torch.uint8) ^ 0x80).view(b.dtype)
        t = replace(t, b=torch.cat([one.view(torch.uint8) for one in (b, minus)], dim=1).view(b.dtype), b_sf=b_sf.repeat(1, 2))
    own = replace(t, a=a, a_sf=a_sf, d=torch.full((rows, problem.n), 7.0))
    simulate_gemm(artifact(GemmConfig(problem, num_sms=4, **tile)), own, race=False)
    return bits(own.d[:2])


def test_the_sum_of_two_halves_of_k_is_another() -> None:
    """So that these tests would notice."""
    assert d_of("fp8xfp8", SPLIT, 3) != d_of("fp8xfp8", {**SPLIT, "split_k": False}, 3)


GEMM_CASES = [(recipe, number) for recipe, tiles in GEMM_TILES.items() for number in range(len(tiles))]


@sample("fp8xfp8-14")
@pytest.mark.parametrize(("recipe", "number"), GEMM_CASES, ids=[f"{recipe}-{number}" for recipe, number in GEMM_CASES])
def test_every_other_tile_of_a_gemm_gives_a_row_the_same_bits(recipe: str, number: int) -> None:
    tile = GEMM_TILES[recipe][number]
    assert d_of(recipe, tile, 5) == d_of(recipe, GEMM_TILES[recipe][0], 70)


@pytest.mark.parametrize("recipe", GemmConfig.recipes)
@pytest.mark.parametrize("kind", ["dense", "packed", "masked"])
def test_a_batch_invariant_choice_never_splits_k(recipe: str, kind: str) -> None:
    shapes = {
        (one.n, one.k, one.num_groups) for one in tuned_table(DEFAULT_GPU, GemmEntry).entries if one.recipe == recipe and one.kind == kind
    }
    for n, k, groups in shapes | {(2048, 7168, 1 if kind == "dense" else 8)}:
        problem = GemmProblem(n, k, kind, groups, recipe=recipe)
        for rows in (1, 3, 8, 16, 31, 64, 65, 128, 300, 1024, 8192, 65536):
            chosen = choose(problem, Target.typical("sm_90a"), rows * groups, batch_invariant=True)
            assert not chosen.split_k


def test_without_that_some_do() -> None:
    for recipe in ("fp8xfp8", "fp8xmxfp4"):
        assert choose(GemmProblem(2112, 7168, recipe=recipe), Target.typical("sm_90a"), 64).split_k
    assert not Sm100GemmConfig.split_k


@pytest.mark.parametrize("wanted", [False, True])
def test_a_batch_invariant_call_has_kernels_of_its_own(wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a launch and as an operator; one after the other, so that no plan serves both."""
    asked: list[bool] = []

    def find(problem: GemmProblem, device: torch.device, rows: int, batch_invariant: bool) -> None:
        asked.append(batch_invariant)
        raise LookupError

    monkeypatch.setattr(gemm_module, "gemm_kernel", find)
    monkeypatch.setattr(gemm_module, "check_current", lambda device: None)
    t = gemm_case(GemmProblem(208, 256), [3]).tensors
    for given in (not wanted, wanted):
        with pytest.raises(LookupError):
            gemm(t.a, t.a_sf, t.b, t.b_sf, batch_invariant=given)
    with pytest.raises(LookupError):
        gemm_op(t.a, t.a_sf, t.b, t.b_sf, None, None, "dense", torch.bfloat16, wanted)
    assert asked == [not wanted, wanted, wanted]


@pytest.mark.parametrize("wanted", [False, True])
def test_kernels_that_are_loaded_are_those_that_were_asked_for(wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each number of rows, and each way of asking for the other first."""
    monkeypatch.setattr(device_gemm, "gpu_target", lambda device: Target.typical("sm_90a"))
    monkeypatch.setattr(device_gemm, "LoadedGemm", lambda config, store, device: config)
    problem, device = GemmProblem(2112, 7168, recipe="fp8xfp8"), torch.device("cuda", 0)
    for one in (device_gemm.gemm_kernel, device_gemm.loaded_gemm):
        one.cache_clear()
    for given in (not wanted, wanted):
        found = [device_gemm.gemm_kernel(problem, device, rows, given) for rows in (1, 16, 64, 128)]
        assert found == [choose(problem, Target.typical("sm_90a"), rows, batch_invariant=given) for rows in (1, 16, 64, 128)]
        assert any(one.split_k for one in found) != given
    for one in (device_gemm.gemm_kernel, device_gemm.loaded_gemm):
        one.cache_clear()


def test_a_batch_invariance_that_is_no_flag_is_named() -> None:
    t = gemm_case(GemmProblem(208, 256), [3]).tensors
    with pytest.raises(ProblemError, match="batch_invariant = 1: must be True or False"):
        gemm(t.a, t.a_sf, t.b, t.b_sf, batch_invariant=1)  # type: ignore[arg-type]
