from .fused_moe import FC1 as FC1
from .fused_moe import FusedMoeOrder as FusedMoeOrder
from .gemm import DenseOrder as DenseOrder
from .gemm import GemmBlock as GemmBlock
