"""A layer whose ranks torchrun has started in two groups, as on two hosts of one NVLink domain; here both are parts of this one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_options import GpuOptions
from megamoe_dsl.bench.host import Host
from node_ranks import CHECKED
from ranks_on_gpus import CONCURRENT

pytestmark = pytest.mark.gpu
HERE = Path(__file__).parent
NODES = 2
LIMIT_S = 120.0


def test_layer_over_two_groups_of_processes(options: GpuOptions, host: Host) -> None:
    gpus = host.gpus // NODES
    if gpus not in (1, 2, 4) or options.small or options.recipe != GpuOptions().recipe:
        pytest.skip("two equal groups of Hopper GPUs")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    run = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(NODES), "--nproc-per-node", str(gpus)]
    meet = ["--master-addr", "127.0.0.1", "--master-port", port]
    script = [str(HERE / "node_ranks.py"), "--kernels", str(options.kernels)]
    environment = {name: value for name, value in os.environ.items() if name not in CONCURRENT} | {"PYTHONPATH": os.pathsep.join(sys.path)}
    nodes = [
        subprocess.Popen(
            [*run, "--node-rank", str(node), *meet, *script, "--first-gpu", str(node * gpus)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(NODES)
    ]
    try:
        said = [node.communicate(timeout=LIMIT_S)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    print(*said, sep="\n")
    assert [node.returncode for node in nodes] == [0] * NODES
    for node, text in enumerate(said):
        for rank in range(node * gpus, (node + 1) * gpus):
            passed = [name for name in CHECKED if f"rank {rank} of {NODES * gpus}, host {node}, GPU {rank}: {name} passed" in text]
            assert passed == list(CHECKED)
