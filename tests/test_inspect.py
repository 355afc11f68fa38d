"""Reading SASS: parsing, loops, measures, differences."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from unconverged import unconverged_loads

from megamoe_dsl import Target, choose
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.blocks.gemm.problem import PACKED, GemmProblem
from megamoe_dsl.inspect import DisassemblyError, Inspection, InspectionError, differences
from megamoe_dsl.inspect.inspection import register_use
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.problem import Problem
from megamoe_dsl.sass import listing as sass_module
from megamoe_dsl.sass.flow import Flow
from megamoe_dsl.sass.listing import find_nvdisasm, highest_named, kind_of, parse
from megamoe_dsl.sass.overtaken_loads import NO_SCOREBOARD, overtaken_loads
from sweep import sample

NESTED = """
.text.kernel:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
	//## File "/p/kernels/moe/mma.py", line 7
.L_x_1:
        /*0010*/                   IADD3 R2, R2, 0x1, RZ ;
.L_x_2:
        /*0020*/                   FADD R3, R3, R4 ;
        /*0030*/              @!P0 BRA `(.L_x_2) ;
        /*0040*/                   BRA.DIV UR4, `(.L_x_9) ;
.L_x_10:
        /*0050*/               @P1 BRA `(.L_x_1) ;
        /*0060*/                   EXIT ;
.L_x_9:
        /*0070*/                   WARPSYNC.COLLECTIVE R10, `(.L_x_11) ;
.L_x_11:
        /*0080*/                   BRA `(.L_x_10) ;
"""


@pytest.fixture(scope="module")
def config() -> Sm100Config:
    return choose(Problem(512, 512, 8, 2, 2, 64), Target.typical("sm_100a", 4), 64, block_m=32)


@pytest.fixture(scope="module")
def artifact(config: Sm100Config) -> Artifact:
    return compile_kernel(config, line_info=True)


@pytest.fixture(scope="module")
def inspection(artifact: Artifact) -> Inspection:
    return Inspection.of(artifact)


def test_parse_gives_predicates_targets_and_lines() -> None:
    code = parse(NESTED).instructions
    assert [one.address for one in code] == list(range(0, 0x90, 0x10))
    assert (code[3].predicate, code[3].opcode, code[3].target) == ("@!P0", "BRA", 0x20)
    assert code[0].source is None
    assert code[1].source == ("/p/kernels/moe/mma.py", 7)


def test_registers_are_those_of_the_code_that_a_budget_is_for() -> None:
    """Calls left out, which are of a trap; who uses the stack does not fit."""
    text = """
        /*0000*/               @P0 BRA `(.L_x_1) ;
        /*0010*/                   USETMAXREG.DEALLOC.CTAPOOL 0x28 ;
        /*0020*/                   FADD R39, R1, R1 ;
        /*0030*/                   CALL.REL.NOINC R254 `(.L_x_2) ;
        /*0040*/                   EXIT ;
.L_x_1:
        /*0050*/                   USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xd8 ;
        /*0060*/                   STL [R1], R100 ;
        /*0070*/                   LDL R7, [R1] ;
        /*0080*/                   EXIT ;
.L_x_2:
        /*0090*/                   BPT.TRAP 0x1 ;
"""
    loader, math = register_use({"loader": 40, "math": 216}, parse(text))
    assert (loader.used, loader.fits, math.used) == (40, True, 101)
    assert (math.stack_loads, math.stack_stores, math.fits) == (1, 1, False)
    assert not any(replace(math, **{one: 0}).fits for one in ("stack_loads", "stack_stores")) and not replace(loader, budget=39).fits
    with pytest.raises(InspectionError, match=r"no USETMAXREG of 48 registers for decode; there are \[40, 216\]"):
        register_use({"decode": 48}, parse(text))


def test_groups_of_one_budget_show_the_worst_of_both() -> None:
    text = """
        /*0000*/               @P0 BRA `(.L_x_1) ;
        /*0010*/                   USETMAXREG.DEALLOC.CTAPOOL 0x28 ;
        /*0020*/                   FADD R39, R1, R1 ;
        /*0030*/                   EXIT ;
.L_x_1:
        /*0040*/                   USETMAXREG.DEALLOC.CTAPOOL 0x28 ;
        /*0050*/                   STL [R1], R7 ;
        /*0060*/                   EXIT ;
"""
    for one in register_use({"loader": 40, "dispatch": 40}, parse(text)):
        assert (one.used, one.stack_stores) == (40, 1)


def test_loops_nest_and_leave_slow_paths_out() -> None:
    loops = Flow(parse(NESTED)).loops
    assert [sorted(loop.body) for loop in loops] == [[2, 3], [1, 2, 3, 4, 5]]
    assert loops[0].body < loops[1].body


def test_reachable_includes_slow_paths() -> None:
    flow = Flow(parse(NESTED))
    assert flow.reachable(0) == frozenset(range(9))


def test_side_of_a_branch() -> None:
    text = """
        /*0000*/               @P0 BRA `(.L_x_1) ;
        /*0010*/                   FADD R1, R1, R1 ;
        /*0020*/                   BRA `(.L_x_2) ;
.L_x_1:
        /*0030*/                   FMUL R1, R1, R1 ;
.L_x_2:
        /*0040*/                   EXIT ;
"""
    flow = Flow(parse(text))
    assert flow.side(1, 3) == {1, 2}
    assert flow.side(3, 1) == {3}


LOADED_AND_GIVEN_BACK = """
        /*0000*/                   LDS.64 R4, [R2] ;
        /*0010*/               @P0 BRA `(.L_x_1) ;
        /*0020*/                   FMUL R6, R4, R5 ;
.L_x_1:
        /*0030*/              @!P1 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR5], RZ ;
        /*0040*/                   FMUL R7, R4, R5 ;
        /*0050*/                   EXIT ;
"""


@pytest.mark.parametrize(
    ("waiting", "overtaken"),
    [
        ((), True),
        ((0x40,), True),  # after the arrival
        ((0x20,), True),  # on one of two ways to it
        ((0x10,), False),
        ((0x30,), False),  # the arrival itself
    ],
)
def test_a_load_is_overtaken_unless_every_way_to_the_arrival_waits(waiting: tuple[int, ...], overtaken: bool) -> None:
    listing = parse(LOADED_AND_GIVEN_BACK)
    words = [(1 if one.operation == "LDS" else NO_SCOREBOARD) << 110 | (one.address in waiting) << 116 + 1 for one in listing.instructions]
    found = overtaken_loads(listing, b"".join(word.to_bytes(16, "little") for word in words))
    assert [(one.load.address, one.by.address) for one in found] == [(0x0, 0x30)] * overtaken


MULTIPLIED_AND_GIVEN_BACK = """
.L_x_1:
        /*0000*/                   QGMMA.64x8x32.F32.E4M3.E4M3 R8, gdesc[UR8], R8 ;
        /*0010*/                   LDS.64 R4, [R2] ;
        /*0020*/               @P0 BRA `(.L_x_2) ;
        /*0030*/                   {} ;
.L_x_2:
        /*0040*/                   {} ;
        /*0050*/              @!P1 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR5], RZ ;
        /*0060*/               @P2 BRA `(.L_x_1) ;
        /*0070*/                   EXIT ;
"""


@pytest.mark.parametrize(
    ("on_one_way", "on_both", "parted"),
    [
        ("NOP", "NOP", True),
        ("WARPGROUP.DEPBAR.LE gsb0, 0x0", "FMUL R6, R4, R5", True),
        ("NOP", "WARPGROUP.DEPBAR.LE gsb0, 0x0", False),
        ("NOP", "QGMMA.64x8x32.F32.E4M3.E4M3 R8, gdesc[UR8], R8", False),
    ],
)
def test_lanes_may_have_parted_unless_every_way_to_the_arrival_has_an_mma(on_one_way: str, on_both: str, parted: bool) -> None:
    found = unconverged_loads(parse(MULTIPLIED_AND_GIVEN_BACK.format(on_one_way, on_both)))
    assert [(one.load.address, one.by.address) for one in found] == [(0x10, 0x50)] * parted


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("UTCQMMA.2CTA", "mma"),
        ("UTCCP.T.S.2CTA.4x32dp128bit", "utccp"),
        ("UTCBAR.2CTA.MULTICAST", "commit"),
        ("UTMALDG.2D.2CTA", "tma"),
        ("UBLKCP.S.G", "tma"),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT", "mbarrier"),
        ("LDTM.16dp256bit.x4", "tmem"),
        ("STSM.16.MT88.4", "smem"),
        ("LDG.E.64.CONSTANT", "gmem"),
        ("STL", "spill"),
        ("FFMA", "float"),
        ("FHADD.BF16", "float"),
        ("F2FP.BF16.F32.PACK_AB", "float"),
        ("MUFU.EX2", "float"),
        ("BRA.U", "control"),
        ("MEMBAR.ALL.GPU", "sync"),
        ("WARPGROUP.ARRIVE", "sync"),
        ("QGMMA.64x64x32.F32.E4M3.E4M3", "mma"),
        ("R2UR", "vector to uniform"),
        ("UIADD3", "integer"),
        ("FLO.U32", "integer"),
        ("IMAD.WIDE.U32", "integer"),
    ],
)
def test_kinds(opcode: str, kind: str) -> None:
    assert kind_of(opcode) == kind


def test_k_blocks_hold_what_the_kernel_issues(inspection: Inspection, config: Sm100Config) -> None:
    found = {one.key: one for one in inspection.measures}
    mma = found["mma_k_block"]
    assert (mma.kinds["mma"], mma.kinds["utccp"], mma.kinds["commit"]) == (4, 1 + config.pair_stage.sfa_atoms, 1)
    for name in ("token_loader_k_block", "weight_loader_k_block"):
        assert found[name].kinds["tma"] == 2
    assert found["token_loader_k_block"].address != found["weight_loader_k_block"].address
    assert found["fc1_epilogue_8_tokens"].kinds["float"] > found["fc2_epilogue_8_tokens"].kinds.get("float", 0)
    assert found["combine_token"].instructions > found["combine_slot"].instructions
    for one in inspection.measures:
        assert one.instructions == pytest.approx(sum(one.kinds.values()))
        assert one.instructions > 0


@pytest.mark.sweep
def test_a_second_chunk_doubles_a_combined_slot() -> None:
    one, two = (
        {
            m.key: m
            for m in compile_kernel(choose(Problem(hidden, 512, 8, 2, 2, 64), Target.typical("sm_100a", 4), 64), line_info=True).measures
        }
        for hidden in (2048, 4096)
    )
    assert two["combine_slot"].kinds["smem"] == 2 * one["combine_slot"].kinds["smem"]


@pytest.mark.parametrize(
    ("instruction", "highest"),
    [
        ("LDG.E.128 R4, desc[UR4][R20.64+0x10]", 21),
        ("STS.128 [R2+UR4], R24", 27),
        ("LDS.64 R6, [R9+0x8]", 9),
        ("IMAD.WIDE R2, R7, 0x8, R4", 7),
        ("IMAD.WIDE.U32 R2, R12, R9, R4", 12),
        ("QGMMA.64x96x32.F32.E4M3.E4M3 R24, gdesc[UR16], R24, UP0", 71),
        ("CS2R R4, SR_CLOCKLO", 5),
        ("LDTM.16dp256bit.x4 R24, tmem[UR4]", 39),
        ("LDTM.32dp32bit.x2 R8, tmem[UR4+0x20]", 9),
        ("FFMA R139, R24, R152.reuse, |R3|", 152),
        ("UMOV UR20, 0x400", -1),
        ("MOV R1, RZ", 1),
    ],
)
def test_registers_named_by_operands(instruction: str, highest: int) -> None:
    assert highest_named(*instruction.split(" ", 1)) == highest


def test_operands_and_nvdisasms_table_name_the_same_registers(artifact: Artifact, tmp_path: Path) -> None:
    """Calls aside: they may touch all. In the table `^` is written, `v` read, `x` both, `:` only live."""
    (tmp_path / "cubin").write_bytes(artifact.cubin)
    printed = subprocess.run(
        [find_nvdisasm(), "-c", "-lrm", "narrow", tmp_path / "cubin"], capture_output=True, text=True, check=True
    ).stdout
    first, highest = -1, dict[int, int]()
    for code, bar, table in (line.partition("// |") for line in printed.splitlines()):
        if bar and first < 0 and "# 0" in table:
            first = table.index("# 0") + 2
        if (match := re.match(r"\s*/\*([0-9a-f]{4,})\*/", code)) and first >= 0:
            column = table.split("|", 1)[0][first:]
            highest[int(match[1], 16)] = max(column.rfind(mark) for mark in "^vx")
    found = [one for one in artifact.listing.instructions if one.operation != "CALL"]
    assert len(found) > 1000
    assert [one for one in found if one.highest != highest.get(one.address, -1)] == []


SM90 = Problem(512, 512, 8, 2, 2, 64, recipe="fp8xfp8")


@sample("bf16xbf16-128")
@pytest.mark.parametrize("block_m", [32, 128])
@pytest.mark.parametrize("recipe", ["fp8xfp8", "bf16xbf16"])
def test_sm90_measures(recipe: str, block_m: int) -> None:
    """In BF16 nobody loads scales, and math warps store the outputs of tiles whose tokens are rows; a tile's
    first K block is multiplied before the loop."""
    config = choose(replace(SM90, recipe=recipe), Target.typical("sm_90a", 4), 64, block_m=block_m)
    inspection = Inspection.of(compile_kernel(config, line_info=True))
    found = {one.key: one for one in inspection.measures}
    assert found["math_k_block"].kinds["mma"] == 8
    assert found["token_loader_k_block"].kinds["tma"] == 1 + config.scaled
    assert found["weight_loader_k_block"].kinds["tma"] == 1
    assert ("store_tile" in found) == (config.scaled or config.swap_ab)
    suffix = "8_tokens" if config.swap_ab else "tile"
    assert found[f"fc1_epilogue_{suffix}"].kinds["float"] > found[f"fc2_epilogue_{suffix}"].kinds["float"]
    assert found["math_tile"].instructions < 400 and ("mma" in found["math_tile"].kinds) == (not config.scaled)
    assert all(one.fits for one in inspection.registers)
    assert inspection.tmem == []
    assert inspection.as_dict()["config"]["block_m"] == block_m


def test_measures_of_decoded_weights() -> None:
    """The usual branch of the decode loop: 64 words of values in 16 stores, 32 entries."""
    config = choose(replace(SM90, recipe="fp8xmxfp4"), Target.typical("sm_90a", 4), 64, block_m=128)
    inspection = Inspection.of(compile_kernel(config, line_info=True))
    found = {one.key: one for one in inspection.measures}
    assert 16 + 8 < found["decode_k_block"].kinds["smem"] < 16 + 20
    assert found["decode_k_block"].instructions < 430
    assert found["math_k_block"].kinds["mma"] == 8 and found["math_k_block_half_tile"].kinds["mma"] == 4
    assert [(one.group, one.budget) for one in inspection.registers][-1] == ("decode", 48)
    assert all(one.used <= one.budget for one in inspection.registers)


def test_measures_of_transposed_weights() -> None:
    """The loader fetches 64 columns of K rows a box: 128 columns a K block are two."""
    problem = GemmProblem(256, 512, PACKED, 2, output="bf16", recipe="bf16xbf16", transposed_b=True)
    config = choose(problem, Target.typical("sm_90a", 4), 128, block_m=128, block_n=128)
    found = {one.key: one for one in Inspection.of(compile_kernel(config, line_info=True)).measures}
    assert found["weight_loader_k_block"].kinds["tma"] == 2
    assert found["token_loader_k_block"].kinds["tma"] == 1


def test_histogram_by_role(artifact: Artifact) -> None:
    assert artifact.histogram("MMA warp")["K block"]["mma"] == 4
    with pytest.raises(KeyError, match="MMA warp"):
        artifact.histogram("nobody")


def test_line_info_changes_no_instruction(config: Sm100Config, artifact: Artifact) -> None:
    plain = compile_kernel(config)
    assert sorted(one.opcode for one in plain.listing.instructions) == sorted(one.opcode for one in artifact.listing.instructions)

    def code(ptx: str) -> list[str]:
        lines = [line.strip() for line in ptx.split(".section")[0].splitlines()]
        return [line for line in lines if line and not line.startswith((".loc", ".file", "//"))]

    assert code(plain.ptx) == code(artifact.ptx)
    with pytest.raises(InspectionError, match="line_info"):
        _ = plain.measures


def test_registers_stay_within_budgets(inspection: Inspection) -> None:
    assert [one.group for one in inspection.registers] == ["dispatch", "loader", "epilogue"]
    assert all(one.fits for one in inspection.registers)


def test_maps_come_from_the_plans(inspection: Inspection, config: Sm100Config) -> None:
    found = inspection.as_dict()
    assert found["smem"]["weights"]["shape"][0] == config.num_stages
    assert sum(one["columns"] for one in found["tmem"].values()) == config.tmem.used
    assert found["barriers"]["full"]["arrivals"] == 4


def test_differences_are_named_by_path() -> None:
    before = {"compile_seconds": 1.0, "measures": {"mma_k_block": {"instructions": 50.0}, "gone": {"instructions": 1.0}}}
    after = {"compile_seconds": 2.0, "measures": {"mma_k_block": {"instructions": 53.0}}}
    changes = differences(before, after)
    assert [(one.path, one.before, one.after) for one in changes] == [
        ("measures.mma_k_block.instructions", 50.0, 53.0),
        ("measures.gone.instructions", 1.0, None),
    ]


def test_nvdisasm_may_be_tritons(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """torch's CUDA builds bring it."""
    tool = tmp_path / "backends" / "nvidia" / "bin" / "nvdisasm"
    tool.parent.mkdir(parents=True)
    tool.touch()
    found = {"triton": SimpleNamespace(submodule_search_locations=[str(tmp_path)])}
    monkeypatch.setattr(sass_module.importlib.util, "find_spec", found.get)
    assert find_nvdisasm() == str(tool)


def test_missing_nvdisasm_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass_module.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(DisassemblyError, match="nvidia-cuda-nvdisasm"):
        find_nvdisasm()
