"""Mutants of DeepGEMM's buffers and weights and of transformers' layers, a part of those of `compat`."""

from __future__ import annotations

from functools import partial

from mutant import Mutant

WEIGHTS = "tests/compat/test_deep_gemm_weights.py"
OPTIONS = "tests/compat/test_deep_gemm_options.py"
Host = partial(Mutant, archs=())

BUFFERS = (
    Host(
        "a buffer that was destroyed keeps its kernels",
        "missing clean-up",
        "SymmBuffer.destroy",
        "self._kernels.clear()",
        "",
        (f"{OPTIONS}::test_a_buffer_that_was_destroyed_has_nothing",),
    ),
    Host(
        "SMs that were asked for are forgotten",
        "lost data",
        "deep_gemm.buffer:get_num_sms",
        "_asked is not None",
        "False",
        (f"{OPTIONS}::test_sms_are_those_asked_for",),
    ),
    Host(
        "a group's buffer is a rank's alone",
        "wrong base",
        "SymmBuffer.__init__",
        "None if ranks == 1 else group",
        "None",
        (f"{OPTIONS}::test_a_buffer_of_a_group",),
    ),
    Host(
        "a rank counts tokens of all experts",
        "wrong number",
        "calls:_run",
        "problem.experts_per_rank",
        "problem.num_experts",
        (f"{OPTIONS}::test_a_buffer_of_a_group",),
    ),
    Host(
        "scales of A have the rows of those of B",
        "wrong number",
        "transform_sf_into_required_layout",
        "recipe[0 if is_sfa else 1]",
        "recipe[1]",
        (f"{WEIGHTS}::test_a_recipe_of_three_numbers_is_that_of_a_and_of_b",),
    ),
    Host(
        "biases of FP8 weights are dropped on SM90",
        "lost data",
        "transform_weights_for_mega_moe_sm90",
        "(tile_sm90(order_rows_sm90(fc1)), fc1_sf.contiguous(), *ordered)",
        "(tile_sm90(order_rows_sm90(fc1)), fc1_sf.contiguous())",
        (f"{WEIGHTS}::test_sm90_is_the_layers_order",),
    ),
    Host(
        "gate and up of transformers' alternating rows change places",
        "wrong order",
        "transformers:layer_of",
        "[one[:, ::2], one[:, 1::2]]",
        "[one[:, 1::2], one[:, ::2]]",
        ("tests/compat/test_transformers.py::test_a_layer_of_experts_is_theirs",),
    ),
    Host(
        "biases run on Blackwell",
        "missing check",
        "bf16_refusal",
        "torch.cuda.get_device_capability(hidden_states.device)[0] != 9",
        "False",
        ("tests/compat/test_transformers.py::test_what_moe_does_not_take_is_said",),
    ),
)
