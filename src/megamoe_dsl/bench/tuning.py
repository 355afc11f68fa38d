"""Turns records of timed points into entries of a GPU's table of measured configurations (tuned/)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from ..blocks.gemm.config import GemmConfig
from ..blocks.gemm.problem import GemmProblem
from ..blocks.gemm.tile import GROUP_ROWS
from ..config_error import ConfigError
from ..kernels.moe.choose import measured
from ..kernels.moe.config import MegaMoeConfig
from ..kernels.moe.halves.config import HALVES
from ..kernels.moe.halves.family import EP_KERNELS
from ..kernels.moe.sm90.config import NUM_SMS
from ..kernels.registry import choose
from ..recipe import BF16
from ..target import Target
from ..tuned import Entry, EpEntry, GemmEntry, Measured, Table
from .ep import Variant
from .point import Point
from .results import Results, are_of_layers
from .variant import kind_of, read_variant, variant_fields, variant_name

MARGIN = 0.005


@dataclass(frozen=True)
class Verdict:
    """The judgement of a point: its name, the entry for the table or None, and the reason."""

    name: str
    entry: Measured | None
    reason: str


Judge = Callable[[Table[Any], dict[str, Any], str], Verdict]
"""Judges a record, given the table and the name of the record's file."""


@dataclass(frozen=True)
class Tuning:
    """How records of a kernel become entries of `kind`; `fits` recognizes its records."""

    kind: type[Measured]
    judge: Judge
    fits: Callable[[Sequence[dict[str, Any]]], object] = are_of_layers

    def read(self, path: Path) -> Results:
        """Raises `FileError` for other records."""
        return Results.read(path, self.fits)

    def enter(self, table: Table[Any], results: Results) -> tuple[Table[Any], list[Verdict]]:
        """The table of the run's GPU with its winners, and a verdict per record."""
        verdicts = []
        for record in results.records:
            verdicts.append(self.judge(table, record, results.name))
            if (entry := verdicts[-1].entry) is not None:
                table = table.having(entry)
        return table, verdicts


def judge(table: Table[Entry], record: dict[str, Any], results: str) -> Verdict:
    """The winner among the variants whose check passed.  The incumbent (the table's entry for exactly this point, or the heuristics'
    choice) stays unless a variant `beats` it.  Without a time of it, or of anything else, there is no entry."""
    name = record["name"]
    if "variants" not in record or not record["point"]["tokens"]:
        return Verdict(name, None, "nothing was timed, or no tokens")
    point, num_sms = Point(**record["point"]), record.get("num_sms", NUM_SMS)
    problem = point.problem
    if problem.combine != BF16:
        return Verdict(name, None, f"results travel as {problem.combine}: the table is of those that travel as {BF16}")
    present = table.at(Entry.share_of(problem, num_sms=num_sms), problem.expected_tokens_per_expert(point.tokens))
    if present is None:
        incumbent = choose(problem, Target(kind_of(problem.recipe).arch, num_sms), point.tokens, **point.pool)
    else:
        incumbent = measured(kind_of(problem.recipe), problem, present, **point.pool)
    timed = dict(right_variants(record, incumbent))
    if incumbent not in timed:
        return Verdict(name, None, f"{variant_name(incumbent)} was not timed or was wrong")
    if len(timed) < 2:
        return Verdict(name, None, "nothing to choose from")
    better = [config for config, times in timed.items() if beats(times, timed[incumbent])]
    winner = min(better, key=lambda config: median(timed[config]), default=incumbent)
    choice = variant_fields(winner)
    if winner == winner.replace(num_stages=0):
        choice["num_stages"] = 0
    entry = Entry(
        *(problem.hidden, problem.intermediate, problem.experts_per_rank, problem.topk, num_sms, problem.num_ranks, point.tokens),
        choice=choice,
        us=round(median(timed[winner]), 1),
        results=results,
        recipe=problem.recipe,
    )
    reason = "stays" if winner == incumbent else f"beats {variant_name(incumbent)}, {median(timed[incumbent]):.1f} us"
    return Verdict(name, entry, reason)


def right_variants(record: dict[str, Any], like: MegaMoeConfig) -> Iterable[tuple[MegaMoeConfig, dict[str, Any]]]:
    """Configurations of a record whose check passed, with their times; without those that only earlier sources knew."""
    for name, times in record["variants"].items():
        if (times.get("check") or {}).get("passed") is not True:
            continue
        try:
            yield read_variant(name, like.problem, like.num_sms, pool_rows=like.pool_rows), times
        except ConfigError:
            continue


def median(times: dict[str, Any]) -> float:
    return float(times["us"]["median"])


def beats(times: dict[str, Any], others: dict[str, Any]) -> bool:
    """Whether a variant is faster than another by more than noise, back to back and, where timed, as a graph: its median of 7 repeats lies
    below the other's fastest repeat (one case in 29 for equals, before the graph has its say), and `MARGIN` below the other's median."""
    pairs = [(times[kind], others[kind]) for kind in ("us", "graph_us") if times[kind] and others[kind]]
    return all(mine["median"] < min(theirs["low"], (1 - MARGIN) * theirs["median"]) for mine, theirs in pairs)


NOISE = 1.08
"""A winner must be faster than the chosen kernel by this factor: the same kernel differs by 5 % between runs (docs/lab/halves.md)."""
HALVES_SAY = frozenset({"stages_us", "activation_us"})  # Records of the two halves have one of these keys.
DISPATCH = (
    *("cluster=1", "block_wise=off", "block_wise=off cluster=1", "token_saving=off"),
    *("task_tokens=2", "task_tokens=8", "block_n=128"),
)
COMBINE = ("cluster=1", "scatter=off", "task_tokens=2", "task_tokens=8", "block_n=128")
CANDIDATES: Mapping[str, tuple[Variant, ...]] = {
    kernel.name: tuple(Variant(f"{half} {one}") for one in fields)
    for kernel, half, fields in zip(EP_KERNELS, HALVES, (DISPATCH, COMBINE), strict=True)
}
"""Variants to try, by the kernel's name."""


def winner_of(record: Mapping[str, Any], half: str) -> dict[str, Any]:
    """Fields of the fastest kernel of `half` ("dispatch" or "combine") at a point, if they differ from the choice without a table."""
    times = {name: one["median"] for name, one in record["us"].items()}
    chosen, fastest = dict(record.get("tuned", {}).get(half, {})), half
    for name, us in times.items():
        if name.split()[0] == half and us * NOISE < times[half] and us < times[fastest]:
            fastest = name
    return {**chosen, **Variant(fastest).fields}


def ep_entry(record: Mapping[str, Any], results: str) -> EpEntry:
    """The table's entry for a point of the two halves."""
    point = Point(**record["point"])
    problem, (dispatch, combine) = point.problem, (winner_of(record, half) for half in HALVES)
    shape = (problem.hidden, problem.intermediate, problem.experts_per_rank, problem.topk, point.tokens)
    return EpEntry(*shape, results, problem.recipe, dispatch, combine)


def judge_halves(table: Table[EpEntry], record: dict[str, Any], results: str) -> Verdict:
    """The winners of a point that was right."""
    if "us" not in record or record["differing"]:
        return Verdict(record["name"], None, "nothing was timed, or bits differ")
    entry = ep_entry(record, results)
    return Verdict(record["name"], entry, "stays" if table.at(*entry.key) == entry else "measured")


STAYS = 1.01  # An entry stays unless another kernel is faster by this factor.
DERIVED = ("num_sms", "num_stages")  # Fields that entries leave out: the GPU's SMs, and the deepest ring.


def time_of(kernel: dict[str, Any]) -> float:
    """Microseconds in a CUDA graph, without host overhead."""
    return float(kernel["graph_us"]["median"])


def gemm_entry(record: dict[str, Any], kernel: dict[str, Any], results: str) -> GemmEntry:
    """The table's entry for a kernel at a point."""
    problem = GemmProblem(**record["problem"])
    config, default = kernel["config"], {one.name: one.default for one in fields(GemmConfig) if one.default is not MISSING}
    derived = (*DERIVED, "warpgroups") if config["block_m"] > GROUP_ROWS else DERIVED  # where a tile says how many warpgroups
    choice = {name: value for name, value in config.items() if name not in derived and default.get(name) != value}
    rows, us, sms = sum(record["counts"]), round(time_of(kernel), 1), kernel["config"]["num_sms"]
    return GemmEntry(problem.n, problem.k, problem.kind, problem.num_groups, sms, rows, choice, us, results, problem.recipe)


def judge_gemm(table: Table[GemmEntry], record: dict[str, Any], results: str) -> Verdict:
    """The fastest kernel that passed, for points with equal groups and BF16 output."""
    ours = [one for one in record.get("kernels", ()) if one["config"] is not None and one["check"]["passed"]]
    if not ours or len(set(record["counts"])) > 1 or record["problem"]["output"] != "bf16":
        return Verdict(record["name"], None, "no kernel passed, or no table has such points")
    found = gemm_entry(record, min(ours, key=time_of), results)
    before = table.at(*found.key)
    same = [one for one in ours if before is not None and gemm_entry(record, one, results).choice == before.choice]
    if same and time_of(same[0]) <= found.us * STAYS:
        return Verdict(record["name"], gemm_entry(record, same[0], results), "stays")
    return Verdict(record["name"], found, "measured")


LAYERS = Tuning(Entry, judge)
HALVES_ALONE = Tuning(EpEntry, judge_halves, lambda records: any("us" in one and HALVES_SAY & one.keys() for one in records))
GEMMS = Tuning(GemmEntry, judge_gemm, lambda records: [GemmProblem(**one["problem"]) for one in records] or True)
