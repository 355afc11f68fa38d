"""Ranks that are threads of one process: what torch.distributed does for them, without a process group."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, BrokenBarrierError, Thread, local
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist

T = TypeVar("T")
SECONDS = 60.0


class Ranks:
    """Collectives between threads, each of which is a rank."""

    def __init__(self, count: int) -> None:
        self.count, self.own, self.barrier = count, local(), Barrier(count, timeout=SECONDS)
        self.given: list[Any] = [None] * count

    def get_rank(self) -> int:
        return int(self.own.rank)

    def wait(self) -> None:
        self.barrier.wait()

    def all_gather_object(self, found: list[Any], mine: Any) -> None:
        assert len(found) == self.count
        self.given[self.get_rank()] = mine
        self.wait()
        found[:] = self.given
        self.wait()

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        found: list[torch.Tensor] = [tensor] * self.count
        self.all_gather_object(found, tensor.clone())
        whole = torch.stack(found)
        tensor.copy_(whole.amax(0) if op == dist.ReduceOp.MAX else whole.sum(0))


def on_ranks(count: int, run: Callable[[int], T], monkeypatch: pytest.MonkeyPatch) -> list[T]:
    """What `run` returns on every rank; raises what the first one raised."""
    ranks, found, errors = Ranks(count), dict[int, T](), list[BaseException]()
    fakes = {name: getattr(ranks, name) for name in ("get_rank", "all_gather_object", "all_reduce")}
    fakes |= {"barrier": ranks.wait, "get_world_size": lambda: count, "is_initialized": lambda: True}

    def body(rank: int) -> None:
        ranks.own.rank = rank
        try:
            found[rank] = run(rank)
        except BaseException as error:
            errors.append(error)
            ranks.barrier.abort()

    threads = [Thread(target=body, args=(rank,)) for rank in range(count)]
    with monkeypatch.context() as patch:
        for name, one in fakes.items():
            patch.setattr(dist, name, one)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
    for error in sorted(errors, key=lambda one: isinstance(one, BrokenBarrierError)):
        raise error
    return [found[rank] for rank in range(count)]
