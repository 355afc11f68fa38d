"""Copies into shared memory that the threads of a warp ask for, each its own (PTX ISA, cp.async).  They write as threads do: who reads them
through TMA or the tensor core needs a proxy fence."""

from __future__ import annotations

from typing import Any

from .ptx import emit

VECTOR = 16  # bytes
WORD = 4


def copy_vector(destination: Any, source: Any, num_bytes: Any) -> None:
    """16 bytes, aligned, past the L1 cache; those beyond the first `num_bytes` become zero and are not read."""
    emit("cp.async.cg.shared.global [{}], [{}], 16, {};", destination, source, num_bytes)


def copy_word(destination: Any, source: Any, num_bytes: Any, words: int = 1) -> None:
    """4 bytes, or 2 or 4 words at once, aligned, through the L1 cache, where their neighbors stay; all of them or, with `num_bytes` of 0,
    zero."""
    emit("cp.async.ca.shared.global [{}], [{}], {}, {};", destination, source, WORD * words, num_bytes)


def arrive_when_copied(barrier: Any) -> None:
    """This thread arrives at an mbarrier once its copies so far are done; its arrival is one of those that the barrier counts."""
    emit("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [{}];", barrier)
