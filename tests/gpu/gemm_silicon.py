"""The GEMM's simulator results, made where the DSL is, for comparison with a GPU's bits."""

from __future__ import annotations

import gzip
import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from gather_runs import GATHER_RUNS, GatherRun
from gemm_runs import RUNS, Run
from megamoe_dsl.artifact.store import ArtifactStore, source_digest
from megamoe_dsl.bench.portable import dump
from megamoe_dsl.kernels.registry import kernel_of
from megamoe_dsl.runtime.gather_tensors import GatherTensors
from megamoe_dsl.runtime.gemm_tensors import GemmTensors

SUFFIX = ".gemm.gz"
ALL_RUNS: tuple[Run | GatherRun, ...] = (*RUNS, *GATHER_RUNS)


def sources(run: Run | GatherRun) -> str:
    """Digest of what a run's kernel is made of."""
    return source_digest(kernel_of(run.config))


def prepare_run(folder: Path, run: Run | GatherRun) -> str:
    """Compiles, simulates on normal data and writes a case; a line about it."""
    from megamoe_dsl.runtime.simulated_gemm import simulate_gemm

    torch.set_num_threads(1)
    store, case = ArtifactStore(folder), run.case(exact=False)
    before = case.tensors.d.clone()
    simulate_gemm(store.get(run.config), case.tensors, race=False)
    record = {"sources": sources(run), "tensors": replace(case.tensors, d=before), **case.tensors.results()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{run.name}{SUFFIX}").write_bytes(gzip.compress(dump(record), 6))
    return f"{run.name}: {case.tensors.d.numel()} elements"


def read(folder: Path, run: Run | GatherRun) -> dict[str, Any]:
    """A case.  Raises LookupError where it was not prepared, or from other sources."""
    path = folder / f"{run.name}{SUFFIX}"
    if not path.exists():
        raise LookupError(f"{folder} has no case {run.name}: run prepare.py where the DSL is")
    record: dict[str, Any] = pickle.loads(gzip.decompress(path.read_bytes()))
    if record["sources"] != sources(run):
        raise LookupError(f"{folder}: {run.name} was prepared from other sources: run prepare.py again")
    return record


def on_gpu(tensors: GemmTensors | GatherTensors) -> GemmTensors | GatherTensors:
    moved = {one.name: getattr(tensors, one.name) for one in fields(tensors)}
    return type(tensors)(**{name: None if tensor is None else tensor.cuda() for name, tensor in moved.items()})


def differing(folder: Path, run: Run | GatherRun) -> int:
    """Elements of D, and of its scales, whose bits on this GPU are not the simulator's."""
    from megamoe_dsl.runtime.device_gemm import LoadedGemm

    record = read(folder, run)
    tensors = on_gpu(record["tensors"])
    tensors.check(run.config.problem)
    if tensors.rows:
        LoadedGemm(run.config, ArtifactStore(folder), tensors.a.device)(tensors)
    torch.cuda.synchronize()
    bits = {torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.uint8, torch.float32: torch.int32}
    pairs = ((found.cpu().view(bits[found.dtype]), record[name].view(bits[found.dtype])) for name, found in tensors.results().items())
    return sum(int((found != expected).sum()) for found, expected in pairs)


__all__ = ["ALL_RUNS", "differing", "prepare_run"]
