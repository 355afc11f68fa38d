"""What a GEMM's configuration refuses and chooses, and how warpgroups share a tile."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemms.points import all_points, find_points
from megamoe_dsl import ConfigError, GemmConfig, GemmProblem, ProblemError
from megamoe_dsl.bench.gemm.point import candidates
from megamoe_dsl.blocks.gemm.choose import burst_of
from megamoe_dsl.blocks.gemm.problem import KINDS
from megamoe_dsl.blocks.gemm.tile import TileShape
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.target import Target
from megamoe_dsl.tuned import DEFAULT_GPU, GemmEntry, tuned_table

H200 = Target.typical("sm_90a")
PROBLEM = GemmProblem(4096, 7168)

BAD_PROBLEMS = {
    "n = 0: must be a positive integer": {"n": 0},
    "n = 24: must be a multiple of 16": {"n": 24},
    "k = 192: must be a multiple of 128": {"k": 192},
    "k = 80: must be a multiple of 32": {"k": 80, "recipe": "bf16xbf16"},
    "kind = 'sorted': must be one of dense, contiguous, packed, aligned, masked": {"kind": "sorted"},
    "num_groups = 2: must be at most 1 for a dense problem": {"num_groups": 2},
    "num_groups = 1025: must be at most 1024 for a packed problem": {"kind": "packed", "num_groups": 1025},
    "output = 'f16': must be one of bf16, f32": {"output": "f16"},
    "accumulate = True: must be False where the output is bf16": {"accumulate": True},
}
BAD_CONFIGS = {
    "block_m = 96: must be one of [64, 128, 192]": {"block_m": 96},
    "block_n = 264: must be a multiple of 8 up to 256": {"block_n": 264},
    "block_n = 224: must be such that a tile needs at most two rows of B's scales": {"block_n": 224},
    "block_n = 96: must be one of [64, 128, 256] with swap_ab": {"swap_ab": True, "block_m": 8, "block_n": 96},
    "block_m = 72: must be a multiple of 8 up to 64 with swap_ab": {"swap_ab": True, "block_m": 72},
    "warpgroups = 1: must be one of [2] for this tile, or 0 for the last of them": {"warpgroups": 1},
    "half_tiles = True: must be False unless block_m is 128": {"block_m": 64, "half_tiles": True},
    "cluster = 3: must be 1 or 2": {"cluster": 3},
    "cluster = 2: must be 1 where block_m or block_n is no multiple of 16: each CTA fetches half of a tile": {"block_n": 56, "cluster": 2},
    "num_sms = 131: must be a positive multiple of 2": {"cluster": 2, "num_sms": 131},
    "k_in_flight = 9: must be between 1 and 8": {"k_in_flight": 9},
    "k_in_flight = 2: must be 1 where a warpgroup multiplies its columns in several parts": {"block_n": 256, "k_in_flight": 2},
    "k_in_flight = 4: must be such that all sums fit 232 registers of a thread: they take 352": {"k_in_flight": 4},
    "num_stages = 99: must be between 2 and 5, or 0 for the deepest": {"num_stages": 99},
    "epilogue_buffers = 3: must be 1 or 2": {"epilogue_buffers": 3},
    "dynamic_schedule = 1: must be True or False": {"dynamic_schedule": 1},
    "split_k = True: must be False but for clusters of two and at most two warpgroups, without swap_ab and halves": {"split_k": True},
    "prefetch_weights = True: must be False but for a packed problem whose B is loaded as it is": {"prefetch_weights": True},
    "group_m = 0: must be positive": {"group_m": 0},
    "burst = 3: must be one of [1, 2, 4]": {"burst": 3},
    "burst = 2: must be 1 in clusters, or where B is decoded": {"cluster": 2, "burst": 2},
    "burst = 4: must be 1, or at most 2: what 1 ahead leave of the stages": {"num_stages": 3, "burst": 4},
    "burst = 2: must be 1, or at most 1: what 2 ahead leave of the stages": {"num_stages": 3, "k_in_flight": 2, "burst": 2},
}

FP4 = GemmProblem(2112, 7168, recipe="fp8xmxfp4")
UNSCALED = GemmProblem(4096, 7168, recipe="bf16xbf16")
BAD_DECODING = {
    "block_m, block_n = (16, 128): must be 128 x 256 or 256 x 128 with fp8xmxfp4 and without swap_ab": {"swap_ab": False},
    "half_tiles = True: must be False unless block_m is 128": {"swap_ab": False, "block_m": 256, "half_tiles": True},
    "k_in_flight = 2: must be 1 with fp8xmxfp4, whose next block is decoded meanwhile": {"block_n": 64, "k_in_flight": 2},
    "cluster = 2: must be 1 with fp8xmxfp4, or 2 that have a half of K each": {"cluster": 2},
    "split_k = True: must be False but for clusters of two and at most two warpgroups, with swap_ab": {"split_k": True},
    "block_n = 96: must be one of [64, 128, 256] with swap_ab": {"block_n": 96},
    "block_m = 72: must be a multiple of 8 up to 64 with swap_ab": {"block_m": 72},
    "burst = 2: must be 1 in clusters, or where B is decoded": {"burst": 2},
}
BAD_UNSCALED = {
    "k_in_flight = 2: must be 1 with bf16xbf16, whose sums stay in the tensor core": {"k_in_flight": 2},
    "num_stages = 5: must be between 2 and 4, or 0 for the deepest": {"block_n": 256, "num_stages": 5},
}


@pytest.mark.parametrize("message", BAD_PROBLEMS)
def test_bad_problems_name_field_value_and_what_is_allowed(message: str) -> None:
    with pytest.raises(ProblemError) as error:
        GemmProblem(**{"n": 4096, "k": 7168, **BAD_PROBLEMS[message]})
    assert str(error.value) == message


@pytest.mark.parametrize("message", BAD_CONFIGS)
def test_bad_configurations_name_field_value_and_what_is_allowed(message: str) -> None:
    with pytest.raises(ConfigError) as error:
        GemmConfig(PROBLEM, **{"block_m": 128, "block_n": 128, **BAD_CONFIGS[message]})
    assert str(error.value) == message


@pytest.mark.parametrize("message", BAD_DECODING)
def test_weights_that_are_decoded_have_tiles_of_their_own(message: str) -> None:
    with pytest.raises(ConfigError) as error:
        GemmConfig(FP4, **{"block_m": 16, "block_n": 128, "swap_ab": True, **BAD_DECODING[message]})
    assert str(error.value) == message


@pytest.mark.parametrize("message", BAD_UNSCALED)
def test_sums_that_stay_in_the_tensor_core_have_no_others_beside_them(message: str) -> None:
    with pytest.raises(ConfigError) as error:
        GemmConfig(UNSCALED, **{"block_m": 128, "block_n": 128, **BAD_UNSCALED[message]})
    assert str(error.value) == message


def test_without_scales_a_stage_has_half_of_the_values_and_any_width_is_one_part() -> None:
    config = GemmConfig(UNSCALED, 128, 256, half_tiles=True)
    assert (UNSCALED.k_block, UNSCALED.k_blocks, replace(UNSCALED, recipe="fp8xfp8").k_blocks) == (64, 112, 56)
    assert [config.tile.chunks(half) for half in (False, True)] == [1, 1] and config.rows.scale_rows(config.tile) == 0
    assert GemmConfig(UNSCALED, 128, 224).tile.splits(False) == (224,)
    for rows in (1, 64, 4096):
        assert find_kernel("gemm").choose(UNSCALED, H200, rows).k_in_flight == 1


def test_formats_of_the_other_architecture_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"problem.recipe = 'fp8xfp4': must be fp8xfp8 or fp8xmxfp4 or bf16xbf16 for sm_90a"):
        find_kernel("gemm").choose(GemmProblem(2112, 7168, recipe="fp8xfp4"), H200, 64)
    with pytest.raises(ConfigError, match=r"problem.recipe = 'fp8xmxfp4': must be fp8xfp4 or .* or nvfp4xnvfp4 or bf16xbf16 for sm_100a"):
        find_kernel("gemm").choose(FP4, Target.typical("sm_100a"), 64)


def test_few_columns_of_d_are_shared_out_over_all_sms() -> None:
    """Of 2112 columns: parts of packed tiles, and half of K for each CTA of a pair; of many, whole tiles."""
    few, many = (find_kernel("gemm").choose(replace(FP4, n=n, k=k), H200, 64) for n, k in ((2112, 7168), (129280, 1536)))
    assert few.split_k and few.block_n == 64 and 2 * few.n_blocks <= 132
    assert many.block_n == 256 and not many.split_k
    assert find_kernel("gemm").choose(FP4, H200, 3).block_m == 8


@pytest.mark.parametrize(("kind", "block_m"), [("dense", 256), ("masked", 256), ("packed", 128), ("contiguous", 128)])
def test_many_rows_share_what_is_decoded(kind: str, block_m: int) -> None:
    """As many as TMA fetches the scales of, and as the blocks of a contiguous problem have."""
    problem = GemmProblem(7168, 4096, kind, 1 if kind == "dense" else 8, recipe="fp8xmxfp4")
    config = find_kernel("gemm").choose(problem, H200, 8 * 4096)
    assert (config.block_m, config.weights.decode_warps, config.num_stages) == (block_m, 4, 3)
    if block_m == 128:
        with pytest.raises(ConfigError, match=r"block_m = 256: must be (a divisor of )?128"):
            config.replace(block_m=256, block_n=128, half_tiles=False)


@pytest.mark.parametrize(("rows", "block_m"), [(128, 32), (256, 64), (384, 64)])
def test_columns_divide_the_blocks_of_a_contiguous_problem(rows: int, block_m: int) -> None:
    """Of six groups, though fewer would do for 21 rows of each, or for 43."""
    problem = GemmProblem(4096, 4096, "contiguous", 6, recipe="fp8xmxfp4")
    assert find_kernel("gemm").choose(problem, Target(H200.arch, 132), rows).block_m == block_m


def test_rows_of_192_do_not_divide_the_blocks_of_a_contiguous_problem() -> None:
    with pytest.raises(ConfigError, match=r"block_m = 192: must be a divisor of 128 for a contiguous problem"):
        GemmConfig(GemmProblem(4096, 7168, "contiguous", 8), 192, 128)


def test_one_block_of_k_is_not_split() -> None:
    with pytest.raises(ConfigError, match=r"split_k = True: must be False where K = 128 is one block of 128"):
        GemmConfig(GemmProblem(4096, 128), 128, 128, cluster=2, split_k=True)


@pytest.mark.parametrize(("rows", "kind"), [(-1, "dense"), (130, "contiguous"), (9, "masked")])
def test_bad_numbers_of_rows_are_refused(rows: int, kind: str) -> None:
    groups = 1 if kind == "dense" else 4
    with pytest.raises(ProblemError, match="m = "):
        find_kernel("gemm").choose(GemmProblem(4096, 7168, kind, groups), H200, rows)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_problem_with_any_rows_has_a_configuration(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    groups = 1 if kind == "dense" else data.draw(st.integers(1, 300))
    recipe = data.draw(st.sampled_from(GemmConfig.recipes))
    problem = GemmProblem(16 * data.draw(st.integers(1, 2048)), 128 * data.draw(st.integers(1, 160)), kind, groups, recipe=recipe)
    rows = data.draw(st.integers(0, 20_000))
    rows -= rows % {"contiguous": 128, "masked": groups}.get(kind, 1)
    gpu = data.draw(st.sampled_from((None, DEFAULT_GPU)))
    config = find_kernel("gemm").choose(problem, Target(H200.arch, 132, gpu), rows)
    assert isinstance(config, GemmConfig) and config.num_stages >= 2


def test_measured_points_have_the_configuration_that_won() -> None:
    entries = tuned_table(DEFAULT_GPU, GemmEntry).entries
    assert len(entries) > 30
    for one in entries:
        problem = GemmProblem(one.n, one.k, one.kind, one.num_groups, recipe=one.recipe)
        chosen = find_kernel("gemm").choose(problem, H200, one.rows)
        assert {name: getattr(chosen, name) for name in one.choice} == dict(one.choice)


def test_a_few_rows_less_than_measured_have_the_same_configuration() -> None:
    kernel = find_kernel("gemm")
    problem = GemmProblem(7168, 2048)
    assert kernel.choose(problem, H200, 120) == kernel.choose(problem, H200, 128)
    assert kernel.choose(problem, H200, 9000) == kernel.choose(problem, H200, 4096)


@pytest.mark.parametrize("kind", ["contiguous", "packed", "masked"])
def test_where_nothing_was_measured_groups_get_what_unequal_ones_bear(kind: str) -> None:
    for rows in (64, 128, 166, 250, 384, 1000):
        chosen = find_kernel("gemm").choose(GemmProblem(4096, 4096, kind, 32), Target(H200.arch, 132), 32 * rows // 128 * 128)
        assert chosen.block_m <= 128 and chosen.dynamic_schedule


def test_points_with_unequal_groups_have_a_chosen_configuration() -> None:
    (point,) = find_points(["contiguous 32xskewed"])
    assert point.placed_rows % 128 == 0 and point.placed_rows > point.rows
    assert find_kernel("gemm").choose(point.problem, H200, point.placed_rows) in candidates(point)


def test_every_point_has_candidates_and_a_name_of_its_own() -> None:
    points = all_points()
    assert len({point.name for point in points}) == len(points) > 30
    assert all(len(candidates(point)) >= 8 for point in points)
    assert [point.name for point in find_points(["64x2112x7168"])] == ["dense 64x2112x7168"]


def scale_rows(first: int, columns: int) -> list[int]:
    return [(first + column) // 128 for column in range(columns)]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from((64, 128, 192)), st.integers(1, 32), st.booleans(), st.integers(0, 500))
def test_rows_of_scales_change_where_code_is_made_for_it(block_m: int, eighths: int, half: bool, n_block: int) -> None:
    """Of every warpgroup of every tile that a configuration takes."""
    fields: dict[str, Any] = {"half_tiles": True} if half and block_m == 128 else {}
    try:
        config = GemmConfig(PROBLEM, block_m, 8 * eighths, **fields)
    except ConfigError:
        return
    tile: TileShape = config.tile
    for group in range(config.warpgroups if tile.shares_rows(half) else 1):
        columns = tile.columns(half)
        first = n_block * tile.n + (group * columns if tile.shares_rows(half) else 0)
        rows = scale_rows(first, columns)
        split = rows.count(rows[0])
        assert split in tile.splits(half)
        assert set(rows) <= {rows[0], rows[0] + 1}
        assert len(set(rows)) <= tile.scale_rows(half)


def test_short_rows_of_many_matrices_are_fetched_block_by_block() -> None:
    """Both operands of a problem with groups and K of 512 bytes; of others L2 fetches two blocks at a time."""
    arguments = SimpleNamespace(a=0, b=0, d=0, a_sf=0, m=64, a_sf_ld=64)
    asked = {
        (groups, k): {one.l2_promotion for one in GemmConfig(problem, 64, 128, warpgroups=1).maps(arguments)[:4]}
        for groups, k, problem in (
            (8, 512, GemmProblem(256, 512, "packed", 8)),
            (8, 1024, GemmProblem(256, 1024, "packed", 8)),
            (1, 512, GemmProblem(256, 512)),
        )
    }
    assert asked == {(8, 512): {128}, (8, 1024): {256}, (1, 512): {256}}


def test_bursts_are_not_promoted() -> None:
    """Rows of B, of which two K blocks are asked for anyway; rows of A are."""
    arguments = SimpleNamespace(a=0, b=0, d=0, a_sf=0, m=64, a_sf_ld=64)
    config = GemmConfig(GemmProblem(256, 1024, "packed", 8), 64, 128, warpgroups=1, burst=2)
    assert [one.l2_promotion for one in config.maps(arguments)[:4]] == [256, 256, 128, 128]


def test_bursts_divide_the_k_blocks() -> None:
    assert [burst_of(GemmProblem(4096, k)) for k in (128, 384, 512)] == [1, 1, 2]
    with pytest.raises(ConfigError, match="burst = 2: must be a divisor of the 3 K blocks"):
        GemmConfig(GemmProblem(4096, 384), 64, 128, burst=2)
