"""Mutants of the plug-ins for serving engines, a part of those of `compat`."""

from __future__ import annotations

from functools import partial

from mutant import Mutant

VLLM = "tests/compat/test_vllm.py"
Host = partial(Mutant, archs=())

ENGINES = (
    Host(
        "vLLM has two batches at once",
        "missing check",
        "vllm:problem_of",
        '("enable_dbo", settings.enable_dbo, False)',
        '("enable_dbo", False, False)',
        (f"{VLLM}::test_two_batches_at_once_are_refused",),
    ),
    Host(
        "the bound of a step of vLLM is this rank's",
        "wrong number",
        "vllm:num_tokens_bound",
        "max(rows, int(metadata.num_tokens_across_dp_cpu.max()))",
        "rows",
        (f"{VLLM}::test_bounds_come_from_vllm",),
    ),
    Host(
        "vLLM's scales may be of any block",
        "missing check",
        "vllm:scale_name",
        "block != SCALE_BLOCK",
        "False",
        (f"{VLLM}::test_scales_of_fp8",),
    ),
    Host(
        "vLLM's constants of an activation are not read",
        "missing check",
        "vllm:activation_of",
        "tuple(mine if one is None else one for one, mine in zip(found, constants, strict=True)) != constants",
        "False",
        (f"{VLLM}::test_what_is_refused",),
    ),
    Host(
        "no SMs are left to vLLM's other streams",
        "wrong launch",
        "shared_parts:new_layer",
        "reserved_sms=reserved_sms",
        "reserved_sms=0",
        (f"{VLLM}::test_settings",),
    ),
    Host(
        "vLLM replaces its layer twice",
        "missing check",
        "vllm:register",
        "NAME not in op_registry_oot",
        "True",
        (f"{VLLM}::test_the_plug_in_waits_to_be_asked",),
    ),
)
