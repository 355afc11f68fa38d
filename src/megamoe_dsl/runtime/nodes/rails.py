"""What moves between nodes: each token's row once to every node that has an expert of it, and one row of results back.

Ranks with the same number on all nodes are a rail: rank r sends to a node by way of the rank there that has its number, so that every
network card carries its own rank's rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from ...problem import ProblemError
from ..watchdog import GRACE_S, WatchdogError, name_silent, silent_ranks


@dataclass
class Traffic:
    """Counters of a rank: what it sent to other nodes since they were zero.

    rows          tokens' rows, which came back as so many rows of results
    dispatched, returned  bytes of these rows, sent to other nodes to be computed, and of results
    counts        bytes of counts
    """

    rows: int = 0
    dispatched: int = 0
    returned: int = 0
    counts: int = 0


@dataclass
class Rails:
    """The groups of one rank.

    group      all ranks, node after node
    node, number  of this rank, and its number in the node
    nodes, ranks  how many nodes there are, of how many ranks
    rail, within  groups of the ranks with this number, and of this node's ranks
    """

    group: Any
    node: int
    number: int
    nodes: int
    ranks: int
    rail: Any
    within: Any
    device: torch.device
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def rank(self) -> int:
        """In the whole group."""
        return self.node * self.ranks + self.number

    def gather_counts(self, counts: torch.Tensor) -> torch.Tensor:
        """int64 [nodes, ranks, chunks, nodes] on the CPU: rows that every rank sends to every node, from each rank's [chunks, nodes]."""
        import torch.distributed as dist

        own = counts.to(self.device)
        every = own.new_empty(self.nodes * self.ranks, *own.shape)
        with self.naming_lost_ranks("counts of rows"):
            dist.all_gather(list(every.unbind()), own, group=self.group)
        self.traffic.counts += own.numel() * own.element_size() * (self.nodes - 1) * self.ranks
        return every.view(self.nodes, self.ranks, *own.shape).cpu()

    def exchange(self, rows: torch.Tensor, send: Sequence[int], receive: Sequence[int]) -> Exchange:
        """Begins to send bytes [rows, row bytes], `send[n]` of them to node n, and to receive `receive[n]` from it."""
        import torch.distributed as dist

        found = rows.new_empty(sum(receive), rows.shape[1])
        with self.naming_lost_ranks("rows"):
            work = dist.all_to_all_single(found, rows, list(receive), list(send), group=self.rail, async_op=True)
        return Exchange(self, found, work)

    def away(self, counts: Sequence[int]) -> int:
        """Of so many rows for each node, those of others."""
        return sum(counts) - counts[self.node]

    @contextmanager
    def naming_lost_ranks(self, what: str) -> Iterator[None]:
        """Turns the error of a collective into `WatchdogError`, which names the ranks that have not had one too within the group's timeout
        and `GRACE_S`."""
        import torch.distributed as dist

        try:
            yield
        except RuntimeError as error:
            store, wait = dist.distributed_c10d._get_default_store(), timeout_of(self.group, self.device).total_seconds() + GRACE_S
            lost = silent_ranks(store, f"megamoe_dsl nodes {self.group.group_name}", self.rank, self.nodes * self.ranks, wait)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise WatchdogError(f"rank {self.rank}, {what}: {reason}{name_silent(lost, wait)}") from error


@lru_cache
def rails_of(group: Any, ranks: int, device: torch.device) -> Rails:
    """The same for all layers of a group, whose ranks call this together.  Raises `ProblemError` unless `ranks` of a node divide them."""
    import torch.distributed as dist

    world, (node, number) = dist.get_world_size(group), divmod(dist.get_rank(group), max(ranks, 1))
    if ranks < 1 or world % ranks:
        raise ProblemError("domain", ranks, f"a divisor of the group's {world} ranks")
    every, timeout = dist.get_process_group_ranks(group), timeout_of(group, device)
    nodes = [every[first : first + ranks] for first in range(0, world, ranks)]
    within = [dist.new_group(one, timeout=timeout) for one in nodes]
    rail = [dist.new_group([one[number] for one in nodes], timeout=timeout) for number in range(ranks)]
    return Rails(group, node, number, len(nodes), ranks, rail[number], within[node], device)


@dataclass
class Exchange:
    """Rows on their way."""

    rails: Rails
    rows: torch.Tensor
    work: Any

    def wait(self) -> torch.Tensor:
        """The rows that came.  A GPU's current stream waits, the host does not."""
        with self.rails.naming_lost_ranks("rows"):
            self.work.wait()
        return self.rows


def timeout_of(group: Any, device: torch.device) -> Any:
    """How long a group's collectives wait."""
    return group._get_backend(device).options._timeout


def row_bytes(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Rows of all tensors, [tokens, any], side by side as bytes."""
    return torch.cat([one.contiguous().view(torch.uint8) for one in parts], dim=1)


def split_rows(rows: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What `row_bytes` joined, with the dtypes and widths of `like`."""
    widths = [one.shape[1] * one.element_size() for one in like]
    return [part.contiguous().view(one.dtype) for part, one in zip(rows.split(widths, dim=1), like, strict=True)]
