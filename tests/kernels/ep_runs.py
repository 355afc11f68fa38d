"""Runs of the expert-parallel kernels for tests: buffers that hold NaN wherever they may, and what crosses between ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from mega_moe_runs import inputs

from megamoe_dsl.cases import Case
from megamoe_dsl.kernel_cases.halves import combined, draw_rows, linear1_rows
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig, GemmCombineConfig
from megamoe_dsl.kernels.moe.halves.layouts.symmetric import pool_rows
from megamoe_dsl.kernels.registry import arch_of_recipe, find_kernel
from megamoe_dsl.problem import Problem
from megamoe_dsl.reference import Accumulate
from megamoe_dsl.runtime.ep.buffers import RowActivations
from megamoe_dsl.runtime.ep.simulated import SimulatedEp
from megamoe_dsl.runtime.watchdog import WatchdogError
from megamoe_dsl.sim import Deadlock, Report, SimError
from ptx_of import artifact

UE8M0_NAN = 0xFF
KEPT = ("launch_epoch", "grid_arrivals", "rank_signal", "tile_counter", "task_counter", "arrivals", "finished")


def problem(tokens: int = 20, **changes: Any) -> Problem:
    """A tiny layer over two ranks for up to `tokens` tokens each; `changes` replace fields."""
    fields = {"hidden": 512, "intermediate": 128, "num_experts": 8, "topk": 3, "num_ranks": 2, "max_tokens_per_rank": tokens}
    return Problem(**{**fields, "recipe": "fp8xfp8", **changes})


def small_config(moe: Problem, **fields: Any) -> DispatchGemmConfig:
    """Dispatch on two SMs with small tiles, of the architecture that has the problem's formats."""
    arch = arch_of_recipe(find_kernel("dispatch_grouped_gemm"), moe.recipe)
    block_m, block_n = (128, 256) if arch.has_tensor_memory else (64, 64)
    small = {"block_m": block_m, "block_n": block_n, "num_sms": 2, "task_tokens": 2, "arch_name": arch.name}
    return DispatchGemmConfig(moe, **{**small, **fields})


def simulated(config: DispatchGemmConfig, case: Case, combine: dict[str, Any] | None = None, **options: Any) -> SimulatedEp:
    """Ranks with the weights of `case`; combine has the tile and grid of dispatch, but for some fields."""
    same = {name: getattr(config, name) for name in ("block_m", "block_n", "num_sms", "task_tokens", "arch_name")}
    combine_config = GemmCombineConfig(config.problem, **{**same, **(combine or {})})
    return SimulatedEp(artifact(config), artifact(combine_config), case.weights, **options)


def poison(ep: SimulatedEp) -> None:
    """All that is not zero between launches is NaN or out of range."""
    for rank in ep.ranks:
        for placement in rank.region:
            if placement.field.name not in KEPT:
                rank.view(placement.field.name).view(torch.uint8).fill_(0xFF)


class RaceSeen(AssertionError):
    """The race detector has found something."""


def check_report(report: Report) -> None:
    """No finding, and no warning but of the rows of an accumulator that no MMA has made, which nobody stores."""
    if report.findings:
        raise RaceSeen(report.findings[0])
    assert [text for text in report.warnings if "tcgen05.ld of uninitialized TMEM" not in text] == []


class Checked(NamedTuple):
    """Launches that have the reference's bits: rows of dispatch, or tokens of combine, and bytes that copies moved between ranks."""

    count: int
    crossed: int


def check_dispatch(ep: SimulatedEp, case: Case, launches: int = 1, accumulate: Accumulate = torch.float64) -> int:
    """As `checked_dispatch`; how many rows there are."""
    return checked_dispatch(ep, case, launches, accumulate).count


def checked_dispatch(ep: SimulatedEp, case: Case, launches: int = 1, accumulate: Accumulate = torch.float64) -> Checked:
    """Launches whose rows have the reference's bits, without a finding or a warning."""
    poison(ep)
    outs, report = ep.dispatch(inputs(case), launches)
    check_report(report)
    rows, wanted = 0, row_destinations(ep, case)
    for rank, (buffers, out) in enumerate(zip(ep.ranks, outs, strict=True)):
        assert [buffers.view(f"{what}_counter").tolist() for what in ("tile", "task")] == [[0, 0, 0]] * 2
        assert torch.equal(buffers.view("destinations"), wanted[rank])
        for place, expected in zip(buffers.expert_slices(), linear1_rows(case, rank, accumulate), strict=True):
            assert torch.equal(out[place].view(torch.int16), expected.view(torch.int16))
            rows += len(expected)
    return Checked(rows, report.crossed)


def row_destinations(ep: SimulatedEp, case: Case) -> list[torch.Tensor]:
    """What dispatch says of every rank's rows: where the result goes, and -1 of rows that belong to no expert."""
    problem, found = ep.problem, [torch.full((pool_rows(ep.problem),), -1) for _ in ep.ranks]
    for buffers, idx in zip(ep.ranks, case.topk_idx, strict=True):
        rows, results = buffers.view("pair_rows")[: len(idx)].flatten(), buffers.view("results")
        for pair in (rows >= 0).nonzero().flatten().tolist():
            expert = int(idx.flatten()[pair])
            found[expert // problem.experts_per_rank][rows[pair]] = results[pair].data_ptr()
    return found


def row_activations(ep: SimulatedEp, seed: int, exact: bool = True) -> list[RowActivations]:
    """Of every rank, drawn: small integers with scales that are powers of two, or normal numbers; NaN between experts."""
    generator, found = torch.Generator().manual_seed(seed), []
    for buffers in ep.ranks:
        shape = (pool_rows(ep.problem), ep.problem.intermediate)
        form = ep.problem.formats.activations
        one = draw_rows(ep.problem, generator) if exact else RowActivations.of(torch.randn(shape, generator=generator).bfloat16(), form)
        there = torch.zeros(shape[0], dtype=torch.bool)
        for place in buffers.expert_slices():
            there[place] = True
        scales = one.row_scales
        one.values.view(torch.uint8)[~there] = 0xFF
        scales[~there] = float("nan") if scales.dtype == torch.float32 else UE8M0_NAN
        found.append(RowActivations.ordered(one.values, scales))
    return found


def check_combine(
    ep: SimulatedEp, case: Case, acts: list[RowActivations], launches: int = 1, accumulate: Accumulate = torch.float64
) -> int:
    """As `checked_combine`; how many tokens there are."""
    return checked_combine(ep, case, acts, launches, accumulate).count


def checked_combine(
    ep: SimulatedEp, case: Case, acts: list[RowActivations], launches: int = 1, accumulate: Accumulate = torch.float64
) -> Checked:
    """Launches, with the tables of the same case, whose y has the reference's bits, without a finding or a warning."""
    for buffers, destinations in zip(ep.ranks, row_destinations(ep, case), strict=True):
        for name in [one for one in ("results", "kept") if one in buffers.region]:
            buffers.view(name).fill_(float("nan"))
        buffers.view("destinations").copy_(destinations)
    ys, report = ep.combine(acts, [len(idx) for idx in case.topk_idx], launches)
    check_report(report)
    assert all(buffers.view(f"{what}_counter").tolist() == [0, 0, 0] for buffers in ep.ranks for what in ("tile", "task"))
    for y, expected in zip(ys, combined(case, acts, accumulate), strict=True):
        assert torch.equal(y.view(torch.int16), expected.view(torch.int16))
    return Checked(sum(map(len, ys)), report.crossed)


@contextmanager
def only_first_ranks(ep: SimulatedEp, count: int) -> Iterator[None]:
    """The others stay away."""
    run = ep.simulator.run
    with patch.object(ep.simulator, "run", lambda launches: run(launches[:count])):
        yield


def sign_of(check: Callable[[], object]) -> str | None:
    """What shows that a kernel is wrong, as `kind: text`; None when a check passes."""
    try:
        check()
    except WatchdogError as error:
        return f"watchdog: {error}"
    except Deadlock as error:
        return f"deadlock: {error}"
    except SimError as error:
        return f"simulator error: {error}"
    except RaceSeen as error:
        return f"race: {error}"
    except AssertionError as error:
        return f"wrong result: {error}"
    return None
