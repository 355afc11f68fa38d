"""A group's buffer: what ranks must agree on, and who waits for whom when it is freed."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.runtime import symmetric_memory
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer

PROBLEM = Problem(256, 128, 4, 2, 2, 8, recipe="fp8xfp8")


@pytest.mark.parametrize(("name", "theirs"), [("problem", (replace(PROBLEM, hidden=512), None)), ("pool_rows", (PROBLEM, 256))])
def test_every_rank_brings_the_same(name: str, theirs: tuple[Problem, int | None], monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(given: list[object], own: object, group: object) -> None:
        given[:] = [own, theirs]

    monkeypatch.setattr(symmetric_memory, "require_cuda", lambda device: None)
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(dist, "all_gather_object", gather)
    with pytest.raises(ProblemError, match=rf"^{name} = .*: must be the same on every rank; rank 1 has (256|Problem.*hidden=512)"):
        SymmetricBuffer.allocate(PROBLEM, group=object())


def test_ranks_free_it_together_and_survivors_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    monkeypatch.setattr(dist, "barrier", waited.append)
    for alone in (True, False):
        buffer = SymmetricBuffer(PROBLEM, 0, torch.zeros(8, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), group="group")
        buffer.close(alone=alone)
        assert buffer.num_bytes == 0 and waited == ([] if alone else ["group"])
