"""Two ranks at the real shape of DeepSeek-V4-Flash (hidden 4096, intermediate 2048, top-6) with few experts, in the simulator.

    python bench/simulate_flash.py [options of `megamoe simulate`]

Exact data, race detector on: every element of y must equal the reference bit for bit, and nothing may race.  Too long for `make test`;
options given here come after the defaults and win, for example `--block-m 192 --tokens 40,3` or `--sms 4`.
"""

from __future__ import annotations

import sys

from megamoe_dsl.cli import main

SHAPE = ["--ranks", "2", "--hidden", "4096", "--intermediate", "2048", "--topk", "6", "--experts", "6"]
RUN = ["--tokens", "3,2", "--mask", "0.1", "--sms", "4", "--seed", "0"]

if __name__ == "__main__":
    sys.argv = ["megamoe", "simulate", *SHAPE, *RUN, *sys.argv[1:]]
    main()
