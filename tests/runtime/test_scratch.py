"""Memory that calls on a stream share."""

import pytest
import torch

from megamoe_dsl.runtime import expert_plan
from megamoe_dsl.runtime.expert_plan import Scratch


def test_calls_of_a_stream_share_what_is_large_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_plan, "KEPT", 4096)
    memory = Scratch(torch.device("cpu"))
    first = memory.of(1000, 1, False)
    assert first.dtype == torch.uint8 and first.shape == (1000,)
    assert memory.of(500, 1, False) is first
    larger = memory.of(4096, 1, False)
    assert larger is not first and memory.of(1000, 1, False) is larger
    assert memory.of(1000, 2, False) is not larger


def test_what_a_larger_call_replaces_outlives_the_stream_s_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of its own allocated it, so for another stream."""
    used: list[tuple[torch.Tensor, str]] = []
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *given: used.append(given))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    memory = Scratch(torch.device("cpu"))
    kept = [memory.of(size, 1, False) for size in (1000, 500, 2000)]
    assert [(id(one), stream) for one, stream in used] == [(id(one), "stream of cpu") for one in (kept[0], kept[2])]


def test_graphs_and_large_calls_have_memory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_plan, "KEPT", 4096)
    memory = Scratch(torch.device("cpu"))
    kept = memory.of(1000, 1, False)
    assert memory.of(1000, 1, True) is not kept
    large = memory.of(4097, 1, False)
    assert large.shape == (4097,) and memory.of(4097, 1, False) is not large
    assert memory.of(1000, 1, False) is kept


def test_as_much_is_kept_as_calls_of_a_few_thousand_tokens_take() -> None:
    """64 MiB a stream; a larger call frees what it has taken."""
    memory, most = Scratch(torch.device("cpu")), 64 << 20
    assert memory.of(most, 1, False) is memory.of(most, 1, False)
    assert memory.of(most + 1, 1, False) is not memory.of(most + 1, 1, False)
