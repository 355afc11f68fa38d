"""Random layers beside the reference, as `megamoe fuzz`, on a machine without typer and rich.

python bench/fuzz.py --gpu --minutes 8          where a GPU, hypothesis and the DSL are; kernels are compiled on the spot
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from megamoe_dsl.fuzz.run import run_fuzz
from megamoe_dsl.options.points import FuzzOptions
from megamoe_dsl.problem import ProblemError
from script_options import add_options, read_options


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser.add_argument, FuzzOptions)
    try:
        return 0 if run_fuzz(read_options(FuzzOptions, parser.parse_args()), partial(print, flush=True)) else 1
    except ProblemError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
