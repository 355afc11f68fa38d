"""The expert-parallel kernels on GPUs: bits of small cases on two, and times beside the fused kernel and its stages in the same process.

    python bench/ep_moe.py prepare FOLDER [options]      where the DSL is: compiles the kernels
    python bench/ep_moe.py run FOLDER [options]          on GPUs: torch and cuda-bindings are enough
    python bench/ep_moe.py table RESULTS                 what is fastest, into the table of the GPU (tuned/)

Times are of a launch of `dispatch_grouped_gemm` and of one of `grouped_gemm_combine`, without the activation between them, of the fused
kernel, and of each of its stages; and of variants of the two kernels, of which `--variants` has a list, as in "combine scatter=off,dispatch
cluster=1".  With `--trace`, given to both, kernels leave stamps, and instead of times there is a table of what their warps did, and a file
for Perfetto.  `megamoe bench` and `megamoe tune` with `--kernel dispatch_grouped_gemm` do the same where the DSL is too.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from halves.bits import SMALL
from halves.run import ComparedRun
from megamoe_dsl.bench.ep import Variant
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.point import points_of
from megamoe_dsl.bench.tuning import HALVES_ALONE
from megamoe_dsl.kernels.moe.halves.gemm_part import WARPGROUPS
from megamoe_dsl.options.points import RunOptions
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.tuned import EpEntry, Table

SWITCHED_OFF = (
    "dispatch token_saving=off",
    "dispatch token_sorting=off",
    "dispatch block_wise=off",
    "dispatch tail_sms=8",
    "dispatch tail_sms=16",
    "dispatch tail_sms=32",
    "dispatch cluster=1",
    "dispatch task_tokens=2",
    "dispatch task_tokens=8",
    "combine scatter=off",
    "combine interleaved=off",
    "combine interleaved=off token_blocks=4",
    "combine cluster=1",
    "combine task_tokens=2",
)
"""Each optimization on its own, and what else a configuration could be."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "run", "table"))
    parser.add_argument("folder", type=Path, help="of compiled kernels; a JSON file of results for a table")
    parser.add_argument("--preset", default="flash", help="shapes by name")
    parser.add_argument("--experts-per-rank", type=int, help="instead of all")
    parser.add_argument("--ranks", type=int, default=SMALL.num_ranks, help="a GPU each; other than two with --only-times or --trace")
    parser.add_argument("--remote", type=float, help="fraction of the slots for other ranks' experts")
    parser.add_argument("--tokens", default="1024,4096,8192", help="per rank")
    parser.add_argument("--recipe", default=WARPGROUPS.recipes[0], choices=WARPGROUPS.recipes, help="number formats")
    parser.add_argument("--variants", default=",".join(SWITCHED_OFF), help="kernels with other fields, as in 'combine block_n=128'")
    parser.add_argument("--trace", action="store_true", help="what warps do, instead of times")
    parser.add_argument("--only-times", action="store_true", help="without the bits of small cases")
    parser.add_argument("--jobs", type=int, default=2, help="processes that compile")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON file")
    given = parser.parse_args()
    if given.what == "table":
        found = HALVES_ALONE.read(given.folder)
        table, _ = HALVES_ALONE.enter(Table.read(found.gpu, kind=EpEntry), found)
        print(f"wrote {table.write()}")
        return
    shape = {"preset": given.preset, "experts_per_rank": given.experts_per_rank, "tokens": given.tokens, "recipe": given.recipe}
    options = RunOptions(**shape, ranks=str(given.ranks))
    variants = tuple(Variant(name) for name in filter(None, given.variants.split(",")))
    try:
        bits = not (given.only_times or given.trace)
        run = ComparedRun(tuple(points_of(options, given.remote)), given.folder, given.out, variants, given.trace, bits=bits)
        if given.what == "prepare":
            run.compile(Host.typical(), given.jobs)
            return
        found = run.run(Host.find())
    except ProblemError as error:
        parser.error(str(error))
    sys.exit(not all(map(run.right, found.records)))


if __name__ == "__main__":
    main()
