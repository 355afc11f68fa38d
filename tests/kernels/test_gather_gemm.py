"""The PTX of GEMMs that gather their rows in the simulator: exact on exact data, to the bit on normal data, without a finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from gather_runs import COUNTS, GATHER_BY_NAME, GATHER_RUNS
from megamoe_dsl.arch import SM90
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.blocks.gemm.config import GemmConfig
from megamoe_dsl.blocks.gemm.problem import ROW_BLOCK, SORTED_BLOCKED, GatherGemmProblem
from megamoe_dsl.cli.app import app
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.inspect.inspection import register_use
from megamoe_dsl.kernel_cases.gather import GatherCase, gather_case
from megamoe_dsl.kernel_cases.gemm import Compared
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.runtime.gemm_tensors import GemmTensors
from megamoe_dsl.runtime.simulated import simulate_gemm
from megamoe_dsl.target import Target
from ptx_of import artifact
from sweep import rarely, sample

ACTIVATED = ("up-first-pairs", "gate-first", "gate-first-bursts", "up-first-bursts", "gate-first-long", "up-first", "interleaved")
BF16_ACTIVATED = ("bf16-gate-first-pairs", "bf16-gate-first", "bf16-gate-first-bursts", "bf16-up-first", "bf16-interleaved")
STORED = ("stored-gate_first", "stored-up_first", "stored-interleaved")
TWINS = (
    *("gather-packed-packed", "gather-packed-blocked", "gather-blocked-packed", "gather-swapped-8"),
    *(f"gather-bf16-{one}" for one in ("gathered-packed", "packed-packed", "packed-blocked", "blocked-packed", "blocked-blocked")),
)
TWICE = ("gather-gathered-blocked", "gather-many-experts")
ACTIVATING = GemmConfig(GatherGemmProblem(4096, 7168, num_groups=256, output="e4m3", gate_up="gate_first"), 128, 256, dynamic_schedule=True)
STORING = ACTIVATING.replace(problem=replace(ACTIVATING.problem, preactivations=True))
ACTIVATING_BF16 = ACTIVATING.replace(problem=replace(ACTIVATING.problem, recipe="bf16xbf16", output="bf16", preactivations=True))
WIDE = GemmConfig(GatherGemmProblem(4096, 7168, num_groups=256), 128, 256, dynamic_schedule=True)


PLAIN = [name for name in GATHER_BY_NAME if name not in (*ACTIVATED, *STORED, *BF16_ACTIVATED)]


@sample("gather-bf16-swapped", "gather-scale-by-scale", "gather-swapped-bursts", "gather-many-experts")
@pytest.mark.parametrize("name", [rarely(name) if name in TWINS else name for name in PLAIN])
def test_every_row_is_exact(name: str) -> None:
    """Rows of no expert stay as they were; a second launch finds the counter of tiles as the first did."""
    run = GATHER_BY_NAME[name]
    case = run.case(exact=True)
    ((d, expected, _),) = case.compared(exact=True).values()
    report = simulate_gemm(artifact(run.config), case.tensors, launches=1 + (name in TWICE))
    assert not report.findings
    assert torch.equal(d, expected)


@pytest.mark.parametrize("name", [rarely("gather-rows-64-ahead"), "gather-swapped-24", "gather-bf16-gathered-blocked"])
def test_rounding_is_the_tensor_cores(name: str) -> None:
    run = GATHER_BY_NAME[name]
    case = run.case(exact=False)
    ((d, expected, _),) = case.compared(exact=False).values()
    assert not simulate_gemm(artifact(run.config), case.tensors, seed=1).findings
    assert torch.equal(d, expected)


@sample("up-first", "stored-interleaved")
@pytest.mark.parametrize("name", [*ACTIVATED, *STORED])
def test_gate_and_up_are_activated_and_quantized(name: str) -> None:
    """And stored, where they are asked for."""
    run = GATHER_BY_NAME[name]
    case = run.case(exact=False)
    compared = case.compared(exact=False)
    assert not simulate_gemm(artifact(run.config), case.tensors).findings
    assert list(compared) == ["D", "scales of D", *(["gate and up"] if name in STORED else [])]
    assert all(torch.equal(written, expected) for written, expected, _ in compared.values())


@sample("bf16-up-first")
@pytest.mark.parametrize("name", BF16_ACTIVATED)
def test_gate_and_up_stay_bf16(name: str) -> None:
    """And are stored, where they are asked for."""
    run = GATHER_BY_NAME[name]
    case = run.case(exact=False)
    compared = case.compared(exact=False)
    assert not simulate_gemm(artifact(run.config), case.tensors).findings
    assert all(((low <= written) & (written <= high)).all() for written, low, high in compared.values())


def test_rows_that_are_not_there_are_those_that_are() -> None:
    """A list with numbers of no token reads none beyond the tokens; ends beyond the list are cut off."""
    run = GATHER_BY_NAME["gather-rows-64-ahead"]
    case = run.case(exact=True)
    t = case.tensors
    assert t.sources is not None
    t.sources[:3] = torch.tensor([-5, len(t.a), 1 << 30], dtype=torch.int32)
    clamped = t.sources.clamp(0, len(t.a) - 1).long()
    own = replace(case.packed.tensors, a=t.a.view(torch.uint8)[clamped].view(t.a.dtype), a_sf=t.a_sf[clamped])
    expected = replace(case.packed, tensors=own).reference()
    assert t.groups is not None
    t.groups[-1] += 100
    assert not simulate_gemm(artifact(run.config), t).findings
    assert torch.equal(t.d, expected)


@pytest.mark.parametrize("name", [rarely("gather-rows-64-ahead"), "gather-blocked-blocked"])
def test_rows_that_d_has_not_are_cut_off(name: str) -> None:
    run = GATHER_BY_NAME[name]
    case = run.case(exact=True)
    few = ROW_BLOCK if run.config.problem.result == SORTED_BLOCKED else 20
    assert 0 < few < len(case.tensors.d)
    t = replace(case.tensors, d=case.tensors.d[:few].clone())
    assert not simulate_gemm(artifact(run.config), t).findings
    assert torch.equal(t.d, case.compared(exact=True)["D"][1][:few])


@sample("config1")
@pytest.mark.parametrize(
    "config",
    [
        WIDE,
        ACTIVATING,
        STORING,
        ACTIVATING_BF16,
        GATHER_BY_NAME["gather-rows-64-ahead"].config,
        GATHER_BY_NAME["gather-blocked-blocked"].config,
    ],
)
def test_registers_are_enough(config: GemmConfig) -> None:
    """Nothing on the stack, every role within its budget, and no load that what gives its bytes away does not wait for."""
    compiled = compile_kernel(config)
    assert compiled.resources.stack_bytes == 0
    uses = register_use(config.registers, compiled.listing)
    groups = {"loader", "math", *(("gather",) if config.problem.gathers else ())}
    assert {one.group for one in uses} == groups and all(one.fits for one in uses)
    assert compiled.overtaken_loads == []
    assert compiled.dynamic_smem <= SM90.smem_bytes


@pytest.mark.parametrize("experts", [1, 128, 256, 512, 1024])
def test_a_configuration_for_any_number_of_experts(experts: int) -> None:
    kernel = find_kernel("gather_gemm")
    for rows in (1, 512, 65536):
        for source in ("gathered", "packed"):
            config = kernel.choose(GatherGemmProblem(1024, 2048, num_groups=experts, source=source), Target.typical("sm_90a"), rows)
            assert config.num_stages >= 3
            assert kernel.dynamic_smem(config) <= SM90.smem_bytes


def test_bad_problems_and_configurations_are_refused() -> None:
    problem = GatherGemmProblem(256, 256, num_groups=2)
    with pytest.raises(ProblemError, match="source = 'sorted': must be one of gathered, packed, blocked"):
        GatherGemmProblem(256, 256, source="sorted")
    with pytest.raises(ProblemError, match="result = 'gathered': must be one of packed, blocked"):
        GatherGemmProblem(256, 256, result="gathered")
    with pytest.raises(ProblemError, match="kind = 'masked': must be packed"):
        GatherGemmProblem(256, 256, kind="masked")
    with pytest.raises(ProblemError, match="output = 'f32': must be one of bf16, e4m3"):
        GatherGemmProblem(256, 256, output="f32")
    with pytest.raises(ProblemError, match="num_groups = 1025: must be at most 1024"):
        GatherGemmProblem(256, 256, num_groups=1025)
    with pytest.raises(ConfigError, match="cluster = 2: must be 1"):
        GemmConfig(replace(problem, source="packed"), 128, 128, cluster=2)
    with pytest.raises(ConfigError, match="block_m = 192: must be at most 128 where rows are gathered"):
        GemmConfig(problem, 192, 128)
    with pytest.raises(ProblemError, match="output = 'bf16': must be e4m3 of gate and up"):
        GatherGemmProblem(256, 256, gate_up="gate_first")
    with pytest.raises(ProblemError, match="n = 384: must be a multiple of 256: gate and up of whole blocks"):
        GatherGemmProblem(384, 256, gate_up="gate_first", output="e4m3")
    with pytest.raises(ProblemError, match="gate_up = 'both': must be one of gate_first, up_first, interleaved, or empty"):
        GatherGemmProblem(256, 256, gate_up="both", output="e4m3")
    with pytest.raises(ProblemError, match="preactivations = True: must be True or False, and False without gate_up"):
        GatherGemmProblem(256, 256, preactivations=True)
    gate_up = GatherGemmProblem(256, 256, gate_up="interleaved", output="e4m3")
    with pytest.raises(ConfigError, match="block_n = 128: must be 256 for gate and up"):
        GemmConfig(gate_up, 128, 128)
    with pytest.raises(ConfigError, match="block_m = 64: must be 64 for each warpgroup"):
        GemmConfig(gate_up, 64, 256)
    assert GemmConfig(replace(problem, source="packed"), 192, 128).rows.warps == 1


def tensors(**changes: torch.Tensor | None) -> GemmTensors:
    return replace(gather_case(GatherGemmProblem(256, 256, num_groups=4), COUNTS).tensors, **changes)


def test_rows_are_those_that_d_has_too() -> None:
    assert tensors(sources=None, d=torch.zeros(20, 256)).rows == 20
    assert tensors(sources=torch.zeros(9, dtype=torch.int32), d=torch.zeros(5, 256)).rows == 5


def test_the_command_compares_everything_that_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gate and up with an element of the reference changed, codes and scales as they are."""
    right = GatherCase.compared

    def changed(case: GatherCase, **options: Any) -> dict[str, Compared]:
        found = right(case, **options)
        found["gate and up"][1][-1, -1] += 1
        return found

    monkeypatch.setattr(GatherCase, "compared", changed)
    fields = "n=256,k=128,num_groups=2,gate_up=up_first,output=e4m3,preactivations=true"
    command = ["simulate", "--kernel", "gather_gemm", "--fields", fields, "--tokens", "1,2", "--sms", "1"]
    result = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, command)
    assert result.exit_code == 1
    assert [line.split()[-1] for line in result.output.splitlines() if line.startswith(" 1,2 ")] == ["pass", "pass", "mismatches"]
    refused = ["simulate", "--kernel", "gather_gemm", "--arch", "sm_100a", "--recipe", "fp8xfp4", "--random", "--tokens", "1,2"]
    result = CliRunner().invoke(app, [*refused, "--fields", fields.removesuffix(",preactivations=true")])
    assert result.exit_code == 2 and "data = 'normal': must be exact with gate_up of fp8xfp4" in result.output


def test_runs_have_names_of_their_own() -> None:
    assert len(GATHER_BY_NAME) == len(GATHER_RUNS) and {*TWINS, *TWICE} <= set(GATHER_BY_NAME)
