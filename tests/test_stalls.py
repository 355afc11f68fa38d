"""Samples of a profiled kernel, laid over the functions of its source (bench/stalls.py)."""

from collections import Counter
from pathlib import Path

import pytest

import stalls
from megamoe_dsl import Target, choose
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.problem import Problem

SOURCE = """"Kernel Name","mega_moe",
"Address","Source","# Samples","stall_barrier","stall_long_sb","stall_barrier (Not Issued)"
"0x10","      LDS R1, [R2]","7","0","7","0"
"0x20","@!P0  BRA 0x10","5","4","1","4"
"0x30","      EXIT","0","0","","0"
"""


def test_pages_are_read(tmp_path: Path) -> None:
    (tmp_path / "source.csv").write_text(SOURCE)
    found = stalls.read_source_page(tmp_path / "source.csv")
    assert [one.text for one in found] == ["LDS R1, [R2]", "@!P0  BRA 0x10", "EXIT"]
    assert [one.reasons for one in found] == [Counter(long_sb=7), Counter(barrier=4, long_sb=1), Counter()]
    assert [stalls.opcode_of(one.text) for one in found] == ["LDS", "BRA", "EXIT"]
    names = list(stalls.METRICS.values())
    units = ["ms" if one.startswith("gpu__time") else "%" for one in names]
    values = ["NVIDIA H200" if one.startswith("device") else "1,001.5" for one in names]
    (tmp_path / "raw.csv").write_text("\n".join(",".join(f'"{one}"' for one in row) for row in (names, units, values)) + "\n")
    raw = stalls.read_raw_page(tmp_path / "raw.csv")
    assert raw["gpu"] == "NVIDIA H200" and raw["us"] == 1001500.0 and raw["dram_busy"] == 1001.5


def test_samples_go_to_functions() -> None:
    """Line info moves an instruction in places; one that has no partner is left out."""
    opcodes = [f"OP{i}" for i in range(40)]
    sampled = [stalls.Sampled(f"{one} R0", Counter(wait=i)) for i, one in enumerate(opcodes)]
    names = ["math.multiply"] * 20 + ["load.load_weights"] * 20
    found = stalls.lay_over(sampled, [*opcodes[:10], "NOP", *opcodes[10:]], ["math.multiply", *names])
    assert found["math.multiply"]["wait"] == sum(range(20)) and found["load.load_weights"]["wait"] == sum(range(20, 40))
    first, second = stalls.table(found)
    assert first.split() == ["load.load_weights", "75.6%", "wait", "75.6%"] and second.startswith("math.multiply")
    with pytest.raises(ValueError, match="shares 50% of its instructions"):
        stalls.lay_over(sampled, opcodes[:20] + ["NOP"] * 20, names)


def test_every_instruction_of_a_role_has_its_function() -> None:
    """Also what waits in a helper: the retries of the K loop's wait lie behind the last EXIT."""
    problem = Problem(512, 256, 4, 2, max_tokens_per_rank=64, recipe="fp8xfp8", activation_clamp=10.0)
    listing = compile_kernel(choose(problem, Target.typical("sm_90a", 4), 64), line_info=True).listing
    names = stalls.functions(listing)
    assert len(names) == len(listing.instructions)
    waits = {name for one, name in zip(listing.instructions, names, strict=True) if one.opcode.startswith("SYNCS.PHASECHK")}
    assert {"load.load_weights", "load.load_tokens", "tile_scheduler.publish_tiles", "load.store_if_fc1"} <= waits
    assert any(name.endswith(".multiply") for name in waits)
    assert names.count(stalls.NOWHERE) < len(names) / 10


def test_a_report_names_its_point() -> None:
    point, report = stalls.report_of("pro:512=profiles/pro_512")
    assert point.name == "pro El48 EP1 M=512" and report == Path("profiles/pro_512")
