"""Mutants of the host's part of calls: what a process keeps of them, memory and counters between launches, checks, arguments."""

from __future__ import annotations

from host_call_mutants import KEYS, LAUNCHED, PLANS, PREPARED
from host_check_mutants import CHECKED, SIMULATED
from host_driver_mutants import DRIVER
from host_layer_mutants import LAYERS
from host_memory_mutants import CHECKS, GEMMS, MEMORY
from host_option_mutants import OPTIONS
from host_rank_mutants import RANKS, TENSORS
from host_training_mutants import TRAINING
from mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *KEYS,
    *PLANS,
    *PREPARED,
    *LAUNCHED,
    *MEMORY,
    *DRIVER,
    *CHECKS,
    *GEMMS,
    *LAYERS,
    *RANKS,
    *TENSORS,
    *TRAINING,
    *CHECKED,
    *SIMULATED,
    *OPTIONS,
)
