"""What a timed point says about the table: which configuration belongs there, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..config_error import ConfigError
from ..kernels.moe.config import MegaMoeConfig
from ..kernels.moe.sm90.config import NUM_SMS
from ..recipe import BF16
from ..tuned import Entry, Share, Table
from .point import Point
from .results import Results
from .variant import kind_of, read_variant, variant_fields, variant_name

MARGIN = 0.005


@dataclass(frozen=True)
class Verdict:
    """What a record says of a point: the point's name, the entry for the table or None, and why."""

    name: str
    entry: Entry | None
    reason: str


def tune(table: Table, results: Results) -> tuple[Table, list[Verdict]]:
    """The table of the run's GPU with its winners, and a verdict per record."""
    verdicts = []
    for record in results.records:
        verdicts.append(judge(table, record, results.name))
        if (entry := verdicts[-1].entry) is not None:
            table = table.having(entry)
    return table, verdicts


def judge(table: Table, record: dict[str, Any], results: str) -> Verdict:
    """The winner among the variants whose check passed.  The incumbent, which is the table's entry for this very point or else what the
    heuristics choose, stays unless another beats it; where it was not timed, or nothing beside it, nothing is known."""
    name = record["name"]
    if "variants" not in record or not record["point"]["tokens"]:
        return Verdict(name, None, "nothing was timed, or no tokens")
    point, num_sms = Point(**record["point"]), record.get("num_sms", NUM_SMS)
    problem = point.problem
    if problem.combine != BF16:
        return Verdict(name, None, f"results travel as {problem.combine}: the table is of those that travel as {BF16}")
    share = Share(problem.hidden, problem.intermediate, problem.experts_per_rank, num_sms, problem.recipe)
    present = table.at(share, problem.expected_tokens_per_expert(point.tokens))
    if present is None:
        incumbent = kind_of(problem.recipe).choose(problem, point.tokens, num_sms=num_sms, gpu=None)
    else:
        incumbent = kind_of(problem.recipe).measured(problem, present)
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
            yield read_variant(name, like.problem, like.num_sms), times
        except ConfigError:
            continue


def median(times: dict[str, Any]) -> float:
    return float(times["us"]["median"])


def beats(times: dict[str, Any], others: dict[str, Any]) -> bool:
    """Whether a variant is faster than another by more than noise, back to back and, where timed, as a graph: its median of 7 repeats lies
    below the other's fastest repeat (one case in 29 for equals, before the graph has its say), and `MARGIN` below the other's median."""
    pairs = [(times[kind], others[kind]) for kind in ("us", "graph_us") if times[kind] and others[kind]]
    return all(mine["median"] < min(theirs["low"], (1 - MARGIN) * theirs["median"]) for mine, theirs in pairs)
