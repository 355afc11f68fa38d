"""The script that times models of transformers, with a model that a CPU computes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import megamoe_dsl.compat.transformers  # noqa: F401  registers "megamoe"
import transformers_models
from transformers_models import Timed, by_kind
from transformers_shapes import TINY, TINY_GPT_OSS
from transformers_tables import NOTHING, OURS, tables


def test_a_tiny_model_is_compared_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_models, "STEPS", 1)
    with torch.no_grad():
        agreement, *timed = Timed(TINY, turns=1).records("tiny")
    ours = agreement["agreement"][OURS]
    assert 0 < ours["distance"] < 0.01 and 0 < ours["distance_with_its_routing"] < 0.01 and ours["same_experts"] == [1.0]
    assert ours["same_largest"] == 1 and ours["same_tokens"] == transformers_models.GREEDY
    assert [(one["what"], one.get("tokens"), one.get("batch")) for one in timed] == [
        ("first token", 3, None),
        ("first token", 5, None),
        ("decoding", None, 1),
        ("decoding", None, 2),
    ]
    assert all({OURS, "grouped_mm", NOTHING} <= set(one["ms"]) for one in timed)
    medians = {OURS: 2.0, "grouped_mm": 5.0, "batched_mm": 6.0, NOTHING: 1.0}
    record = {**timed[0], "ms": {name: {"median": one} for name, one in medians.items()}, "peak_gib": medians}
    lines = tables({"gpu": "NVIDIA H200", "records": [record]}).splitlines()
    assert "| 3 | 2.00 | 5.00 | 6.00 | 1.00 | **2.50** | **5.00** |" in lines and lines[-1] == "| 3 | 2.00 | 5.00 | 6.00 | 1.00 |"
    step = {"model": "qwen3-30b-a3b", "layers": 48, "what": "decoding, CUDA graph", "batch": 1, "ms": record["ms"]}
    lines = tables({"gpu": "NVIDIA H200", "records": [step]}).splitlines()
    read_ms = 48 * 8 * 3 * 2048 * 768 * 2 / 4.35e12 * 1e3
    assert lines[-1] == f"| 1 | 2.00 | 5.00 | 6.00 | 1.00 | {1 + read_ms:.2f} | **2.50** | **{5 / (1 + read_ms):.2f}** |"
    times = by_kind([("kernel_cutlass_gemm_kernel_0", 0.5), ("pytorch_flash::flash_fwd", 0.25), ("nvjet_tst_64x8", 0.125), ("add", 0.0625)])
    lines = tables({"gpu": "NVIDIA H200", "records": [{**step, "gpu_ms": times}]}).splitlines()
    assert lines[-3:] == [
        "| batch | experts | attention | GEMMs | others | GPU idle |",
        "| --- | --- | --- | --- | --- | --- |",
        "| 1 | 0.50 | 0.25 | 0.12 | 0.06 | 1.06 |",
    ]


def test_a_step_reads_a_static_cache_of_each_kind_of_attention() -> None:
    """As a CUDA graph records it."""
    timed = Timed(TINY_GPT_OSS)
    timed.use(OURS)
    with torch.no_grad():
        cache = timed.static_cache(2)
        place = torch.full((2, 1), timed.model.cached)
        found = timed.module(timed.tokens(2, 1), past_key_values=cache, position_ids=place, attention_mask=timed.mask(2), use_cache=True)
    assert found.logits.shape == (2, 1, 64) and found.logits.isfinite().all()
    assert {kind: one.shape[-1] for kind, one in timed.mask(2).items()} == {"sliding_attention": 16, "full_attention": 256}


def test_the_page_has_the_tables_of_its_record() -> None:
    root = Path(__file__).parents[1]
    page = (root / "docs" / "lab" / "transformers.md").read_text()
    files = sorted((root / "bench" / "results").glob("transformers-*.json"))
    assert all(one.stem in page for one in files) and tables(*(json.loads(one.read_text()) for one in files)) in page
