"""Mutants of moe_fc1 (moe_stages_mutants.py)."""

from functools import partial

import moe_stages_mutants as stages

MUTANTS = stages.MUTANTS["moe_fc1"]
short_simulation = stages.short_simulation
ptx_faults = partial(stages.ptx_faults, "moe_fc1")
