"""Makes a folder with packages of others from the package index, which benchmarks take as SITE; for x86-64.

    python bench/sites.py FOLDER NAME [NAME ...] [--python 3.12]

Names are deep_gemm, and sglang, of which what bench/experts.py runs is kept and what compiles it.  Nothing is installed, and nothing of the
folder belongs into a commit.  Where they run, kernels are compiled when first called: by nvcc, SGLang's with ninja and a C++ compiler.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from megamoe_dsl.bench.site_wheels import PYTHON, SITES, make_site


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+", choices=SITES)
    parser.add_argument("--python", default=PYTHON, help="version of where they run")
    given = parser.parse_args()
    make_site(given.folder, given.names, given.python)
    print(f"{given.folder}: {', '.join(given.names)} for Python {given.python}")


if __name__ == "__main__":
    main()
