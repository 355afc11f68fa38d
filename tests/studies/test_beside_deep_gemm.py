"""The pieces of studies/beside_deep_gemm.py that need neither DeepGEMM's headers nor nvcc; what nvcc prints is stood in for."""

from __future__ import annotations

import stat
import struct
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
import torch
from beside_deep_gemm import DATA, SHAPE, Trial, distance, gemm_trials, passed, trials, unequal
from cuda_headers import CudaHeaders, HeadersError
from deep_gemm_buffer import MAX_RANKS, buffer_offsets, kernel_source, peer_table, template_arguments
from deep_gemm_findings import grouped, place_of
from deep_gemm_gemm import TILES as GEMM_TILES
from deep_gemm_gemm import GemmTile, gemm_arguments, gemm_source, row_scales
from deep_gemm_headers import CUTE, SM100_KERNEL, find_headers
from deep_gemm_sm90 import SM90_KERNEL, DeepGemmSm90
from deep_gemm_sm90_reference import requantize, their_reference
from deep_gemm_sm100 import TILES, DeepGemmSm100
from megamoe_dsl.bench.gemm.case import GemmCase, gemm_case

from megamoe_dsl.blocks.gemm.problem import GemmProblem
from megamoe_dsl.hardware.tensor_map import TensorMap, TensorMapDtype
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.sim.report import Finding

POOL, WORKSPACE = 1920, 4096


def site(folder: Path, newest: bool = True, cute: bool = True) -> Path:
    """A folder that looks like an unpacked wheel."""
    include = folder / "deep_gemm" / "include"
    files = {f"deep_gemm/{SM100_KERNEL}": "kNumSharedExperts" * newest, f"deep_gemm/{SM90_KERNEL}": "kPullEagerPublish" * newest}
    for name, text in {**files, **({CUTE: ""} if cute else {})}.items():
        path = include / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture(params=[True, False], ids=["0.2.5", "0.1.5"])
def headers(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CudaHeaders:
    """Of either release, whose layout program prints POOL, as many rows of scales, and WORKSPACE."""
    found = find_headers(site(tmp_path / "site", newest=request.param), None, tmp_path / "cache")

    def printed(self: CudaHeaders, source: str) -> list[int]:
        return [POOL, WORKSPACE] if "sm90" in source else [POOL, POOL * 16, WORKSPACE]

    monkeypatch.setattr(CudaHeaders, "numbers", printed)
    return found


def test_headers_are_found_or_named(tmp_path: Path) -> None:
    with pytest.raises(HeadersError, match=r"has no deep_gemm/impls"):
        find_headers(tmp_path, None, tmp_path)
    bare = site(tmp_path / "bare", cute=False)
    with pytest.raises(HeadersError, match=r"--cutlass must name a folder"):
        find_headers(bare, tmp_path, tmp_path)
    cutlass = tmp_path / "cutlass"
    (cutlass / CUTE).parent.mkdir(parents=True)
    (cutlass / CUTE).write_text("")
    assert find_headers(bare, cutlass, tmp_path).others == (cutlass,)
    assert find_headers(site(tmp_path / "whole"), None, tmp_path).others == ()


def test_what_nvcc_makes_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that counts its calls, copies its input and refuses the word `wrong`."""
    calls, tools = tmp_path / "calls", tmp_path / "bin"
    tools.mkdir()
    tool = tools / "nvcc"
    tool.write_text(f"""#!/bin/sh
echo "$@" >> {calls}
while [ $# -gt 2 ]; do shift; done
if grep -q wrong "$2"; then echo "source.cu(1): error: it is wrong"; exit 1; fi
cp "$2" "$1" && chmod +x "$1"
""")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    found = find_headers(site(tmp_path / "site"), None, tmp_path / "cache")
    assert [found.ptx("kernel", "sm_100a") for _ in range(2)] == ["kernel"] * 2
    assert len(calls.read_text().splitlines()) == 1 and "-arch=sm_100a" in calls.read_text()
    assert found.numbers("#!/bin/sh\necho 12 7") == [12, 7]
    with pytest.raises(HeadersError, match="it is wrong"):
        found.ptx("wrong", "sm_100a")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HeadersError, match="nvcc is not in PATH"):
        found.ptx("another", "sm_100a")


def test_template_arguments_are_cplusplus() -> None:
    assert template_arguments(3, True, 10.0, inf, "MmaKind::X") == "3, true, 10.0f, cute::numeric_limits<float>::infinity(), MmaKind::X"
    assert "&kernel<1, false>" in kernel_source("a.cuh", "kernel", 1, False) and "<deep_gemm/a.cuh>" in kernel_source("a.cuh", "kernel")


def test_peers_are_distances() -> None:
    table = struct.unpack(f"<q{MAX_RANKS}qII", peer_table([1000, 5000], 1))
    assert table == (5000, -4000, 0, *[0] * (MAX_RANKS - 2), 1, 0) and len(peer_table([1, 2], 0)) == 592


def test_buffers_follow_one_another() -> None:
    problem = replace(SHAPE, num_ranks=2)
    offsets = buffer_offsets(problem, WORKSPACE, POOL, 2 * POOL, more=8)
    assert offsets["x"] == WORKSPACE and offsets["x_sf"] - offsets["x"] == 128 * 512
    assert offsets["fc1_topk_weights"] - offsets["fc1_sf"] == 2 * POOL * 16 and offsets["end"] - offsets["more"] == 8


@pytest.mark.parametrize("block_m", TILES)
def test_sm100_launch(headers: CudaHeaders, block_m: int) -> None:
    """As many arguments as the release's kernel has, tensor maps in its order, the weights' halves where it wants them."""
    case = Trial("sm100", 2, block_m, "random").case
    peer = DeepGemmSm100(headers, case.problem, block_m)
    weights = peer.weights(case, 0)
    arguments = peer.arguments([1 << 20, 2 << 20], 0, 64, 128, 7, weights)
    assert len(arguments) == (27 if peer.newest else 13) and arguments[:2] == (64, 128) and 7 in arguments
    maps = [TensorMap.decode(one) for one in arguments if isinstance(one, bytes) and len(one) == 128][:9]
    kinds = [TensorMapDtype.U8, TensorMapDtype.U32, TensorMapDtype.FP4_UNPACKED, TensorMapDtype.U32]
    assert [one.dtype for one in maps] == [*kinds, TensorMapDtype.U8, *kinds]
    assert maps[2].dims == ((512, 512, 2, 4) if peer.newest else (512, 4096)) and maps[2].address == weights.fc1.data_ptr()
    assert maps[4].box == (64, TILES[block_m][0]) and maps[0].box == (128, block_m // 2)
    assert f", {block_m}, 128, 128, " in peer.source and "10.0f" in peer.source
    sym = torch.zeros(peer.offsets["end"], dtype=torch.uint8)
    peer.prepare(sym)
    assert sym[peer.offsets["domains"] :].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("block_m", [64, 128])
def test_sm90_launch(headers: CudaHeaders, block_m: int) -> None:
    case = Trial("sm90", 2, block_m, "random").case
    peer = DeepGemmSm90(headers, case.problem, block_m)
    weights = peer.weights(case, 1)
    arguments = peer.arguments([1 << 20, 2 << 20], 1, 64, 128, 7, weights)
    assert len(arguments) == 14 and arguments[7] == weights.fc1_sf.data_ptr() and arguments[12] == weights.fc2_sf.data_ptr()
    rows = case.weights[1].fc1.view(torch.uint8)[:, [0, 7, 512, 519, 8]]
    assert torch.equal(weights.fc1.view(torch.uint8)[:, [0, 7, 8, 15, 16]], rows), "8 of gate, 8 of up"
    assert peer.cluster == (2 if block_m == 128 else 1)


def test_shapes_that_scale_rows_do_not_allow(headers: CudaHeaders) -> None:
    with pytest.raises(ProblemError, match="hidden"):
        DeepGemmSm100(headers, replace(SHAPE, hidden=768), 16)


def test_trials_are_what_the_headers_have(headers: CudaHeaders) -> None:
    chosen = list(trials(headers, ["sm100", "sm90"], [], [1, 2]))
    newest = headers.has(SM100_KERNEL, "kNumSharedExperts")
    assert len(chosen) == 2 * len(TILES) + len(DATA) - 1 + (2 * 2 + len(DATA) - 1) * newest
    assert next(trials(headers, ["sm100"], [192], [2])) == Trial("sm100", 2, 192, "random")


def groups_case(kind: str) -> GemmCase:
    counts = (130, 0, 1)
    return gemm_case(GemmProblem(n=480, k=384, kind=kind, num_groups=len(counts)), counts)


@pytest.mark.parametrize("tile", GEMM_TILES, ids=str)
def test_gemm_launch(headers: CudaHeaders, tile: GemmTile) -> None:
    """Arguments in the kernel's order, D's box as wide as its swizzle, all in the SMEM of an SM."""
    case = groups_case("masked")
    scales, counts = row_scales(case), case.tensors.groups
    arguments = gemm_arguments(case, tile, scales, case.tensors.d, counts)
    assert arguments[:5] == (case.tensors.b_sf.data_ptr(), counts.data_ptr() if counts is not None else 0, 132, 480, 384)
    a, b, d, a_sf = (TensorMap.decode(one) for one in arguments[5:] if isinstance(one, bytes))
    assert a.dims == (384, 3 * 132) and b.dims == (384, 3 * 480) and d.dims == (480, 3 * 132) and a_sf.dims == (132, 3 * 3)
    assert a.box == (128, tile.block_m) and b.box == (128, tile.block_n) and a_sf.box == (tile.block_m, 1)
    assert 2 * d.box[0] == d.swizzle and tile.block_n % d.box[0] == 0
    assert tile.dynamic_smem(k_blocks=3) <= 227 << 10
    source = gemm_source(headers, case, tile, 4)
    assert f", {tile.block_m}, {tile.block_n}, 128, " in source and "GemmType::MGroupedMasked" in source and "EpilogueIdentity" in source


def test_row_scales_go_group_by_group() -> None:
    masked, contiguous = groups_case("masked"), groups_case("contiguous")
    assert torch.equal(row_scales(masked)[4, :132], masked.tensors.a_sf[1, :, 1])
    assert torch.equal(row_scales(contiguous)[2], contiguous.tensors.a_sf[:, 2])


def test_gemm_trials_are_what_the_host_code_allows() -> None:
    """Groups of whole blocks of 128 rows want such tiles, pairs of masked groups an even number of blocks of columns."""
    found = set(gemm_trials())
    assert {tile for kind, tile in found if kind == "dense"} == set(GEMM_TILES)
    assert {tile.block_m for kind, tile in found if kind == "contiguous"} == {128}
    assert {tile.block_n for kind, tile in found if kind == "masked" and tile.shared} == {128}


def test_findings_are_grouped() -> None:
    offsets = {"x": 100, "fc1_acts": 200}

    def finding(where: str, line: int) -> Finding:
        return Finding("race", "a", "b", where, line, 9, "k.cuh:1", "l.cuh:2", count=3)

    some = [finding("sym@rank0+250", 1), finding("sym@rank1+201", 2), finding("rank 0 CTA (0,0,0) smem+16", 3)]
    groups = grouped(some, offsets)
    assert [(one["place"], one["pairs"], one["count"]) for one in groups] == [("fc1_acts", 2, 6), ("shared memory", 1, 3)]
    assert place_of("sym@rank0+20", offsets) == "workspace" and place_of("flag stats@rank0+8", offsets) == "stats"


def test_differences_are_counted() -> None:
    one, other = [torch.tensor([1.0, 0.0, float("nan")])], [torch.tensor([1.0, -0.0, float("nan")])]
    assert unequal(one, other) == 1
    assert distance([torch.tensor([3.0, 4.0])], [torch.tensor([3.0, 5.0])]) == pytest.approx(1 / 34**0.5)
    record = {"kernel": "sm100", "block_m": 16, "data": "random", "unequal_to_ours": 0, "from_reference": 1e-5}
    assert passed(record) and not passed({**record, "unequal_to_ours": 1}) and not passed({**record, "from_reference": 1e-3})
    assert not passed({**record, "kernel": "gemm dense"}) and passed({**record, "kernel": "gemm dense", "from_reference": 0.0})
    assert not passed({**record, "data": "exact"}) and passed({**record, "data": "exact", "from_reference": 0.0})
    hopper = {"kernel": "sm90", "block_m": 64, "unequal_to_ours": 9, "from_reference": 0.0}
    assert passed(hopper) and not passed({**hopper, "from_reference": 1e-9}) and passed({**hopper, "block_m": 128, "from_reference": 1e-3})


def test_their_numerics_differ_from_ours() -> None:
    """Scales are quotients, and results stay as near as the quantisation is fine."""
    codes, scales = requantize(torch.full((1, 128), 3.0), "fp8xfp8")
    assert scales.shape == (1, 1) and float(scales) == pytest.approx(3 / 448) and set(codes.float().flatten().tolist()) == {448.0}
    case = Trial("sm90", 1, 64, "random").case
    small = case.sample([torch.arange(5)])
    assert 0.001 < distance(their_reference(small), small.reference("hopper").y) < 0.1
