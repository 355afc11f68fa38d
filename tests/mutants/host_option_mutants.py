"""Mutants of what layers and routers are asked for, of what launches refuse, and of who waits for whom."""

from __future__ import annotations

from host_mutant import LAUNCHES, MOE, host
from mutant import Mutant

RUNTIME = "tests/runtime/test_"
MOE_LAYER, NODES = f"{RUNTIME}moe_layer.py::test_", f"{RUNTIME}node_layer.py::test_"

ASKED = (
    host(
        "moe guesses the recipe of a layer's weights",
        "wrong number",
        "MoeLaunches.__init__",
        "problem.recipe if scaled else None",
        "None",
        f"{MOE_LAYER}scales_that_the_tensor_core_applies_are_put_in_order_once",
    ),
    host(
        "moe takes the recipes of every GEMM",
        "too narrow",
        "takes_moe",
        'find_kernel("gather_gemm").recipes[arch.name]',
        'find_kernel("gemm").recipes[arch.name]',
        f"{MOE_LAYER}layers_that_moe_takes",
    ),
    host(
        "every rank's router takes the first places",
        "wrong base",
        "MoE.forward",
        "self.router(x, self.problem.topk, token_ids, self.rank)",
        "self.router(x, self.problem.topk, token_ids, 0)",
        f"{MOE_LAYER}a_router_chooses",
    ),
    host(
        "the default number of chunks knows no groups of experts",
        "wrong number",
        "node_layer",
        "router.topk_groups",
        "problem.topk",
        f"{NODES}chunks_leave_sms_to_the_network",
    ),
    host(
        "replicas without a table are forgotten",
        "stale buffer",
        "TopExpertsPlan.launch",
        "self._problem.hashed or self._problem.replicas",
        "self._problem.hashed",
        f"{MOE}a_router_s_launch_gets_the_tables_that_there_are",
    ),
    host(
        "tokens come without slots of shared experts",
        "wrong launch",
        "InputsStage.__init__",
        '{"quantized": quantized, "shared": shared.count, "pool_rows": memory.config.pool_rows}',
        '{"quantized": quantized, "pool_rows": memory.config.pool_rows}',
        f"{LAUNCHES}a_layer_s_options_reach_its_launches",
    ),
    host(
        "an FP32 router is rounded to BF16",
        "wrong number",
        "router_logits_of",
        "torch.mm(x, cut(router).T, out_dtype=torch.float32).view(len(x), PARTS, len(router)).sum(1)",
        "torch.mm(x, cut(router).T, out_dtype=torch.float32).view(len(x), PARTS, len(router))[:, 0]",
        f"{RUNTIME}expert_training.py::test_logits_on_a_gpu_are_those_of_fp32",
    ),
    host(
        "a layer that trains has no kernels of a backward pass",
        "wrong launch",
        "halves_kernels",
        "first.replace(trains=True), first.backward, second.backward, *(choose(one, target, tokens) for one in sums)",
        "(first.replace(trains=True),)",
        f"{RUNTIME}preparation.py::test_kernels_are_those_that_a_layer_takes",
    ),
)
WAITING = (
    host(
        "stages whose CTAs wait for ranks need not run at once",
        "wrong launch",
        "StageKernel.__init__",
        'stage.name in ("dispatch", "combine")',
        'stage.name == "dispatch"',
        f"{RUNTIME}cuda_kernel.py::test_kernels_whose_ctas_wait_for_one_another_are_known",
    ),
    host(
        "a layer's host does not wait for its device",
        "missing order",
        "MegaMoE.synchronize",
        "self.symmetric.synchronize(self.memory)",
        "",
        f"{RUNTIME}reference_layer.py::test_to_synchronize_waits_for_the_buffer",
    ),
    host(
        "a host looks at copies that have not ended",
        "missing order",
        "Understudy._copy",
        "self._stream.synchronize()",
        "",
        f"{RUNTIME}watchdog_error.py::test_a_hosts_copies_have_ended_when_it_looks_at_them",
    ),
)
REFUSALS = (
    host(
        "a buffer has whatever pool it has",
        "missing check",
        "MegaMoE.__init__",
        "pool_rows not in (None, self.symmetric.pool_rows)",
        "False",
        f"{LAUNCHES}a_pool_of_other_rows_and_copied_slots_are_refused",
    ),
    host(
        "NaN is near enough",
        "missing check",
        "_compare_rank",
        "int((~(difference <= limit)).sum())",
        "int((difference > limit).sum())",
        f"{RUNTIME}comparison.py::test_results_are_counted_that_differ_and_that_are_too_far",
    ),
    host(
        "top-k weights stay outside of a rank's buffer",
        "stale buffer",
        "EpBuffers.store",
        "name in self.region",
        "name in self.region and name != 'topk_weights'",
        f"{RUNTIME}ep_bindings.py::test_a_ranks_tokens_and_tables_go_into_its_buffer",
    ),
)
OPTIONS: tuple[Mutant, ...] = (*ASKED, *WAITING, *REFUSALS)
