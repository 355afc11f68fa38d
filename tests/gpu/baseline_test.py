"""DeepGEMM's own test of its SM90 MegaMoE, unchanged, on `megamoe_dsl.compat.deep_gemm`, which it finds as `deep_gemm`.

    python tests/gpu/baseline_test.py prepare PATH --ranks 2 --kernels DIR     where the DSL is: compiles what the test will run
    python tests/gpu/baseline_test.py run PATH --ranks 2 --kernels DIR         on Hopper GPUs

PATH is a file of a checkout of sgl-project/DeepGEMM: `tests/test_mega_moe_sm90.py`, or `tests/test_mega_moe_hopper.py` of its pull request
36, which grew out of it (it needs triton, and `--accuracy`).  Nothing is fetched.  What follows a `--` goes to the test: `-- --layers 1`.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NAMED = {
    "__init__": "megamoe_dsl.compat.deep_gemm",
    "utils/__init__": "megamoe_dsl.compat.deep_gemm.utils",
    "utils/dist": "baseline_test_support",
    "testing": "baseline_test_support",
}
"""Modules of DeepGEMM that the test imports, and those that have their names here."""
HOPPERS = ("NVIDIA H200", "NVIDIA H100 80GB HBM3")


def name_modules(folder: Path) -> None:
    """Makes a package `deep_gemm` in a folder."""
    for name, module in NAMED.items():
        path = folder / "deep_gemm" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"from {module} import *\n", encoding="utf-8")


def load(path: Path) -> ModuleType:
    """The module of a file, under its own name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scenarios(test: ModuleType, ranks: int) -> Iterator[dict[str, Any]]:
    """The configurations of the test's own tables: what its functions `_layerN_...` list for so many ranks."""
    for name, function in vars(test).items():
        if re.match(r"_(accuracy_)?layer\d_", name) and len(inspect.signature(function).parameters) < 2:
            for _, config in function(*[ranks] * len(inspect.signature(function).parameters)):
                yield config


def kernels_of(config: dict[str, Any], ranks: int) -> Iterator[Any]:
    """What a scenario's one call runs, on each GPU that has a table of its own."""
    from megamoe_dsl.arch import GPUS
    from megamoe_dsl.kernels.registry import find_kernel
    from megamoe_dsl.problem import Problem
    from megamoe_dsl.target import Target

    clamp, most = config.get("activation_clamp", 10.0), config["num_max_tokens_per_rank"]
    problem = Problem(
        config["hidden"],
        config["intermediate_hidden"],
        config["num_experts"],
        config["num_topk"],
        ranks,
        most,
        recipe="fp8xfp8",
        activation_clamp=clamp if math.isfinite(clamp) else None,
        fast_math=config.get("fast_math", True),
    )
    for name in HOPPERS:
        yield find_kernel("mega_moe").choose(problem, Target(GPUS[name].arch, GPUS[name].num_sms, name), most)


def prepare(path: Path, ranks: int, folder: Path) -> int:
    """Compiles the kernels of all scenarios into a folder; returns how many."""
    from megamoe_dsl.artifact.workers import compile_into

    with tempfile.TemporaryDirectory() as place:
        name_modules(Path(place))
        sys.path.insert(0, place)
        test = load(path)
    configs = list(dict.fromkeys(one for config in scenarios(test, ranks) for one in kernels_of(config, ranks)))
    folder.mkdir(parents=True, exist_ok=True)
    compile_into(folder, configs, len(os.sched_getaffinity(0)))
    return len(configs)


def run(path: Path, folder: Path | None, arguments: list[str]) -> int:
    """The test's exit status."""
    with tempfile.TemporaryDirectory() as place:
        name_modules(Path(place))
        search = [place, str(ROOT / "src"), str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search)}
        if folder is not None:
            environment["MEGAMOE_CACHE_DIR"] = str(folder.resolve())
        return subprocess.run([sys.executable, str(path), *arguments], env=environment, check=False).returncode


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Options, and what follows `--`."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("prepare", "run"))
    parser.add_argument("path", type=Path, help="the test, a file of a checkout of sgl-project/DeepGEMM")
    parser.add_argument("--kernels", type=Path, help="folder of compiled kernels; by default the cache")
    parser.add_argument("--ranks", type=int, default=1, help="processes, each with a GPU: the test's --num-processes")
    return parser.parse_args(arguments[:cut]), arguments[cut + 1 :]


def main() -> int:
    """Exit status."""
    options, rest = parse(sys.argv[1:])
    sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]
    if options.what == "run":
        return run(options.path, options.kernels, ["--num-processes", str(options.ranks), *rest])
    from megamoe_dsl.json_file import cache_folder

    count = prepare(options.path, options.ranks, options.kernels or cache_folder())
    print(f"{count} kernels in {options.kernels or cache_folder()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
