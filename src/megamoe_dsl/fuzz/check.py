"""A trial's verdict: y against the reference, against another tile, and against the unfused layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..arch import SM90
from ..cases import Case
from ..config_error import ConfigError
from ..kernels.moe.config import MegaMoeConfig
from ..kernels.moe.unfused.family import stage_configs
from .data import case_of
from .machine import TrialMachine
from .trial import Trial

Results = Sequence[Sequence[torch.Tensor]]
"""y of every call, of every rank."""


def check_trial(trial: Trial, machine: TrialMachine) -> str:
    """What is wrong, in a line; empty where nothing is."""
    try:
        return find_wrong(trial, machine)
    except Exception as error:  # whatever a trial of valid arguments raises is what the fuzzer looks for
        return f"{type(error).__name__}: {error}"


def find_wrong(trial: Trial, machine: TrialMachine) -> str:
    """As `check_trial`, but raises what the layer raises."""
    config = trial.config
    cases = [case_of(config.problem, call) for call in trial.calls]
    found = machine.results(config, cases, trial.schedule, fused=True)
    for number, (case, y) in enumerate(zip(cases, found, strict=True), 1):
        if wrong := unlike_reference(case, y, machine, promoted=config.arch == SM90):
            return f"call {number}: {wrong} elements of y differ from the reference by more than the bound"
    if trial.other is not None and (wrong := unequal_bits(found, machine.results(trial.other, cases, trial.schedule, fused=True))):
        return f"{wrong} elements of y differ from those of another tile"
    if trial.unfused and has_stages(config) and (wrong := unequal_bits(found, machine.results(config, cases, trial.schedule, fused=False))):
        return f"{wrong} elements of y differ from those of the unfused layer"
    return ""


def has_stages(config: MegaMoeConfig) -> bool:
    """Whether the problem is one of the unfused layer's."""
    try:
        return bool(stage_configs(config))
    except ConfigError:
        return False


def unlike_reference(case: Case, y: Sequence[torch.Tensor], machine: TrialMachine, *, promoted: bool) -> int:
    """Elements farther from the reference than explained: with partial sums of Hopper's tensor core, where they are promoted, or exact."""
    wanted = case.reference("hopper" if promoted else torch.float64).y
    bounds = machine.hopper_bound(case) if promoted else case.bound()
    return sum(int((~((got.double() - one.double()).abs() <= limit)).sum()) for got, one, limit in zip(y, wanted, bounds, strict=True))


def unequal_bits(one: Results, other: Results) -> int:
    """Elements that do not have the same bits."""
    pairs = (pair for calls in zip(one, other, strict=True) for pair in zip(*calls, strict=True))
    return sum(int((a.view(torch.int16) != b.view(torch.int16)).sum()) for a, b in pairs)
