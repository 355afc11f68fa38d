"""Draws README's figure from records: other projects' times over ours.

python bench/draw_results.py docs/pictures/results.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from megamoe_dsl.pictures.chart import Bar, BarChart, Lane, Picture
from megamoe_dsl.pictures.svg import to_svg
from moe_layers.report import fastest
from result_archive import read_record
from results_table import read

RESULTS = Path(__file__).parent / "results"
FUSED = ("mega_moe_sm90-time-20261129-131904", "mega_moe_sm90-time-20261129-131926")
FP8_PEERS = {"DeepGEMM and its copies": "deep_gemm layer, ", "SGLang's Triton": "sorting, sglang ", "torch, BF16": "torch bf16"}
BF16_PEERS = {"sonic-moe": "sonic-moe", "torch": "torch bf16"}
ONE_GPU = {
    "DeepSeek-V3, moe, FP8, one H200": ("experts-20261123-152621", FP8_PEERS),
    "Qwen3-Next, moe, FP8, one H200": ("experts-20261123-152548", FP8_PEERS),
    "DeepSeek-V3, moe, BF16, one H200": ("experts-20261123-053810", BF16_PEERS),
    "Qwen3-Next, moe, BF16, one H200": ("experts-20261123-053639", BF16_PEERS),
}
TRANSFORMERS = "transformers-20261124-033323"
TOKENS = (64, 1024, 4096)
EXTENT = 5.0
OURS, OTHER = "this project", "another project"


def load(name: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads(read_record(RESULTS, name))["records"]
    return records


def lane(peer: str, tokens: int, ratio: float, group: str) -> Lane:
    return Lane(peer, (Bar(0, ratio, OTHER, f"{ratio:.2f}"),), (str(tokens),), group)


def ours(group: str) -> Lane:
    return Lane("megamoe_dsl", (Bar(0, 1, OURS, "1"),), ("all",), group)


def fused() -> Iterator[Lane]:
    """The fused launch beside DeepGEMM's."""
    for record in read([RESULTS / f"{name}.json" for name in FUSED]):
        point = record["point"]
        group = f"DeepSeek-V4-{point['preset'].capitalize()}, fused, FP8, 2 H200s"
        if point["tokens"] in (8, 512, 8192):
            if point["tokens"] == 8:
                yield ours(group)
            yield lane("DeepGEMM 0.2.5", point["tokens"], record["best"]["ratio"], group)


def one_gpu() -> Iterator[Lane]:
    """`moe` with all of a model's experts on one GPU."""
    for group, (name, peers) in ONE_GPU.items():
        records = {int(record["tokens"]): record["us"] for record in load(name)}
        yield ours(group)
        for peer, prefix in peers.items():
            for tokens in TOKENS:
                us = {key: float(one["median"]) for key, one in records[tokens].items()}
                theirs = fastest(us, prefix)
                assert theirs is not None
                yield lane(peer, tokens, theirs / us["ours, chosen"], group)


def in_transformers() -> Iterator[Lane]:
    """A whole model of transformers: the first token of a prompt."""
    group = "Qwen3-30B-A3B in transformers, first token, BF16, one H200"
    yield ours(group)
    for record in load(TRANSFORMERS):
        if record["what"] == "first token":
            medians = {name: one["median"] for name, one in record["ms"].items()}
            yield lane("grouped_mm", record["tokens"], medians["grouped_mm"] / medians["megamoe"], group)


def picture() -> Picture:
    """All charts."""
    lanes = (*in_transformers(), *one_gpu(), *fused())
    chart = BarChart(lanes, EXTENT, "times as long", ("tokens",))
    return Picture("Other projects' times over ours", "Each bar is a ratio of medians of the same run: longer is slower.", (chart,))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(to_svg(picture()) + "\n")
