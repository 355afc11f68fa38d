"""The GEMM's simulator results, made where the DSL is, for comparison with a GPU's.

On Hopper every bit has to agree, with normal numbers, but of gradients of gate and up, whose sigmoid takes `ex2.approx`.  How a Blackwell
tensor core aligns and cuts products nobody has told: bits have to agree where every sum is exact, and normal numbers have to be within the
reference's ends.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from gather_runs import GATHER_RUNS, GatherRun
from gemm_runs import RUNS, Run
from gradient_runs import GRADIENT_RUNS, VARLEN_K_RUNS, GradientRun, VarlenKRun
from megamoe_dsl.arch import SM90, Arch
from megamoe_dsl.artifact.store import ArtifactStore, source_digest
from megamoe_dsl.kernels.registry import kernel_of
from megamoe_dsl.runtime.gemm_scales import scales_by_column
from megamoe_dsl.runtime.gemm_tensors import GemmTensors
from pair_gemm_runs import PAIR_RUNS
from prepared_record import read_record, write_record

SUFFIX = ".gemm.gz"
BITS = {torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.uint8, torch.float32: torch.int32}
SMALL = ("one-row", "contiguous-64-fp8xfp4", "masked-few-mxf4xmxf4")


@dataclass(frozen=True)
class Check:
    """A case of a GPU: exact numbers or normal ones."""

    run: Run | GatherRun | VarlenKRun
    exact: bool

    @property
    def name(self) -> str:
        """Also of its file."""
        return f"{self.run.name}-{'exact' if self.exact else 'normal'}"

    @property
    def must_be_bits(self) -> bool:
        """Whether D is known to the bit."""
        config = self.run.config
        return self.exact or (config.problem.formats.sums_known and config.arch == SM90 and not isinstance(self.run, GradientRun))


def sources(check: Check) -> str:
    """Digest of what a case's kernel is made of."""
    return source_digest(kernel_of(check.run.config))


def checks(arch: Arch, small: bool = False) -> list[Check]:
    """Of a GPU of this architecture; `small` are those of SM100 that a simulated GPU does in seconds."""
    if arch == SM90:
        return [Check(run, False) for run in (*RUNS, *GATHER_RUNS, *GRADIENT_RUNS, *VARLEN_K_RUNS)]
    return [Check(run, exact) for run in PAIR_RUNS.values() for exact in (True, False) if not small or run.name in SMALL]


def prepare_check(folder: Path, check: Check) -> str:
    """Compiles, simulates and writes a case; a line about it."""
    from megamoe_dsl.runtime.simulated import simulate_gemm

    torch.set_num_threads(1)
    store, case = ArtifactStore(folder), check.run.case(exact=check.exact)
    before = deepcopy(case.tensors)
    ends = None
    if not check.must_be_bits:
        _, *ends = next(iter(case.compared(exact=False).values()))
    simulate_gemm(store.get(check.run.config), case.tensors, race=False)
    record = {"tensors": before, "results": results(case.tensors), "ends": ends}
    write_record(folder / f"{check.name}{SUFFIX}", sources(check), record)
    return f"{check.name}: {case.tensors.d.numel()} elements"


def read(folder: Path, check: Check) -> dict[str, Any]:
    """A case.  Raises LookupError as `read_record`."""
    return read_record(folder / f"{check.name}{SUFFIX}", sources(check))


def on_gpu(tensors: GemmTensors) -> GemmTensors:
    here: dict[str, Any] = {one.name: moved(getattr(tensors, one.name)) for one in fields(tensors)}
    if here.get("d_sf") is not None:
        here["d_sf"] = scales_by_column(here["d_sf"])  # a record has them without the rows between
    return type(tensors)(**here)


def moved(one: Any) -> Any:
    """A tensor, a tuple of them, or None."""
    return type(one)(*map(moved, one)) if isinstance(one, tuple) else None if one is None else one.cuda()


def results(tensors: GemmTensors) -> dict[str, torch.Tensor]:
    """D, and what there is beside it: its scales, gate and up, weighted rows and parts of the gradients of weights."""
    beside = {name: getattr(tensors, name, None) for name in ("d_sf", "preactivations")}
    gradient = getattr(tensors, "gradient", None)
    beside |= {} if gradient is None else {"weighted": gradient.weighted, "dots": gradient.dots}
    return {"d": tensors.d, **{name: tensor.contiguous() for name, tensor in beside.items() if tensor is not None}}


def other_bits(d: torch.Tensor, expected: torch.Tensor) -> int:
    """Elements whose bits differ."""
    return int((d.view(BITS[d.dtype]) != expected.view(BITS[d.dtype])).sum())


def wrong(folder: Path, check: Check) -> tuple[int, int]:
    """Elements of D that this GPU has wrong: other bits than the simulator's, or outside of the ends; and those with other bits."""
    from megamoe_dsl.runtime.device_gemm import LoadedGemm

    record, config = read(folder, check), check.run.config
    tensors = on_gpu(record["tensors"])
    if tensors.rows:
        LoadedGemm(config, ArtifactStore(folder), tensors.d.device)(tensors)
    torch.cuda.synchronize()
    d = tensors.d.cpu()
    others = sum(other_bits(found.cpu(), record["results"][name]) for name, found in results(tensors).items())
    if record["ends"] is None:
        return others, others
    low, high = record["ends"]
    return int((~((low <= d) & (d <= high))).sum()), others


__all__ = ["Check", "checks", "prepare_check", "wrong"]
