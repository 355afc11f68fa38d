"""Every SM90 tile of the presets, at 8 ranks and 132 SMs, fits the chip: no spills, registers within budgets, SMEM within capacity."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from golden_figures import has_figures

from chip_fit import compile_fitting
from megamoe_dsl import Target, choose
from megamoe_dsl.arch import REGISTER_FILE, SMEM_BYTES
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.blocks.sm90 import share
from megamoe_dsl.device import ring
from megamoe_dsl.device.mbarrier import arrive
from megamoe_dsl.device.memory import load_shared_f32x2
from megamoe_dsl.inspect.inspection import register_use
from megamoe_dsl.kernels.moe.sm90.config import BLOCK_M, PACKED_BLOCK_M, Sm90Config
from megamoe_dsl.presets import MEASURED, PRESETS
from megamoe_dsl.sass.flow import Flow
from sweep import sample

STAGES = {8: 6, 16: 6, 32: 5, 128: 4}
PACKED_STAGES = {8: 11, 16: 10, 32: 9, 64: 7, 128: 3}
"""Depth of the ring that a tile leaves room for."""
LARGEST_K_LOOP = 300  # instructions


class Pair(tuple[Any, ...]):
    """Two values that know where they came from."""

    address: Any

    @classmethod
    def load(cls, stage: Any, address: Any) -> Pair:
        pair = cls(load_shared_f32x2(address))
        pair.address = address
        return pair


def config_of(name: str, block_m: int) -> Sm90Config:
    return choose(PRESETS[name].problem(8192, recipe="fp8xfp8"), Target.typical("sm_90a", 132), 128, block_m=block_m)


EVERY = [(name, block_m) for name in MEASURED for block_m in BLOCK_M]


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "block_m"), [one for one in EVERY if not has_figures(config_of(*one))])
def test_tile_fits_the_chip(name: str, block_m: int) -> None:
    """Of the others tests/golden/test_golden.py says so."""
    compile_fitting(name, config_of(name, block_m), SMEM_BYTES)


@pytest.mark.parametrize(("name", "block_m"), EVERY)
def test_tile_has_stages(name: str, block_m: int) -> None:
    config = config_of(name, block_m)
    assert config.num_stages == STAGES[block_m]
    assert config.swap_ab == (block_m < 128)


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", PACKED_BLOCK_M[:-1])
def test_tile_of_packed_weights_fits_the_chip(block_m: int) -> None:
    """No spills with A, the next A and two partial sums in registers, and nothing overtaken; rings hold more K blocks than with E4M3."""
    config = choose(PRESETS["pro"].problem(8192, recipe="fp8xmxfp4"), Target.typical("sm_90a", 132), 128, block_m=block_m)
    compile_fitting("pro, packed", config, SMEM_BYTES)
    assert (config.num_stages, config.swap_ab) == (PACKED_STAGES[block_m], True)


@sample("2")
@pytest.mark.parametrize("cluster", [1, 2])
def test_tile_of_decoded_weights_fits_the_chip(cluster: int) -> None:
    """512 threads: nothing is on the stack but what the few threads of dispatch have of 384 experts, once, which no loop touches."""
    config = choose(PRESETS["pro"].problem(8192, recipe="fp8xmxfp4"), Target.typical("sm_90a", 132), 128, block_m=128, cluster=cluster)
    artifact = compile_kernel(config)
    assert (
        config.num_threads == 512
        and config.num_threads * artifact.resources.registers <= REGISTER_FILE
        and config.smem.region.size <= SMEM_BYTES
    )
    assert (config.num_stages, config.swap_ab, artifact.overtaken_loads) == (PACKED_STAGES[128], False, [])
    for use in register_use(config.registers, artifact.listing):
        assert use.used <= use.budget and use.stack_loads <= (20 if use.group in ("dispatch", "loader") else 0)
    k_loops = [loop for loop in Flow(artifact.listing).loops if len(loop.body) < LARGEST_K_LOOP]
    operations = Counter(artifact.listing.instructions[i].operation for loop in k_loops for i in loop.body)
    assert operations["QGMMA"] >= 12 and not operations["LDL"] and not operations["STL"]


@sample("False")
@pytest.mark.parametrize("trace", [False, True])
def test_a_ticket_given_back_without_a_look_at_it_is_overtaken(monkeypatch: pytest.MonkeyPatch, trace: bool) -> None:
    """Every role that reads work_tiles: both loaders, the store warp and math, before their loops and in them."""
    config = config_of("flash", 16).replace(trace=trace)
    assert compile_kernel(config).overtaken_loads == []
    monkeypatch.setattr(ring, "release", lambda barrier, word: arrive(barrier))
    found = compile_kernel(config).overtaken_loads
    assert {(one.load.opcode, one.by.opcode) for one in found} == {("LDS.128", "SYNCS.ARRIVE.TRANS64.A1T0")}
    assert len({one.by.address for one in found}) == 8


@sample("8")
@pytest.mark.parametrize("block_m", [8, 32])
def test_token_scales_read_again_for_the_last_rows_are_overtaken(monkeypatch: pytest.MonkeyPatch, block_m: int) -> None:
    """What the kernel did once: the last block's scales, loaded when its products were there, came back from another K block."""
    promote = share.ColumnShare.promote

    def read_again(me: Any, block: int, sums: Any, partial: Any, token_scales: Any, row_scales: Any) -> Any:
        return promote(me, block, sums, partial, [load_shared_f32x2(one.address) for one in token_scales], row_scales)

    monkeypatch.setattr(share, "load_pair", Pair.load)
    monkeypatch.setattr(share.ColumnShare, "promote", read_again)
    found = compile_kernel(config_of("flash", block_m)).overtaken_loads
    assert found and {one.by.opcode for one in found} == {"SYNCS.ARRIVE.TRANS64.A1T0"}
