"""Makes what the checks on GPUs need, where the DSL is; no GPU is needed here.

    python tests/gpu/prepare.py --gpus 4                         everything, into .megamoe/gpu
    python tests/gpu/prepare.py silicon layer --gpus 4           simulator's results; kernels of the layer
    python tests/gpu/prepare.py silicon layer soak gemm --gpus 4 --recipe fp8xfp4      the same for Blackwell

There are `soak`, `unfused`, `gemm`, and for Hopper `engines`, `gpt_oss`, `ep` and `experts`, too.

Then, on a host with four GPUs:  python -m pytest -m gpu tests/gpu [--recipe fp8xfp4]
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

sys.path += [str(Path(__file__).parents[2] / folder) for folder in ("bench", "tests")]  # soaks, and the simulated layer, lie there

import engine_configs
import ep_ranks
import expert_silicon
import gemm_silicon
import gpt_oss_layer
import layer_checks
import silicon
from gpu_options import SOAK_RANKS, GpuOptions
from megamoe_dsl.arch import SM90
from megamoe_dsl.artifact.cache import load_one, require_writable
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.artifact.workers import compile_into
from megamoe_dsl.bench.host import Host
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.target import Target
from script_options import add_options, at_least, naming_options, read_options
from unfused_ranks import whole_pool_stages

WHAT = ("silicon", "layer", "soak", "unfused", "engines", "gpt_oss", "gemm", "ep", "experts")
HOPPER_ONLY = ("engines", "gpt_oss", "ep", "experts")


def kernels(what: list[str], options: GpuOptions, gpus: int) -> list[Any]:
    """Configurations of the layer's checks and of ranks that share so many GPUs.  Raises `ProblemError`."""
    layer = [config for ranks in options.layer_ranks(gpus) for config in layer_checks.configs(options.layer(ranks))]
    target = Target(options.arch, options.soak_sms(gpus), Host.typical(options.arch).gpu)
    soak = [find_kernel("mega_moe").choose(one.problem, target, one.tokens, **one.pool) for one in options.soak_points()]
    unfused = [one for config in soak for one in (config, *whole_pool_stages(config))]
    engines = [config for ranks in options.layer_ranks(gpus) for config in engine_configs.configs(ranks)]
    whole = options.arch == SM90 and not options.small
    gpt_oss = gpt_oss_layer.configs(gpt_oss_layer.target_of(options.gpu_sms, Host.typical(options.arch).gpu)) if whole else ()
    checks = ep_ranks.CHECKS if whole else ()
    ep = [config for ranks, *kind in checks for config in ep_ranks.small_configs(options.gpu_sms, gpus, ranks, *kind)]
    chosen = {"layer": layer, "soak": soak, "unfused": unfused, "engines": engines, "gpt_oss": gpt_oss, "ep": ep}
    return list(dict.fromkeys(config for name in what for config in chosen.get(name, ())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help=f"of {', '.join(WHAT)}; everything by default")
    add_options(parser.add_argument, GpuOptions)
    parser.add_argument("--jobs", type=at_least(1), default=2, help="processes")
    given = parser.parse_args()
    options = read_options(GpuOptions, given)
    gpus = options.gpus or torch.cuda.device_count()
    try:
        with naming_options(GpuOptions):
            known = [one for one in WHAT if options.arch == SM90 or one not in HOPPER_ONLY]
            what = given.what or known
            for one in what:
                if one not in known:
                    raise ProblemError("what", one, f"one of {', '.join(known)}, with {options.recipe}")
            if gpus < 1 or SOAK_RANKS % gpus:
                raise ProblemError("gpus", options.gpus, f"a divisor of {SOAK_RANKS}, given where there are no GPUs")
            wanted = kernels(what, options, gpus)
            require_writable("kernels", options.kernels)
    except ProblemError as error:
        parser.error(str(error))
    store = ArtifactStore(options.kernels)
    missing = [config for config in wanted if load_one(store, config) is None]
    print(f"{len(missing)} of {len(wanted)} kernels to compile", flush=True)
    if missing:
        compile_into(options.kernels, missing, given.jobs)
    if "gemm" in what:
        with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
            for line in pool.map(partial(gemm_silicon.prepare_check, options.kernels), gemm_silicon.checks(options.arch, options.small)):
                print(line, flush=True)
    if "experts" in what:
        target = Target(options.arch, options.gpu_sms, Host.typical(options.arch).gpu)
        with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
            for line in pool.map(partial(expert_silicon.prepare_check, options.kernels, target), expert_silicon.CHECKS):
                print(line, flush=True)
    if "silicon" in what:
        with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
            for line in pool.map(partial(silicon.prepare_point, options.kernels), silicon.points(options.arch, options.small)):
                print(line, flush=True)


if __name__ == "__main__":
    main()
