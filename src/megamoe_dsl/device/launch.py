"""A launch, with the grid of a configuration."""

from __future__ import annotations

from typing import Any


def launch(kernel: Any, config: Any, stream: Any) -> None:
    """A traced call of a kernel; `config` says its CTAs, their threads and clusters."""
    kernel.launch(
        grid=(config.num_sms, 1, 1),
        block=(config.num_threads, 1, 1),
        cluster=(config.cluster, 1, 1),
        min_blocks_per_mp=1,
        stream=stream,
    )
