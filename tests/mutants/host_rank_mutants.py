"""Mutants of what ranks share, of launches' shapes, and of what layers say of their weights."""

from __future__ import annotations

from host_mutant import MOE, case, host

PLACES = "tests/kernels/test_ep_scatter_indices.py::test_bad_indices_are_named"
GATHER = "tests/kernels/test_gather_gemm.py::test_"
RANKS = (
    host("places of other experts pass for its own", "missing check", "check_scatter_indices", "places.clamp(-1, most)", "places", PLACES),
    host(
        "a buffer has what combine alone needs",
        "too narrow",
        "EpMoE.__init__",
        "max(self.dispatch_config.keeps, self.combine_config.keeps)",
        "self.combine_config.keeps",
        "tests/runtime/test_ep_layer.py::test_a_buffer_of_other_kernels_is_refused",
    ),
    host(
        "a lost rank has counted for nobody",
        "lost data",
        "Understudy.play",
        "self._row[silent] = 0",
        "self._row[:] = 0",
        "tests/kernels/test_lost_ranks.py::test_a_rank_that_was_lost_on_its_way_has_counted_for_those_it_reached",
    ),
    host(
        "saved arguments are taken for those filled in since",
        "stale buffer",
        "ArgumentBlock.fill",
        "self.forget()",
        "",
        "tests/runtime/test_launch_arguments.py::test_saved_arguments_come_back_after_others_were_filled_in",
    ),
    host(
        "clusters of two are launched as single CTAs",
        "wrong launch",
        "CudaKernel.__init__",
        "config.cluster > 1",
        "config.cluster > 2",
        f"{MOE}launches_have_the_shape_of_their_configurations",
    ),
)
TENSORS = (
    host(
        "rows of experts are cut to A's alone",
        "too narrow",
        "GatherTensors.rows",
        "min(len(self.a) if self.sources is None else self.sources.numel(), len(self.d))",
        "len(self.a) if self.sources is None else self.sources.numel()",
        f"{GATHER}rows_that_d_has_not_are_cut_off",
    ),
    host(
        "ends on any device",
        "missing check",
        "GatherTensors.check",
        "('a_sf', 'b', 'b_sf', 'ends', 'd')",
        "('a_sf', 'b', 'b_sf', 'd')",
        f"{GATHER}tensors_of_another_device_are_named",
    ),
    host(
        "a list of any length",
        "missing check",
        "GatherTensors._check_sources",
        "problem.check_rows(sources.numel(), 'sources.shape[0]')",
        "",
        f"{GATHER}a_list_is_no_longer_than_a_launch_counts",
    ),
    host(
        "biases begin anywhere",
        "missing check",
        "ExpertCall._check_bias",
        "(kind, (self.layer.num_experts, rows), None, 2 * kind.itemsize)",
        "(kind, (self.layer.num_experts, rows), None, 1)",
        "tests/runtime/test_experts.py::test_biases_and_weights_of_tokens_are_float32_or_bfloat16",
    ),
    host(
        "every tensor that has a name is float32",
        "wrong number",
        "name_of",
        "names.get(tensor.dtype, other or F32)",
        "other or F32",
        "tests/runtime/test_experts.py::test_biases_and_weights_of_tokens_are_float32_or_bfloat16",
    ),
    host(
        "a layer's names are saved without their prefix",
        "lost data",
        "MegaMoE._save_to_state_dict",
        "f'{prefix}{name}'",
        "name",
        "tests/runtime/test_state_dict.py::test_the_loaded_weights_are_those_that_run",
    ),
    host(
        "gradients of logits without the weights' scale",
        "wrong number",
        "top_experts_gradient",
        "gradient.double() * scale",
        "gradient.double()",
        "tests/runtime/test_expert_training.py::test_logits_have_gradients",
    ),
    host(
        "one of two weights laid out is enough",
        "missing check",
        "lies_by_rows",
        "all",
        "any",
        "tests/compat/test_transformers.py::test_transposed_weights_are_laid_out_once",
    ),
    host(
        "arrivals that have wrapped are many",
        "too narrow",
        "Waiting.of",
        "(target - int(state['rank_signal'][RankBarrier.BEFORE_COMBINE])) & 0xFFFFFFFF",
        "target - int(state['rank_signal'][RankBarrier.BEFORE_COMBINE])",
        "tests/kernels/test_lost_ranks.py::test_what_a_launch_lacks_of_lost_ranks",
    ),
    host(
        "results in blocks have the channels that fill them up",
        "wrong number",
        "NodeLayer.as_received",
        "dequantize_e4m3(codes.contiguous(), scales.contiguous(), form.channels).float()[:, :hidden]",
        "dequantize_e4m3(codes.contiguous(), scales.contiguous(), form.channels).float()",
        "tests/runtime/test_nodes.py::test_results_travel_as_they_are_or_in_blocks",
    ),
    host(
        "rows in use are asked for during a capture",
        "too narrow",
        "EpMoE.activate",
        "len(self.rows) if self.capturing else self.memory.rows_in_use()",
        "self.memory.rows_in_use()",
        case("EpMoE", "a capture"),
    ),
    host(
        "ranks' routers begin with the same replica",
        "wrong number",
        "Router.__call__",
        "rank",
        "0",
        "tests/runtime/test_moe_layer.py::test_a_router_chooses",
    ),
    host(
        "biases of two types are taken",
        "missing check",
        "bias_refusal",
        "len({one.dtype for one in biases}) > 1",
        "False",
        "tests/compat/test_transformers.py::test_training_gpt_oss_falls_back",
    ),
)
