"""Makes a folder with packages of others from the package index, which benchmarks take as SITE; for x86-64.

    python bench/sites.py FOLDER NAME [NAME ...] [--python 3.12]

NAME is deep_gemm, sglang or flashinfer; of the latter two only those files are kept that bench/experts.py runs, and those that compile
them.  Nothing is installed, and nothing of the folder belongs into a commit.  Kernels are compiled when first called, on the machine that
runs them: by nvcc, SGLang's with ninja and a C++ compiler, FlashInfer's by CuTe DSL.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from baselines.site_wheels import PYTHON, SITES, make_site


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+", choices=SITES)
    parser.add_argument("--python", default=PYTHON, help="version on the machine that runs them")
    given = parser.parse_args()
    make_site(given.folder, given.names, given.python)
    print(f"{given.folder}: {', '.join(given.names)} for Python {given.python}")


if __name__ == "__main__":
    main()
