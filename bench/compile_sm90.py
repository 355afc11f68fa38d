"""Compiles SM90 kernels here and pickles them, for a machine that has GPUs but no DSL.

python bench/compile_sm90.py FOLDER SHAPE RANKS MAX_TOKENS BLOCK_M[,BLOCK_M...] [wave=N] [stages=N]
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from megamoe_dsl.compile import compile_kernel
from megamoe_dsl.config_sm90 import Sm90Config
from megamoe_dsl.problem import Problem

SHAPES = {"flash": (4096, 2048, 256, 6), "pro": (7168, 3072, 384, 6), "flash1": (4096, 2048, 32, 6), "pro1": (7168, 3072, 48, 6)}


def main() -> None:
    folder, shape, ranks, tokens, block_ms = sys.argv[1:6]
    overrides = {{"wave": "experts_per_wave", "stages": "num_stages"}[k]: int(v) for k, v in (a.split("=") for a in sys.argv[6:])}
    problem = Problem(*SHAPES[shape], int(ranks), int(tokens), dtypes="fp8xfp8", activation_clamp=10.0)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for block_m in map(int, block_ms.split(",")):
        config = Sm90Config.choose(problem, int(tokens), block_m=block_m, **overrides)
        artifact = compile_kernel(config)
        path = Path(folder) / f"{shape}_r{ranks}_t{tokens}_m{block_m}_w{config.experts_per_wave}_s{config.num_stages}.pkl"
        path.write_bytes(pickle.dumps(artifact))
        print(path.name, artifact.resources, f"{artifact.seconds:.2f} s")


if __name__ == "__main__":
    main()
