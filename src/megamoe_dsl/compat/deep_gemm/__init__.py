"""The fused-MoE entry points of DeepGEMM's Python API on this project's kernels: `import megamoe_dsl.compat.deep_gemm as deep_gemm`.

Signatures are those of the wheel sgl-deep-gemm 0.2.5; docs/howto/drop_in.md says what runs and what differs on purpose.
"""

from . import utils
from .buffer import SM90SymmBuffer, SymmBuffer, get_num_sms, get_symm_buffer_for_mega_moe, get_symm_buffer_for_sm90_mega_moe, set_num_sms
from .calls import bf16_mega_moe, fp8_fp4_mega_moe, fp8_mega_moe, get_block_m_for_mega_moe, nvfp4_mega_moe, transform_scales_for_mega_moe
from .pre_dispatch import mega_moe_pre_dispatch, mega_moe_pre_dispatch_sm90
from .weights import transform_sf_into_required_layout, transform_weights_for_mega_moe, transform_weights_for_mega_moe_sm90

__all__ = [
    "SM90SymmBuffer", "SymmBuffer", "bf16_mega_moe", "fp8_fp4_mega_moe", "fp8_mega_moe", "get_block_m_for_mega_moe", "get_num_sms",
    "get_symm_buffer_for_mega_moe", "get_symm_buffer_for_sm90_mega_moe", "mega_moe_pre_dispatch", "mega_moe_pre_dispatch_sm90",
    "nvfp4_mega_moe", "set_num_sms", "transform_scales_for_mega_moe", "transform_sf_into_required_layout",
    "transform_weights_for_mega_moe", "transform_weights_for_mega_moe_sm90", "utils",
]  # fmt: skip
