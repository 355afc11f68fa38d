"""Mutants of what the driver is asked for, of memory that launches find, and of what entry points say first."""

from __future__ import annotations

from host_mutant import COUNTERS_TEST, host

KERNEL = "tests/runtime/test_cuda_kernel.py::test_"
LAUNCHED, CONTEXT = f"{KERNEL}a_kernel_is_launched_as_its_artifact_says", f"{KERNEL}a_thread_without_a_context_takes_the_current_devices"
KEPT = f"{COUNTERS_TEST}what_is_kept_is_in_no_pool_and_there_before_a_launch"
NAMED = "tests/runtime/test_tensor_arguments.py::test_what_is_no_tensor_is_named"
UNFIT, LOGITS = (f"tests/runtime/test_experts.py::test_{name}_named" for name in ("what_does_not_fit_is", "logits_that_do_not_fit_are"))
ROUTER = 'check_tensor("router", router, tuple(DTYPES), tuple(router.shape), x.device)'

DRIVER = (
    host(
        "gradients of masked slots are what lay there",
        "stale buffer",
        "row_gradients",
        "topk_weights.new_zeros(rows + 1)",
        "topk_weights.new_empty(rows + 1)",
        "tests/kernels/test_simulated_training.py::test_kernels_have_the_references_bits",
    ),
    host(
        "only the last launch's races fail a simulation",
        "missing check",
        "conclude",
        "any(report.findings for report in reports)",
        "reports[-1].findings",
        "tests/test_tables.py::test_the_last_line_is_the_verdict",
    ),
    host(
        "a rank's experts do not limit a token's copies",
        "too narrow",
        "Problem.__post_init__",
        "self.num_ranks * self.max_experts_per_token",
        "self.num_ranks * self.topk",
        "tests/test_problem.py::test_a_rank_receives_a_token_once_for_each_of_its_experts_at_most",
    ),
    host(
        "a kernel may not have its shared memory",
        "wrong launch",
        "CudaKernel.__init__",
        "call(driver.cuFuncSetAttribute, self._function, smem, artifact.dynamic_smem)",
        "",
        LAUNCHED,
    ),
    host(
        "a launch asks for no shared memory",
        "wrong launch",
        "CudaKernel.__init__",
        "self._launch.sharedMemBytes = artifact.dynamic_smem",
        "",
        LAUNCHED,
    ),
    host("pairs of CTAs are launched alone", "wrong launch", "CudaKernel.__init__", "config.cluster > 1", "config.cluster > 2", LAUNCHED),
    host(
        "launches begin early though they are not to",
        "wrong launch",
        "CudaKernel.__init__",
        "kernel.early and early",
        "kernel.early",
        LAUNCHED,
    ),
    host("CTAs that wait for one another do not all run", "missing check", "CudaKernel.__init__", "kernel.resident", "False", LAUNCHED),
    host("an SM holds one CTA", "wrong number", "CudaKernel._clusters_at_once", "here * per_sm", "here", LAUNCHED),
    host("the first stream has all launches", "wrong launch", "CudaKernel.launch", "stream != self._stream", "not self._stream", LAUNCHED),
    host("a launch that failed is taken for one that runs", "missing check", "CudaKernel.launch", "returned[0]", "False", LAUNCHED),
    host("a thread loses its context", "wrong launch", "bind_context", "not int(call(driver.cuCtxGetCurrent))", "True", CONTEXT),
    host("counters are used before they are zero", "missing order", "TileCounters.__init__", "torch.cuda.synchronize(device)", "", KEPT),
    host(
        "spare memory is used before it is written",
        "missing order",
        "DecodeMemory._ready",
        "torch.cuda.synchronize(self._device)",
        "",
        KEPT,
    ),
    host("what is kept lies in a graph's pool", "stale buffer", "outside_pools", "thread.submit(make).result()", "make()", KEPT),
    host("groups that are no tensor end in Python", "missing check", "k_grouped_gemm", "ends.numel()", "len(ends)", NAMED),
    host("a router may be on another device", "missing check", "router_logits_of", ROUTER, ROUTER.replace(", x.device", ""), LOGITS),
    host(
        "a bias beside chosen experts counts for nothing",
        "lost data",
        "experts:moe",
        "given = topk, score_bias, token_ids, hash_table, replicas, scores, groups, topk_groups, weight_scale, replica_shift",
        "given = topk, None, token_ids, hash_table, replicas, scores, groups, topk_groups, weight_scale, replica_shift",
        UNFIT,
    ),
    host(
        "kernels are compiled for any GPU where there is none",
        "missing check",
        "target_or_at_hand",
        "target or target_at_hand()",
        "target or target_at_hand() or Target.typical('sm_100a')",
        "tests/runtime/test_no_gpu.py::test_without_a_gpu_all_say_the_same",
    ),
)
