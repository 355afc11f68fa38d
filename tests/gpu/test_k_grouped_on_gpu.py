"""The GEMM over rows of groups in E4M3 by public calls on a GPU: the reference's bits, two calls that differ in one thing."""

from __future__ import annotations

import pytest
import torch

from megamoe_dsl import k_grouped_gemm, quantize_both
from megamoe_dsl.quant import quantize_e4m3_f32
from megamoe_dsl.reference.promoted import promoted_matmul

pytestmark = pytest.mark.gpu


def expected_sums(left: torch.Tensor, right: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """Of codes along columns, by the tensor core's rule."""
    sums, first = [], 0
    for count in counts:
        (a, a_sf), (b, b_sf) = (quantize_e4m3_f32(side[first : first + count].T.contiguous()) for side in (left, right))
        sums.append(promoted_matmul(a, a_sf, b, b_sf, "hopper"))
        first += count
    return torch.stack(sums)


def test_calls_that_differ_in_one_thing() -> None:
    torch.manual_seed(0)
    counts, changed = [256, 0, 384, 128], [128, 384, 0, 256]
    left, right = (torch.randn(768, columns, device="cuda", dtype=torch.bfloat16) for columns in (256, 384))
    for ends_of in (counts, changed):
        for rows in (right, right * 3):
            ends = torch.tensor(ends_of, device="cuda").cumsum(0).int()
            a, b = quantize_both(left), quantize_both(rows, rows=False)
            expected = expected_sums(left, rows, ends_of)
            found = k_grouped_gemm(a.codes_t, a.scales_t, b.codes_t, b.scales_t, ends)
            assert torch.equal(found, expected.bfloat16())
            total = torch.ones_like(expected)
            assert k_grouped_gemm(a.codes_t, a.scales_t, b.codes_t, b.scales_t, ends, total) is total
            assert torch.equal(total, expected + 1)


def test_rows_are_gathered_and_a_graph_replays() -> None:
    torch.manual_seed(1)
    x = torch.randn(100, 256, device="cuda", dtype=torch.bfloat16)
    sources = torch.randint(-1, 100, (256,), device="cuda", dtype=torch.int32)
    quantize_both(x, sources)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = quantize_both(x, sources)
    x.copy_(torch.randn_like(x))
    graph.replay()
    rows = torch.where((sources >= 0)[:, None], x[sources.clamp(min=0).long()], 0)
    for one, other in zip(found, (*quantize_e4m3_f32(rows), *quantize_e4m3_f32(rows.T.contiguous())), strict=True):
        assert one is not None and torch.equal(one.float(), (other if one.shape == other.shape else other.T).float())
