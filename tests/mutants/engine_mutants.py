"""Mutants of the plug-ins for serving engines, a part of those of `compat`."""

from __future__ import annotations

from functools import partial

from mutant import Mutant

VLLM, SGLANG, PARTS = (f"tests/compat/test_{name}.py" for name in ("vllm", "sglang", "engine_parts"))
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
        "shared_parts:require_constants",
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
    Host(
        "experts of vLLM are on ranks, without expert parallelism too",
        "wrong number",
        "vllm:problem_of",
        "parallel.ep_size if parallel.use_ep else 1",
        "parallel.ep_size",
        (f"{VLLM}::test_every_field_of_a_layer_is_its_own",),
    ),
    Host(
        "top-k weights keep vLLM's dtype",
        "wrong number",
        "ExpertsMethod.apply",
        "topk_weights.float()",
        "topk_weights",
        (f"{VLLM}::test_the_bound_of_a_call_is_of_all_ranks_and_within_the_buffer",),
    ),
    Host(
        "hidden and intermediate of SGLang's Linear2 change places",
        "wrong order",
        "sglang:problem_of",
        "_, hidden, width = parameters['fc2'].shape",
        "_, width, hidden = parameters['fc2'].shape",
        (f"{SGLANG}::test_every_field_of_a_layer_is_its_own",),
    ),
    Host(
        "SGLang's experts are all on one rank",
        "wrong number",
        "sglang:problem_of",
        "experts.moe_ep_size",
        "1",
        (f"{SGLANG}::test_every_field_of_a_layer_is_its_own",),
    ),
    Host(
        "Kimi's results are scaled twice",
        "wrong number",
        "run_kimi",
        "fused or self.routed_scaling_factor is None",
        "self.routed_scaling_factor is None",
        (f"{SGLANG}::test_kimi_scales_unless_its_router_does",),
    ),
    Host(
        "strided weights of SGLang's tokens are taken for contiguous ones",
        "wrong order",
        "run_mega_routed_experts",
        "(topk_weights.float() * routed_scaling_factor).contiguous()",
        "topk_weights * routed_scaling_factor",
        (f"{SGLANG}::test_inputs_are_taken_as_they_lie",),
    ),
    Host(
        "a rank without tokens needs weights too",
        "missing check",
        "run_mega_routed_experts",
        "topk_ids is None or topk_weights is None",
        "topk_ids is None",
        (f"{SGLANG}::test_inputs_are_taken_as_they_lie",),
    ),
    Host(
        "a bound is the first of its kernel",
        "off by one",
        "prepared_bounds",
        "chosen.get(tokens + 1) != config",
        "chosen.get(tokens - 1) != config",
        (f"{PARTS}::test_kernels_are_compiled_once_and_each_bound_is_the_last_of_its_kernel",),
    ),
    Host(
        "every process of a machine compiles an engine's kernels",
        "missing order",
        "prepared_bounds",
        """with one_process(folder / "engine-kernels.lock", "the kernels of an engine's layers"):
    MegaMoE.prepare(problem, target=target)""",
        "MegaMoE.prepare(problem, target=target)",
        (f"{PARTS}::test_kernels_are_compiled_once_and_each_bound_is_the_last_of_its_kernel",),
    ),
)
